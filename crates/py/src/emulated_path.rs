//! Emulated wide-area paths: `EmulatedPath`.

use std::net::SocketAddr;
use std::time::Duration;

use parking_lot::Mutex;
use pyo3::exceptions::PyIndexError;
use pyo3::prelude::*;
use pyo3::types::PyDict;
use waystage_aqm::{Aqm, Policer, QueueSpec};
use waystage_sync::ProcessLocal;
use waystage_wanpath::forwarder::{Forwarder, ForwarderConfig};
use waystage_wanpath::model::{Bursts, Spec};
use waystage_wanpath::path::{join, End};
use waystage_wanpath::relay::relay;
use waystage_wanpath::report::{Report, LATENESS_US};

use crate::errors::{OrRaise, WanPathError};
use crate::task::by_name;

pub(crate) fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<EmulatedPath>()
}

/// One direction, as keys of a dictionary.
#[derive(FromPyObject)]
#[pyo3(from_item_all)]
struct Direction {
    rate_bps: f64,
    delay_ns: u64,
    jitter_ns: u64,
    buffer_bytes: u64,
    policer: Option<(f64, u64)>,
    red: Option<(f64, f64)>,
    codel: bool,
    ecn: bool,
    mark_bytes: u64,
    loss: f64,
    bursts: Option<(f64, f64, f64)>,
    reorder: f64,
    reorder_ns: u64,
    duplicate: f64,
    corrupt: f64,
    mtu: u64,
}

impl Direction {
    fn queue(&self) -> QueueSpec {
        let red = self.red.map(|(min, max)| Aqm::Red { min, max });
        QueueSpec {
            policer: self
                .policer
                .map(|(rate_bps, bucket_bytes)| Policer { rate_bps, bucket_bytes }),
            aqm: red.unwrap_or(if self.codel { Aqm::CoDel } else { Aqm::Tail }),
            ecn: self.ecn,
            mark_bytes: self.mark_bytes,
        }
    }

    fn spec(&self) -> Spec {
        Spec {
            rate_bps: self.rate_bps,
            delay_ns: self.delay_ns,
            jitter_ns: self.jitter_ns,
            buffer_bytes: self.buffer_bytes,
            queue: self.queue(),
            loss: self.loss,
            bursts: self.bursts.map(|(begin, end, loss)| Bursts { begin, end, loss }),
            reorder: self.reorder,
            reorder_ns: self.reorder_ns,
            duplicate: self.duplicate,
            corrupt: self.corrupt,
            mtu: self.mtu,
        }
    }
}

/// How it works, as keys of a dictionary.
#[derive(FromPyObject)]
#[pyo3(from_item_all)]
struct Work {
    seed: u64,
    tick_ns: u64,
    late_ns: u64,
    memory_bytes: usize,
}

impl Work {
    fn working(&self) -> ForwarderConfig {
        ForwarderConfig {
            tick: Duration::from_nanos(self.tick_ns),
            late: Duration::from_nanos(self.late_ns),
            memory_bytes: self.memory_bytes,
        }
    }
}

/// A path that carries packets until it is ended or dropped.
#[pyclass(frozen, module = "waystage._native")]
struct EmulatedPath(ProcessLocal<Mutex<[Forwarder; 2]>>);

impl EmulatedPath {
    fn with<T>(&self, act: impl FnOnce(&mut [Forwarder; 2]) -> T) -> T {
        act(&mut self.0.lock())
    }
}

#[pymethods]
impl EmulatedPath {
    #[staticmethod]
    fn join(
        py: Python<'_>,
        namespaces: (Option<String>, Option<String>),
        devices: (String, String),
        forward: Direction,
        back: Direction,
        work: Work,
    ) -> PyResult<Self> {
        let ends = [
            End { namespace: namespaces.0.as_deref(), device: &devices.0 },
            End { namespace: namespaces.1.as_deref(), device: &devices.1 },
        ];
        let specs = [forward.spec(), back.spec()];
        let forwarders = py.detach(|| join(ends, specs, work.seed, work.working())).or_raise()?;
        Ok(Self(ProcessLocal::new(Mutex::new(forwarders))))
    }

    /// The address it listens at comes with it: a port of 0 becomes a real one.
    #[staticmethod]
    fn relay(
        py: Python<'_>,
        listen: &str,
        to: &str,
        forward: Direction,
        back: Direction,
        work: Work,
    ) -> PyResult<(Self, String)> {
        let address = |text: &str| {
            text.parse::<SocketAddr>()
                .map_err(|_| WanPathError::new_err(format!("{text} is no ADDRESS:PORT")))
        };
        let (listen, to) = (address(listen)?, address(to)?);
        let specs = [forward.spec(), back.spec()];
        let (forwarders, at) =
            py.detach(|| relay(listen, to, specs, work.seed, work.working())).or_raise()?;
        Ok((Self(ProcessLocal::new(Mutex::new(forwarders))), at.to_string()))
    }

    fn change(&self, direction: usize, spec: Direction) -> PyResult<()> {
        let spec = spec.spec();
        spec.check().or_raise()?;
        self.with(|forwarders| {
            let forwarder = forwarders
                .get(direction)
                .ok_or_else(|| PyIndexError::new_err("a path has two directions, 0 and 1"))?;
            forwarder.change(spec);
            Ok(())
        })
    }

    fn reports<'py>(&self, py: Python<'py>) -> PyResult<Vec<Bound<'py, PyDict>>> {
        let reports: Vec<Report> =
            self.with(|forwarders| forwarders.iter().map(Forwarder::report).collect());
        reports.iter().map(|report| as_dict(py, report)).collect()
    }

    fn ended(&self) -> bool {
        self.with(|forwarders| forwarders.iter().any(Forwarder::ended))
    }

    fn end(&self, py: Python<'_>) {
        py.detach(|| self.with(|forwarders| forwarders.iter_mut().for_each(Forwarder::end)));
    }
}

fn as_dict<'py>(py: Python<'py>, report: &Report) -> PyResult<Bound<'py, PyDict>> {
    let counts = &report.counts;
    let counts = [
        ("in", counts.packets),
        ("in_bytes", counts.bytes),
        ("out", report.out),
        ("out_bytes", report.out_bytes),
        ("lost_random", counts.lost_random),
        ("lost_burst", counts.lost_burst),
        ("lost_buffer", counts.overflowed),
        ("lost_policer", counts.policed),
        ("lost_early", counts.dropped_early),
        ("marked", counts.marked),
        ("too_large", counts.too_large),
        ("duplicated", counts.duplicated),
        ("corrupted", counts.corrupted),
        ("held_back", counts.held),
        ("reordered", report.reordered),
        ("queued_bytes", report.queued_bytes),
        ("most_queued_bytes", counts.max_queued),
        ("under_way", report.in_flight),
        ("memory_bytes", report.memory_bytes),
        ("late", report.late),
        ("read_late", report.read_late),
        ("unread", report.unread),
        ("refused", report.refused),
        ("no_memory", report.no_memory),
        ("unusable", report.unusable),
        ("overflow", report.overflow()),
    ];
    let found = by_name(py, counts)?;
    let lateness = &report.lateness;
    let late = PyDict::new(py);
    let total = lateness.total().max(1);
    late.set_item("mean_us", report.late_sum_ns as f64 / 1e3 / total as f64)?;
    for (key, quantile) in [("p50_us", 0.5), ("p99_us", 0.99), ("p999_us", 0.999)] {
        late.set_item(key, lateness.quantile_ns(quantile) as f64 / 1e3)?;
    }
    late.set_item("most_us", lateness.largest_ns() as f64 / 1e3)?;
    found.set_item("lateness", late)?;
    let bounds = LATENESS_US.iter().map(|us| Some(*us)).chain([None]);
    let classes: Vec<_> = bounds.zip(report.classes).filter(|class| class.1 > 0).collect();
    found.set_item("lateness_histogram", classes)?;
    found.set_item("wrong_share", report.wrong_share())?;
    found.set_item("valid", report.valid())?;
    found.set_item("ended", report.ended.clone())?;
    Ok(found)
}
