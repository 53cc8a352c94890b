//! The handle of work that runs in threads of a crate: `Task`, the base class of copies, proxies, profiles and loads.
//!
//! Arrives: work that has started.
//! Leaves: `wait`, `progress` and `cancel` for Python.
//! Must not know: what the work is. Its results are methods of the subclass.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use pyo3::exceptions::{PyRuntimeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyTuple};
use pyo3::PyClass;
use waystage_pacing::{Cause, FlowCounts as Counts, Gate, Pace};
use waystage_sync::{ProcessLocal, RwLock};

/// A condition variable does not wake for a signal, and Python runs handlers only where the interpreter is asked to.
const SIGNAL_ROUND: Duration = Duration::from_millis(100);

/// Work in progress.
pub(crate) trait Work: Send + Sync + 'static {
    /// Block until it has ended, at most for `timeout`: None while it runs, `Ok(false)` to return to Python early.
    fn wait(&self, timeout: Duration) -> Option<PyResult<bool>>;

    /// Counts by name.
    fn progress(&self) -> Vec<(&'static str, u64)>;

    /// End it; its threads have ended when this returns.
    fn cancel(&self);

    /// What may be changed while it runs.
    fn controls(&self) -> &'static [Control] {
        &[]
    }

    /// The control plane's rate, in bytes a second.
    fn set_rate(&self, _bytes_per_s: Option<u64>) {}

    /// Begin or end a pause.
    fn set_paused(&self, _paused: bool) {}

    /// Another congestion control.
    fn set_mode(&self, _mode: &str) -> PyResult<()> {
        Ok(())
    }

    /// Loaders by target, or of each target.
    fn set_loaders(&self, _loaders: &Loaders) -> PyResult<()> {
        Ok(())
    }

    /// Bytes, and what limits them.
    fn flow(&self) -> Counts {
        Counts::default()
    }
}

/// [`Work`] whose rate is limited at a gate, where it also pauses, and whose bytes are counted.
pub(crate) trait Paced: Send + Sync + 'static {
    /// As [`Work::wait`].
    fn wait(&self, timeout: Duration) -> Option<PyResult<bool>>;

    /// As [`Work::progress`].
    fn progress(&self) -> Vec<(&'static str, u64)>;

    /// As [`Work::cancel`].
    fn cancel(&self);

    /// Where it is limited and paused.
    fn gate(&self) -> &Gate;

    /// Bytes, and what limits them.
    fn flow(&self) -> Counts;

    /// Whether its loaders of each storage target can be limited.
    const HAS_LOADERS: bool = false;

    /// Limit them.
    fn set_loaders(&self, _loaders: &Loaders) -> PyResult<()> {
        Ok(())
    }
}

impl<T: Paced> Work for T {
    fn wait(&self, timeout: Duration) -> Option<PyResult<bool>> {
        Paced::wait(self, timeout)
    }

    fn progress(&self) -> Vec<(&'static str, u64)> {
        Paced::progress(self)
    }

    fn cancel(&self) {
        Paced::cancel(self);
    }

    fn controls(&self) -> &'static [Control] {
        paced_controls(T::HAS_LOADERS)
    }

    fn set_rate(&self, bytes_per_s: Option<u64>) {
        self.gate().set_rate(bytes_per_s);
    }

    fn set_paused(&self, paused: bool) {
        self.gate().set_paused(paused);
    }

    fn set_loaders(&self, loaders: &Loaders) -> PyResult<()> {
        Paced::set_loaders(self, loaders)
    }

    fn flow(&self) -> Counts {
        Paced::flow(self)
    }
}

fn paced_controls(has_loaders: bool) -> &'static [Control] {
    if has_loaders {
        &[Control::Rate, Control::Loaders, Control::Pause]
    } else {
        &[Control::Rate, Control::Pause]
    }
}

/// Work that runs in threads.
#[pyclass(frozen, subclass, module = "waystage._native")]
pub(crate) struct Task(ProcessLocal<Arc<dyn Work>>);

impl Task {
    /// The handle of `work`, of the class that `of` makes.
    pub(crate) fn handle<W: Work, T: PyClass<BaseType = Self>>(
        work: W,
        of: impl FnOnce(Arc<W>) -> T,
    ) -> PyClassInitializer<T> {
        let work = Arc::new(work);
        let task = Self(ProcessLocal::new(Arc::clone(&work) as Arc<dyn Work>));
        PyClassInitializer::from(task).add_subclass(of(work))
    }
}

/// What of a task may be changed while it runs.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Control {
    Rate,
    Mode,
    Loaders,
    Pause,
}

impl Control {
    fn name(self) -> &'static str {
        match self {
            Self::Rate => "rate",
            Self::Mode => "mode",
            Self::Loaders => "loaders",
            Self::Pause => "pause",
        }
    }
}

/// ValueError where `work` has no such control.
fn has(work: &dyn Work, control: Control) -> PyResult<()> {
    let all = work.controls();
    if all.contains(&control) {
        return Ok(());
    }
    let names: Vec<&str> = all.iter().map(|control| control.name()).collect();
    let names = if names.is_empty() { "none".to_owned() } else { names.join(", ") };
    let text = format!("this task has no control {:?}: its controls are {names}", control.name());
    Err(PyValueError::new_err(text))
}

/// Loaders of every target, or by the target's number.
#[derive(FromPyObject)]
pub(crate) enum Loaders {
    Each(u32),
    By(HashMap<u32, u32>),
}

impl Loaders {
    /// ValueError on less than one loader.
    fn check(&self) -> PyResult<()> {
        let least = match self {
            Self::Each(each) => Some(*each),
            Self::By(by) => by.values().min().copied(),
        };
        match least {
            Some(0) => Err(PyValueError::new_err("a storage target needs at least 1 loader")),
            _ => Ok(()),
        }
    }
}

/// What a flow has moved, and what limits it.
#[pyclass(frozen, module = "waystage._native")]
struct FlowCounts(Counts);

#[pymethods]
impl FlowCounts {
    #[getter]
    fn bytes_done(&self) -> u64 {
        self.0.bytes_done
    }

    #[getter]
    fn bytes_total(&self) -> u64 {
        self.0.bytes_total
    }

    #[getter]
    fn limited_by(&self) -> &'static str {
        self.0.limited_by.map_or("", Cause::name)
    }
}

#[pymethods]
impl Task {
    /// Wait for the end, at most for `timeout_s`; whether it has ended. Raises what ended it early.
    #[pyo3(signature = (timeout_s=None))]
    fn wait(&self, py: Python<'_>, timeout_s: Option<f64>) -> PyResult<bool> {
        let timeout = timeout_s.map(duration).transpose()?;
        wait(py, timeout, |slice| self.0.wait(slice)).and_then(|ended| ended.unwrap_or(Ok(false)))
    }

    /// Counts by name.
    fn progress<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        by_name(py, self.0.progress())
    }

    /// The names of what may be changed.
    #[getter]
    fn controls<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyTuple>> {
        PyTuple::new(py, self.0.controls().iter().map(|control| control.name()))
    }

    /// The control plane's rate.
    fn set_rate(&self, py: Python<'_>, bytes_per_s: Option<i64>) -> PyResult<()> {
        has(&**self.0, Control::Rate)?;
        if let Some(rate) = bytes_per_s.filter(|rate| *rate < 1) {
            let text = format!("{rate} is no rate in bytes/s: give 1 or more, or pause the task");
            return Err(PyValueError::new_err(text));
        }
        py.detach(|| self.0.set_rate(bytes_per_s.map(i64::unsigned_abs)));
        Ok(())
    }

    /// Move no more bytes.
    fn pause(&self, py: Python<'_>) -> PyResult<()> {
        has(&**self.0, Control::Pause)?;
        py.detach(|| self.0.set_paused(true));
        Ok(())
    }

    /// Go on.
    fn resume(&self, py: Python<'_>) -> PyResult<()> {
        has(&**self.0, Control::Pause)?;
        py.detach(|| self.0.set_paused(false));
        Ok(())
    }

    /// Another congestion control.
    fn set_mode(&self, py: Python<'_>, mode: &str) -> PyResult<()> {
        has(&**self.0, Control::Mode)?;
        py.detach(|| self.0.set_mode(mode))
    }

    /// Loaders of each storage target.
    fn set_loaders(&self, py: Python<'_>, per_target: Loaders) -> PyResult<()> {
        has(&**self.0, Control::Loaders)?;
        per_target.check()?;
        py.detach(|| self.0.set_loaders(&per_target))
    }

    /// Bytes, and what limits them.
    fn flow(&self, py: Python<'_>) -> FlowCounts {
        FlowCounts(py.detach(|| self.0.flow()))
    }

    /// End it.
    fn cancel(&self, py: Python<'_>) {
        py.detach(|| self.0.cancel());
    }

    fn __enter__(slf: Bound<'_, Self>) -> Bound<'_, Self> {
        slf
    }

    /// Cancel it, however the block ends.
    #[pyo3(signature = (*_exception))]
    fn __exit__(&self, py: Python<'_>, _exception: &Bound<'_, PyTuple>) {
        self.cancel(py);
    }
}

/// Work over files of which the result is taken once, by ending it.
pub(crate) trait Profile: Send + Sync + 'static {
    /// Whether it has ended, after at most `timeout`.
    fn wait(&self, timeout: Duration) -> bool;

    /// Bytes read, files finished, files found.
    fn progress(&self) -> (u64, u64, u64);

    /// End it early.
    fn stop(&self);

    /// Where it is limited, paused and counted.
    fn pace(&self) -> &Pace;

    /// Bytes there are.
    fn bytes_total(&self) -> u64;

    /// Whether its loaders of each storage target can be limited.
    const HAS_LOADERS: bool = false;

    /// Limit them.
    fn set_loaders(&self, _loaders: &Loaders) -> PyResult<()> {
        Ok(())
    }
}

/// A [`Profile`] until its result is taken.
pub(crate) struct Running<T>(RwLock<Option<T>>);

impl<T: Profile> Running<T> {
    pub(crate) fn new(profile: T) -> Self {
        Self(RwLock::new(Some(profile)))
    }

    /// The result of `call`; RuntimeError once the profile has been taken.
    pub(crate) fn with<R>(&self, call: impl FnOnce(&T) -> R) -> PyResult<R> {
        self.0.read().as_ref().map(call).ok_or_else(taken)
    }

    /// The profile, to end it; RuntimeError where it has been taken already.
    pub(crate) fn take(&self, py: Python<'_>) -> PyResult<T> {
        py.detach(|| self.0.write().take()).ok_or_else(taken)
    }
}

fn taken() -> PyErr {
    PyRuntimeError::new_err("the result has been taken already")
}

impl<T: Profile> Work for Running<T> {
    fn wait(&self, timeout: Duration) -> Option<PyResult<bool>> {
        let ended = self.with(|profile| profile.wait(timeout)).unwrap_or(true);
        ended.then_some(Ok(true))
    }

    fn progress(&self) -> Vec<(&'static str, u64)> {
        let now = self.with(Profile::progress);
        now.map_or_else(
            |_| Vec::new(),
            |(bytes, files, found)| vec![("bytes", bytes), ("files", files), ("found", found)],
        )
    }

    fn cancel(&self) {
        // After the result has been taken nothing runs.
        let _ = self.with(|profile| {
            profile.stop();
            profile.wait(Duration::MAX)
        });
    }

    fn controls(&self) -> &'static [Control] {
        paced_controls(T::HAS_LOADERS)
    }

    fn set_rate(&self, bytes_per_s: Option<u64>) {
        let _ = self.with(|profile| profile.pace().gate.set_rate(bytes_per_s));
    }

    fn set_paused(&self, paused: bool) {
        let _ = self.with(|profile| profile.pace().gate.set_paused(paused));
    }

    fn set_loaders(&self, loaders: &Loaders) -> PyResult<()> {
        self.with(|profile| profile.set_loaders(loaders)).unwrap_or(Ok(()))
    }

    fn flow(&self) -> Counts {
        let now = self.with(|profile| profile.pace().counts(profile.bytes_total()));
        now.unwrap_or_default()
    }
}

/// What `poll` returns within `timeout`, None for no limit. Releases the GIL; a signal's handler may raise.
pub(crate) fn wait<T: Send>(
    py: Python<'_>,
    timeout: Option<Duration>,
    poll: impl Fn(Duration) -> Option<T> + Sync,
) -> PyResult<Option<T>> {
    let deadline = timeout.and_then(|timeout| Instant::now().checked_add(timeout));
    loop {
        let left = deadline.map_or(SIGNAL_ROUND, |at| at.saturating_duration_since(Instant::now()));
        if let Some(found) = py.detach(|| poll(left.min(SIGNAL_ROUND))) {
            return Ok(Some(found));
        }
        py.check_signals()?;
        if left.is_zero() {
            return Ok(None);
        }
    }
}

/// Numbers as a dictionary.
pub(crate) fn by_name<'py, T: IntoPyObject<'py>>(
    py: Python<'py>,
    counts: impl IntoIterator<Item = (&'static str, T)>,
) -> PyResult<Bound<'py, PyDict>> {
    let found = PyDict::new(py);
    for (name, count) in counts {
        found.set_item(name, count)?;
    }
    Ok(found)
}

pub(crate) fn duration(seconds: f64) -> PyResult<Duration> {
    Duration::try_from_secs_f64(seconds)
        .map_err(|_| PyValueError::new_err(format!("{seconds} is not a number of seconds")))
}

/// The value that a word of an option stands for.
pub(crate) fn one_of<T: Copy>(what: &str, given: &str, known: &[(&str, T)]) -> PyResult<T> {
    known.iter().find(|(name, _)| *name == given).map(|(_, value)| *value).ok_or_else(|| {
        let names: Vec<&str> = known.iter().map(|(name, _)| *name).collect();
        PyValueError::new_err(format!("{what} is one of {}, not {given:?}", names.join(", ")))
    })
}

pub(crate) fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<FlowCounts>()?;
    module.add_class::<Task>()
}
