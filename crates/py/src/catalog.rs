//! Catalogs for Python: `TreeWalk`, `WalkBatch`, `exchange_paths`.

use std::os::fd::AsFd;
use std::path::PathBuf;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use numpy::{PyArray1, PyReadonlyArray1};
use pyo3::exceptions::{PyRuntimeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict};
use waystage_catalog::layout::{LayoutReader, READERS};
use waystage_catalog::walk::{Known, KnownDirectory, Next, Options, Walk};
use waystage_catalog::{Batch, Bytes, Exclude, LayoutMethod, Layouts, BATCH_ROWS, TYPE_LETTERS};

/// How often a wait looks whether Python has had a signal.
const LOOK_ROUND: Duration = Duration::from_millis(100);

pub(crate) fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add("ENTRY_TYPES", TYPE_LETTERS.to_vec())?;
    module.add("LAYOUT_KINDS", READERS.map(LayoutReader::name).to_vec())?;
    module.add_function(wrap_pyfunction!(exchange_paths, module)?)?;
    module.add_function(wrap_pyfunction!(digest_ranges, module)?)?;
    module.add_function(wrap_pyfunction!(digest_bytes, module)?)?;
    module.add_function(wrap_pyfunction!(generated_batch, module)?)?;
    module.add_class::<TreeWalk>()?;
    module.add_class::<WalkBatch>()
}

/// Let two paths of one file system change their names at one moment; OSError where it cannot.
#[pyfunction]
fn exchange_paths(py: Python<'_>, one: PathBuf, other: PathBuf) -> PyResult<()> {
    py.detach(|| waystage_catalog::exchange_paths(&one, &other))?;
    Ok(())
}

/// XXH3, 64 bits, of runs of a file's bytes, each (first byte, length); OSError where one cannot be read whole.
#[pyfunction]
fn digest_ranges(py: Python<'_>, path: PathBuf, ranges: Vec<(u64, u64)>) -> PyResult<Vec<u64>> {
    let found = py.detach(|| {
        let file = std::fs::File::open(&path)?;
        waystage_catalog::seal::digests(file.as_fd(), &ranges)
    });
    Ok(found?)
}

/// XXH3, 64 bits, of bytes.
#[pyfunction]
fn digest_bytes(bytes: &[u8]) -> u64 {
    waystage_catalog::seal::digest(bytes)
}

/// Entries of a tree that there is not, as a walk gives them, for measurements.
#[pyfunction]
fn generated_batch(py: Python<'_>, first: u64, count: u64) -> WalkBatch {
    WalkBatch(Mutex::new(Some(py.detach(|| waystage_catalog::generate(first, count)))))
}

/// A parallel walk under way.
#[pyclass(frozen, module = "waystage._native")]
struct TreeWalk(Walk);

/// Path offsets, paths, inodes, devices, mtimes and ctimes of directories that an earlier walk knew.
type PyKnown<'py> = (
    PyReadonlyArray1<'py, i64>,
    Bound<'py, PyBytes>,
    PyReadonlyArray1<'py, u64>,
    PyReadonlyArray1<'py, u64>,
    PyReadonlyArray1<'py, i64>,
    PyReadonlyArray1<'py, i64>,
);

#[pymethods]
impl TreeWalk {
    #[new]
    #[allow(clippy::too_many_arguments, reason = "in Python they are keywords")]
    #[pyo3(signature = (root, *, threads, exclude=Vec::new(), one_file_system=false, known=None, batch_rows=BATCH_ROWS, layouts=None, tops=None))]
    fn new(
        py: Python<'_>,
        root: PathBuf,
        threads: usize,
        exclude: Vec<Vec<u8>>,
        one_file_system: bool,
        known: Option<PyKnown<'_>>,
        batch_rows: usize,
        layouts: Option<&str>,
        tops: Option<Vec<Vec<u8>>>,
    ) -> PyResult<Self> {
        let known = match known {
            Some(known) => known_directories(&known)?,
            None => Vec::new(),
        };
        let layouts = layouts_asked_for(layouts)?;
        let walk = py.detach(|| {
            Walk::start(Options {
                root,
                threads,
                batch_rows,
                exclude: Exclude::new(exclude),
                one_file_system,
                layouts,
                known: Known::new(known),
                tops: tops.unwrap_or_else(|| vec![Vec::new()]),
            })
        })?;
        Ok(Self(walk))
    }

    /// The next batch, waiting for at most `timeout_s`: (batch or None, whether the walk is over).
    fn next(&self, py: Python<'_>, timeout_s: f64) -> PyResult<(Option<WalkBatch>, bool)> {
        let timeout = Duration::try_from_secs_f64(timeout_s).map_err(|_| {
            PyValueError::new_err(format!("{timeout_s} is not a number of seconds"))
        })?;
        let deadline = Instant::now() + timeout;
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            match py.detach(|| self.0.next(left.min(LOOK_ROUND))) {
                Next::Batch(batch) => return Ok((Some(WalkBatch::from(*batch)), false)),
                Next::End => return Ok((None, true)),
                Next::Waiting if left.is_zero() => return Ok((None, false)),
                Next::Waiting => py.check_signals()?,
            }
        }
    }

    /// (number, name) of every storage target met so far.
    fn targets(&self) -> Vec<(u32, String)> {
        self.0.targets()
    }

    /// How far it is, by name.
    fn counts<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let counts = self.0.counts();
        let by_name = PyDict::new(py);
        for (name, count) in [
            ("entries", counts.entries),
            ("directories", counts.directories),
            ("unchanged", counts.unchanged),
            ("bytes", counts.bytes),
            ("excluded", counts.excluded),
            ("vanished", counts.vanished),
            ("errors", counts.errors),
            ("pending", counts.pending),
        ] {
            by_name.set_item(name, count)?;
        }
        Ok(by_name)
    }

    /// End it; its threads are gone when this returns.
    fn stop(&self, py: Python<'_>) {
        py.detach(|| self.0.stop());
    }
}

/// Entries as columns; they can be taken once, and are moved, not copied.
#[pyclass(frozen, module = "waystage._native")]
pub(crate) struct WalkBatch(Mutex<Option<Batch>>);

impl From<Batch> for WalkBatch {
    fn from(batch: Batch) -> Self {
        Self(Mutex::new(Some(batch)))
    }
}

/// Columns of entries, columns of directories, and what could not be read.
type Taken<'py> = (Bound<'py, PyDict>, Bound<'py, PyDict>, Vec<(Bound<'py, PyBytes>, String)>);

#[pymethods]
impl WalkBatch {
    /// (columns of entries, columns of directories, [(path, error)]), each column a numpy array by its name.
    fn take<'py>(&self, py: Python<'py>) -> PyResult<Taken<'py>> {
        let mut held =
            self.0.lock().map_err(|_| PyRuntimeError::new_err("an earlier call panicked"))?;
        let batch =
            held.take().ok_or_else(|| PyRuntimeError::new_err("the batch was taken before"))?;
        let errors = batch
            .errors
            .into_iter()
            .map(|(path, error)| (PyBytes::new(py, &path), error))
            .collect();
        let (d, e) = (batch.directories, batch.entries);
        let directories = PyDict::new(py);
        put_bytes(&directories, "path", d.path)?;
        put(&directories, "inode", d.inode)?;
        put(&directories, "device", d.device)?;
        put(&directories, "mtime", d.mtime)?;
        put(&directories, "ctime", d.ctime)?;
        put(&directories, "mode", d.mode)?;
        put(&directories, "uid", d.uid)?;
        put(&directories, "gid", d.gid)?;
        put(&directories, "rows", d.rows)?;
        put(&directories, "total", d.total)?;
        put(&directories, "state", d.state)?;
        let entries = PyDict::new(py);
        put(&entries, "directory", e.directory)?;
        put_bytes(&entries, "name", e.name)?;
        put(&entries, "type", e.kind)?;
        put(&entries, "size", e.size)?;
        put(&entries, "mtime", e.mtime)?;
        put(&entries, "ctime", e.ctime)?;
        put(&entries, "atime", e.atime)?;
        put(&entries, "mode", e.mode)?;
        put(&entries, "uid", e.uid)?;
        put(&entries, "gid", e.gid)?;
        put(&entries, "inode", e.inode)?;
        put(&entries, "device", e.device)?;
        put(&entries, "links", e.links)?;
        put(&entries, "blocks", e.blocks)?;
        put_bytes(&entries, "symlink", e.symlink)?;
        put(&entries, "layout_kind", e.layout_kind)?;
        put(&entries, "stripe_size", e.stripe_size)?;
        put(&entries, "generation", e.generation)?;
        put(&entries, "objects", e.objects)?;
        put(&entries, "object_target", e.object_target)?;
        put(&entries, "object_offset", e.object_offset)?;
        put(&entries, "object_length", e.object_length)?;
        put(&entries, "beyond_row", e.beyond.row)?;
        put(&entries, "beyond_which", e.beyond.which)?;
        put(&entries, "beyond_seconds", e.beyond.seconds)?;
        Ok((entries, directories, errors))
    }
}

/// Who reads layouts, by the word that Python has for it.
pub(crate) fn layouts_asked_for(how: Option<&str>) -> PyResult<Option<Layouts>> {
    match how {
        None => Ok(None),
        Some("each") => Ok(Some(Layouts::new(LayoutMethod::PerFileSystem))),
        Some("attribute") => Ok(Some(Layouts::new(LayoutMethod::LustreAttribute))),
        Some(_) => Err(PyValueError::new_err("layouts are asked for by each or attribute, or not")),
    }
}

fn put<T: numpy::Element>(columns: &Bound<'_, PyDict>, name: &str, column: Vec<T>) -> PyResult<()> {
    columns.set_item(name, PyArray1::from_vec(columns.py(), column))
}

fn put_bytes(columns: &Bound<'_, PyDict>, name: &str, column: Bytes) -> PyResult<()> {
    put(columns, &format!("{name}_offsets"), column.offsets)?;
    put(columns, &format!("{name}_data"), column.data)
}

fn known_directories(known: &PyKnown<'_>) -> PyResult<Vec<(Vec<u8>, KnownDirectory)>> {
    let (offsets, paths, inodes, devices, mtimes, ctimes) = known;
    let (offsets, paths) = (offsets.as_slice()?, paths.as_bytes());
    let (inodes, devices) = (inodes.as_slice()?, devices.as_slice()?);
    let (mtimes, ctimes) = (mtimes.as_slice()?, ctimes.as_slice()?);
    let uneven = || PyValueError::new_err("the columns of known directories do not fit together");
    let count = inodes.len();
    if [devices.len(), mtimes.len(), ctimes.len()] != [count; 3] || offsets.len() != count + 1 {
        return Err(uneven());
    }
    let at = |i: usize| usize::try_from(offsets[i]).map_err(|_| uneven());
    (0..count)
        .map(|i| {
            let path = paths.get(at(i)?..at(i + 1)?).ok_or_else(uneven)?.to_vec();
            let known = KnownDirectory {
                inode: inodes[i],
                device: devices[i],
                mtime: mtimes[i],
                ctime: ctimes[i],
            };
            Ok((path, known))
        })
        .collect()
}
