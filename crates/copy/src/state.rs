//! What one side of a copy has counted and met, and whether it is to go on.
//!
//! Arrives: counts, problems, failures, the reason to end. Leaves: the same, at any time. Must not know: files,
//! transports.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use waystage_pacing::{Pace, Stopped};

use crate::counts::{ProblemKind, Report};
use crate::error::{CopyError, Failure, FailureClass, Lost};

/// An error that ends a copy: [`CopyError`], or that of a transport, of which failures of files are a part.
pub trait Fatal: From<CopyError> + Clone {
    /// The caller stopped the copy.
    fn stopped() -> Self;

    /// Whether this explains an error that was met before, and takes its place.
    fn explains(&self, _before: &Self) -> bool {
        false
    }
}

impl Fatal for CopyError {
    fn stopped() -> Self {
        Self::Stopped("the copy was stopped".to_owned())
    }
}

/// The state that all threads of a copy share.
#[derive(Debug)]
pub struct CopyState<E> {
    /// Counts and problems.
    pub report: Report,
    /// When bytes may move, how many have, and what they wait for.
    pub pace: Arc<Pace>,
    stop: Arc<AtomicBool>,
    cancelled: AtomicBool,
    fatal: Mutex<Option<E>>,
}

impl<E> Default for CopyState<E> {
    fn default() -> Self {
        Self {
            report: Report::default(),
            pace: Arc::default(),
            stop: Arc::default(),
            cancelled: AtomicBool::new(false),
            fatal: Mutex::new(None),
        }
    }
}

impl<E: Fatal> CopyState<E> {
    /// Whether threads are to end.
    pub fn is_stopped(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }

    /// The flag that says so, for code that knows nothing of copies.
    pub fn stop_flag(&self) -> Arc<AtomicBool> {
        Arc::clone(&self.stop)
    }

    /// Let all threads end.
    pub fn stop(&self) {
        self.stop.store(true, Ordering::SeqCst);
        self.pace.gate.set_stopped(true);
    }

    /// Wait for the turn of `bytes`, or with 0 for the end of a pause; how long that took.
    ///
    /// # Errors
    /// [`Failure::Stopped`] where threads are to end.
    pub fn pass(&self, bytes: u64) -> Result<Duration, Failure> {
        self.pace.gate.pass(bytes).map_err(|Stopped| Failure::Stopped)
    }

    /// The caller wants the copy to end.
    pub fn cancel(&self) {
        // With the reason, since threads that are stopped may report the end of their transport first.
        self.fatal.lock().get_or_insert_with(E::stopped);
        self.cancelled.store(true, Ordering::SeqCst);
        self.stop();
    }

    /// Whether the caller does.
    pub fn is_cancelled(&self) -> bool {
        self.cancelled.load(Ordering::SeqCst)
    }

    /// The threads of one phase of the copy have ended; the next phase may run, unless there is a reason to end.
    pub fn next_phase(&self) {
        let fatal = self.fatal.lock();
        let stopped = fatal.is_some() || self.is_cancelled();
        self.stop.store(stopped, Ordering::SeqCst);
        self.pace.gate.set_stopped(stopped);
    }

    /// End the copy for this reason. The first one stays, unless a later one explains it.
    pub fn end_for(&self, error: E) {
        let mut fatal = self.fatal.lock();
        if fatal.as_ref().is_none_or(|before| error.explains(before)) {
            *fatal = Some(error);
        }
        drop(fatal);
        self.stop();
    }

    /// Why it ended early.
    pub fn verdict(&self) -> E {
        self.fatal.lock().clone().unwrap_or_else(E::stopped)
    }

    /// Count and list a problem.
    pub fn problem(&self, path: &[u8], kind: ProblemKind, text: impl Into<String>) {
        self.report.problem(path.to_vec(), kind, text.into());
    }

    /// Report what of an entry could not be kept.
    pub fn lost(&self, path: &[u8], lost: Lost) {
        if let Some(lost) = lost {
            self.problem(path, ProblemKind::Lost, format!("not kept: {lost}"));
        }
    }

    /// Report the failure of an entry; end the copy where going on is pointless.
    pub fn failed(&self, path: &[u8], failure: &Failure) {
        let text = |fix: &str| format!("{}: {failure}: {fix}", String::from_utf8_lossy(path));
        let error = match failure.class() {
            FailureClass::Stopped => return,
            FailureClass::Problem(kind) => return self.problem(path, kind, failure.to_string()),
            FailureClass::NoSpace => CopyError::NoSpace(text(
                "make room, and give the same command again: it goes on where it stopped",
            )),
            FailureClass::ReadOnly => {
                CopyError::Refused(text("the same command goes on where it stopped"))
            }
        };
        self.end_for(error.into());
    }
}

#[cfg(test)]
mod tests {
    use rustix::io::Errno;

    use super::*;
    use crate::error::End;

    #[test]
    fn the_first_reason_to_end_stays_and_a_phase_does_not_start_after_it() {
        let state = CopyState::<CopyError>::default();
        state.stop();
        state.next_phase();
        assert!(!state.is_stopped());
        let full = |end| Failure::Call { end, doing: "write", errno: Errno::NOSPC };
        state.failed(b"a", &full(End::Source));
        assert!(!state.is_stopped());
        state.failed(b"b", &full(End::Destination));
        state.failed(b"c", &full(End::Destination));
        state.next_phase();
        assert!(
            state.is_stopped() && state.verdict().to_string().starts_with("b: destination: write")
        );
        assert_eq!(state.report.tally.read().errors, 1);
    }

    #[test]
    fn a_cancelled_copy_was_stopped() {
        let state = CopyState::<CopyError>::default();
        state.cancel();
        state.next_phase();
        assert!(state.is_stopped() && matches!(state.verdict(), CopyError::Stopped(_)));
    }

    #[test]
    fn what_threads_report_after_a_stop_is_no_reason_and_what_they_met_before_is() {
        let state = CopyState::<CopyError>::default();
        state.cancel();
        state.end_for(CopyError::Failed("the channel has ended".to_owned()));
        assert!(matches!(state.verdict(), CopyError::Stopped(_)));
        let state = CopyState::<CopyError>::default();
        state.end_for(CopyError::Failed("broken".to_owned()));
        state.cancel();
        assert!(matches!(state.verdict(), CopyError::Failed(_)));
    }
}
