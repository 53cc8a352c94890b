//! The files that a loader reads: `LoadFiles`.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::sync::Arc;

use numpy::PyReadonlyArray1;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use waystage_load::error::LoadError;
use waystage_load::files::{Columns, Files};
use waystage_sync::Mutex;

use crate::check::Strings;
use crate::errors::OrRaise;

pub(crate) fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<LoadFiles>()
}

/// The files that a loader reads.
#[pyclass(frozen, module = "waystage._native")]
pub(crate) struct LoadFiles(Mutex<Arc<Files>>);

impl LoadFiles {
    pub(crate) fn get(&self) -> Arc<Files> {
        Arc::clone(&self.0.lock())
    }
}

/// Columns of a catalog's entries, by name.
#[derive(FromPyObject)]
#[pyo3(from_item_all)]
struct FileColumns<'py> {
    directories: Strings<'py>,
    directory: PyReadonlyArray1<'py, i32>,
    kind: PyReadonlyArray1<'py, i8>,
    names: Strings<'py>,
    size: PyReadonlyArray1<'py, i64>,
    mtime: PyReadonlyArray1<'py, i64>,
    ctime: PyReadonlyArray1<'py, i64>,
    inode: PyReadonlyArray1<'py, u64>,
    layout: PyReadonlyArray1<'py, i8>,
    generation: PyReadonlyArray1<'py, u32>,
    objects: PyReadonlyArray1<'py, i32>,
    object_target: PyReadonlyArray1<'py, u32>,
    object_offset: PyReadonlyArray1<'py, i64>,
    object_length: PyReadonlyArray1<'py, i64>,
}

#[pymethods]
impl LoadFiles {
    #[new]
    fn new(root: PathBuf) -> Self {
        Self(Mutex::new(Arc::new(Files::new(root))))
    }

    /// Append the regular files among these entries.
    fn extend(&self, py: Python<'_>, columns: FileColumns<'_>) -> PyResult<()> {
        let of = columns;
        let columns = Columns {
            directories: (of.directories.0.as_slice()?, of.directories.1.as_slice()?),
            directory: of.directory.as_slice()?,
            kind: of.kind.as_slice()?,
            names: (of.names.0.as_slice()?, of.names.1.as_slice()?),
            size: of.size.as_slice()?,
            mtime: of.mtime.as_slice()?,
            ctime: of.ctime.as_slice()?,
            inode: of.inode.as_slice()?,
            layout: of.layout.as_slice()?,
            generation: of.generation.as_slice()?,
            objects: of.objects.as_slice()?,
            object_target: of.object_target.as_slice()?,
            object_offset: of.object_offset.as_slice()?,
            object_length: of.object_length.as_slice()?,
        };
        py.detach(|| {
            let mut files = self.0.lock();
            let files = Arc::get_mut(&mut files);
            let busy = || LoadError::Option("the files are being read: add all before".into());
            files.ok_or_else(busy)?.extend(&columns)
        })
        .or_raise()
    }

    /// Bring them into the order of their directories and names.
    fn sort(&self, py: Python<'_>) {
        py.detach(|| {
            let mut files = self.0.lock();
            *files = Arc::new(files.sorted());
        });
    }

    fn __len__(&self) -> usize {
        self.get().len()
    }

    /// Number of objects; each file has at least one.
    #[getter]
    fn objects(&self) -> usize {
        self.get().objects()
    }

    /// The numbers of the targets, in order of first appearance; 2**32 - 1 stands for an unknown target.
    #[getter]
    fn targets(&self) -> Vec<u32> {
        self.get().targets().to_vec()
    }

    /// Bytes of all files on each target, in the order of `targets`.
    fn bytes_by_target(&self, py: Python<'_>) -> Vec<u64> {
        let files = self.get();
        py.detach(|| {
            let mut bytes = vec![0; files.targets().len()];
            for object in 0..u32::try_from(files.objects()).unwrap_or(u32::MAX) {
                let (target, length) = files.object(object);
                bytes[usize::from(target)] += length;
            }
            bytes
        })
    }

    /// A number that differs between different files in all likelihood.
    fn fingerprint(&self, py: Python<'_>) -> u64 {
        let files = self.get();
        py.detach(|| files.fingerprint())
    }

    /// The path of a file below the root.
    fn path<'py>(&self, py: Python<'py>, file: u32) -> PyResult<Bound<'py, PyAny>> {
        let files = self.get();
        if file as usize >= files.len() {
            return Err(PyValueError::new_err(format!("there is no file {file}")));
        }
        files.with_path(file, |path| path_str(py, path))
    }
}

/// A path as `os.fsdecode` gives it.
pub(crate) fn path_str<'py>(py: Python<'py>, path: &[u8]) -> PyResult<Bound<'py, PyAny>> {
    Ok(OsStr::from_bytes(path).into_pyobject(py)?.into_any())
}
