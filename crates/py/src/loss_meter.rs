//! Exact packet loss between namespaces: `LossStream`, `LossMeter`, `LossReport`.

use std::net::Ipv4Addr;

use parking_lot::Mutex;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use waystage_lab::loss_meter::LossMeter;
use waystage_lab::stream::{Report, Stream};

use crate::errors::OrRaise;
use crate::task::duration;

pub(crate) fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<LossStream>()?;
    module.add_class::<StreamLoss>()?;
    module.add_class::<LossReport>()?;
    module.add_class::<PyLossMeter>()
}

/// One stream of probes from a source host to a target host.
#[pyclass(frozen, from_py_object, module = "waystage._native")]
#[derive(Clone)]
struct LossStream(Stream);

#[pymethods]
impl LossStream {
    #[new]
    #[pyo3(signature = (*, source, target, port, rate_pps, dscp=0, source_namespace=None, target_namespace=None))]
    fn new(
        source: &str,
        target: &str,
        port: u16,
        rate_pps: u32,
        dscp: u8,
        source_namespace: Option<String>,
        target_namespace: Option<String>,
    ) -> PyResult<Self> {
        Ok(Self(Stream {
            source_namespace,
            source: address(source)?,
            target_namespace,
            target: address(target)?,
            port,
            dscp,
            rate_pps,
        }))
    }
}

/// What became of one stream.
#[pyclass(frozen, get_all, module = "waystage._native")]
#[derive(Clone)]
struct StreamLoss {
    sent: u64,
    refused: u64,
    skipped: u64,
    received: u64,
    lost: u64,
    duplicated: u64,
    reordered: u64,
    loss_runs: Vec<(u64, u64)>,
    latency_p50_ns: u64,
    latency_p99_ns: u64,
    latency_max_ns: u64,
}

/// What became of all streams.
#[pyclass(frozen, get_all, module = "waystage._native")]
struct LossReport {
    streams: Vec<StreamLoss>,
    sending_s: f64,
    overflowed: u64,
    foreign: u64,
    latency_p50_ns: u64,
    latency_p99_ns: u64,
    latency_max_ns: u64,
}

/// A set of streams with open sockets.
#[pyclass(frozen, name = "LossMeter", module = "waystage._native")]
struct PyLossMeter(Mutex<LossMeter>);

#[pymethods]
impl PyLossMeter {
    #[new]
    #[pyo3(signature = (streams, payload_bytes=64))]
    fn new(py: Python<'_>, streams: Vec<LossStream>, payload_bytes: usize) -> PyResult<Self> {
        let streams = streams.into_iter().map(|stream| stream.0).collect();
        let meter = py.detach(|| LossMeter::open(streams, payload_bytes)).or_raise()?;
        Ok(Self(Mutex::new(meter)))
    }

    /// Send uncounted packets until every stream was received; the indexes of those that were not.
    #[pyo3(signature = (timeout_s=5.0))]
    fn warm_up(&self, py: Python<'_>, timeout_s: f64) -> PyResult<Vec<usize>> {
        let timeout = duration(timeout_s)?;
        py.detach(|| self.with(|meter| meter.warm_up(timeout)))
    }

    /// Begin to send and count.
    fn start(&self, py: Python<'_>) -> PyResult<()> {
        py.detach(|| self.with(LossMeter::start))
    }

    /// Packets sent and received since the start.
    fn totals(&self, py: Python<'_>) -> PyResult<(u64, u64)> {
        py.detach(|| self.with(|meter| Ok(meter.totals())))
    }

    /// Stop sending, wait at most `drain_s` for packets in flight, and report.
    #[pyo3(signature = (drain_s=1.0))]
    fn stop(&self, py: Python<'_>, drain_s: f64) -> PyResult<LossReport> {
        let drain = duration(drain_s)?;
        py.detach(|| self.with(|meter| meter.stop(drain))).map(wrap)
    }
}

impl PyLossMeter {
    fn with<T>(
        &self,
        call: impl FnOnce(&mut LossMeter) -> Result<T, waystage_lab::LossMeterError>,
    ) -> PyResult<T> {
        call(&mut self.0.lock()).or_raise()
    }
}

fn wrap(report: Report) -> LossReport {
    let mut all = waystage_lab::LatencyHistogram::default();
    report.streams.iter().for_each(|stream| all.merge(&stream.latency));
    let streams = report.streams.into_iter().map(|stream| StreamLoss {
        sent: stream.sent,
        refused: stream.refused,
        skipped: stream.skipped,
        received: stream.received,
        lost: stream.lost,
        duplicated: stream.duplicated,
        reordered: stream.reordered,
        loss_runs: stream.loss_runs.iter().map(|run| (run.first, run.count)).collect(),
        latency_p50_ns: stream.latency.quantile_ns(0.5),
        latency_p99_ns: stream.latency.quantile_ns(0.99),
        latency_max_ns: stream.latency.largest_ns(),
    });
    LossReport {
        streams: streams.collect(),
        sending_s: report.sending.as_secs_f64(),
        overflowed: report.overflowed,
        foreign: report.foreign,
        latency_p50_ns: all.quantile_ns(0.5),
        latency_p99_ns: all.quantile_ns(0.99),
        latency_max_ns: all.largest_ns(),
    }
}

fn address(text: &str) -> PyResult<Ipv4Addr> {
    text.parse().map_err(|_| PyValueError::new_err(format!("{text:?} is not an IPv4 address")))
}
