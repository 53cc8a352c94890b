//! Staging over TCP between network namespaces: `FileServer`, `FileTransfer`.

use std::net::{Ipv4Addr, SocketAddrV4};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use pyo3::exceptions::{PyRuntimeError, PyValueError};
use pyo3::prelude::*;
use waystage_pacing::{FlowCounts, Gate};
use waystage_staging::{Direction, Module, Request, Server, Step, Transfer};

use crate::errors::OrRaise;
use crate::task::{Paced, Task, Work};

pub(crate) fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<FileServer>()?;
    module.add_class::<FileTransfer>()
}

impl Work for Server {
    fn wait(&self, timeout: Duration) -> Option<PyResult<bool>> {
        self.wait(timeout).map(|error| Err(error).or_raise())
    }

    fn progress(&self) -> Vec<(&'static str, u64)> {
        Vec::new()
    }

    fn cancel(&self) {
        self.stop();
    }
}

/// A server of files in a network namespace.
#[pyclass(frozen, extends = Task, module = "waystage._native")]
struct FileServer(Arc<Server>);

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
    ) -> PyResult<PyClassInitializer<Self>> {
        let address = socket_address(address, port)?;
        let module = |(name, writable)| Module { name, writable };
        let modules = modules.into_iter().map(module).collect();
        let server = py
            .detach(|| Server::start(namespace.as_deref(), address, &root, modules))
            .or_raise()?;
        Ok(Task::handle(server, Self))
    }

    /// The port on which it listens.
    #[getter]
    fn port(&self) -> u16 {
        self.0.address().port()
    }
}

impl Paced for Transfer {
    fn wait(&self, timeout: Duration) -> Option<PyResult<bool>> {
        self.wait(Some(timeout)).map(|outcome| outcome.map(|_| true).or_raise())
    }

    fn progress(&self) -> Vec<(&'static str, u64)> {
        vec![("bytes", self.bytes())]
    }

    fn cancel(&self) {
        self.cancel();
    }

    fn gate(&self) -> &Gate {
        &self.pace().gate
    }

    fn flow(&self) -> FlowCounts {
        self.pace().counts(0)
    }
}

/// A transfer in progress, in a thread.
#[pyclass(frozen, extends = Task, module = "waystage._native")]
struct FileTransfer(Arc<Transfer>);

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
    ) -> PyResult<PyClassInitializer<Self>> {
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
        let transfer = py.detach(|| Transfer::start(request)).or_raise()?;
        Ok(Task::handle(transfer, Self))
    }

    /// (bytes, seconds) of one that has ended well.
    fn result(&self) -> PyResult<(u64, f64)> {
        let running = || PyRuntimeError::new_err("the transfer has not ended");
        let moved = self.0.wait(Some(Duration::ZERO)).ok_or_else(running)?.or_raise()?;
        Ok((moved.bytes, moved.took.as_secs_f64()))
    }
}

fn socket_address(address: &str, port: u16) -> PyResult<SocketAddrV4> {
    let address: Ipv4Addr = address
        .parse()
        .map_err(|_| PyValueError::new_err(format!("{address:?} is not an IPv4 address")))?;
    Ok(SocketAddrV4::new(address, port))
}
