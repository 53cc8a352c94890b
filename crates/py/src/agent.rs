//! The catalog's agent: `CatalogAgent`, `CatalogChanges`.

use std::path::PathBuf;

use numpy::{PyArray1, PyReadonlyArray1};
use parking_lot::Mutex;
use pyo3::exceptions::{PyRuntimeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict};
use waystage_agent::{Agent, Changes, LookupOptions, Setup};
use waystage_catalog::Exclude;
use waystage_sync::ProcessLocal;

use crate::catalog::{layouts_of, WalkBatch};

pub(crate) fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<CatalogAgent>()?;
    module.add_class::<CatalogChanges>()
}

/// An agent at work.
#[pyclass(frozen, module = "waystage._native")]
struct CatalogAgent(ProcessLocal<Agent>);

#[pymethods]
impl CatalogAgent {
    #[new]
    #[pyo3(signature = (root, *, tell_stat=false, rings=64, ring_bytes=1 << 19))]
    fn new(
        py: Python<'_>,
        root: PathBuf,
        tell_stat: bool,
        rings: usize,
        ring_bytes: usize,
    ) -> PyResult<Self> {
        let agent = py.detach(|| Agent::start(Setup { root, tell_stat, rings, ring_bytes }))?;
        Ok(Self(ProcessLocal::new(agent)))
    }

    /// What programs find the shared memory by, in their variable WAYSTAGE_RING.
    #[getter]
    fn path(&self) -> String {
        self.0.path()
    }

    /// Records read so far.
    #[getter]
    fn records(&self) -> u64 {
        self.0.records()
    }

    /// A process was started with the library, as the program `name`.
    fn started(&self, process: u32, name: &[u8]) {
        self.0.started(process, name);
    }

    /// The program is over: what changed. RuntimeError when it was asked before.
    #[pyo3(signature = (*, threads, exclude=Vec::new(), one_file_system=false, layouts=None))]
    fn finish(
        &self,
        py: Python<'_>,
        threads: usize,
        exclude: Vec<Vec<u8>>,
        one_file_system: bool,
        layouts: Option<&str>,
    ) -> PyResult<CatalogChanges> {
        let layouts = layouts_of(layouts)?;
        let exclude = Exclude::new(exclude);
        let changes = py
            .detach(|| self.0.finish(LookupOptions { exclude, one_file_system, layouts, threads }))?
            .ok_or_else(|| PyRuntimeError::new_err("the agent has ended before"))?;
        Ok(CatalogChanges(Mutex::new(changes)))
    }
}

/// The paths that changed while an agent worked.
#[pyclass(frozen, module = "waystage._native")]
struct CatalogChanges(Mutex<Changes>);

#[pymethods]
impl CatalogChanges {
    /// What became of records, by name.
    fn counts<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let counts = self.0.lock().counts();
        let by_name = PyDict::new(py);
        for (name, count) in [
            ("records", counts.records),
            ("paths", counts.paths),
            ("outside", counts.outside),
            ("lost", counts.lost),
            ("unplaced", counts.unplaced),
            ("damaged", counts.damaged),
            ("doubtful", counts.doubtful),
            ("running", counts.running),
            ("unseen", counts.unseen),
            ("blind", counts.blind),
        ] {
            by_name.set_item(name, count)?;
        }
        Ok(by_name)
    }

    /// The first programs that could not be seen, as they were named, and ways past the library.
    fn unseen<'py>(&self, py: Python<'py>) -> PyResult<Vec<Bound<'py, PyBytes>>> {
        Ok(self.0.lock().unseen().iter().map(|name| PyBytes::new(py, name)).collect())
    }

    /// (number, name) of every storage target met so far.
    fn targets(&self) -> PyResult<Vec<(u32, String)>> {
        Ok(self.0.lock().targets())
    }

    /// Check more paths below the root.
    fn add(&self, paths: Vec<Vec<u8>>) -> PyResult<()> {
        self.0.lock().add(paths);
        Ok(())
    }

    /// Entries of the next paths; an empty list when there are none.
    fn look(&self, py: Python<'_>) -> PyResult<Vec<WalkBatch>> {
        let mut changes = self.0.lock();
        let changes: &mut Changes = &mut changes;
        let batches = py.detach(|| changes.look_up());
        Ok(batches.into_iter().map(WalkBatch::from).collect())
    }

    /// Directories below which all is to be walked anew, when everything was looked at.
    fn to_walk<'py>(&self, py: Python<'py>) -> PyResult<Vec<Bound<'py, PyBytes>>> {
        Ok(self.0.lock().to_walk().iter().map(|path| PyBytes::new(py, path)).collect())
    }

    /// For each path, in Arrow's form, whether an older entry of it no longer counts.
    fn covers<'py>(
        &self,
        py: Python<'py>,
        offsets: PyReadonlyArray1<'_, i32>,
        data: PyReadonlyArray1<'_, u8>,
    ) -> PyResult<Bound<'py, PyArray1<bool>>> {
        self.of_each(py, &offsets, &data, Changes::covers)
    }

    /// For each directory, whether what was known of it no longer counts at all.
    fn replaces_directories<'py>(
        &self,
        py: Python<'py>,
        offsets: PyReadonlyArray1<'_, i32>,
        data: PyReadonlyArray1<'_, u8>,
    ) -> PyResult<Bound<'py, PyArray1<bool>>> {
        self.of_each(py, &offsets, &data, Changes::replaces_directory)
    }

    /// For each directory, whether some of its entries were looked at.
    fn touches_directories<'py>(
        &self,
        py: Python<'py>,
        offsets: PyReadonlyArray1<'_, i32>,
        data: PyReadonlyArray1<'_, u8>,
    ) -> PyResult<Bound<'py, PyArray1<bool>>> {
        self.of_each(py, &offsets, &data, Changes::touches_directory)
    }
}

impl CatalogChanges {
    fn of_each<'py>(
        &self,
        py: Python<'py>,
        offsets: &PyReadonlyArray1<'_, i32>,
        data: &PyReadonlyArray1<'_, u8>,
        question: fn(&Changes, &[u8]) -> bool,
    ) -> PyResult<Bound<'py, PyArray1<bool>>> {
        let (offsets, data) = (offsets.as_slice()?, data.as_slice()?);
        let changes = self.0.lock();
        let changes: &Changes = &changes;
        let answers: Option<Vec<bool>> = py.detach(|| {
            offsets
                .windows(2)
                .map(|pair| {
                    let (start, end) =
                        (usize::try_from(pair[0]).ok()?, usize::try_from(pair[1]).ok()?);
                    data.get(start..end).map(|path| question(changes, path))
                })
                .collect()
        });
        let answers =
            answers.ok_or_else(|| PyValueError::new_err("the offsets do not fit the data"))?;
        Ok(PyArray1::from_vec(py, answers))
    }
}
