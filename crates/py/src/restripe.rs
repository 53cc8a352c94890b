//! Restriping of trees on this machine: `TreeRestripe`.

use std::path::PathBuf;
use std::sync::Arc;

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use waystage_catalog::layout::EOF;
use waystage_catalog::Exclude;
use waystage_copy::restripe::{
    Restripe, RestripeJob, RestripeOptions, SizeClass, StripeLayout, StripePart, ALL,
};
use waystage_copy::Verify;

use crate::copy::{py_planned, py_problems, EngineJob, PyPlanned, PyProblem};
use crate::errors::OrRaise;
use crate::task::{one_of, Task};

pub(crate) fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<TreeRestripe>()
}

/// `waystage.native_options.restripes.StripePart`.
#[derive(FromPyObject)]
struct PyStripePart {
    end: Option<u64>,
    stripe_size: u32,
    stripes: Option<u16>,
    pool: Option<String>,
}

/// `waystage.native_options.restripes.SizeClass`.
#[derive(FromPyObject)]
struct PySizeClass {
    most_bytes: Option<u64>,
    parts: Vec<PyStripePart>,
}

/// `waystage.native_options.restripes.RestripeOptions`.
#[derive(FromPyObject)]
struct PyRestripeOptions {
    classes: Vec<PySizeClass>,
    workers: usize,
    exclude: Vec<Vec<u8>>,
    one_file_system: bool,
    verify: String,
    sync: bool,
    rate_bytes_per_s: Option<u64>,
    dry_run: bool,
}

impl PySizeClass {
    fn class(self) -> PyResult<SizeClass> {
        let part = |part: PyStripePart| StripePart {
            end: part.end.unwrap_or(EOF),
            stripe_size: part.stripe_size,
            stripes: part.stripes.unwrap_or(ALL),
            pool: part.pool,
        };
        let layout = StripeLayout::new(self.parts.into_iter().map(part).collect());
        let layout = layout.map_err(PyValueError::new_err)?;
        Ok(SizeClass { most_bytes: self.most_bytes.unwrap_or(u64::MAX), layout })
    }
}

impl EngineJob for RestripeJob {}

/// A restriping in progress.
#[pyclass(frozen, extends = Task, module = "waystage._native")]
struct TreeRestripe(Arc<Restripe>);

#[pymethods]
impl TreeRestripe {
    #[new]
    fn new(tree: PathBuf, options: &Bound<'_, PyAny>) -> PyResult<PyClassInitializer<Self>> {
        let given: PyRestripeOptions = options.extract()?;
        let verify =
            [("none", Verify::None), ("cached", Verify::Cached), ("storage", Verify::Storage)];
        let request = RestripeOptions {
            tree,
            classes: given.classes.into_iter().map(PySizeClass::class).collect::<PyResult<_>>()?,
            workers: given.workers,
            exclude: Exclude::new(given.exclude),
            one_file_system: given.one_file_system,
            verify: one_of("verify", &given.verify, &verify)?,
            sync: given.sync,
            rate_bytes_per_s: given.rate_bytes_per_s,
            dry_run: given.dry_run,
        };
        let restripe = options.py().detach(|| Restripe::start(request)).or_raise()?;
        Ok(Task::handle(restripe, Self))
    }

    /// Whether every file of the tree has its layout, as far as it has come.
    #[getter]
    fn complete(&self) -> bool {
        self.0.is_complete()
    }

    /// (path, kind, text) of files that were left as they were, the first ten thousand.
    fn problems<'py>(&self, py: Python<'py>) -> Vec<PyProblem<'py>> {
        py_problems(py, py.detach(|| self.0.problems()))
    }

    /// (path, letter of the type, bytes) of what a dry run would lay out anew, the first ten thousand.
    fn planned<'py>(&self, py: Python<'py>) -> Vec<PyPlanned<'py>> {
        py_planned(py, py.detach(|| self.0.planned()))
    }

    /// Limit the rate from now on; None for no limit.
    fn limit(&self, bytes_per_s: Option<u64>) {
        self.0.gate().set_limit(bytes_per_s);
    }
}
