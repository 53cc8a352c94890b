//! The loader for Python: `LoadFiles`, `Loading`, `LoadedBytes`, what chooses loaders, and the simulated scheduler.

use std::ffi::c_int;
use std::path::PathBuf;
use std::sync::atomic::{AtomicPtr, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use numpy::PyReadonlyArray1;
use pyo3::exceptions::{PyRuntimeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict, PyMemoryView, PyTuple};
use pyo3::{create_exception, ffi};
use waystage_load::buffer::Buffer;
use waystage_load::error::{Failure, LoadError, Trouble};
use waystage_load::files::{Columns, Files};
use waystage_load::plan::{units, Delivery, Share, Uneven};
use waystage_load::progress::Progress;
use waystage_load::read::{Delivered, Loading, Next};
use waystage_load::schedule::{Binding, Rules};

/// How often a wait looks whether Python has had a signal.
const LOOK_ROUND: Duration = Duration::from_millis(100);

/// Failures that are kept; more are only counted.
const KEPT_FAILURES: usize = 1000;

create_exception!(
    waystage._native,
    LoadRefused,
    PyValueError,
    "Options, files or a state that a loader cannot use; the message says which."
);
create_exception!(
    waystage._native,
    FileNotLoaded,
    PyRuntimeError,
    "A file that could not be delivered; `path` and `trouble` say which and why."
);

pub(crate) fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add("LoadRefused", module.py().get_type::<LoadRefused>())?;
    module.add("FileNotLoaded", module.py().get_type::<FileNotLoaded>())?;
    module.add_class::<LoadFiles>()?;
    module.add_class::<PyLoading>()?;
    module.add_class::<LoadedBytes>()
}

pub(crate) fn refused(error: LoadError) -> PyErr {
    match error {
        LoadError::Io(path, error) => PyErr::new::<pyo3::exceptions::PyOSError, _>((
            error.raw_os_error(),
            error.to_string().split(" (os error").next().unwrap_or_default().to_owned(),
            path,
        )),
        other => LoadRefused::new_err(other.to_string()),
    }
}

/// The files that a loader reads.
#[pyclass(frozen, module = "waystage._native")]
pub(crate) struct LoadFiles(Mutex<Arc<Files>>);

impl LoadFiles {
    pub(crate) fn get(&self) -> Arc<Files> {
        Arc::clone(&self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

type Strings<'py> = (PyReadonlyArray1<'py, i32>, PyReadonlyArray1<'py, u8>);

#[pymethods]
impl LoadFiles {
    #[new]
    fn new(root: PathBuf) -> Self {
        Self(Mutex::new(Arc::new(Files::new(root))))
    }

    /// Append the regular files among these entries.
    #[allow(clippy::too_many_arguments, reason = "in Python they are keywords")]
    #[pyo3(signature = (*, directories, directory, kind, names, size, mtime, ctime, inode, layout, generation,
                        objects, object_target, object_offset, object_length))]
    fn extend(
        &self,
        py: Python<'_>,
        directories: Strings<'_>,
        directory: PyReadonlyArray1<'_, i32>,
        kind: PyReadonlyArray1<'_, i8>,
        names: Strings<'_>,
        size: PyReadonlyArray1<'_, i64>,
        mtime: PyReadonlyArray1<'_, i64>,
        ctime: PyReadonlyArray1<'_, i64>,
        inode: PyReadonlyArray1<'_, u64>,
        layout: PyReadonlyArray1<'_, i8>,
        generation: PyReadonlyArray1<'_, u32>,
        objects: PyReadonlyArray1<'_, i32>,
        object_target: PyReadonlyArray1<'_, u32>,
        object_offset: PyReadonlyArray1<'_, i64>,
        object_length: PyReadonlyArray1<'_, i64>,
    ) -> PyResult<()> {
        let columns = Columns {
            directories: (directories.0.as_slice()?, directories.1.as_slice()?),
            directory: directory.as_slice()?,
            kind: kind.as_slice()?,
            names: (names.0.as_slice()?, names.1.as_slice()?),
            size: size.as_slice()?,
            mtime: mtime.as_slice()?,
            ctime: ctime.as_slice()?,
            inode: inode.as_slice()?,
            layout: layout.as_slice()?,
            generation: generation.as_slice()?,
            objects: objects.as_slice()?,
            object_target: object_target.as_slice()?,
            object_offset: object_offset.as_slice()?,
            object_length: object_length.as_slice()?,
        };
        py.detach(|| {
            let mut files = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            let files = Arc::get_mut(&mut files);
            let busy = || LoadError::Option("the files are being read: add all before".into());
            files.ok_or_else(busy)?.extend(&columns)
        })
        .map_err(refused)
    }

    /// Bring them into the order of their directories and names.
    fn sort(&self, py: Python<'_>) {
        py.detach(|| {
            let mut files = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            *files = Arc::new(files.sorted());
        });
    }

    fn __len__(&self) -> usize {
        self.get().len()
    }

    /// How many objects they have; each file has one at least.
    #[getter]
    fn objects(&self) -> usize {
        self.get().objects()
    }

    /// The numbers of the targets, in the order in which they were first met; 2**32 - 1 is the one nobody knows.
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
        Ok(files.path(file).as_os_str().into_pyobject(py)?.into_any())
    }
}

/// Bytes that were read: a buffer of its receiver's own, writable. Its memory is used again when nobody holds it any more.
#[pyclass(frozen, module = "waystage._native")]
struct LoadedBytes {
    buffer: Buffer,
    start: AtomicPtr<u8>,
}

#[pymethods]
impl LoadedBytes {
    fn __len__(&self) -> usize {
        self.buffer.bytes.len()
    }

    fn __bytes__<'py>(&self, py: Python<'py>) -> Bound<'py, PyBytes> {
        PyBytes::new(py, &self.buffer.bytes)
    }

    /// The buffer protocol.
    // SAFETY: `view` is what Python hands to `bf_getbuffer`. The memory lives as long as `slf`, of which the view keeps a
    // reference; its address was taken from the buffer when nobody else had it, and nothing here moves or resizes it.
    #[allow(unsafe_code)]
    unsafe fn __getbuffer__(
        slf: Bound<'_, Self>,
        view: *mut ffi::Py_buffer,
        flags: c_int,
    ) -> PyResult<()> {
        let this = slf.get();
        let start = this.start.load(Ordering::Relaxed).cast();
        let length = ffi::Py_ssize_t::try_from(this.buffer.bytes.len())?;
        if ffi::PyBuffer_FillInfo(view, slf.as_ptr(), start, length, 0, flags) == -1 {
            return Err(PyErr::fetch(slf.py()));
        }
        Ok(())
    }
}

/// An epoch being read: an iterator of what was read.
#[pyclass(frozen, name = "Loading", module = "waystage._native")]
struct PyLoading {
    loading: Loading,
    delivery: Delivery,
    raises: bool,
    failures: Mutex<Vec<Failure>>,
}

fn trouble(failure: &Failure) -> &'static str {
    match failure.trouble {
        Trouble::Vanished => "vanished",
        Trouble::NotAFile => "not_a_file",
        Trouble::Unreadable => "unreadable",
        Trouble::Grown => "grown",
        Trouble::Resized => "resized",
    }
}

#[pymethods]
impl PyLoading {
    #[new]
    #[allow(clippy::too_many_arguments, reason = "in Python they are keywords")]
    #[pyo3(signature = (files, *, whole_files, seed, epoch, shuffle, rank, world, uneven, loaders, best_loaders,
                        in_order, memory_bytes, piece_bytes, steal, raises, resized, runs, parts))]
    fn new(
        py: Python<'_>,
        files: &LoadFiles,
        whole_files: bool,
        seed: u64,
        epoch: u64,
        shuffle: bool,
        rank: u32,
        world: u32,
        uneven: &str,
        loaders: u32,
        best_loaders: Option<u32>,
        in_order: bool,
        memory_bytes: u64,
        piece_bytes: u64,
        steal: bool,
        raises: bool,
        resized: bool,
        runs: Vec<(u32, u32)>,
        parts: Vec<(u32, Vec<u32>)>,
    ) -> PyResult<Self> {
        let uneven = match uneven {
            "keep" => Uneven::Keep,
            "drop" => Uneven::Drop,
            "repeat" => Uneven::Repeat,
            _ => return Err(LoadRefused::new_err("uneven is keep, drop or repeat")),
        };
        let delivery = if whole_files { Delivery::Files } else { Delivery::Objects };
        let share = Share { seed, epoch, shuffle, rank, world, uneven };
        let rules = Rules {
            delivery,
            ordered: in_order,
            memory_bytes,
            piece_bytes,
            loaders,
            binding: if steal { Binding::Steal } else { Binding::Strict },
            most_readers: best_loaders,
            resized,
        };
        let files = files.get();
        let started = py.detach(|| {
            let units = units(&files, delivery, &share, loaders, best_loaders)?;
            Loading::start(files, units, Progress::new(&runs, &parts), rules)
        });
        let loading = started.map_err(refused)?;
        Ok(Self { loading, delivery, raises, failures: Mutex::default() })
    }

    fn __iter__(slf: Bound<'_, Self>) -> Bound<'_, Self> {
        slf
    }

    /// (path, memoryview) of a file, or (path, offset, memoryview) of a piece.
    fn __next__<'py>(&self, py: Python<'py>) -> PyResult<Option<Bound<'py, PyTuple>>> {
        let mut wait = Duration::ZERO;
        loop {
            // What is ready is taken at once: to let the GIL go and come takes longer.
            let next = if wait.is_zero() {
                self.loading.next(wait)
            } else {
                py.detach(|| self.loading.next(wait))
            };
            match next {
                Next::Item(item) => {
                    if let Some(item) = self.hand_out(py, *item)? {
                        return Ok(Some(item));
                    }
                }
                Next::Waiting => py.check_signals()?,
                Next::End => return Ok(None),
            }
            wait = LOOK_ROUND;
        }
    }

    /// (runs of positions delivered in full, parts of units delivered in part).
    #[allow(clippy::type_complexity, reason = "it is spelt out where it is taken")]
    fn progress(&self) -> (Vec<(u32, u32)>, Vec<(u32, Vec<u32>)>) {
        let progress = self.loading.progress();
        (progress.runs(), progress.parts())
    }

    /// How far it is, by name; `targets` holds (number, bytes, pieces, busy seconds, reading seconds) each.
    fn counts<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let counts = self.loading.counts();
        let checks = self.loading.checks();
        let by_name = PyDict::new(py);
        let [vanished, not_a_file, unreadable, grown, resized] = counts.failed;
        for (name, count) in [
            ("units", counts.units),
            ("delivered", counts.delivered),
            ("items", counts.items),
            ("bytes", counts.bytes),
            ("vanished", vanished),
            ("not_a_file", not_a_file),
            ("unreadable", unreadable),
            ("grown", grown),
            ("resized", resized),
            ("shrunk", counts.shrunk),
            ("stolen", counts.stolen),
            ("checked", checks.checked),
            ("stale", checks.stale),
        ] {
            by_name.set_item(name, count)?;
        }
        let numbers = self.loading.files().targets();
        let seconds = |ns: u64| Duration::from_nanos(ns).as_secs_f64();
        let of = |(number, of): (&u32, &waystage_load::read::TargetCounts)| {
            (*number, of.bytes, of.pieces, seconds(of.busy_ns), seconds(of.reading_ns))
        };
        let targets: Vec<_> = numbers.iter().zip(&counts.targets).map(of).collect();
        by_name.set_item("targets", targets)?;
        Ok(by_name)
    }

    /// (path, trouble, message) of files that were not delivered, the first thousand.
    fn failures<'py>(
        &self,
        py: Python<'py>,
    ) -> PyResult<Vec<(Bound<'py, PyAny>, &'static str, String)>> {
        let failures = self.failures.lock().unwrap_or_else(PoisonError::into_inner);
        let told = |failure: &Failure| {
            let path = failure.path.as_os_str().into_pyobject(py)?.into_any();
            Ok((path, trouble(failure), failure.message.clone()))
        };
        failures.iter().map(told).collect()
    }

    /// Paths of entries that no longer hold, and whether these are all.
    fn stale_paths<'py>(&self, py: Python<'py>) -> (Vec<Bound<'py, PyBytes>>, bool) {
        let (paths, all) = self.loading.stale_paths();
        (paths.iter().map(|path| PyBytes::new(py, path)).collect(), all)
    }

    /// End it; its threads are gone when this returns.
    fn stop(&self, py: Python<'_>) {
        py.detach(|| self.loading.stop());
    }
}

impl PyLoading {
    fn hand_out<'py>(
        &self,
        py: Python<'py>,
        item: Delivered,
    ) -> PyResult<Option<Bound<'py, PyTuple>>> {
        let path = || {
            let path = self.loading.files().path(item.file);
            path.as_os_str().into_pyobject(py).map(Bound::into_any)
        };
        let mut buffer = match item.bytes {
            Ok(Some(buffer)) => buffer,
            Ok(None) => return Ok(None),
            Err(failure) => {
                let raised = self.raises.then(|| not_loaded(py, &failure)).transpose()?;
                let mut failures = self.failures.lock().unwrap_or_else(PoisonError::into_inner);
                if failures.len() < KEPT_FAILURES {
                    failures.push(failure);
                }
                return raised.map_or(Ok(None), Err);
            }
        };
        let start = AtomicPtr::new(buffer.bytes.as_mut_ptr());
        let bytes = Bound::new(py, LoadedBytes { buffer, start })?;
        let view = PyMemoryView::from(bytes.as_any())?.into_any();
        let values = match self.delivery {
            Delivery::Files => PyTuple::new(py, [path()?, view])?,
            Delivery::Objects => {
                let offset = item.offset.into_pyobject(py)?.into_any();
                PyTuple::new(py, [path()?, offset, view])?
            }
        };
        Ok(Some(values))
    }
}

fn not_loaded(py: Python<'_>, failure: &Failure) -> PyResult<PyErr> {
    let shown = failure.path.display();
    let error = FileNotLoaded::new_err(format!("{shown}: {}", failure.message));
    error.value(py).setattr("path", failure.path.as_os_str())?;
    error.value(py).setattr("trouble", trouble(failure))?;
    Ok(error)
}
