//! Reading an epoch: loaders in threads, and whoever takes what they read.
//!
//! Arrives: files, a scheduler's rules, what was delivered before.
//! Leaves: items with their bytes, in order or as they come; counts, by target.
//! Must not know: Python, what is done with the bytes.
//!
//! Files are opened through [`CheckedTree`], below their root and held against what was recorded of them. A file that has
//! another size by now, or becomes shorter while it is read, is a failure; or, where the rules say so, what is there is
//! delivered: the whole of it as one item, or of objects those parts that still exist, the last one reaching to the new end.

mod desk;
mod file;
pub mod measure;
mod region;
mod threads;

use std::io;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use waystage_catalog::{CheckCounts, CheckedTree};

use crate::buffer::Buffer;
use crate::error::{Failure, LoadError};
use crate::files::Files;
use crate::progress::Progress;
use crate::schedule::{Rules, Scheduler};
use desk::Desk;

/// What is delivered.
#[derive(Debug)]
pub struct Delivered {
    /// The position of its unit in the epoch.
    pub position: u32,
    /// The file.
    pub file: u32,
    /// Where in the file its first byte lies.
    pub offset: u64,
    /// Its bytes; None for a part that no longer exists.
    pub bytes: Result<Option<Buffer>, Failure>,
}

/// The answer to whoever waits for an item.
#[derive(Debug)]
pub enum Next {
    /// An item.
    Item(Box<Delivered>),
    /// None within the time; there will be more.
    Waiting,
    /// Everything was delivered.
    End,
}

/// How much was read from one target.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TargetCounts {
    /// Bytes.
    pub bytes: u64,
    /// Pieces.
    pub pieces: u64,
    /// Nanoseconds in which somebody read from it.
    pub busy_ns: u64,
    /// Nanoseconds of all its readers together.
    pub reading_ns: u64,
}

/// How far it is.
#[derive(Clone, Debug, Default)]
pub struct Counts {
    /// Units, delivered before or not.
    pub units: u64,
    /// Units delivered in full, before this start or since.
    pub delivered: u64,
    /// Items handed out since.
    pub items: u64,
    /// Bytes handed out since.
    pub bytes: u64,
    /// Items of files that had vanished, were no regular files, could not be read, had grown beyond memory,
    /// or had another size than was recorded.
    pub failed: [u64; 5],
    /// Files that became shorter while they were read.
    pub shrunk: u64,
    /// Pieces read by a loader bound to another target.
    pub stolen: u64,
    /// By target, in the order of [`Files::targets`].
    pub targets: Vec<TargetCounts>,
}

/// An epoch being read. Dropping it ends it.
pub struct Loading {
    desk: Arc<Desk>,
    loaders: Mutex<Vec<JoinHandle<()>>>,
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
        let loaders = rules.loaders.max(1);
        let scheduler = Scheduler::new(&files, units, delivered.clone(), rules.clone());
        let desk = Arc::new(Desk::new(Arc::clone(&files), tree, scheduler, delivered, rules));
        let loading = Self {
            desk,
            loaders: Mutex::new(Vec::with_capacity(loaders as usize)),
            process: std::process::id(),
        };
        for number in 0..loaders {
            let handle = threads::start(Arc::clone(&loading.desk), number).map_err(refused)?;
            loading.loaders.lock().unwrap_or_else(PoisonError::into_inner).push(handle);
        }
        Ok(loading)
    }

    /// The next item, waiting for at most `timeout`.
    #[must_use]
    pub fn next(&self, timeout: Duration) -> Next {
        self.desk.next(timeout)
    }

    /// What has been handed out, to go on from.
    #[must_use]
    pub fn progress(&self) -> Progress {
        self.desk.progress()
    }

    /// How far it is.
    #[must_use]
    pub fn counts(&self) -> Counts {
        self.desk.counts()
    }

    /// How many opened files were checked, and in what they differed.
    #[must_use]
    pub fn checks(&self) -> CheckCounts {
        self.desk.tree.counts()
    }

    /// Paths of entries that did not hold, and whether these are all.
    #[must_use]
    pub fn stale_paths(&self) -> (Vec<Vec<u8>>, bool) {
        self.desk.tree.stale_paths()
    }

    /// The files.
    #[must_use]
    pub fn files(&self) -> &Arc<Files> {
        &self.desk.files
    }

    /// End it; its threads are gone when this returns, each after the read it is in.
    pub fn stop(&self) {
        if self.process != std::process::id() {
            // A process that was forked has none of these threads, and locks may be as one of them held them.
            std::mem::forget(Arc::clone(&self.desk));
            if let Ok(mut loaders) = self.loaders.try_lock() {
                loaders.drain(..).for_each(std::mem::forget);
            }
            return;
        }
        self.desk.stop.store(true, Ordering::Relaxed);
        self.desk.wake_all();
        let loaders =
            std::mem::take(&mut *self.loaders.lock().unwrap_or_else(PoisonError::into_inner));
        for loader in loaders {
            // A panicked loader has told the process's stderr, and the desk knows that it is gone.
            let _ = loader.join();
        }
    }
}

impl Drop for Loading {
    fn drop(&mut self) {
        self.stop();
    }
}

#[cfg(test)]
mod tests;
