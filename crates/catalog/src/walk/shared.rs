//! What the workers of a walk share: its options, the tasks, the batches and the counters.

use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use waystage_sync::Mutex;

use super::batches::Batches;
use super::follow::Follow;
use super::known::Known;
use super::queue::Queue;
use super::task::Task;
use crate::exclude::Exclude;
use crate::layouts::Layouts;
use crate::root::Root;

/// Errors listed in full; more are only counted, since a dead server answers each of millions of entries with one.
const LISTED_ERRORS: u64 = 10_000;

/// Entries of a batch by default: enough that columns compress well, few enough that some dozen batches
/// fit into memory.
pub const BATCH_ROWS: usize = 65_536;

/// What to walk, and how.
pub struct Options {
    /// The top of the tree.
    pub root: PathBuf,
    /// Threads, at least one.
    pub threads: usize,
    /// Entries of a batch, from 1 to [`BATCH_ROWS`].
    pub batch_rows: usize,
    /// Whether smaller batches leave as soon as the consumer waits for one: right where work begins with them, and
    /// wrong where they are stored.
    pub eager: bool,
    /// What is left out.
    pub exclude: Exclude,
    /// Whether directories on other file systems are left out.
    pub one_file_system: bool,
    /// Reads layouts; None for no layouts.
    pub layouts: Option<Layouts>,
    /// Directories that are not read again where they have not changed.
    pub known: Known,
    /// Whether symbolic links are followed.
    pub follow: Option<Follow>,
    /// Where to begin, as paths below the root: the root's is empty. None may be below another.
    pub tops: Vec<Vec<u8>>,
}

/// The progress of a walk.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub struct Counts {
    /// Entries recorded.
    pub entries: u64,
    /// Directories read.
    pub directories: u64,
    /// Directories that had not changed, and were not read.
    pub unchanged: u64,
    /// Bytes of regular files.
    pub bytes: u64,
    /// Entries left out by a pattern or as another file system's.
    pub excluded: u64,
    /// Entries that were gone before stat(2).
    pub vanished: u64,
    /// Entries and directories that could not be read.
    pub errors: u64,
    /// Directories found and not yet read, or being read.
    pub pending: u64,
}

/// What all workers share.
pub(super) struct Shared {
    pub(super) root: Root,
    pub(super) root_device: u64,
    pub(super) options: Options,
    pub(super) queue: Queue<Task>,
    pub(super) batches: Batches,
    pub(super) counters: Counters,
    pub(super) next_id: AtomicU64,
    pub(super) given_away: GivenAway,
}

/// Directories that are found after it was asked for those that wait: none of them is begun.
#[derive(Default)]
pub(super) struct GivenAway {
    asked: AtomicBool,
    paths: Mutex<Vec<Vec<u8>>>,
}

impl GivenAway {
    pub(super) fn ask(&self) {
        self.asked.store(true, Ordering::SeqCst);
    }

    pub(super) fn is_asked(&self) -> bool {
        self.asked.load(Ordering::Relaxed)
    }

    pub(super) fn add(&self, path: Vec<u8>) {
        self.paths.lock().push(path);
    }

    pub(super) fn take(&self) -> Vec<Vec<u8>> {
        std::mem::take(&mut *self.paths.lock())
    }
}

/// [`Counts`] as they grow.
#[derive(Default)]
pub(super) struct Counters {
    pub(super) entries: AtomicU64,
    pub(super) directories: AtomicU64,
    pub(super) unchanged: AtomicU64,
    pub(super) bytes: AtomicU64,
    pub(super) excluded: AtomicU64,
    pub(super) vanished: AtomicU64,
    pub(super) errors: AtomicU64,
}

impl Shared {
    /// Count an error; whether it is still to be listed.
    pub(super) fn count_error(&self) -> bool {
        self.counters.errors.fetch_add(1, Ordering::Relaxed) < LISTED_ERRORS
    }

    pub(super) fn counts(&self) -> Counts {
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        Counts {
            entries: read(&self.counters.entries),
            directories: read(&self.counters.directories),
            unchanged: read(&self.counters.unchanged),
            bytes: read(&self.counters.bytes),
            excluded: read(&self.counters.excluded),
            vanished: read(&self.counters.vanished),
            errors: read(&self.counters.errors),
            pending: u64::try_from(self.queue.pending()).unwrap_or(u64::MAX),
        }
    }
}
