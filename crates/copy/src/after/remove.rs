//! Files of the source that the destination holds are removed.
//!
//! Arrives: who knows the source and its copy ([`Remover`]), on this machine or another. Leaves: fewer files at the
//! source; counts and problems. Must not know: where either is.
//!
//! Directories stay, as with rsync: others may put files into them at any time.

use std::sync::mpsc::{sync_channel, Receiver, SyncSender};

use parking_lot::Mutex;

use super::delete::Victim;
use crate::counts::{add, ProblemKind};
use crate::engine::{Engine, Job};
use crate::error::{CopyError, Failure};
use crate::state::CopyState;

/// Entries that wait for a thread, about.
const WAITING: usize = 1024;

/// How files are removed.
#[derive(Debug, Clone)]
pub struct Removal {
    /// Threads that compare.
    pub workers: usize,
    /// Only say what would be removed; nothing is compared.
    pub dry_run: bool,
    /// Keep what is done with each entry, to be taken.
    pub log: bool,
}

/// Knows a source and its copy.
pub trait Remover: Send + Sync {
    /// Make ready; without `dry_run` the destination is forced to storage, since what is in memory alone is no copy
    /// yet.
    ///
    /// # Errors
    /// Where an end is not usable.
    fn begin(&self, dry_run: bool) -> Result<(), CopyError>;

    /// Give every entry of the source that was copied to `take`, some at a time; false where that, or a stop, ended it.
    ///
    /// # Errors
    /// Where they cannot be listed.
    fn entries(
        &self,
        state: &CopyState<CopyError>,
        take: &mut dyn FnMut(Vec<Victim>) -> bool,
    ) -> Result<bool, CopyError>;

    /// Entries, and bytes of their contents, that are best compared together.
    fn at_once(&self) -> (usize, u64);

    /// One thread's way to compare and remove.
    fn worker(&self) -> Box<dyn RemoveWorker + '_>;

    /// Let threads that wait for an answer end.
    fn stop(&self) {}

    /// Nothing more is removed.
    fn close(&self) {}
}

/// Compares and removes.
pub trait RemoveWorker {
    /// Remove of these what the destination holds, and report each.
    ///
    /// # Errors
    /// Where no more can be removed.
    fn remove(&mut self, entries: &[Victim], state: &CopyState<CopyError>)
        -> Result<(), CopyError>;
}

/// Report what became of one entry: whether it was removed.
pub fn report(state: &CopyState<CopyError>, entry: &Victim, removed: Result<bool, Failure>) {
    match removed {
        Ok(true) => {
            add(&state.report.tally.removed, 1);
            state.report.done("removed", &entry.path, entry.letter, entry.bytes);
        }
        Ok(false) => {}
        Err(Failure::Said(text)) => state.problem(&entry.path, ProblemKind::Error, text),
        Err(failure) => state.failed(&entry.path, &failure),
    }
}

/// The destination does not hold what the source has.
pub const OTHER_CONTENTS: Failure =
    Failure::Changed("stays at the source: the destination holds other contents");

/// The destination holds nothing of this name.
pub const NO_COPY: Failure = Failure::Changed("stays at the source: the destination lacks it");

/// Both ends are one file.
pub const ONE_FILE: Failure =
    Failure::Changed("stays at the source: source and destination may be one file");

/// A removal in progress.
pub type Remove = Engine<RemoveJob>;

/// See [`Remove`].
pub struct RemoveJob {
    how: Removal,
    remover: Box<dyn Remover>,
    state: CopyState<CopyError>,
}

impl Remove {
    /// Start.
    ///
    /// # Errors
    /// Where no thread can be started.
    pub fn by(remover: Box<dyn Remover>, how: Removal) -> Result<Self, CopyError> {
        let state = CopyState::default();
        if how.log {
            state.report.log();
        }
        Self::of(RemoveJob { how, remover, state })
    }
}

impl Job for RemoveJob {
    const NAME: &'static str = "remove";

    fn state(&self) -> &CopyState<CopyError> {
        &self.state
    }

    fn stop(&self) {
        self.state.cancel();
        self.remover.stop();
    }

    fn run(&self) -> Result<(), CopyError> {
        let ended = self.remove_all();
        self.remover.close();
        // What threads met that were stopped is no reason.
        if self.state.is_cancelled() {
            return Err(self.state.verdict());
        }
        ended
    }
}

impl RemoveJob {
    fn remove_all(&self) -> Result<(), CopyError> {
        self.remover.begin(self.how.dry_run)?;
        let (most, most_bytes) = self.remover.at_once();
        let (sender, receiver) = sync_channel(WAITING / most.max(1) + 1);
        let receiver = Mutex::new(receiver);
        let walked = std::thread::scope(|scope| {
            for number in 0..self.how.workers.max(1) {
                let builder = std::thread::Builder::new().name(format!("remove-{number}"));
                let spawned = builder.spawn_scoped(scope, || self.work(&receiver));
                if let (0, Err(error)) = (number, spawned) {
                    return Err(CopyError::Failed(error.to_string()));
                }
            }
            let mut groups = Groups { sender, most, most_bytes, bytes: 0, group: Vec::new() };
            let walked = self.remover.entries(&self.state, &mut |entries| {
                entries.into_iter().all(|entry| groups.take(entry)) && !self.state.is_stopped()
            })?;
            Ok(walked && groups.give())
        })?;
        if walked && !self.state.is_stopped() {
            return Ok(());
        }
        Err(self.state.verdict())
    }

    fn work(&self, groups: &Mutex<Receiver<Vec<Victim>>>) {
        let mut worker = self.remover.worker();
        loop {
            let Ok(group) = groups.lock().recv() else { return };
            if self.state.is_stopped() || self.state.pass(0).is_err() {
                continue; // The walk is not left waiting.
            }
            if self.how.dry_run {
                add(&self.state.report.tally.removed, group.len() as u64);
            } else if let Err(error) = worker.remove(&group, &self.state) {
                self.state.end_for(error);
            }
        }
    }
}

/// Gathers entries.
struct Groups {
    sender: SyncSender<Vec<Victim>>,
    most: usize,
    most_bytes: u64,
    bytes: u64,
    group: Vec<Victim>,
}

impl Groups {
    fn take(&mut self, entry: Victim) -> bool {
        if matches!(entry.letter, b'd' | b's') {
            return true;
        }
        self.bytes = self.bytes.saturating_add(entry.bytes);
        self.group.push(entry);
        self.group.len() < self.most && self.bytes < self.most_bytes || self.give()
    }

    fn give(&mut self) -> bool {
        self.bytes = 0;
        let group = std::mem::take(&mut self.group);
        group.is_empty() || self.sender.send(group).is_ok()
    }
}
