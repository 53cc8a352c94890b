//! Copies and comparisons of trees on this machine: `TreeCopy`, `TreeComparison`.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::PyBytes;
use waystage_catalog::Exclude;
use waystage_copy::{
    Comparison, Copy, Fsync, Names, Options, Pair, Planned, Problem, Share, Update, Verify,
    MOST_LIST_BYTES,
};
use waystage_pacing::FlowCounts;

use crate::errors::OrRaise;
use crate::task::{one_of, Control, Task, Work};

pub(crate) fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add("COPY_LIST_BYTES", MOST_LIST_BYTES)?;
    module.add_class::<NameList>()?;
    module.add_class::<TreeCopy>()?;
    module.add_class::<TreeComparison>()
}

/// The entries to copy, by a list of their names.
#[pyclass(frozen, module = "waystage._native")]
pub(crate) struct NameList(Names);

#[pymethods]
impl NameList {
    /// ValueError where a name is not acceptable.
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

/// `waystage.native_options.copies.CopyOptions`.
#[derive(FromPyObject)]
pub(crate) struct CopyOptions<'py> {
    pub(crate) exclude: Vec<Vec<u8>>,
    pub(crate) include: Option<Vec<Vec<u8>>>,
    names: Option<Bound<'py, NameList>>,
    pub(crate) one_file_system: bool,
    update: String,
    fsync: String,
    verify: String,
    pub(crate) restart: bool,
    pub(crate) xattrs: bool,
    pub(crate) owners: bool,
    pub(crate) hard_links: bool,
}

impl CopyOptions<'_> {
    pub(crate) fn names(&self) -> Option<Names> {
        self.names.as_ref().map(|names| names.get().0.clone())
    }

    pub(crate) fn update(&self) -> PyResult<Update> {
        let known = [
            ("changed", Update::Changed),
            ("newer", Update::Newer),
            ("missing", Update::Missing),
            ("content", Update::Content),
            ("always", Update::Always),
        ];
        one_of("update", &self.update, &known)
    }

    pub(crate) fn fsync(&self) -> PyResult<Fsync> {
        let known = [("none", Fsync::None), ("end", Fsync::End), ("each", Fsync::Each)];
        one_of("fsync", &self.fsync, &known)
    }

    pub(crate) fn verify(&self) -> PyResult<Verify> {
        let known =
            [("none", Verify::None), ("cached", Verify::Cached), ("storage", Verify::Storage)];
        one_of("verify", &self.verify, &known)
    }
}

/// What `waystage.native_options.copies.TreeCopyOptions` adds.
#[derive(FromPyObject)]
struct TreeCopyOptions {
    workers: usize,
    rate_bytes_per_s: Option<u64>,
    dry_run: bool,
    read_sources: bool,
    /// The key as 32 hexadecimal digits, and whether attributes of directories are set.
    share: Option<(String, bool)>,
}

fn share((key, directories): (String, bool)) -> PyResult<Share> {
    let key = u128::from_str_radix(&key, 16).map_err(|_| {
        PyValueError::new_err(format!("{key:?} is no hexadecimal number of 128 bits"))
    })?;
    Ok(Share { key, directories })
}

impl Work for Copy {
    fn wait(&self, timeout: Duration) -> Option<PyResult<bool>> {
        self.wait(timeout).map(|ended| ended.map(|()| true).or_raise())
    }

    fn progress(&self) -> Vec<(&'static str, u64)> {
        self.counts().by_name().into_iter().collect()
    }

    fn cancel(&self) {
        self.stop();
    }

    fn controls(&self) -> &'static [Control] {
        &[Control::Rate, Control::Pause]
    }

    fn set_rate(&self, bytes_per_s: Option<u64>) {
        self.gate().set_rate(bytes_per_s);
    }

    fn set_paused(&self, paused: bool) {
        self.gate().set_paused(paused);
    }

    fn flow(&self) -> FlowCounts {
        self.flow()
    }
}

/// A copy in progress.
#[pyclass(frozen, extends = Task, module = "waystage._native")]
struct TreeCopy(Arc<Copy>);

#[pymethods]
impl TreeCopy {
    #[new]
    fn new(
        source: PathBuf,
        destination: PathBuf,
        options: &Bound<'_, PyAny>,
    ) -> PyResult<PyClassInitializer<Self>> {
        let (how, more): (CopyOptions<'_>, TreeCopyOptions) =
            (options.extract()?, options.extract()?);
        let request = Options {
            source,
            destination,
            workers: more.workers,
            exclude: Exclude::new(how.exclude.clone()),
            include: how.include.clone().map(Exclude::new),
            names: how.names(),
            one_file_system: how.one_file_system,
            update: how.update()?,
            fsync: how.fsync()?,
            verify: how.verify()?,
            rate_bytes_per_s: more.rate_bytes_per_s,
            dry_run: more.dry_run,
            read_sources: more.read_sources,
            restart: how.restart,
            xattrs: how.xattrs,
            owners: how.owners,
            hard_links: how.hard_links,
            share: more.share.map(share).transpose()?,
        };
        let copy = options.py().detach(|| Copy::start(request)).or_raise()?;
        Ok(Task::handle(copy, Self))
    }

    /// Whether everything requested has been copied, as far as the copy has come.
    #[getter]
    fn complete(&self) -> bool {
        self.0.counts().complete()
    }

    /// (path, kind, text) of what could not be copied, the first ten thousand.
    fn problems<'py>(&self, py: Python<'py>) -> Vec<PyProblem<'py>> {
        py_problems(py, py.detach(|| self.0.problems()))
    }

    /// (path, letter of the type, bytes) of what a dry run would make, the first ten thousand.
    fn planned<'py>(&self, py: Python<'py>) -> Vec<PyPlanned<'py>> {
        py_planned(py, py.detach(|| self.0.planned()))
    }

    /// Limit the rate from now on; None for no limit.
    fn limit(&self, bytes_per_s: Option<u64>) {
        self.0.gate().set_limit(bytes_per_s);
    }
}

/// Path, kind, text.
pub(crate) type PyProblem<'py> = (Bound<'py, PyBytes>, &'static str, String);

pub(crate) fn py_problems(py: Python<'_>, problems: Vec<Problem>) -> Vec<PyProblem<'_>> {
    let each =
        |problem: Problem| (PyBytes::new(py, &problem.path), problem.kind.name(), problem.text);
    problems.into_iter().map(each).collect()
}

/// Path, letter of the type, bytes.
pub(crate) type PyPlanned<'py> = (Bound<'py, PyBytes>, char, u64);

pub(crate) fn py_planned(py: Python<'_>, planned: Vec<Planned>) -> Vec<PyPlanned<'_>> {
    let each = |planned: Planned| {
        (PyBytes::new(py, &planned.path), char::from(planned.letter), planned.bytes)
    };
    planned.into_iter().map(each).collect()
}

impl Work for Comparison {
    fn wait(&self, timeout: Duration) -> Option<PyResult<bool>> {
        self.wait(timeout).then_some(Ok(true))
    }

    fn progress(&self) -> Vec<(&'static str, u64)> {
        let (pairs, read, compared) = self.progress();
        vec![("pairs", pairs as u64), ("bytes_read", read), ("bytes_compared", compared)]
    }

    fn cancel(&self) {
        self.stop();
    }
}

/// Files of two trees being compared.
#[pyclass(frozen, extends = Task, module = "waystage._native")]
struct TreeComparison(Arc<Comparison>);

/// The first differing byte, and both digests where there are any.
type PyDiffering = (u64, Option<String>, Option<String>);

/// Index, how contents differ, whether extended attributes do, whether devices do, why the pair could not be compared.
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
    ) -> PyResult<PyClassInitializer<Self>> {
        let pairs = pairs.into_iter().map(|(path, contents)| Pair { path, contents }).collect();
        let started = py.detach(|| Comparison::start(&one, &other, pairs, xattrs, threads));
        let comparison = started?;
        Ok(Task::handle(comparison, Self))
    }

    /// What differs, in order; complete once the comparison has ended.
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
}
