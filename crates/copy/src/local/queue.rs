//! What waits to be done, between the walk and the workers.

use std::collections::{HashMap, VecDeque};
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
    running: usize,
    stopped: bool,
}

/// Tasks for workers.
pub(super) struct Queue {
    state: Mutex<State>,
    work: Condvar,
    room: Condvar,
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
            running: 0,
            stopped: false,
        };
        let (work, room) = (Condvar::new(), Condvar::new());
        Self { state: Mutex::new(state), work, room, began: Instant::now() }
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
                return Some(task);
            }
            if state.by_target.is_empty() {
                // The last large file in line may have been found to be complete.
                self.room.notify_all();
            }
            // What comes next is for the walk to say.
            during(Cause::Source, || self.work.wait(&mut state));
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
            return Some(task);
        }
        if let Some(task) = self.by_target.take(worker, now_ns) {
            return Some(task);
        }
        let shared = (0..self.large.len())
            .filter(|at| self.large[*at].0.has_more())
            .min_by_key(|at| self.large[*at].1);
        shared.and_then(|at| self.extent_of(at))
    }

    fn extent_of(&mut self, at: usize) -> Option<Task> {
        let (large, at_it) = &mut self.large[at];
        let index = large.claim()?;
        *at_it += 1;
        Some(Task::Extent(Arc::clone(large), index))
    }
}
