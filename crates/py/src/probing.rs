//! Probes of a path to another host for Python: `WanProbe`.

use std::path::PathBuf;
use std::sync::mpsc::{channel, RecvTimeoutError};
use std::sync::Arc;
use std::thread::JoinHandle;

use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;
use pyo3::types::PyDict;
use waystage_probe::{Count, Echo, Probe, ProbeRequest, Reached, Sent, Streamed, Train};
use waystage_transport::identity::{Identity, PublicKey};
use waystage_transport::Error;

use crate::copy::duration;
use crate::remote_copy::{raise, LOOK_ROUND};

pub(crate) fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<WanProbe>()
}

/// Number, when it was sent, round trip, there and back, in nanoseconds.
type PyEcho = (u32, u64, u64, i64, i64);

/// A session with a server.
#[pyclass(frozen, module = "waystage._native")]
struct WanProbe(Arc<Probe>);

/// Do what takes long in a thread of its own, and look meanwhile whether Python has had a signal.
fn watched<T: Send + 'static>(
    py: Python<'_>,
    work: impl FnOnce() -> Result<T, Error> + Send + 'static,
    stop: impl FnOnce(JoinHandle<()>) + Send,
) -> PyResult<T> {
    let (told, done) = channel();
    let thread = std::thread::Builder::new()
        .name("wan-probing".to_owned())
        // Nobody waits any more after a signal.
        .spawn(move || drop(told.send(work())))?;
    // Only one thread at a time may hold it: it goes there and comes back.
    let mut done = done;
    loop {
        let waited;
        (waited, done) = py.detach(move || (done.recv_timeout(LOOK_ROUND), done));
        match waited {
            Ok(result) => {
                return result.map_err(|error| raise(py, error));
            }
            Err(RecvTimeoutError::Disconnected) => {
                return Err(PyRuntimeError::new_err("the probe's thread has died"));
            }
            Err(RecvTimeoutError::Timeout) => {
                if let Err(signal) = py.check_signals() {
                    py.detach(|| stop(thread));
                    return Err(signal);
                }
            }
        }
    }
}

impl WanProbe {
    fn watched<T: Send + 'static>(
        &self,
        py: Python<'_>,
        work: impl FnOnce(&Probe) -> Result<T, Error> + Send + 'static,
    ) -> PyResult<T> {
        let probe = Arc::clone(&self.0);
        watched(
            py,
            move || work(&probe),
            |thread| {
                self.0.stop();
                // It has told the process's stderr if it panicked.
                drop(thread.join());
            },
        )
    }
}

#[pymethods]
impl WanProbe {
    #[new]
    #[pyo3(signature = (host, port, *, user, key, trusted))]
    fn new(
        py: Python<'_>,
        host: String,
        port: u16,
        user: String,
        key: PathBuf,
        trusted: Option<&str>,
    ) -> PyResult<Self> {
        let failed = |error| raise(py, error);
        let request = ProbeRequest {
            host,
            port,
            user,
            identity: py.detach(|| Identity::load(&key)).map_err(failed)?,
            trusted: trusted.map(PublicKey::parse).transpose().map_err(failed)?,
        };
        // A connection that does not come about ends by its own time; a signal need not wait for it.
        let probe = watched(py, move || Probe::start(request).map(Arc::new), drop)?;
        Ok(Self(probe))
    }

    /// Where the server was found.
    #[getter]
    fn server(&self) -> String {
        self.0.server().to_string()
    }

    #[getter]
    fn most_rate_bytes_per_s(&self) -> u64 {
        self.0.most_rate()
    }

    #[getter]
    fn longest_s(&self) -> f64 {
        self.0.longest().as_secs_f64()
    }

    #[getter]
    fn unseen_bytes(&self) -> u32 {
        self.0.unseen_bytes()
    }

    /// Whether the server offers UDP, and whether packets get there, and back.
    fn reach(&self, py: Python<'_>, wait_s: f64) -> PyResult<(bool, bool, bool)> {
        let wait = duration(wait_s)?;
        let Reached { offered, up, down } = self.watched(py, move |probe| probe.reach(wait))?;
        Ok((offered, up, down))
    }

    /// Each echo that was answered.
    fn echoes(
        &self,
        py: Python<'_>,
        count: u32,
        interval_s: f64,
        wait_s: f64,
    ) -> PyResult<Vec<PyEcho>> {
        let (interval, wait) = (duration(interval_s)?, duration(wait_s)?);
        let found = self.watched(py, move |probe| probe.echoes(count, interval, wait))?;
        let taken = |echo: Echo| {
            (echo.number, echo.sent_ns, echo.round_trip_ns, echo.there_ns, echo.back_ns)
        };
        Ok(found.into_iter().map(taken).collect())
    }

    /// What became of a train, by name.
    #[pyo3(signature = (up, *, packets, bytes, interval_ns, checksum, quiet_s))]
    #[allow(clippy::too_many_arguments, reason = "in Python they are keywords")]
    fn train<'py>(
        &self,
        py: Python<'py>,
        up: bool,
        packets: u32,
        bytes: u32,
        interval_ns: u64,
        checksum: bool,
        quiet_s: f64,
    ) -> PyResult<Bound<'py, PyDict>> {
        let train = Train { packets, bytes, interval_ns, checksum };
        let quiet = duration(quiet_s)?;
        let (sent, count) = self.watched(py, move |probe| probe.train(up, train, quiet))?;
        as_dict(py, &sent, &count)
    }

    /// What a TCP connection carried, by name.
    fn stream<'py>(
        &self,
        py: Python<'py>,
        up: bool,
        duration_s: f64,
    ) -> PyResult<Bound<'py, PyDict>> {
        let time = duration(duration_s)?;
        let carried = self.watched(py, move |probe| probe.stream(up, time))?;
        let Streamed { bytes, ns, late_bytes, congestion, retransmits, rtt_us, window_bytes } =
            carried;
        let found = PyDict::new(py);
        found.set_item("bytes", bytes)?;
        found.set_item("ns", ns)?;
        found.set_item("late_bytes", late_bytes)?;
        found.set_item("congestion", congestion)?;
        found.set_item("retransmits", retransmits)?;
        found.set_item("rtt_us", rtt_us)?;
        found.set_item("window_bytes", window_bytes)?;
        Ok(found)
    }

    /// Say goodbye; the server's end is over, too.
    fn close(&self, py: Python<'_>) {
        py.detach(|| self.0.close());
    }
}

fn as_dict<'py>(py: Python<'py>, sent: &Sent, count: &Count) -> PyResult<Bound<'py, PyDict>> {
    let found = PyDict::new(py);
    for (key, value) in [
        ("sent", sent.packets),
        ("refused", sent.refused),
        ("first_sent_ns", sent.first_ns),
        ("last_sent_ns", sent.last_ns),
        ("late", sent.late),
        ("latest_ns", sent.latest_ns),
        ("given_up_ns", sent.given_up_ns),
        ("received", count.received),
        ("duplicated", count.duplicated),
        ("reordered", count.reordered),
        ("reordered_by", count.reordered_by),
        ("damaged", count.damaged),
        ("dropped_here", count.dropped_here),
        ("first_received_ns", count.first_ns),
        ("last_received_ns", count.last_ns),
    ] {
        found.set_item(key, value)?;
    }
    found.set_item("bare", sent.bare)?;
    let delays = &count.delays;
    found.set_item(
        "delays_ns",
        (delays.least_ns, delays.median_ns, delays.p99_ns, delays.most_ns),
    )?;
    let parts: Vec<(u32, i64, i64)> =
        count.parts.iter().map(|part| (part.received, part.least_ns, part.mean_ns)).collect();
    found.set_item("parts", parts)?;
    Ok(found)
}
