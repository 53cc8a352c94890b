//! An engine: a job that runs in a separate thread until it ends or is stopped.
//!
//! Arrives: a job. Leaves: how it ended, counts, problems, its gate. Must not know: what the job does.

use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use parking_lot::{Condvar, Mutex};
use waystage_pacing::{FlowCounts, Gate};

use crate::counts::{Counts, Done, Planned, Problem};
use crate::error::CopyError;
use crate::state::CopyState;

/// What an engine runs: a copy of a tree, or its restriping.
pub trait Job: Send + Sync + 'static {
    /// The name of its thread.
    const NAME: &'static str;

    /// Counts, problems and the reason to end.
    fn state(&self) -> &CopyState<CopyError>;

    /// Run to the end.
    ///
    /// # Errors
    /// What ended it early.
    fn run(&self) -> Result<(), CopyError>;

    /// Let its threads end.
    fn stop(&self) {
        self.state().stop();
    }

    /// How far it is.
    fn counts(&self) -> Counts {
        self.state().report.tally.read()
    }
}

#[derive(Default)]
struct Outcome {
    result: Mutex<Option<Result<(), CopyError>>>,
    changed: Condvar,
}

/// A job in progress. Dropping it stops it; what it has done stays.
pub struct Engine<J: Job> {
    pub(crate) job: Arc<J>,
    outcome: Arc<Outcome>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

impl<J: Job> Engine<J> {
    /// Start.
    pub(crate) fn of(job: J) -> Result<Self, CopyError> {
        let job = Arc::new(job);
        let outcome = Arc::new(Outcome::default());
        let (running, ended) = (Arc::clone(&job), Arc::clone(&outcome));
        let thread = std::thread::Builder::new()
            .name(J::NAME.to_owned())
            .spawn(move || {
                let result = running.run();
                *ended.result.lock() = Some(result);
                ended.changed.notify_all();
            })
            .map_err(|error| CopyError::Failed(error.to_string()))?;
        Ok(Self { job, outcome, thread: Mutex::new(Some(thread)) })
    }

    /// How it ended; None where it has not within `timeout`.
    pub fn wait(&self, timeout: Duration) -> Option<Result<(), CopyError>> {
        let mut result = self.outcome.result.lock();
        self.outcome.changed.wait_while_for(&mut result, |result| result.is_none(), timeout);
        result.clone()
    }

    /// How far it is.
    pub fn counts(&self) -> Counts {
        self.job.counts()
    }

    /// What could not be done and why, the first ten thousand.
    pub fn problems(&self) -> Vec<Problem> {
        self.job.state().report.problems()
    }

    /// What a dry run would do, the first ten thousand paths.
    pub fn planned(&self) -> Vec<Planned> {
        self.job.state().report.planned()
    }

    /// What was done since this was called last, where that is logged.
    pub fn take_done(&self) -> Vec<Done> {
        self.job.state().report.take_done()
    }

    /// Where its rate is limited, and where it is paused.
    pub fn gate(&self) -> &Gate {
        &self.job.state().pace.gate
    }

    /// Bytes moved and found, and what limits it.
    pub fn flow(&self) -> FlowCounts {
        let state = self.job.state();
        state.pace.counts(state.report.tally.read().found_bytes)
    }

    /// End it; its threads and unfinished small files are gone when this returns.
    pub fn stop(&self) {
        self.job.stop();
        let thread = self.thread.lock().take();
        if let Some(thread) = thread {
            // A thread that panicked has written to the process's stderr.
            let _ = thread.join();
        }
    }
}

impl<J: Job> Drop for Engine<J> {
    fn drop(&mut self) {
        self.stop();
    }
}
