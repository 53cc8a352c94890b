//! Staging over TCP between network namespaces: `FileServer`, `FileTransfer`.

use std::net::{Ipv4Addr, SocketAddrV4};
use std::path::PathBuf;

use parking_lot::Mutex;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use waystage_staging::{Direction, Module, Request, Server, Step, Transfer};

use crate::errors::OrRaise;
use crate::task::{duration, wait};

pub(crate) fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<FileServer>()?;
    module.add_class::<FileTransfer>()
}

/// A server of files in a network namespace.
#[pyclass(frozen, module = "waystage._native")]
struct FileServer(Mutex<Server>);

#[pymethods]
impl FileServer {
    #[new]
    #[pyo3(signature = (*, address, port, root, modules, namespace=None))]
    fn new(
        py: Python<'_>,
        address: &str,
        port: u16,
        root: PathBuf,
        modules: Vec<(String, bool)>,
        namespace: Option<String>,
    ) -> PyResult<Self> {
        let address = socket_address(address, port)?;
        let module = |(name, writable)| Module { name, writable };
        let modules = modules.into_iter().map(module).collect();
        let server = py
            .detach(|| Server::start(namespace.as_deref(), address, &root, modules))
            .or_raise()?;
        Ok(Self(Mutex::new(server)))
    }

    /// The port on which it listens.
    #[getter]
    fn port(&self) -> u16 {
        self.0.lock().address().port()
    }

    /// Why it no longer serves; None while it does.
    fn failure(&self, py: Python<'_>) -> Option<String> {
        py.detach(|| self.0.lock().failure())
    }

    /// End it, and every transfer with it.
    fn stop(&self, py: Python<'_>) {
        py.detach(|| self.0.lock().stop());
    }
}

/// A transfer in progress, in a thread.
#[pyclass(frozen, module = "waystage._native")]
struct FileTransfer(Transfer);

/// Files, the directory that they are copied into, and how often.
type PyStep = (Vec<Vec<u8>>, Vec<u8>, Option<u64>);

#[pymethods]
impl FileTransfer {
    #[new]
    #[pyo3(signature = (*, address, port, way, steps, namespace=None))]
    fn new(
        py: Python<'_>,
        address: &str,
        port: u16,
        way: &str,
        steps: Vec<PyStep>,
        namespace: Option<String>,
    ) -> PyResult<Self> {
        let direction = match way {
            "get" => Direction::Get,
            "put" => Direction::Put,
            _ => {
                return Err(PyValueError::new_err(format!("way {way:?} is neither get nor put")));
            }
        };
        let step = |(sources, directory, times)| Step { sources, directory, times };
        let steps = steps.into_iter().map(step).collect();
        let request =
            Request { namespace, server: socket_address(address, port)?, direction, steps };
        py.detach(|| Transfer::start(request)).map(Self).or_raise()
    }

    /// (bytes, seconds) once it has ended well, None where it still runs after `timeout_s`.
    #[pyo3(signature = (timeout_s=None))]
    fn wait(&self, py: Python<'_>, timeout_s: Option<f64>) -> PyResult<Option<(u64, f64)>> {
        let timeout = timeout_s.map(duration).transpose()?;
        let ended = wait(py, timeout, |timeout| self.0.wait(Some(timeout)))?;
        let moved = ended.transpose().or_raise()?;
        Ok(moved.map(|moved| (moved.bytes, moved.took.as_secs_f64())))
    }

    /// Whether it ended within `timeout_s`, well or not.
    #[pyo3(signature = (timeout_s=0.0))]
    fn ended(&self, py: Python<'_>, timeout_s: f64) -> PyResult<bool> {
        let timeout = duration(timeout_s)?;
        Ok(py.detach(|| self.0.wait(Some(timeout))).is_some())
    }

    /// Bytes of complete files so far.
    #[getter]
    fn moved(&self) -> u64 {
        self.0.bytes()
    }

    /// End it; files in progress never get their names.
    fn cancel(&self, py: Python<'_>) {
        py.detach(|| self.0.cancel());
    }
}

fn socket_address(address: &str, port: u16) -> PyResult<SocketAddrV4> {
    let address: Ipv4Addr = address
        .parse()
        .map_err(|_| PyValueError::new_err(format!("{address:?} is not an IPv4 address")))?;
    Ok(SocketAddrV4::new(address, port))
}
