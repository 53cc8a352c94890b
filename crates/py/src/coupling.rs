//! The process of a node that holds pieces of coupled names: `CouplingService`.

use std::net::{SocketAddr, ToSocketAddrs};
use std::path::PathBuf;

use pyo3::exceptions::{PyOSError, PyValueError};
use pyo3::prelude::*;
use waystage_coupling::address;
use waystage_coupling::service::{Options, Service};
use waystage_sync::ProcessLocal;

use crate::task::duration;

pub(crate) fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<CouplingService>()
}

/// Holds pieces of coupled names, and their directories, until `stop`.
#[pyclass(frozen, module = "waystage._native")]
struct CouplingService(ProcessLocal<Service>);

#[pymethods]
impl CouplingService {
    #[new]
    #[pyo3(signature = (socket, token, *, listen=None, lease_s=30.0, memory_bytes=1 << 40, host=None))]
    fn new(
        socket: PathBuf,
        token: &str,
        listen: Option<&str>,
        lease_s: f64,
        memory_bytes: u64,
        host: Option<String>,
    ) -> PyResult<Self> {
        let listen: Option<SocketAddr> = match listen {
            Some(text) => {
                let wrong = || format!("{text:?} is no address and port, such as 127.0.0.1:0");
                let found = text.to_socket_addrs().ok().and_then(|mut found| found.next());
                Some(found.ok_or_else(|| PyValueError::new_err(wrong()))?)
            }
            None => None,
        };
        let options = Options {
            host: host.unwrap_or_else(address::host),
            listen,
            token: address::launch_token(token),
            lease: duration(lease_s)?,
            memory_bytes,
            socket: socket.clone(),
        };
        let started = Service::start(options).map_err(|error| {
            PyOSError::new_err(format!("coupling at {}: {error}", socket.display()))
        })?;
        Ok(Self(ProcessLocal::new(started)))
    }

    #[getter]
    fn address(&self) -> &str {
        self.0.address()
    }

    #[getter]
    fn clients(&self) -> usize {
        self.0.clients()
    }

    /// Names with the versions that are held, and the bytes of all pieces.
    fn status(&self) -> (Vec<(String, Vec<u64>)>, u64) {
        self.0.status()
    }

    fn stop(&self, py: Python<'_>) {
        py.detach(|| self.0.stop());
    }
}
