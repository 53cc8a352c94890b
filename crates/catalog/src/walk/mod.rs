//! A parallel walk: directories are tasks, entries leave as columns.
//!
//! Arrives: a root, how many threads, what to leave out, what an earlier walk knew.
//! Leaves: batches, in no order, at the pace of their consumer; counts at any time.
//! Must not know: where batches go.
//!
//! A walk never leaves its root, unless it is to follow links: directories are opened by path with no symbolic link on
//! the way, and stat(2) does not follow links. The tree may change meanwhile: vanished entries are counted, and an
//! entry whose type changed is recorded as its new type. Only directories that are being read hold a descriptor.

mod batches;
mod follow;
mod known;
mod queue;
mod shared;
mod task;
mod worker;

use std::io;
use std::sync::atomic::AtomicU64;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use waystage_sync::Mutex;

pub use follow::{unfollowed, Follow};
pub use known::{Known, KnownDirectory};
pub use shared::{Counts, Options, BATCH_ROWS};

use crate::batch::Batch;
use crate::layouts::Layouts;
use crate::root::Root;
use crate::stat::stat_open;
use batches::Batches;
use follow::Way;
use queue::Queue;
use shared::{Counters, GivenAway, Shared};
use task::Task;
use worker::Worker;

/// A walk in progress. Dropping it ends it.
pub struct Walk {
    shared: Arc<Shared>,
    workers: Mutex<Vec<JoinHandle<()>>>,
}

impl Walk {
    /// Start. Fails where the root cannot be opened as a directory, or no thread can be started.
    pub fn start(mut options: Options) -> io::Result<Self> {
        options.batch_rows = options.batch_rows.clamp(1, BATCH_ROWS);
        let threads = options.threads.max(1);
        let root = match options.follow {
            None => Root::open(&options.root)?,
            Some(_) => Root::following(&options.root)?,
        };
        let top = stat_open(root.directory(b"")?)?;
        let shared = Arc::new(Shared {
            root,
            root_device: crate::batch::device(&top),
            options,
            queue: Queue::new(threads),
            batches: Batches::new(threads),
            counters: Counters::default(),
            next_id: AtomicU64::new(0),
            given_away: GivenAway::default(),
        });
        let tops = shared.options.tops.clone();
        let begin = |top: Vec<u8>| {
            let follows = shared.options.follow.is_some();
            let way = follows.then(|| Way::above(&shared.root, &top)).flatten();
            Task::Directory(top, way)
        };
        let tops: Vec<Task> = tops.into_iter().map(begin).collect();
        shared.queue.push(0, tops.into_iter());
        let walk = Self { shared, workers: Mutex::new(Vec::with_capacity(threads)) };
        for number in 0..threads {
            let shared = Arc::clone(&walk.shared);
            let handle = std::thread::Builder::new()
                .name(format!("walk-{number}"))
                .spawn(move || Worker::new(number, &shared).run())?;
            walk.workers.lock().push(handle);
        }
        Ok(walk)
    }

    /// The next batch; None where the walk is over or was stopped. [`Walk::stop`] wakes the caller.
    pub fn recv(&self) -> Option<Batch> {
        self.shared.batches.next()
    }

    /// A batch that waits.
    pub fn try_recv(&self) -> Option<Batch> {
        self.shared.batches.try_next()
    }

    /// Wait for at most `timeout`: true once the walk is over, false where a batch waits, None otherwise.
    pub fn wait(&self, timeout: Duration) -> Option<bool> {
        self.shared.batches.wait(timeout)
    }

    /// The storage targets met so far, by number: see [`Layouts::targets`].
    pub fn targets(&self) -> Vec<(u32, String)> {
        self.shared.options.layouts.as_ref().map_or_else(Vec::new, Layouts::targets)
    }

    /// The progress so far.
    pub fn counts(&self) -> Counts {
        self.shared.counts()
    }

    /// The directories that it has found and not begun to read: it leaves them out. From the first call on it begins
    /// none, and ends once those in progress are read: another call then has what they have found.
    pub fn take_waiting(&self) -> Vec<Vec<u8>> {
        self.shared.given_away.ask();
        let tasks = self.shared.queue.take_waiting(|task| matches!(task, Task::Directory(..)));
        let path = |task| match task {
            Task::Directory(path, _) => Some(path),
            Task::Block(..) => None,
        };
        let mut paths = self.shared.given_away.take();
        paths.extend(tasks.into_iter().filter_map(path));
        paths
    }

    /// End it: its threads have ended when this returns, and batches that wait are dropped.
    pub fn stop(&self) {
        self.shared.queue.stop();
        self.shared.batches.stop();
        let workers = std::mem::take(&mut *self.workers.lock());
        for worker in workers {
            // A panic has been printed to stderr.
            let _ = worker.join();
        }
    }
}

impl Drop for Walk {
    fn drop(&mut self) {
        self.stop();
    }
}
