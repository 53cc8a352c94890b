//! TCP connections through the wide-area protocol for Python: `WanProxy`.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::PyDict;
use waystage_proxy::{Destination, Kind, Notice, Place, Proxy, ProxyOptions, Rule};
use waystage_transport::identity::{Identity, PublicKey};
use waystage_transport::Peer;

use crate::copy::duration;
use crate::remote_copy::{mode_of, raise};

/// How often a wait looks whether Python has had a signal.
const LOOK_ROUND: Duration = Duration::from_millis(100);

pub(crate) fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<WanProxy>()?;
    module.add_function(wrap_pyfunction!(wan_check_rule, module)?)
}

/// Whether a rule of a proxy is about addresses, and not about names or all hosts. ValueError where the line is no rule.
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

/// Connections of TCP between this host and what a server reaches.
#[pyclass(frozen, module = "waystage._native")]
struct WanProxy(Proxy);

#[pymethods]
impl WanProxy {
    #[new]
    #[allow(clippy::too_many_arguments, reason = "in Python they are keywords")]
    #[pyo3(signature = (places, reverse, rules, *, host, port, user, key, trusted, mode, rate_bytes_per_s, udp_wait_s, wait_s))]
    fn new(
        py: Python<'_>,
        places: Vec<(String, String, String)>,
        reverse: Vec<(String, String)>,
        rules: Vec<String>,
        host: String,
        port: u16,
        user: String,
        key: PathBuf,
        trusted: Option<&str>,
        mode: &str,
        rate_bytes_per_s: Option<u64>,
        udp_wait_s: Option<f64>,
        wait_s: f64,
    ) -> PyResult<Self> {
        let failed = |error| raise(py, error);
        let places = places
            .iter()
            .map(|(kind, listen, to)| {
                let kind = match kind.as_str() {
                    "socks" => Kind::Socks,
                    "forward" => Kind::Fixed(destination(to)?),
                    "redirect" => Kind::Redirect,
                    "tproxy" => Kind::Transparent,
                    _ => {
                        let what = format!("{kind:?} is no kind of place: see WanProxy");
                        return Err(PyValueError::new_err(what));
                    }
                };
                Ok(Place { listen: address(listen)?, kind })
            })
            .collect::<PyResult<_>>()?;
        let reverse = reverse
            .iter()
            .map(|(listen, to)| Ok((address(listen)?, destination(to)?)))
            .collect::<PyResult<_>>()?;
        let options = ProxyOptions {
            server: Peer {
                host,
                port,
                user,
                identity: py.detach(|| Identity::load(&key)).map_err(failed)?,
                trusted: trusted.map(PublicKey::parse).transpose().map_err(failed)?,
                mode: mode_of(mode)?,
                rate_bytes_per_s,
                udp_wait: udp_wait_s.map(duration).transpose()?,
            },
            places,
            reverse,
            rules: rules.iter().map(|line| rule(line)).collect::<PyResult<_>>()?,
            wait: duration(wait_s)?,
        };
        py.detach(|| Proxy::start(options)).map(Self).map_err(failed)
    }

    /// Where it listens, place by place.
    #[getter]
    fn listening(&self) -> Vec<String> {
        self.0.listening().iter().map(ToString::to_string).collect()
    }

    /// Whether it has ended within `timeout_s`; returns early where there is something to tell. WanError where it could not go on.
    fn wait(&self, py: Python<'_>, timeout_s: f64) -> PyResult<bool> {
        let deadline = Instant::now() + duration(timeout_s)?;
        let left = deadline.saturating_duration_since(Instant::now()).min(LOOK_ROUND);
        match py.detach(|| self.0.wait(left)) {
            Some(Ok(())) => Ok(true),
            Some(Err(error)) => Err(raise(py, error)),
            None => Ok(false),
        }
    }

    /// What there is to tell since the last call, as dictionaries with the key `event`.
    fn notices<'py>(&self, py: Python<'py>) -> PyResult<Vec<Bound<'py, PyDict>>> {
        self.0.notices().into_iter().map(|notice| as_dict(py, notice)).collect()
    }

    /// Numbers by name.
    fn counts<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let by_name = PyDict::new(py);
        for (name, count) in self.0.counts() {
            by_name.set_item(name, count)?;
        }
        Ok(by_name)
    }

    /// How the session is doing, by name; empty where there is none.
    fn connection<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let by_name = PyDict::new(py);
        for (name, number) in self.0.connection() {
            by_name.set_item(name, number)?;
        }
        Ok(by_name)
    }

    /// Take no more connections, and end with the last.
    fn drain(&self) {
        self.0.drain();
    }

    /// End every connection; all threads are gone when this returns.
    fn stop(&self, py: Python<'_>) {
        py.detach(|| self.0.stop());
    }
}

fn as_dict(py: Python<'_>, notice: Notice) -> PyResult<Bound<'_, PyDict>> {
    let told = PyDict::new(py);
    match notice {
        Notice::Connection(record) => {
            told.set_item("event", "connection")?;
            told.set_item("text", record.to_string())?;
            told.set_item("origin", record.origin)?;
            told.set_item("target", record.target)?;
            told.set_item("way", record.way)?;
            told.set_item("sent_bytes", record.sent_bytes)?;
            told.set_item("received_bytes", record.received_bytes)?;
            told.set_item("seconds", record.seconds)?;
            told.set_item("end", record.end)?;
            told.set_item("why", record.why)?;
        }
        Notice::Session { udp, reverse, notes } => {
            told.set_item("event", "session")?;
            told.set_item("udp", udp)?;
            told.set_item("reverse", reverse)?;
            told.set_item("notes", notes)?;
        }
        Notice::Lost(why) => {
            told.set_item("event", "lost")?;
            told.set_item("why", why)?;
        }
    }
    Ok(told)
}
