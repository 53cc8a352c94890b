//! Tags on packets: `TagService`.

use std::path::PathBuf;

use parking_lot::Mutex;
use pyo3::exceptions::{PyOSError, PyValueError};
use pyo3::prelude::*;
use waystage_sync::ProcessLocal;
use waystage_tags::{Layout, Service, Setup};

pub(crate) fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<TagService>()
}

/// A running service.
#[pyclass(frozen, module = "waystage._native")]
struct TagService(ProcessLocal<Mutex<Option<Service>>>);

#[pymethods]
impl TagService {
    /// `layout`: widths of edge, position, job, communicator, source, destination and host key. OSError, ValueError.
    #[new]
    fn new(
        py: Python<'_>,
        interfaces: Vec<String>,
        socket: PathBuf,
        layout: [u8; 7],
        key: [u8; 32],
        numbers: (u64, u64),
    ) -> PyResult<Self> {
        let [edge, position, job, communicator, source, destination, host_key] = layout;
        let layout = Layout { edge, position, job, communicator, source, destination, host_key };
        if numbers.1 == 0 {
            return Err(PyValueError::new_err("a service needs a number to give to jobs"));
        }
        let setup = Setup { interfaces, socket, layout, key, numbers };
        let service = py
            .detach(|| Service::start(setup))
            .map_err(|error| PyOSError::new_err(error.to_string()))?;
        Ok(Self(ProcessLocal::new(Mutex::new(Some(service)))))
    }

    /// Programs connected now.
    #[getter]
    fn connections(&self) -> u64 {
        self.0.lock().as_ref().map_or(0, Service::connections)
    }

    /// End the service: no packet gets a tag after it.
    fn close(&self, py: Python<'_>) {
        py.detach(|| drop(self.0.lock().take()));
    }
}
