//! Reading an epoch: loaders in threads, and the consumer of their items.
//!
//! Arrives: files, a scheduler's rules, what was delivered before.
//! Leaves: items with their bytes, in order or as they come; counts, by target.
//! Must not know: Python, what is done with the bytes.
//!
//! Files are opened through [`CheckedTree`], below their root, and compared with their entries. A file whose size
//! differs, or that becomes shorter while it is read, is a failure. Where the rules accept resized files, its present
//! contents are delivered: a file as one item; of objects the parts that still exist, the last one up to the new end.

mod coordinator;
mod delivery;
mod file;
pub mod measure;
mod region;
mod started;
mod threads;

use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::error::LoadError;
use crate::files::Files;
use crate::plan::Delivery;
use crate::progress::Progress;
use crate::schedule::{Binding, Rules, Scheduler};
use coordinator::Coordinator;
use file::Source;
use threads::PATIENCE;
use waystage_catalog::{CheckCounts, CheckedTree};
use waystage_pacing::Pace;

pub use delivery::{Counts, Delivered, Next, TargetCounts};

/// Loaders of one process, at most: more are threads without a storage target to wait for.
const MOST_LOADERS: u32 = 1024;

/// An epoch being read. Dropping it ends it.
pub struct Loading {
    coordinator: Arc<Coordinator>,
    bytes_total: u64,
    /// The process whose threads these are.
    process: u32,
}

impl Loading {
    /// Start reading `units` (see [`crate::plan::units`]) without what `delivered` has.
    ///
    /// # Errors
    /// Where the root cannot be opened, or no thread be started.
    pub fn start(
        files: Arc<Files>,
        units: Vec<u32>,
        delivered: Progress,
        rules: Rules,
    ) -> Result<Self, LoadError> {
        let refused = |error: io::Error| LoadError::Io(files.root().to_path_buf(), error);
        let tree = CheckedTree::open(files.root()).map_err(refused)?;
        let bytes_total = bytes_of(&files, &units, &delivered, rules.delivery);
        let scheduler = Scheduler::new(&files, units, delivered.clone(), rules.clone());
        let source = Source::new(Arc::clone(&files), tree, &rules);
        let coordinator = Arc::new(Coordinator::new(source, scheduler, delivered, &rules));
        let loading = Self { coordinator, bytes_total, process: std::process::id() };
        let (coordinator, all) = (&loading.coordinator, rules.loaders.max(1));
        let first = match rules.binding {
            Binding::Steal => coordinator.quick_loaders + 1,
            // Each may be the only one that reads from a target.
            Binding::Strict => all,
        };
        threads::start_first(coordinator, first, all).map_err(refused)?;
        Ok(loading)
    }

    /// Where the rate is limited, and the loaders paused and counted.
    #[must_use]
    pub fn pace(&self) -> &Pace {
        &self.coordinator.pace
    }

    /// Bytes that this epoch reads.
    #[must_use]
    pub fn bytes_total(&self) -> u64 {
        self.bytes_total
    }

    /// Limit the readers of each storage target from now on, or where `of` has any, of these, given by number. A reader
    /// above the limit ends its piece first; where there are too few loaders, more are started.
    ///
    /// # Errors
    /// Where there is no such target, and nothing has changed; or a thread cannot be started.
    pub fn limit_readers(&self, of: &[(u32, u32)], each: Option<u32>) -> Result<(), LoadError> {
        let numbers = self.files().targets();
        let mut limits: Vec<(usize, u32)> =
            each.map_or_else(Vec::new, |most| (0..numbers.len()).map(|at| (at, most)).collect());
        for (number, most) in of {
            let Some(at) = numbers.iter().position(|known| known == number) else {
                return Err(LoadError::Option(format!("no file is on storage target {number}")));
            };
            limits.push((at, *most));
        }
        threads::start_others(&self.coordinator);
        let mut loaders = self.coordinator.started.lock();
        for number in self.coordinator.limit_readers(&limits, MOST_LOADERS) {
            let started = threads::start(Arc::clone(&self.coordinator), number);
            let failed = |error| LoadError::Option(format!("a loader cannot be started: {error}"));
            loaders.handles.push(started.map_err(failed)?);
        }
        Ok(())
    }

    /// The next item, waiting for at most `timeout`.
    #[must_use]
    pub fn next(&self, timeout: Duration) -> Next {
        if timeout.is_zero() || !self.coordinator.is_short_of_loaders() {
            return self.next_within(timeout);
        }
        match self.next_within(timeout.min(PATIENCE)) {
            Next::Waiting if self.is_of_this_process() => {
                threads::start_others(&self.coordinator);
                self.next_within(timeout.saturating_sub(PATIENCE))
            }
            next => next,
        }
    }

    fn next_within(&self, timeout: Duration) -> Next {
        let deadline = (!timeout.is_zero()).then(|| Instant::now() + timeout);
        loop {
            match self.coordinator.next(deadline) {
                Ok(next) => return next,
                Err(batch) => {
                    let helper = self.coordinator.helper;
                    // Only a gate refuses, and there is none here.
                    let _ = threads::read(&self.coordinator, helper, batch, None, &mut None);
                }
            }
        }
    }

    /// What has been handed out, to go on from.
    #[must_use]
    pub fn progress(&self) -> Progress {
        self.coordinator.progress()
    }

    /// How far it is.
    #[must_use]
    pub fn counts(&self) -> Counts {
        self.coordinator.counts()
    }

    /// How many opened files were checked, and in what they differed.
    #[must_use]
    pub fn checks(&self) -> CheckCounts {
        self.coordinator.source.tree.counts()
    }

    /// Paths of entries that did not hold, and whether these are all.
    #[must_use]
    pub fn stale_paths(&self) -> (Vec<Vec<u8>>, bool) {
        self.coordinator.source.tree.stale_paths()
    }

    /// The files.
    #[must_use]
    pub fn files(&self) -> &Arc<Files> {
        &self.coordinator.source.files
    }

    /// End it; its threads are gone when this returns, each after the read it is in.
    pub fn stop(&self) {
        if !self.is_of_this_process() {
            // A forked process has none of these threads, and a lock may be held by one of them for ever.
            std::mem::forget(Arc::clone(&self.coordinator));
            if let Some(mut started) = self.coordinator.started.try_lock() {
                started.end().into_iter().for_each(std::mem::forget);
            }
            return;
        }
        self.coordinator.stop();
        let started = self.coordinator.started.lock().end();
        for loader in started {
            // A panic has been printed to stderr, and the coordinator has counted the loader as ended.
            let _ = loader.join();
        }
    }

    /// Whether the threads are this process's, and not those of the one that it was forked from.
    fn is_of_this_process(&self) -> bool {
        self.process == std::process::id()
    }
}

/// Bytes of units that were not delivered before.
fn bytes_of(files: &Files, units: &[u32], delivered: &Progress, delivery: Delivery) -> u64 {
    let wanted = (0_u32..).zip(units).filter(|(position, _)| !delivered.has(*position));
    let bytes = |unit: u32| match delivery {
        Delivery::Objects => files.object(unit).1,
        Delivery::Files => files.size(unit),
    };
    wanted.map(|(_, unit)| bytes(*unit)).sum()
}

impl Drop for Loading {
    fn drop(&mut self) {
        self.stop();
    }
}

#[cfg(test)]
mod tests;
