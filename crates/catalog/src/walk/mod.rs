//! A parallel walk: directories are tasks, entries leave as columns.
//!
//! Arrives: a root, how many threads, what to leave out, what an earlier walk knew.
//! Leaves: batches, in no order, as fast as somebody takes them; counts at any time.
//! Must not know: where batches go.
//!
//! A walk never leaves its root: directories are opened by path with no symbolic link allowed on the way, and entries
//! are looked at without following them. It survives a tree that changes meanwhile: what has vanished is counted, what
//! became something else is recorded as what it is. Only directories being read hold a descriptor.

mod known;
mod queue;
pub(crate) mod worker;

use std::io;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, SyncSender};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

pub use known::{Known, KnownDirectory};

use crate::batch::Batch;
use crate::exclude::Exclude;
use crate::layouts::Layouts;
use crate::root::Root;
use queue::Queue;
use worker::{Task, Worker};

/// Batches that wait to be taken, at most; with those being filled this bounds the walk's memory.
const WAITING_BATCHES: usize = 4;

/// Errors listed in full; more are only counted, since a dead server answers each of millions of entries with one.
const LISTED_ERRORS: u64 = 10_000;

/// Entries of a batch, if nothing else is wanted: enough that columns compress well, few enough that some dozen batches
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
    /// What is left out.
    pub exclude: Exclude,
    /// Whether directories on other file systems are left out.
    pub one_file_system: bool,
    /// Who reads layouts; None for no layouts.
    pub layouts: Option<Layouts>,
    /// Directories that are not read again where they have not changed.
    pub known: Known,
    /// Where to begin, as paths below the root: the root's own is empty. No one may lie below another.
    pub tops: Vec<Vec<u8>>,
}

/// How far a walk is.
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
    /// Entries that were gone before they could be looked at.
    pub vanished: u64,
    /// Entries and directories that could not be read.
    pub errors: u64,
    /// Directories found and not yet read, or being read.
    pub pending: u64,
}

/// What all workers share.
struct Shared {
    root: Root,
    root_device: u64,
    options: Options,
    queue: Queue<Task>,
    entries: AtomicU64,
    directories: AtomicU64,
    unchanged: AtomicU64,
    bytes: AtomicU64,
    excluded: AtomicU64,
    vanished: AtomicU64,
    errors: AtomicU64,
    next_id: AtomicU64,
}

impl Shared {
    /// Count an error; whether it is still to be listed.
    fn count_error(&self) -> bool {
        self.errors.fetch_add(1, Ordering::Relaxed) < LISTED_ERRORS
    }
}

/// A walk under way. Dropping it ends it.
pub struct Walk {
    shared: Arc<Shared>,
    batches: Mutex<Option<Receiver<Batch>>>,
    workers: Mutex<Vec<JoinHandle<()>>>,
}

/// The answer to a wait for a batch.
#[derive(Debug)]
pub enum Next {
    /// A batch.
    Batch(Box<Batch>),
    /// None within the time; there will be more.
    Waiting,
    /// The walk is over; nothing comes any more.
    End,
}

impl Walk {
    /// Start. Fails where the root cannot be opened as a directory, or no thread can be started.
    pub fn start(mut options: Options) -> io::Result<Self> {
        options.batch_rows = options.batch_rows.clamp(1, BATCH_ROWS);
        let threads = options.threads.max(1);
        let root = Root::open(&options.root)?;
        let top = worker::look(&root.directory(b"")?)?;
        let shared = Arc::new(Shared {
            root,
            root_device: crate::batch::device(&top),
            options,
            queue: Queue::new(threads),
            entries: AtomicU64::new(0),
            directories: AtomicU64::new(0),
            unchanged: AtomicU64::new(0),
            bytes: AtomicU64::new(0),
            excluded: AtomicU64::new(0),
            vanished: AtomicU64::new(0),
            errors: AtomicU64::new(0),
            next_id: AtomicU64::new(0),
        });
        let tops = shared.options.tops.clone();
        shared.queue.push(0, tops.into_iter().map(Task::Directory));
        let (give, take) = mpsc::sync_channel(WAITING_BATCHES);
        let walk = Self {
            shared,
            batches: Mutex::new(Some(take)),
            workers: Mutex::new(Vec::with_capacity(threads)),
        };
        for number in 0..threads {
            let handle = walk.spawn(number, give.clone())?;
            walk.workers.lock().unwrap_or_else(PoisonError::into_inner).push(handle);
        }
        Ok(walk)
    }

    fn spawn(&self, number: usize, give: SyncSender<Batch>) -> io::Result<JoinHandle<()>> {
        let shared = Arc::clone(&self.shared);
        std::thread::Builder::new()
            .name(format!("walk-{number}"))
            .spawn(move || Worker::new(number, &shared, give).run())
    }

    /// The next batch, waiting for at most `timeout`.
    pub fn next(&self, timeout: Duration) -> Next {
        let batches = self.batches.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(receiver) = batches.as_ref() else { return Next::End };
        match receiver.recv_timeout(timeout) {
            Ok(batch) => Next::Batch(Box::new(batch)),
            Err(RecvTimeoutError::Timeout) => Next::Waiting,
            Err(RecvTimeoutError::Disconnected) => Next::End,
        }
    }

    /// The storage targets met so far, by number: see [`Layouts::targets`].
    pub fn targets(&self) -> Vec<(u32, String)> {
        self.shared.options.layouts.as_ref().map_or_else(Vec::new, Layouts::targets)
    }

    /// How far it is.
    pub fn counts(&self) -> Counts {
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        Counts {
            entries: read(&self.shared.entries),
            directories: read(&self.shared.directories),
            unchanged: read(&self.shared.unchanged),
            bytes: read(&self.shared.bytes),
            excluded: read(&self.shared.excluded),
            vanished: read(&self.shared.vanished),
            errors: read(&self.shared.errors),
            pending: u64::try_from(self.shared.queue.pending()).unwrap_or(u64::MAX),
        }
    }

    /// End it; its threads are gone when this returns, and batches that nobody took with them.
    pub fn stop(&self) {
        self.shared.queue.stop();
        // A worker may wait for room in the channel: without a receiver it fails at once.
        drop(self.batches.lock().unwrap_or_else(PoisonError::into_inner).take());
        let workers =
            std::mem::take(&mut *self.workers.lock().unwrap_or_else(PoisonError::into_inner));
        for worker in workers {
            // A panicked worker has told the process's stderr; there is nobody to tell here.
            let _ = worker.join();
        }
    }
}

impl Drop for Walk {
    fn drop(&mut self) {
        self.stop();
    }
}
