//! The loader: `Loading`, `LoadedItems`, `LoadedBytes`.

use std::ffi::c_int;
use std::sync::atomic::{AtomicPtr, Ordering};
use std::sync::Arc;
use std::time::Duration;

use pyo3::exceptions::PyValueError;
use pyo3::ffi;
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyList, PyMemoryView, PyTuple};
use waystage_load::buffer::Buffer;
use waystage_load::error::Failure;
use waystage_load::plan::{units, Delivery, Share, Uneven};
use waystage_load::progress::Progress;
use waystage_load::read::{Delivered, Loading, Next, TargetCounts};
use waystage_load::schedule::{Binding, Rules};
use waystage_pacing::{FlowCounts, Gate};
use waystage_sync::{Condvar, Mutex};

use crate::errors::{trouble_name, IntoPyErr, LoadRefused, OrRaise};
use crate::load_files::{path_str, LoadFiles};
use crate::task::{wait, Loaders, Paced, Task};

/// Failures whose reason is kept; later ones are only counted.
const KEPT_FAILURES: usize = 1000;

pub(crate) fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<PyLoading>()?;
    module.add_class::<LoadedItems>()?;
    module.add_class::<LoadedBytes>()
}

/// Bytes that were read, writable. The memory is reused once the last reference is gone.
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
    // SAFETY: `view` is the argument of `bf_getbuffer`. The memory lives as long as `slf`, of which the view keeps a
    // reference; its address was taken from the buffer under exclusive access, and nothing moves or resizes it.
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

/// `waystage.native_options.loads.LoadingOptions`.
#[derive(FromPyObject)]
struct LoadingOptions {
    whole_files: bool,
    seed: u64,
    epoch: u64,
    shuffle: bool,
    rank: u32,
    world: u32,
    uneven: String,
    loaders: u32,
    best_loaders: Option<u32>,
    in_order: bool,
    memory_bytes: u64,
    piece_bytes: u64,
    steal: bool,
    raises: bool,
    resized: bool,
}

impl LoadingOptions {
    fn share(&self) -> PyResult<Share> {
        let uneven = match self.uneven.as_str() {
            "keep" => Uneven::Keep,
            "drop" => Uneven::Drop,
            "repeat" => Uneven::Repeat,
            _ => return Err(LoadRefused::new_err("uneven is keep, drop or repeat")),
        };
        let Self { seed, epoch, shuffle, rank, world, .. } = *self;
        Ok(Share { seed, epoch, shuffle, rank, world, uneven })
    }

    fn rules(&self) -> Rules {
        Rules {
            delivery: if self.whole_files { Delivery::Files } else { Delivery::Objects },
            ordered: self.in_order,
            memory_bytes: self.memory_bytes,
            piece_bytes: self.piece_bytes,
            loaders: self.loaders,
            binding: if self.steal { Binding::Steal } else { Binding::Strict },
            most_readers: self.best_loaders,
            resized: self.resized,
        }
    }
}

struct Running {
    loading: Loading,
    delivery: Delivery,
    raises: bool,
    failures: Mutex<Vec<Failure>>,
    /// Whether the last item has been handed out, or the load was cancelled.
    ended: Mutex<bool>,
    changed: Condvar,
}

impl Running {
    fn end(&self) {
        *self.ended.lock() = true;
        self.changed.notify_all();
    }
}

impl Paced for Running {
    fn wait(&self, timeout: Duration) -> Option<PyResult<bool>> {
        let mut ended = self.ended.lock();
        self.changed.wait_while_for(&mut ended, |ended| !*ended, timeout);
        ended.then_some(Ok(true))
    }

    fn progress(&self) -> Vec<(&'static str, u64)> {
        let (counts, checks) = (self.loading.counts(), self.loading.checks());
        let [vanished, not_a_file, unreadable, grown, resized] = counts.failed;
        vec![
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
        ]
    }

    fn cancel(&self) {
        self.loading.stop();
        self.end();
    }

    fn gate(&self) -> &Gate {
        &self.loading.pace().gate
    }

    const HAS_LOADERS: bool = true;

    fn set_loaders(&self, loaders: &Loaders) -> PyResult<()> {
        let (of, each) = match loaders {
            Loaders::Each(most) => (Vec::new(), Some(*most)),
            Loaders::By(by) => (by.iter().map(|(number, most)| (*number, *most)).collect(), None),
        };
        let limited = self.loading.limit_readers(&of, each);
        limited.map_err(|error| PyValueError::new_err(error.to_string()))
    }

    fn flow(&self) -> FlowCounts {
        self.loading.pace().counts(self.loading.bytes_total())
    }
}

/// An epoch being read.
#[pyclass(frozen, extends = Task, name = "Loading", module = "waystage._native")]
struct PyLoading(Arc<Running>);

/// Iterates over what is loaded: (path, memoryview) of files, or (path, offset, memoryview) of pieces.
#[pyclass(frozen, subclass, module = "waystage._native")]
struct LoadedItems(Arc<Running>);

#[pymethods]
impl LoadedItems {
    #[new]
    fn new(loading: &PyLoading) -> Self {
        loading.__iter__()
    }

    fn __iter__(slf: Bound<'_, Self>) -> Bound<'_, Self> {
        slf
    }

    fn __next__<'py>(slf: &Bound<'py, Self>) -> PyResult<Option<Bound<'py, PyTuple>>> {
        let py = slf.py();
        let Some(item) = slf.get().0.next_item(py)? else {
            slf.call_method0(intern!(py, "close"))?;
            return Ok(None);
        };
        match item.offset {
            None => PyTuple::new(py, [item.path, item.bytes]).map(Some),
            Some(offset) => PyTuple::new(py, [item.path, offset, item.bytes]).map(Some),
        }
    }

    /// Called after the last item, for subclasses.
    #[allow(clippy::unused_self, reason = "a method of Python's")]
    fn close(&self) {}
}

/// Runs of positions delivered in full, and the parts delivered of other units.
type PyDelivered = (Vec<(u32, u32)>, Vec<(u32, Vec<u32>)>);

/// What is delivered, as Python objects.
struct Item<'py> {
    path: Bound<'py, PyAny>,
    /// Of a piece.
    offset: Option<Bound<'py, PyAny>>,
    bytes: Bound<'py, PyAny>,
}

impl Running {
    /// The next item, waiting for it; None at the end.
    fn next_item<'py>(&self, py: Python<'py>) -> PyResult<Option<Item<'py>>> {
        loop {
            // An item that is ready is taken at once: releasing the GIL takes longer.
            let next = match self.loading.next(Duration::ZERO) {
                Next::Waiting => wait(py, None, |timeout| match self.loading.next(timeout) {
                    Next::Waiting => None,
                    next => Some(next),
                })?
                .unwrap_or(Next::End),
                next => next,
            };
            match next {
                Next::Item(item) => {
                    if let Some(item) = self.hand_out(py, item)? {
                        return Ok(Some(item));
                    }
                }
                Next::Waiting | Next::End => {
                    self.end();
                    return Ok(None);
                }
            }
        }
    }
}

#[pymethods]
impl PyLoading {
    #[new]
    #[pyo3(signature = (files, options, delivered=None))]
    fn new(
        py: Python<'_>,
        files: &LoadFiles,
        options: LoadingOptions,
        delivered: Option<PyDelivered>,
    ) -> PyResult<PyClassInitializer<Self>> {
        let (share, rules, files) = (options.share()?, options.rules(), files.get());
        let (runs, parts) = delivered.unwrap_or_default();
        let (delivery, most) = (rules.delivery, rules.most_readers);
        let started = py.detach(|| {
            let units = units(&files, delivery, &share, rules.loaders, most)?;
            Loading::start(files, units, Progress::new(&runs, &parts), rules)
        });
        let running = Running {
            loading: started.or_raise()?,
            delivery,
            raises: options.raises,
            failures: Mutex::default(),
            ended: Mutex::default(),
            changed: Condvar::new(),
        };
        Ok(Task::handle(running, Self))
    }

    fn __iter__(&self) -> LoadedItems {
        LoadedItems(Arc::clone(&self.0))
    }

    /// Append to `columns`, lists of paths and memoryviews, of pieces of paths, offsets and memoryviews, until they
    /// have `most` items or nothing is left. What was appended before an error stays.
    fn extend<'py>(
        &self,
        py: Python<'py>,
        columns: Vec<Bound<'py, PyList>>,
        most: usize,
    ) -> PyResult<()> {
        let wanted = if self.0.delivery == Delivery::Files { 2 } else { 3 };
        if columns.len() != wanted {
            return Err(PyValueError::new_err(format!("{wanted} columns are wanted")));
        }
        while columns[0].len() < most {
            let Some(item) = self.0.next_item(py)? else { break };
            columns[0].append(item.path)?;
            if let Some(offset) = item.offset {
                columns[1].append(offset)?;
            }
            columns[wanted - 1].append(item.bytes)?;
        }
        Ok(())
    }

    /// What has been delivered, to continue from: see `Loading.__new__`.
    fn delivered(&self) -> PyDelivered {
        let progress = self.0.loading.progress();
        (progress.runs(), progress.parts())
    }

    /// (number, bytes, pieces, busy seconds, reading seconds) of each target.
    fn targets(&self) -> Vec<(u32, u64, u64, f64, f64)> {
        let seconds = |ns: u64| Duration::from_nanos(ns).as_secs_f64();
        let of = |(number, of): (&u32, &TargetCounts)| {
            (*number, of.bytes, of.pieces, seconds(of.busy_ns), seconds(of.reading_ns))
        };
        let counts = self.0.loading.counts();
        self.0.loading.files().targets().iter().zip(&counts.targets).map(of).collect()
    }

    /// (path, trouble, message) of files that were not delivered, the first thousand.
    fn failures<'py>(
        &self,
        py: Python<'py>,
    ) -> PyResult<Vec<(Bound<'py, PyAny>, &'static str, String)>> {
        let failures = self.0.failures.lock();
        let each = |failure: &Failure| {
            let path = failure.path.as_os_str().into_pyobject(py)?.into_any();
            Ok((path, trouble_name(failure.trouble), failure.message.clone()))
        };
        failures.iter().map(each).collect()
    }

    /// Paths of stale entries, and whether the list is complete.
    fn stale_paths<'py>(&self, py: Python<'py>) -> (Vec<Bound<'py, PyBytes>>, bool) {
        let (paths, all) = self.0.loading.stale_paths();
        (paths.iter().map(|path| PyBytes::new(py, path)).collect(), all)
    }
}

impl Running {
    fn hand_out<'py>(&self, py: Python<'py>, item: Delivered) -> PyResult<Option<Item<'py>>> {
        let mut buffer = match item.bytes {
            Ok(Some(buffer)) => buffer,
            Ok(None) => return Ok(None),
            Err(failure) => {
                let raised = self.raises.then(|| failure.clone().into_py_err());
                let mut failures = self.failures.lock();
                if failures.len() < KEPT_FAILURES {
                    failures.push(failure);
                }
                return raised.map_or(Ok(None), Err);
            }
        };
        let start = AtomicPtr::new(buffer.bytes.as_mut_ptr());
        let bytes = Bound::new(py, LoadedBytes { buffer, start })?;
        let path = self.loading.files().with_path(item.file, |path| path_str(py, path))?;
        let offset = match self.delivery {
            Delivery::Files => None,
            Delivery::Objects => Some(item.offset.into_pyobject(py)?.into_any()),
        };
        Ok(Some(Item { path, offset, bytes: PyMemoryView::from(bytes.as_any())?.into_any() }))
    }
}
