//! Walks of trees, and what else a catalog needs: `TreeWalk`, `WalkBatch`, `exchange_paths`.

use std::os::fd::AsFd;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use numpy::{PyArray1, PyReadonlyArray1};
use pyo3::exceptions::{PyRuntimeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict};
use waystage_catalog::layout::{LayoutReader, READERS};
use waystage_catalog::walk::{Known, KnownDirectory, Options, Walk};
use waystage_catalog::{Batch, Bytes, Exclude, LayoutMethod, Layouts, TYPE_LETTERS};
use waystage_sync::Mutex;

use crate::errors::{self, uneven};
use crate::task::{Task, Work};

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

/// Exchange two paths of one file system atomically; OSError where that fails.
#[pyfunction]
fn exchange_paths(py: Python<'_>, one: PathBuf, other: PathBuf) -> PyResult<()> {
    py.detach(|| waystage_catalog::exchange_paths(&one, &other))?;
    Ok(())
}

/// XXH3, 64 bits, of runs of a file's bytes, each (first byte, length); OSError where one is not completely readable.
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
fn digest_bytes(data: &[u8]) -> u64 {
    waystage_catalog::seal::digest(data)
}

/// Entries of a fictitious tree, as from a walk, for benchmarks.
#[pyfunction]
fn generated_batch(py: Python<'_>, first: u64, count: u64) -> WalkBatch {
    WalkBatch(Mutex::new(Some(py.detach(|| waystage_catalog::generate(first, count)))))
}

impl Work for Walk {
    fn wait(&self, timeout: Duration) -> Option<PyResult<bool>> {
        self.wait(timeout).map(Ok)
    }

    fn progress(&self) -> Vec<(&'static str, u64)> {
        let counts = self.counts();
        vec![
            ("entries", counts.entries),
            ("directories", counts.directories),
            ("unchanged", counts.unchanged),
            ("bytes", counts.bytes),
            ("excluded", counts.excluded),
            ("vanished", counts.vanished),
            ("errors", counts.errors),
            ("pending", counts.pending),
        ]
    }

    fn cancel(&self) {
        self.stop();
    }
}

/// A parallel walk in progress.
#[pyclass(frozen, extends = Task, module = "waystage._native")]
struct TreeWalk(Arc<Walk>);

/// Path offsets, paths, inodes, devices, mtimes and ctimes of directories known from an earlier walk.
type PyKnown<'py> = (
    PyReadonlyArray1<'py, i64>,
    Bound<'py, PyBytes>,
    PyReadonlyArray1<'py, u64>,
    PyReadonlyArray1<'py, u64>,
    PyReadonlyArray1<'py, i64>,
    PyReadonlyArray1<'py, i64>,
);

/// `waystage.native_options.walks.WalkOptions`.
#[derive(FromPyObject)]
struct WalkOptions<'py> {
    threads: usize,
    exclude: Vec<Vec<u8>>,
    one_file_system: bool,
    known: Option<PyKnown<'py>>,
    batch_rows: usize,
    layouts: Option<String>,
    tops: Vec<Vec<u8>>,
}

#[pymethods]
impl TreeWalk {
    #[new]
    fn new(
        py: Python<'_>,
        root: PathBuf,
        options: WalkOptions<'_>,
    ) -> PyResult<PyClassInitializer<Self>> {
        let known = options.known.as_ref().map(known_directories).transpose()?;
        let options = Options {
            root,
            threads: options.threads,
            batch_rows: options.batch_rows,
            eager: false,
            exclude: Exclude::new(options.exclude),
            one_file_system: options.one_file_system,
            layouts: layouts_of(options.layouts.as_deref())?,
            known: Known::new(known.unwrap_or_default()),
            follow: None,
            tops: options.tops,
        };
        Ok(Task::handle(py.detach(|| Walk::start(options))?, Self))
    }

    /// A batch that waits.
    fn next(&self) -> Option<WalkBatch> {
        self.0.try_recv().map(WalkBatch::from)
    }

    /// Paths of the directories found and not yet begun, which it leaves out from now on.
    fn take_waiting<'py>(&self, py: Python<'py>) -> Vec<Bound<'py, PyBytes>> {
        let paths = py.detach(|| self.0.take_waiting());
        paths.iter().map(|path| PyBytes::new(py, path)).collect()
    }

    /// (number, name) of every storage target met so far.
    fn targets(&self) -> Vec<(u32, String)> {
        self.0.targets()
    }
}

/// Entries as columns, moved to Python without a copy, once.
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
        let taken = || PyRuntimeError::new_err("the batch has been taken already");
        let batch = self.0.lock().take().ok_or_else(taken)?;
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

/// How layouts are read, by its name.
pub(crate) fn layouts_of(how: Option<&str>) -> PyResult<Option<Layouts>> {
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
    let uneven = || uneven("known directories");
    let count = inodes.len();
    if [devices.len(), mtimes.len(), ctimes.len()] != [count; 3] || offsets.len() != count + 1 {
        return Err(uneven());
    }
    let paths = errors::paths(offsets, paths).ok_or_else(uneven)?;
    let known = |(i, path): (usize, &[u8])| {
        let known = KnownDirectory {
            inode: inodes[i],
            device: devices[i],
            mtime: mtimes[i],
            ctime: ctimes[i],
        };
        (path.to_vec(), known)
    };
    Ok(paths.into_iter().enumerate().map(known).collect())
}
