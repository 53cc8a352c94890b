//! Probes of the path to another host: `WanProbe`.

use std::sync::mpsc::{channel, RecvTimeoutError};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use parking_lot::Mutex;
use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;
use pyo3::types::PyDict;
use waystage_pacing::{FlowCounts, Gate};
use waystage_probe::{Count, Echo, Probe, ProbeRequest, Reached, Sent, Streamed, Train};
use waystage_transport::{Error, Peer};

use crate::errors::OrRaise;
use crate::peer::PyPeer;
use crate::task::{by_name, duration, wait, Paced, Task};

pub(crate) fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<WanProbe>()
}

/// Number, when it was sent, round trip, there and back, in nanoseconds.
type PyEcho = (u32, u64, u64, i64, i64);

/// A session with a server.
#[pyclass(frozen, extends = Task, module = "waystage._native")]
struct WanProbe(Arc<Probe>);

impl Paced for Probe {
    fn wait(&self, timeout: Duration) -> Option<PyResult<bool>> {
        self.wait(timeout).then_some(Ok(true))
    }

    fn progress(&self) -> Vec<(&'static str, u64)> {
        vec![("bytes", self.pace().bytes())]
    }

    fn cancel(&self) {
        self.stop();
    }

    fn gate(&self) -> &Gate {
        &self.pace().gate
    }

    fn flow(&self) -> FlowCounts {
        self.pace().counts(0)
    }
}

/// Run `work` in a thread, so that a signal interrupts the wait for it: then `stop` ends it.
pub(crate) fn watched<T: Send + 'static, E: Send + 'static>(
    py: Python<'_>,
    work: impl FnOnce() -> Result<T, E> + Send + 'static,
    stop: impl FnOnce(JoinHandle<()>) + Send,
) -> PyResult<T>
where
    Result<T, E>: OrRaise<T>,
{
    let (send, receive) = channel();
    let thread = std::thread::Builder::new()
        .name("wan".to_owned())
        // After a signal nothing receives.
        .spawn(move || drop(send.send(work())))?;
    let receive = Mutex::new(receive);
    let waited = wait(py, None, |timeout| match receive.lock().recv_timeout(timeout) {
        Err(RecvTimeoutError::Timeout) => None,
        ended => Some(ended.ok()),
    });
    match waited {
        Ok(Some(Some(result))) => result.or_raise(),
        Ok(_) => Err(PyRuntimeError::new_err("the session's thread has died")),
        Err(signal) => {
            py.detach(|| stop(thread));
            Err(signal)
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
                // A panic has been reported on stderr.
                drop(thread.join());
            },
        )
    }
}

#[pymethods]
impl WanProbe {
    #[new]
    fn new(py: Python<'_>, peer: PyPeer) -> PyResult<PyClassInitializer<Self>> {
        let Peer { host, port, user, identity, trusted, .. } = peer.open(py)?;
        let request = ProbeRequest { host, port, user, identity, trusted };
        // An attempt to connect has a timeout; a signal does not wait for it.
        let probe = watched(py, move || Probe::start(request), drop)?;
        Ok(Task::handle(probe, Self))
    }

    /// The server's address.
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
        self.0.header_bytes()
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
    #[expect(clippy::too_many_arguments, reason = "keyword arguments of Python")]
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

    /// Close the session.
    fn close(&self, py: Python<'_>) {
        py.detach(|| self.0.close());
    }
}

fn as_dict<'py>(py: Python<'py>, sent: &Sent, count: &Count) -> PyResult<Bound<'py, PyDict>> {
    let counts = [
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
    ];
    let found = by_name(py, counts)?;
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
