//! Copies and comparisons of trees for Python: `TreeCopy`, `TreeComparison`.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use pyo3::create_exception;
use pyo3::exceptions::{PyRuntimeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict};
use waystage_catalog::Exclude;
use waystage_copy::{
    Comparison, Copy, Fsync, Names, Options, Pair, Planned, Update, Verify, MOST_LIST_BYTES,
};

create_exception!(
    waystage._native,
    CopyError,
    PyRuntimeError,
    "A copy that cannot be begun or go on; `kind` says what can be acted on."
);

/// How often a wait looks whether Python has had a signal.
const LOOK_ROUND: Duration = Duration::from_millis(100);

pub(crate) fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add("COPY_LIST_BYTES", MOST_LIST_BYTES)?;
    module.add("CopyError", module.py().get_type::<CopyError>())?;
    module.add_class::<NameList>()?;
    module.add_class::<TreeCopy>()?;
    module.add_class::<TreeComparison>()
}

/// The entries that are to be copied, by a list of their names.
#[pyclass(frozen, module = "waystage._native")]
pub(crate) struct NameList(pub(crate) Names);

#[pymethods]
impl NameList {
    /// ValueError where a name cannot be taken: which, and why.
    #[new]
    fn new(py: Python<'_>, list: &[u8], nul: bool) -> PyResult<Self> {
        let parsed = py.detach(|| Names::parse(list, nul));
        parsed.map(Self).map_err(|error| PyValueError::new_err(error.to_string()))
    }

    fn __len__(&self) -> usize {
        self.0.len()
    }

    /// The names in order, as bytes; the root's own is empty.
    fn names<'py>(&self, py: Python<'py>) -> Vec<Bound<'py, PyBytes>> {
        self.0.iter().map(|name| PyBytes::new(py, name)).collect()
    }
}

/// A copy under way.
#[pyclass(frozen, module = "waystage._native")]
struct TreeCopy(Copy);

#[pymethods]
impl TreeCopy {
    #[new]
    #[allow(clippy::too_many_arguments, reason = "in Python they are keywords")]
    #[allow(clippy::fn_params_excessive_bools, reason = "in Python they are keywords")]
    #[pyo3(signature = (source, destination, *, workers, exclude=Vec::new(), include=None, names=None,
        one_file_system=false, update="changed", fsync="none", verify="none", rate_bytes_per_s=None, rate_changes=false, dry_run=false, read_sources=false, restart=false,
        xattrs=true, owners=true, hard_links=true))]
    fn new(
        py: Python<'_>,
        source: PathBuf,
        destination: PathBuf,
        workers: usize,
        exclude: Vec<Vec<u8>>,
        include: Option<Vec<Vec<u8>>>,
        names: Option<Bound<'_, NameList>>,
        one_file_system: bool,
        update: &str,
        fsync: &str,
        verify: &str,
        rate_bytes_per_s: Option<u64>,
        rate_changes: bool,
        dry_run: bool,
        read_sources: bool,
        restart: bool,
        xattrs: bool,
        owners: bool,
        hard_links: bool,
    ) -> PyResult<Self> {
        let (update, fsync, verify) = words(update, fsync, verify)?;
        let options = Options {
            source,
            destination,
            workers,
            exclude: Exclude::new(exclude),
            include: include.map(Exclude::new),
            names: names.map(|names| names.get().0.clone()),
            one_file_system,
            update,
            fsync,
            verify,
            rate_bytes_per_s,
            rate_changes,
            dry_run,
            read_sources,
            restart,
            xattrs,
            owners,
            hard_links,
        };
        py.detach(|| Copy::start(options)).map(Self).map_err(|error| raise(py, error))
    }

    /// Whether it has ended within `timeout_s`; CopyError where it could not go on.
    fn wait(&self, py: Python<'_>, timeout_s: f64) -> PyResult<bool> {
        let deadline = Instant::now() + duration(timeout_s)?;
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            match py.detach(|| self.0.wait(left.min(LOOK_ROUND))) {
                Some(Ok(())) => return Ok(true),
                Some(Err(error)) => return Err(raise(py, error)),
                None if left.is_zero() => return Ok(false),
                None => py.check_signals()?,
            }
        }
    }

    /// How far it is, by name.
    fn counts<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let by_name = PyDict::new(py);
        for (name, count) in self.0.counts().by_name() {
            by_name.set_item(name, count)?;
        }
        Ok(by_name)
    }

    /// Whether all that was asked for is there, as far as it has come.
    #[getter]
    fn complete(&self) -> bool {
        self.0.counts().complete()
    }

    /// (path, kind, text) of what could not be copied, the first ten thousand.
    fn problems<'py>(&self, py: Python<'py>) -> Vec<(Bound<'py, PyBytes>, &'static str, String)> {
        let problems = py.detach(|| self.0.problems());
        problems
            .into_iter()
            .map(|problem| (PyBytes::new(py, &problem.path), problem.kind.name(), problem.text))
            .collect()
    }

    /// (path, letter of the type, bytes) of what a dry run would make, the first ten thousand.
    fn planned<'py>(&self, py: Python<'py>) -> Vec<PyPlanned<'py>> {
        let planned = py.detach(|| self.0.planned());
        planned.into_iter().map(|each| py_planned(py, &each)).collect()
    }

    /// Move no more than so many bytes a second from now on.
    fn limit(&self, bytes_per_s: Option<u64>) {
        self.0.limit(bytes_per_s);
    }

    /// End it; its threads and unfinished small files are gone when this returns.
    fn stop(&self, py: Python<'_>) {
        py.detach(|| self.0.stop());
    }
}

/// Path, letter of the type, bytes.
pub(crate) type PyPlanned<'py> = (Bound<'py, PyBytes>, char, u64);

pub(crate) fn py_planned<'py>(py: Python<'py>, planned: &Planned) -> PyPlanned<'py> {
    (PyBytes::new(py, &planned.path), char::from(planned.letter), planned.bytes)
}

/// Files of two trees being compared.
#[pyclass(frozen, module = "waystage._native")]
struct TreeComparison(Comparison);

/// The first differing byte, and both digests where there are any.
type PyDiffering = (u64, Option<String>, Option<String>);

/// Index, how contents differ, whether extended attributes do, whether devices do, why it could not be told.
type PyUnlike = (usize, Option<PyDiffering>, bool, bool, String);

#[pymethods]
impl TreeComparison {
    #[new]
    #[pyo3(signature = (one, other, pairs, *, xattrs, threads))]
    fn new(
        py: Python<'_>,
        one: PathBuf,
        other: PathBuf,
        pairs: Vec<(Vec<u8>, bool)>,
        xattrs: bool,
        threads: usize,
    ) -> PyResult<Self> {
        let pairs = pairs.into_iter().map(|(path, contents)| Pair { path, contents }).collect();
        let started = py.detach(|| Comparison::start(&one, &other, pairs, xattrs, threads));
        Ok(Self(started?))
    }

    /// Whether it has ended within `timeout_s`.
    fn wait(&self, py: Python<'_>, timeout_s: f64) -> PyResult<bool> {
        let deadline = Instant::now() + duration(timeout_s)?;
        while !self.0.ended() {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Ok(false);
            }
            py.detach(|| std::thread::sleep(left.min(Duration::from_millis(10))));
            py.check_signals()?;
        }
        Ok(true)
    }

    /// Pairs taken up so far, bytes read of each side, and bytes compared, holes among them.
    fn progress(&self) -> (usize, u64, u64) {
        self.0.progress()
    }

    /// What differs, in order; complete once it has ended.
    fn unlike(&self, py: Python<'_>) -> Vec<PyUnlike> {
        let unlike = py.detach(|| self.0.unlike());
        let hex = |digest: Option<u128>| digest.map(|digest| format!("{digest:032x}"));
        unlike
            .into_iter()
            .map(|u| {
                let contents = u.contents.map(|(at, one, other)| (at, hex(one), hex(other)));
                (u.index, contents, u.xattrs, u.device, u.error)
            })
            .collect()
    }

    /// End it; its threads are gone when this returns.
    fn stop(&self, py: Python<'_>) {
        py.detach(|| self.0.stop());
    }
}

/// What the words for three options mean.
pub(crate) fn words(update: &str, fsync: &str, verify: &str) -> PyResult<(Update, Fsync, Verify)> {
    let update = one_of(
        "update",
        update,
        &[
            ("changed", Update::Changed),
            ("newer", Update::Newer),
            ("missing", Update::Missing),
            ("content", Update::Content),
            ("always", Update::Always),
        ],
    )?;
    let fsync = one_of(
        "fsync",
        fsync,
        &[("none", Fsync::None), ("end", Fsync::End), ("each", Fsync::Each)],
    )?;
    let verify = one_of(
        "verify",
        verify,
        &[("none", Verify::None), ("cached", Verify::Cached), ("storage", Verify::Storage)],
    )?;
    Ok((update, fsync, verify))
}

pub(crate) fn one_of<T: core::marker::Copy>(
    what: &str,
    given: &str,
    known: &[(&str, T)],
) -> PyResult<T> {
    known.iter().find(|(name, _)| *name == given).map(|(_, value)| *value).ok_or_else(|| {
        let names: Vec<&str> = known.iter().map(|(name, _)| *name).collect();
        PyValueError::new_err(format!("{what} is one of {}, not {given:?}", names.join(", ")))
    })
}

pub(crate) fn duration(seconds: f64) -> PyResult<Duration> {
    Duration::try_from_secs_f64(seconds)
        .map_err(|_| PyValueError::new_err(format!("{seconds} is not a number of seconds")))
}

fn raise(py: Python<'_>, error: waystage_copy::CopyError) -> PyErr {
    let raised = CopyError::new_err(error.text);
    match raised.value(py).setattr("kind", error.kind.name()) {
        Ok(()) => raised,
        Err(odd) => odd,
    }
}
