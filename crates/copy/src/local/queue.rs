//! What waits to be done, between the walk and the workers.

use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::Arc;
use std::time::Instant;

use parking_lot::{Condvar, Mutex};
use waystage_pacing::{during, Cause};

use super::by_target::ByTarget;
use super::large_file::Large;
use super::task::Task;
use crate::source::Item;

/// Groups of files that may wait: the walk must not run ahead of the copy by more than memory for some thousands.
const WAITING: usize = 64;

struct State {
    waiting: VecDeque<Task>,
    /// Large files with extents that no worker has taken, and how many workers are at each.
    large: Vec<(Arc<Large>, u32)>,
    /// What is read target by target.
    by_target: ByTarget,
    workers: usize,
    running: usize,
    stopped: bool,
}

/// Tasks for workers.
pub(super) struct Queue {
    state: Mutex<State>,
    work: Condvar,
    room: Condvar,
    /// Workers that wait for a task.
    idle: AtomicUsize,
    began: Instant,
}

impl Queue {
    /// For workers with numbers below `workers`, of which at most `readers` read from one target; None for about as
    /// many as there are for each.
    pub(super) fn new(workers: usize, readers: Option<u32>) -> Self {
        let state = State {
            waiting: VecDeque::new(),
            large: Vec::new(),
            by_target: ByTarget::new(workers, readers),
            workers,
            running: 0,
            stopped: false,
        };
        let (work, room) = (Condvar::new(), Condvar::new());
        let idle = AtomicUsize::new(0);
        Self { state: Mutex::new(state), work, room, idle, began: Instant::now() }
    }

    /// Whether a worker has nothing to do at this moment.
    pub(super) fn has_idle(&self) -> bool {
        self.idle.load(Ordering::Relaxed) > 0
    }

    /// Give a task; waits while enough wait already. Whether it was taken: not after a stop.
    pub(super) fn push(&self, task: Task) -> bool {
        let mut state = self.state.lock();
        self.room.wait_while(&mut state, |s| s.waiting.len() >= WAITING && !s.stopped);
        if !state.stopped {
            state.waiting.push_back(task);
            self.work.notify_one();
        }
        !state.stopped
    }

    /// Give entries of one directory whose contents are `bytes` bytes on a storage target, by its number. As
    /// [`Queue::push`].
    pub(super) fn push_on(&self, target: u32, items: Vec<Item>, bytes: u64) -> bool {
        let mut state = self.state.lock();
        self.room.wait_while(&mut state, |s| !s.by_target.has_room() && !s.stopped);
        if !state.stopped {
            state.by_target.push(target, items, bytes);
            self.work.notify_one();
        }
        !state.stopped
    }

    /// Give a large file; never waits, as workers call it.
    pub(super) fn push_large(&self, large: Arc<Large>) {
        let mut state = self.state.lock();
        if large.striped.is_some() {
            state.by_target.push_large(&large);
        } else {
            state.large.push((large, 0));
        }
        self.work.notify_all();
    }

    /// The next task of a worker, waiting for one; None after a stop.
    pub(super) fn take(&self, worker: usize) -> Option<Task> {
        let mut state = self.state.lock();
        loop {
            if state.stopped {
                return None;
            }
            if let Some(task) = state.next(worker, self.now_ns()) {
                state.running += 1;
                self.room.notify_all();
                if !state.waiting.is_empty() {
                    self.work.notify_one();
                }
                return Some(task);
            }
            if state.by_target.is_empty() {
                // The last large file in line may have been found to be complete.
                self.room.notify_all();
            }
            // What comes next is for the walk to say.
            self.idle.fetch_add(1, Ordering::Relaxed);
            during(Cause::Source, || self.work.wait(&mut state));
            self.idle.fetch_sub(1, Ordering::Relaxed);
        }
    }

    /// A task that a worker took is done, and has given the tasks that follow from it.
    pub(super) fn done(&self, worker: usize, large: Option<&Arc<Large>>) {
        let mut state = self.state.lock();
        state.running -= 1;
        state.by_target.ended(worker, self.now_ns());
        if let Some(large) = large {
            if let Some(entry) = state.large.iter_mut().find(|(other, _)| Arc::ptr_eq(other, large))
            {
                entry.1 -= 1;
            }
            state.large.retain(|(large, at_it)| *at_it > 0 || large.has_more());
        }
        self.room.notify_all();
        self.work.notify_all();
    }

    /// Wait until nothing waits and no worker is busy, or for a stop; whether it was the former.
    pub(super) fn drain(&self) -> bool {
        let mut state = self.state.lock();
        loop {
            if state.stopped {
                return false;
            }
            let empty = state.waiting.is_empty() && state.large.is_empty();
            if empty && state.running == 0 && state.by_target.is_empty() {
                return true;
            }
            self.room.wait(&mut state);
        }
    }

    /// At most this number of workers read from each storage target from now on.
    pub(super) fn limit_readers(&self, each: u32) {
        self.state.lock().by_target.limit_readers(each);
        self.work.notify_all();
    }

    /// At most this number of workers read from each of these storage targets.
    pub(super) fn limit_readers_of(&self, most: &HashMap<u32, u32>) {
        self.state.lock().by_target.limit_readers_of(most);
        self.work.notify_all();
    }

    /// Let every worker end as soon as it asks for a task.
    pub(super) fn stop(&self) {
        self.state.lock().stopped = true;
        self.work.notify_all();
        self.room.notify_all();
    }

    fn now_ns(&self) -> u64 {
        u64::try_from(self.began.elapsed().as_nanos()).unwrap_or(u64::MAX)
    }
}

impl State {
    /// A large file that no worker is at, else entries, else what is on the worker's target, else a large file that
    /// others are at: most file systems let only one write to a file at a time, so sharing one is the last resort.
    fn next(&mut self, worker: usize, now_ns: u64) -> Option<Task> {
        let alone = self.large.iter().position(|(large, at_it)| *at_it == 0 && large.has_more());
        if let Some(task) = alone.and_then(|at| self.extent_of(at)) {
            return Some(task);
        }
        if let Some(task) = self.waiting.pop_front() {
            return Some(self.shared(task));
        }
        let idle = self.workers.saturating_sub(self.running + 1);
        if let Some(task) = self.by_target.take(worker, idle > 0, now_ns) {
            return Some(task);
        }
        let shared = (0..self.large.len())
            .filter(|at| self.large[*at].0.has_more())
            .min_by_key(|at| self.large[*at].1);
        shared.and_then(|at| self.extent_of(at))
    }

    /// A worker's share of a group, where other workers would have nothing to do: the rest waits for them.
    fn shared(&mut self, task: Task) -> Task {
        let idle = self.workers.saturating_sub(self.running + 1);
        let Task::Items(mut items) = task else { return task };
        if idle > self.waiting.len() {
            let rest = items.split_off(items.len().div_ceil(idle - self.waiting.len() + 1));
            if !rest.is_empty() {
                self.waiting.push_front(Task::Items(rest));
            }
        }
        Task::Items(items)
    }

    fn extent_of(&mut self, at: usize) -> Option<Task> {
        let (large, at_it) = &mut self.large[at];
        let index = large.claim()?;
        *at_it += 1;
        Some(Task::Extent(Arc::clone(large), index))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn items(count: usize) -> Vec<Item> {
        let stat = crate::stat::stat_at(rustix::fs::CWD, b"/").expect("stat");
        (0..count).map(|_| Item::file(&stat, b"", b"name")).collect()
    }

    fn taken(queue: &Queue, worker: usize) -> usize {
        match queue.take(worker) {
            Some(Task::Items(items)) => items.len(),
            _ => 0,
        }
    }

    #[test]
    fn a_group_is_shared_among_workers_that_have_nothing_to_do() {
        let queue = Queue::new(4, None);
        assert!(queue.push(Task::Items(items(10))));
        let shares: Vec<usize> = (0..4).map(|worker| taken(&queue, worker)).collect();
        assert_eq!(shares, [3, 3, 2, 2]);
    }

    #[test]
    fn it_stays_whole_where_others_have_groups() {
        let queue = Queue::new(2, None);
        assert!((0..3).all(|_| queue.push(Task::Items(items(10)))));
        assert_eq!((taken(&queue, 0), taken(&queue, 1)), (10, 10));
        queue.done(0, None);
        assert_eq!(taken(&queue, 0), 10);
    }

    #[test]
    fn a_group_on_a_target_is_shared_as_well() {
        let queue = Queue::new(4, Some(4));
        assert!(queue.push_on(7, items(8), 8 << 20));
        let shares: Vec<usize> = (0..4).map(|worker| taken(&queue, worker)).collect();
        assert_eq!(shares, [4, 2, 1, 1]);
    }
}
