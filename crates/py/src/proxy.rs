//! TCP connections through the wide-area protocol: `WanProxy`.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::PyDict;
use waystage_pacing::FlowCounts;
use waystage_proxy::{Destination, Kind, Notice, Place, Proxy, ProxyOptions, Rule};

use crate::errors::OrRaise;
use crate::peer::PyPeer;
use crate::task::{by_name, duration, Control, Task, Work};

pub(crate) fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<WanProxy>()?;
    module.add_function(wrap_pyfunction!(wan_check_rule, module)?)
}

/// Whether a proxy rule matches addresses rather than names or all hosts. ValueError where the line is no rule.
#[pyfunction]
fn wan_check_rule(line: &str) -> PyResult<bool> {
    rule(line).map(|rule| rule.is_of_addresses())
}

pub(crate) fn rule(line: &str) -> PyResult<Rule> {
    line.parse().map_err(|wrong: String| PyValueError::new_err(wrong))
}

fn address(text: &str) -> PyResult<SocketAddr> {
    let wrong = |_| {
        PyValueError::new_err(format!("{text:?} is no address and port, such as 127.0.0.1:1080"))
    };
    text.parse().map_err(wrong)
}

fn destination(text: &str) -> PyResult<Destination> {
    text.parse().map_err(|wrong: String| PyValueError::new_err(wrong))
}

/// `waystage.native_options.proxies.ProxyOptions`.
#[derive(FromPyObject)]
struct PyProxyOptions {
    listeners: Vec<(String, String, String)>,
    reverse: Vec<(String, String)>,
    rules: Vec<String>,
    wait_s: f64,
}

impl PyProxyOptions {
    fn open(self, py: Python<'_>, server: PyPeer) -> PyResult<ProxyOptions> {
        let place = |(kind, listen, to): &(String, String, String)| {
            let kind = match kind.as_str() {
                "socks" => Kind::Socks,
                "forward" => Kind::Fixed(destination(to)?),
                "redirect" => Kind::Redirect,
                "tproxy" => Kind::Transparent,
                _ => {
                    let known = "socks, forward, redirect or tproxy";
                    return Err(PyValueError::new_err(format!(
                        "a listener is {known}, not {kind:?}"
                    )));
                }
            };
            Ok(Place { listen: address(listen)?, kind })
        };
        let reverse = |(listen, to): &(String, String)| Ok((address(listen)?, destination(to)?));
        Ok(ProxyOptions {
            server: server.open(py)?,
            places: self.listeners.iter().map(place).collect::<PyResult<_>>()?,
            reverse: self.reverse.iter().map(reverse).collect::<PyResult<_>>()?,
            rules: self.rules.iter().map(|line| rule(line)).collect::<PyResult<_>>()?,
            wait: duration(self.wait_s)?,
        })
    }
}

impl Work for Proxy {
    fn wait(&self, timeout: Duration) -> Option<PyResult<bool>> {
        let began = Instant::now();
        match self.wait(timeout) {
            Some(ended) => Some(ended.map(|()| true).or_raise()),
            // It returns early where it has notices.
            None => (began.elapsed() < timeout).then_some(Ok(false)),
        }
    }

    fn progress(&self) -> Vec<(&'static str, u64)> {
        self.counts()
    }

    fn cancel(&self) {
        self.stop();
    }

    fn controls(&self) -> &'static [Control] {
        &[Control::Rate, Control::Pause]
    }

    fn set_rate(&self, bytes_per_s: Option<u64>) {
        self.set_rate(bytes_per_s);
    }

    fn set_paused(&self, paused: bool) {
        self.set_paused(paused);
    }

    fn flow(&self) -> FlowCounts {
        self.flow()
    }
}

/// TCP connections between this host and what a server reaches.
#[pyclass(frozen, extends = Task, module = "waystage._native")]
struct WanProxy(Arc<Proxy>);

#[pymethods]
impl WanProxy {
    #[new]
    fn new(
        py: Python<'_>,
        peer: PyPeer,
        options: PyProxyOptions,
    ) -> PyResult<PyClassInitializer<Self>> {
        let options = options.open(py, peer)?;
        let proxy = py.detach(|| Proxy::start(options)).or_raise()?;
        Ok(Task::handle(proxy, Self))
    }

    /// Where it listens, in the order of the listeners.
    #[getter]
    fn listening(&self) -> Vec<String> {
        self.0.listening().iter().map(ToString::to_string).collect()
    }

    /// Notices since the last call, as dictionaries with the key `event`.
    fn notices<'py>(&self, py: Python<'py>) -> PyResult<Vec<Bound<'py, PyDict>>> {
        self.0.notices().into_iter().map(|notice| as_dict(py, notice)).collect()
    }

    /// Statistics of the session, by name; empty where there is none.
    fn connection<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        by_name(py, self.0.connection())
    }

    /// Stop accepting; end with the last open connection.
    fn drain(&self) {
        self.0.drain();
    }
}

fn as_dict(py: Python<'_>, notice: Notice) -> PyResult<Bound<'_, PyDict>> {
    let found = PyDict::new(py);
    match notice {
        Notice::Connection(record) => {
            found.set_item("event", "connection")?;
            found.set_item("text", record.to_string())?;
            found.set_item("origin", record.origin)?;
            found.set_item("target", record.target)?;
            found.set_item("way", record.way)?;
            found.set_item("sent_bytes", record.sent_bytes)?;
            found.set_item("received_bytes", record.received_bytes)?;
            found.set_item("seconds", record.seconds)?;
            found.set_item("end", record.end)?;
            found.set_item("why", record.why)?;
        }
        Notice::Session { udp, reverse, notes } => {
            found.set_item("event", "session")?;
            found.set_item("udp", udp)?;
            found.set_item("reverse", reverse)?;
            found.set_item("notes", notes)?;
        }
        Notice::Lost(why) => {
            found.set_item("event", "lost")?;
            found.set_item("why", why)?;
        }
    }
    Ok(found)
}
