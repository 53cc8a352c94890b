//! Copies and comparisons of trees on this machine: `TreeCopy`, `TreeComparison`.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::PyBytes;
use waystage_catalog::{Exclude, ObjectRange};
use waystage_copy::backup::Backup;
use waystage_copy::sink::DividedFile;
use waystage_copy::stat::FileState;
use waystage_copy::{
    Comparison, Copy, CopyJob, Done, Engine, Fill, FillJob, FillOptions, Fsync, Job, Limits, Names,
    Options, Order, Pair, Planned, Problem, Reflink, Share, Time, Update, Verify, MOST_LIST_BYTES,
};
use waystage_pacing::{FlowCounts, Gate};

use crate::copy_limits::{PyBackup, PyLimits};
use crate::errors::OrRaise;
use crate::task::{one_of, Loaders, Paced, Task, Work};

pub(crate) fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add("COPY_LIST_BYTES", MOST_LIST_BYTES)?;
    module.add_class::<NameList>()?;
    module.add_class::<TreeCopy>()?;
    module.add_class::<FileFill>()?;
    module.add_class::<TreeComparison>()
}

/// Where the objects of each name begin, and their columns: target, first byte in the file, bytes. Little-endian, as
/// Arrow has them.
#[derive(FromPyObject)]
struct PyNamedObjects(Vec<u8>, Vec<u8>, Vec<u8>, Vec<u8>);

impl PyNamedObjects {
    fn read(self) -> PyResult<(Vec<u32>, Vec<ObjectRange>)> {
        fn numbers<const N: usize, T: 'static>(
            bytes: &[u8],
            of: fn([u8; N]) -> T,
        ) -> impl ExactSizeIterator<Item = T> + '_ {
            bytes.chunks_exact(N).map(move |chunk| of(chunk.try_into().unwrap_or([0; N])))
        }
        let Self(first, target, offset, length) = &self;
        let (targets, offsets, lengths) = (
            numbers(target, u32::from_le_bytes),
            numbers(offset, u64::from_le_bytes),
            numbers(length, u64::from_le_bytes),
        );
        if targets.len() != offsets.len() || targets.len() != lengths.len() {
            return Err(PyValueError::new_err("columns of objects have different lengths"));
        }
        let each = targets.zip(offsets).zip(lengths);
        let objects = each.map(|((target, offset), length)| ObjectRange { target, offset, length });
        Ok((numbers(first, u32::from_le_bytes).collect(), objects.collect()))
    }
}

/// The entries to copy, by a list of their names.
#[pyclass(frozen, module = "waystage._native")]
pub(crate) struct NameList(Names);

#[pymethods]
impl NameList {
    /// ValueError where a name is not acceptable.
    #[new]
    #[pyo3(signature = (list, nul, objects=None))]
    fn new(
        py: Python<'_>,
        list: &[u8],
        nul: bool,
        objects: Option<PyNamedObjects>,
    ) -> PyResult<Self> {
        let objects = objects.map(PyNamedObjects::read).transpose()?;
        let parsed = py.detach(|| {
            let names = Names::parse(list, nul)?;
            match objects {
                Some((first, objects)) => names.with_objects(first, objects),
                None => Ok(names),
            }
        });
        parsed.map(Self).map_err(|error| PyValueError::new_err(error.to_string()))
    }

    /// Whether storage targets of the names are known.
    #[getter]
    fn has_objects(&self) -> bool {
        self.0.have_objects()
    }

    fn __len__(&self) -> usize {
        self.0.len()
    }

    /// Which of these paths the list asks for; `directories` says which are directories.
    fn asks_for(&self, paths: Vec<Vec<u8>>, directories: Vec<bool>) -> Vec<bool> {
        let each = paths.iter().zip(directories);
        each.map(|(path, is_directory)| self.0.ask_for(path, is_directory)).collect()
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
    pub(crate) limits: PyLimits,
    pub(crate) copy_links: bool,
    backup: Option<PyBackup>,
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
    pub(crate) fn limits(&self) -> Limits {
        self.limits.limits()
    }

    pub(crate) fn backup(&self) -> Option<Backup> {
        self.backup.clone().map(PyBackup::backup)
    }

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
        verify_of(&self.verify)
    }
}

fn verify_of(word: &str) -> PyResult<Verify> {
    let known = [("none", Verify::None), ("cached", Verify::Cached), ("storage", Verify::Storage)];
    one_of("verify", word, &known)
}

const REFLINKS: [(&str, Reflink); 3] =
    [("auto", Reflink::Auto), ("always", Reflink::Always), ("never", Reflink::Never)];

/// What `waystage.native_options.copies.TreeCopyOptions` adds.
#[derive(FromPyObject)]
struct TreeCopyOptions {
    workers: usize,
    order: String,
    readers_per_target: Option<u32>,
    reflink: String,
    rate_bytes_per_s: Option<u64>,
    divide: bool,
    dry_run: bool,
    read_sources: bool,
    log: bool,
    /// The key as 32 hexadecimal digits, and whether attributes of directories are set.
    share: Option<(String, bool)>,
}

fn share((key, directories): (String, bool)) -> PyResult<Share> {
    let key = u128::from_str_radix(&key, 16).map_err(|_| {
        PyValueError::new_err(format!("{key:?} is no hexadecimal number of 128 bits"))
    })?;
    Ok(Share { key, directories })
}

/// Jobs of the copy engine as Python sees them.
pub(crate) trait EngineJob: Job {
    /// Whether its readers of each storage target can be limited.
    const HAS_LOADERS: bool = false;

    /// Limit them.
    fn set_loaders(_engine: &Engine<Self>, _loaders: &Loaders)
    where
        Self: Sized,
    {
    }
}

impl EngineJob for CopyJob {
    const HAS_LOADERS: bool = true;

    fn set_loaders(engine: &Engine<Self>, loaders: &Loaders) {
        match loaders {
            Loaders::Each(each) => engine.limit_readers(*each),
            Loaders::By(by) => engine.limit_readers_of(by),
        }
    }
}

impl<J: EngineJob> Paced for Engine<J> {
    fn wait(&self, timeout: Duration) -> Option<PyResult<bool>> {
        self.wait(timeout).map(|ended| ended.map(|()| true).or_raise())
    }

    fn progress(&self) -> Vec<(&'static str, u64)> {
        self.counts().by_name().into_iter().collect()
    }

    fn cancel(&self) {
        self.stop();
    }

    fn gate(&self) -> &Gate {
        self.gate()
    }

    fn flow(&self) -> FlowCounts {
        self.flow()
    }

    const HAS_LOADERS: bool = J::HAS_LOADERS;

    fn set_loaders(&self, loaders: &Loaders) -> PyResult<()> {
        J::set_loaders(self, loaders);
        Ok(())
    }
}

/// A class for a running engine: how far it has come, what it met, what it did; and what is only its own.
macro_rules! engine_handle {
    ($(#[$doc:meta])* $name:ident, $of:ty, $($own:tt)*) => {
        $(#[$doc])*
        #[pyclass(frozen, extends = Task, module = "waystage._native")]
        struct $name(Arc<$of>);

        #[pymethods]
        impl $name {
            /// Whether it met no error and left nothing undone, as far as it has come.
            #[getter]
            fn complete(&self) -> bool {
                self.0.counts().complete()
            }

            /// (path, kind, text), the first ten thousand.
            fn problems<'py>(&self, py: Python<'py>) -> Vec<PyProblem<'py>> {
                py_problems(py, py.detach(|| self.0.problems()))
            }

            /// (path, letter of the type, bytes) of what a dry run met, the first ten thousand.
            fn planned<'py>(&self, py: Python<'py>) -> Vec<PyPlanned<'py>> {
                py_planned(py, py.detach(|| self.0.planned()))
            }

            /// (what, path, letter of the type, bytes) of what was done since this was called last.
            fn take_done<'py>(&self, py: Python<'py>) -> Vec<PyDone<'py>> {
                py_done(py, self.0.take_done())
            }

            $($own)*
        }
    };
}
pub(crate) use engine_handle;

engine_handle!(
    /// A copy in progress.
    TreeCopy,
    Copy,
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
            order: one_of("order", &more.order, &[("auto", Order::Auto), ("walk", Order::Walk)])?,
            readers_per_target: more.readers_per_target,
            exclude: Exclude::new(how.exclude.clone()),
            include: how.include.clone().map(Exclude::new),
            names: how.names(),
            limits: how.limits(),
            backup: how.backup(),
            log: more.log,
            copy_links: how.copy_links,
            one_file_system: how.one_file_system,
            update: how.update()?,
            fsync: how.fsync()?,
            verify: how.verify()?,
            reflink: one_of("reflink", &more.reflink, &REFLINKS)?,
            rate_bytes_per_s: more.rate_bytes_per_s,
            divide: more.divide,
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

    /// Limit the rate from now on; None for no limit.
    fn limit(&self, bytes_per_s: Option<u64>) {
        self.0.gate().set_limit(bytes_per_s);
    }

    /// Large files that were prepared for `FileFill`.
    fn divided<'py>(&self, py: Python<'py>) -> Vec<PyDivided<'py>> {
        let bytes = |text: &[u8]| PyBytes::new(py, text);
        let each = self.0.divided().into_iter().map(|file| {
            let seen = &file.seen;
            let mtime = (seen.mtime.seconds, seen.mtime.nanoseconds);
            (
                (
                    bytes(&file.path),
                    bytes(&file.directory),
                    bytes(&file.temporary),
                    bytes(&file.map),
                ),
                (seen.inode, seen.size, mtime),
                file.missing.iter().collect(),
            )
        });
        each.collect()
    }
);

/// Path, directory at the destination, temporary name and that of the map; inode, size and time; missing extents.
type PyDivided<'py> = (
    (Bound<'py, PyBytes>, Bound<'py, PyBytes>, Bound<'py, PyBytes>, Bound<'py, PyBytes>),
    (u64, u64, (i64, u32)),
    Vec<u32>,
);

/// `waystage.native_options.copies.FillOptions`.
#[derive(FromPyObject)]
struct PyFillOptions {
    names: (Vec<u8>, Vec<u8>, Vec<u8>, Vec<u8>),
    seen: (u64, u64, (i64, u32)),
    extents: Vec<u32>,
    workers: usize,
    verify: String,
    rate_bytes_per_s: Option<u64>,
}

impl EngineJob for FillJob {}

/// Extents of a large file being written.
#[pyclass(frozen, extends = Task, module = "waystage._native")]
struct FileFill(Arc<Fill>);

#[pymethods]
impl FileFill {
    #[new]
    fn new(
        py: Python<'_>,
        source: PathBuf,
        destination: PathBuf,
        options: PyFillOptions,
    ) -> PyResult<PyClassInitializer<Self>> {
        let (path, directory, temporary, map) = options.names;
        let (inode, size, (seconds, nanoseconds)) = options.seen;
        let mtime = Time { seconds, nanoseconds };
        let seen = FileState { device: 0, inode, size, mtime, ctime: mtime };
        let missing = options.extents.into_iter().collect();
        let request = FillOptions {
            source,
            destination,
            file: DividedFile { path, directory, temporary, map, seen, missing },
            workers: options.workers,
            verify: verify_of(&options.verify)?,
            rate_bytes_per_s: options.rate_bytes_per_s,
        };
        let fill = py.detach(|| Fill::start(request)).or_raise()?;
        Ok(Task::handle(fill, Self))
    }

    /// Whether all its extents are written, as far as it has come.
    #[getter]
    fn complete(&self) -> bool {
        self.0.counts().complete()
    }

    /// (path, kind, text) of what could not be written.
    fn problems<'py>(&self, py: Python<'py>) -> Vec<PyProblem<'py>> {
        py_problems(py, py.detach(|| self.0.problems()))
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

/// What, path, letter of the type, bytes.
pub(crate) type PyDone<'py> = (&'static str, Bound<'py, PyBytes>, char, u64);

pub(crate) fn py_done(py: Python<'_>, done: Vec<Done>) -> Vec<PyDone<'_>> {
    let each =
        |done: Done| (done.what, PyBytes::new(py, &done.path), char::from(done.letter), done.bytes);
    done.into_iter().map(each).collect()
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
