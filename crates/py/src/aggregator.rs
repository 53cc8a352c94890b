//! The aggregator process of collective I/O: `Aggregator`.

use std::os::fd::{AsRawFd, RawFd};
use std::sync::Arc;
use std::time::Duration;

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict};
use waystage_aggregator::control::{App, Phase};
use waystage_aggregator::effect::Notice;
use waystage_aggregator::options::{Options, LEAST_MEMORY};
use waystage_aggregator::{Aggregator as Process, Served};

use crate::errors::AggregatorError;
use crate::task::{duration, Task, Work};

pub(crate) fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<Aggregator>()
}

/// `waystage.native_options.aggregators.AggregatorOptions`.
#[derive(FromPyObject)]
struct PyAggregatorOptions {
    socket: String,
    listen: String,
    name: String,
    token: String,
    app: String,
    memory: u64,
    lease_s: f64,
    storage_timeout_s: f64,
    linger_s: Option<f64>,
    parent: Option<u32>,
    delay_us: u64,
    delay_file: Option<String>,
}

impl PyAggregatorOptions {
    fn open(self) -> PyResult<Options> {
        if self.memory < LEAST_MEMORY {
            let text = format!(
                "{} bytes of memory are too few for an aggregator: give {LEAST_MEMORY}",
                self.memory
            );
            return Err(PyValueError::new_err(text));
        }
        if self.token.is_empty() || self.name.is_empty() || self.name.contains('@') {
            return Err(PyValueError::new_err("an aggregator needs a token, and a name without @"));
        }
        Ok(Options {
            socket: self.socket.into(),
            listen: self.listen,
            name: self.name,
            token: self.token,
            app: self.app,
            memory: self.memory,
            lease: duration(self.lease_s)?,
            storage_timeout: duration(self.storage_timeout_s)?,
            linger: self.linger_s.map(duration).transpose()?,
            parent: self.parent,
            delay: Duration::from_micros(self.delay_us),
            delay_file: self.delay_file.map(Into::into),
        })
    }
}

impl Work for Process {
    fn wait(&self, timeout: Duration) -> Option<PyResult<bool>> {
        self.wait(timeout).map(|end| end.map(|()| true).map_err(AggregatorError::new_err))
    }

    fn progress(&self) -> Vec<(&'static str, u64)> {
        let status = self.status();
        let sum = |of: fn(&Served) -> u64| status.served.iter().map(|(_, served)| of(served)).sum();
        vec![
            ("bytes", sum(|served| served.bytes)),
            ("windows", sum(|served| served.windows)),
            ("ranks", status.ranks as u64),
            ("operations", status.operations as u64),
        ]
    }

    fn cancel(&self) {
        self.cancel();
    }
}

/// A running aggregator process.
#[pyclass(frozen, extends = Task, module = "waystage._native")]
struct Aggregator(Arc<Process>);

#[pymethods]
impl Aggregator {
    #[new]
    fn new(py: Python<'_>, options: PyAggregatorOptions) -> PyResult<PyClassInitializer<Self>> {
        let options = options.open()?;
        let process = py.detach(|| Process::start(options));
        let process = process.map_err(|error| AggregatorError::new_err(error.to_string()))?;
        Ok(Task::handle(process, Self))
    }

    /// Where other nodes' aggregators reach it.
    #[getter]
    fn address(&self) -> &str {
        self.0.address()
    }

    /// What it does at the time.
    fn status<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let status = py.detach(|| self.0.status());
        let (found, apps, served) = (PyDict::new(py), PyDict::new(py), PyDict::new(py));
        found.set_item("address", status.address)?;
        found.set_item("ranks", status.ranks)?;
        found.set_item("pool_bytes", status.pool_bytes)?;
        found.set_item("image_bytes", status.image_bytes)?;
        found.set_item("files", status.files)?;
        found.set_item("operations", status.operations)?;
        found.set_item("lost", status.lost)?;
        for (name, app) in status.apps {
            apps.set_item(name, app_dict(py, app)?)?;
        }
        for (name, of) in status.served {
            let one = PyDict::new(py);
            one.set_item("bytes", of.bytes)?;
            one.set_item("busy_ns", of.busy_ns)?;
            one.set_item("windows", of.windows)?;
            one.set_item("queue_bytes", of.queue_bytes)?;
            served.set_item(name, one)?;
        }
        found.set_item("apps", apps)?;
        found.set_item("served", served)?;
        Ok(found)
    }

    /// What happened since the last call.
    fn notices<'py>(&self, py: Python<'py>) -> PyResult<Vec<Bound<'py, PyDict>>> {
        self.0.notices().into_iter().map(|notice| notice_dict(py, notice)).collect()
    }

    /// A descriptor that can be read while notices wait.
    fn fileno(&self) -> RawFd {
        self.0.noticed().as_raw_fd()
    }

    /// Aggregators of the application's next operations.
    fn set_server_map(&self, py: Python<'_>, app: &str, aggregators: Vec<String>) {
        py.detach(|| self.0.set_server_map(app, aggregators));
    }

    /// Let one operation begin.
    fn grant(&self, py: Python<'_>, app: &str, weight: u32, until_ns: u64) {
        py.detach(|| self.0.grant(app, weight, until_ns));
    }

    /// Whether operations wait for grants.
    fn set_scheduled(&self, py: Python<'_>, app: &str, scheduled: bool) {
        py.detach(|| self.0.set_scheduled(app, scheduled));
    }
}

fn app_dict(py: Python<'_>, app: App) -> PyResult<Bound<'_, PyDict>> {
    let phase = match app.phase {
        Phase::Idle => "idle",
        Phase::Waiting => "waiting",
        Phase::Running => "running",
    };
    let found = PyDict::new(py);
    found.set_item("ranks", app.ranks)?;
    found.set_item("phase", phase)?;
    found.set_item("op", app.ops_asked)?;
    found.set_item("ops_done", app.ops_done)?;
    found.set_item("op_bytes", app.op_bytes)?;
    found.set_item("op_write", app.op_write)?;
    found.set_item("waited_ns", app.waited_ns)?;
    found.set_item("took_ns", app.took_ns)?;
    found.set_item("epoch", app.epoch)?;
    found.set_item("map", app.aggregators)?;
    found.set_item("path", PyBytes::new(py, &app.path))?;
    found.set_item("weight", app.weight)?;
    Ok(found)
}

fn notice_dict(py: Python<'_>, notice: Notice) -> PyResult<Bound<'_, PyDict>> {
    let found = PyDict::new(py);
    match notice {
        Notice::AppStarted(app) => {
            found.set_item("event", "app_started")?;
            found.set_item("app", &*app)?;
        }
        Notice::AppFinished(app) => {
            found.set_item("event", "app_finished")?;
            found.set_item("app", &*app)?;
        }
        Notice::Requested { app, path, write, bytes } => {
            found.set_item("event", "requested")?;
            found.set_item("app", &*app)?;
            found.set_item("path", PyBytes::new(py, &path))?;
            found.set_item("write", write)?;
            found.set_item("bytes", bytes)?;
        }
        Notice::Completed { app, write, bytes, times } => {
            found.set_item("event", "completed")?;
            found.set_item("app", &*app)?;
            found.set_item("write", write)?;
            found.set_item("bytes", bytes)?;
            found.set_item("waited_ns", times.waited_ns)?;
            found.set_item("took_ns", times.took_ns)?;
        }
        Notice::MapAdopted { app, epoch, aggregators } => {
            found.set_item("event", "map_adopted")?;
            found.set_item("app", &*app)?;
            found.set_item("epoch", epoch)?;
            found.set_item("aggregators", aggregators)?;
        }
        Notice::AggregatorLost { address } => {
            found.set_item("event", "aggregator_lost")?;
            found.set_item("address", &*address)?;
        }
    }
    Ok(found)
}
