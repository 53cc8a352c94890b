//! The mover of local networks for Python: `FileServer`, `FileTransfer`.

use std::net::{Ipv4Addr, SocketAddrV4};
use std::path::PathBuf;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use pyo3::create_exception;
use pyo3::exceptions::{PyRuntimeError, PyValueError};
use pyo3::prelude::*;
use waystage_transfer::lan::{self, FilePair, Module, Request, Server, Step, Way};

create_exception!(
    waystage._native,
    TransferError,
    PyRuntimeError,
    "Files that cannot be moved or served; `kind` says what can be acted on."
);

/// How often a wait looks whether Python has had a signal.
const LOOK_ROUND: Duration = Duration::from_millis(200);

pub(crate) fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add("TransferError", module.py().get_type::<TransferError>())?;
    module.add_class::<FileServer>()?;
    module.add_class::<FileTransfer>()
}

/// A server of files in a network namespace.
#[pyclass(frozen, module = "waystage._native")]
struct FileServer(Mutex<Server>);

#[pymethods]
impl FileServer {
    #[new]
    #[pyo3(signature = (*, address, port, modules, namespace=None))]
    fn new(
        py: Python<'_>,
        address: &str,
        port: u16,
        modules: Vec<(String, PathBuf, bool)>,
        namespace: Option<String>,
    ) -> PyResult<Self> {
        let address = socket_address(address, port)?;
        let modules = modules
            .into_iter()
            .map(|(name, root, writable)| Module { name, root, writable })
            .collect();
        let server = py
            .detach(|| Server::start(namespace.as_deref(), address, modules))
            .map_err(|error| raise(py, error))?;
        Ok(Self(Mutex::new(server)))
    }

    /// The port on which it listens.
    #[getter]
    fn port(&self) -> PyResult<u16> {
        Ok(self.lock()?.address().port())
    }

    /// Why it no longer serves; None while it does.
    fn failure(&self, py: Python<'_>) -> PyResult<Option<String>> {
        py.detach(|| Ok(self.lock()?.failure()))
    }

    /// End it, and every transfer with it.
    fn stop(&self, py: Python<'_>) -> PyResult<()> {
        py.detach(|| {
            self.lock()?.stop();
            Ok(())
        })
    }
}

impl FileServer {
    fn lock(&self) -> PyResult<std::sync::MutexGuard<'_, Server>> {
        self.0.lock().map_err(|_| PyRuntimeError::new_err("an earlier call panicked"))
    }
}

/// A transfer under way in a thread of its own.
#[pyclass(frozen, module = "waystage._native")]
struct FileTransfer(lan::Transfer);

/// Pairs of a path here and a name there, and how often they are moved.
type PyStep = (Vec<(PathBuf, Vec<u8>)>, Option<u64>);

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
        let way = match way {
            "get" => Way::Get,
            "put" => Way::Put,
            _ => {
                return Err(PyValueError::new_err(format!("way {way:?} is neither get nor put")));
            }
        };
        let steps = steps.into_iter().map(|(files, times)| Step {
            files: files.into_iter().map(|(local, remote)| FilePair { local, remote }).collect(),
            times,
        });
        let request = Request {
            namespace,
            server: socket_address(address, port)?,
            way,
            steps: steps.collect(),
        };
        py.detach(|| lan::Transfer::start(request)).map(Self).map_err(|error| raise(py, error))
    }

    /// (bytes, seconds) once it has ended well, None where it still runs after `timeout_s`.
    #[pyo3(signature = (timeout_s=None))]
    fn wait(&self, py: Python<'_>, timeout_s: Option<f64>) -> PyResult<Option<(u64, f64)>> {
        let deadline = match timeout_s {
            Some(seconds) => Instant::now().checked_add(duration(seconds)?),
            None => None,
        };
        loop {
            let left = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
            let slice = left.map_or(LOOK_ROUND, |left| left.min(LOOK_ROUND));
            match py.detach(|| self.0.wait(Some(slice))) {
                Some(Ok(moved)) => return Ok(Some((moved.bytes, moved.took.as_secs_f64()))),
                Some(Err(error)) => return Err(raise(py, error)),
                None if left.is_some_and(|left| left <= slice) => return Ok(None),
                None => py.check_signals()?,
            }
        }
    }

    /// Whether it ended within `timeout_s`, well or not.
    #[pyo3(signature = (timeout_s=0.0))]
    fn ended(&self, py: Python<'_>, timeout_s: f64) -> PyResult<bool> {
        let timeout = duration(timeout_s)?;
        Ok(py.detach(|| self.0.wait(Some(timeout))).is_some())
    }

    /// Bytes of files that have arrived whole so far.
    #[getter]
    fn moved(&self) -> u64 {
        self.0.bytes()
    }

    /// End it now; what arrived here in part is gone when this returns.
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

fn duration(seconds: f64) -> PyResult<Duration> {
    Duration::try_from_secs_f64(seconds)
        .map_err(|_| PyValueError::new_err(format!("{seconds} is not a number of seconds")))
}

fn raise(py: Python<'_>, error: lan::TransferError) -> PyErr {
    let raised = TransferError::new_err(error.text);
    match raised.value(py).setattr("kind", error.kind.name()) {
        Ok(()) => raised,
        Err(odd) => odd,
    }
}
