//! What waits to be done, between the walk and the workers.

use std::collections::VecDeque;
use std::sync::Arc;

use parking_lot::{Condvar, Mutex};
use waystage_pacing::{during, Cause};

use super::large_file::Large;
use crate::source::Item;

/// Groups of files that may wait: the walk must not run ahead of the copy by more than memory for some thousands.
const WAITING: usize = 64;

/// A piece of work.
pub(super) enum Task {
    /// Entries of one directory.
    Items(Vec<Item>),
    /// Names of one file: the first is there, the others are to become links to it.
    Links(Vec<Item>),
    /// One extent of a large file.
    Extent(Arc<Large>, u32),
}

#[derive(Default)]
struct State {
    waiting: VecDeque<Task>,
    /// Large files with extents that no worker has taken, and how many workers are at each.
    large: Vec<(Arc<Large>, u32)>,
    running: usize,
    stopped: bool,
}

/// Tasks for workers.
#[derive(Default)]
pub(super) struct Queue {
    state: Mutex<State>,
    work: Condvar,
    room: Condvar,
}

impl Queue {
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

    /// Give a large file; never waits, as workers call it.
    pub(super) fn push_large(&self, large: Arc<Large>) {
        let mut state = self.state.lock();
        state.large.push((large, 0));
        self.work.notify_all();
    }

    /// The next task, waiting for one; None after a stop.
    pub(super) fn take(&self) -> Option<Task> {
        let mut state = self.state.lock();
        loop {
            if state.stopped {
                return None;
            }
            if let Some(task) = state.next() {
                state.running += 1;
                self.room.notify_all();
                return Some(task);
            }
            // What comes next is for the walk to say.
            during(Cause::Source, || self.work.wait(&mut state));
        }
    }

    /// A task that was taken is done, and has given the tasks that follow from it.
    pub(super) fn done(&self, large: Option<&Arc<Large>>) {
        let mut state = self.state.lock();
        state.running -= 1;
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
            if state.waiting.is_empty() && state.running == 0 && state.large.is_empty() {
                return true;
            }
            self.room.wait(&mut state);
        }
    }

    /// Let every worker end as soon as it asks for a task.
    pub(super) fn stop(&self) {
        self.state.lock().stopped = true;
        self.work.notify_all();
        self.room.notify_all();
    }
}

impl State {
    /// A large file that no worker is at, else small files, else a large file that others are at: most file systems
    /// let only one write to a file at a time, so sharing one is the last resort.
    fn next(&mut self) -> Option<Task> {
        let alone = self.large.iter().position(|(large, at_it)| *at_it == 0 && large.has_more());
        if let Some(task) = alone.and_then(|at| self.extent_of(at)) {
            return Some(task);
        }
        if let Some(task) = self.waiting.pop_front() {
            return Some(task);
        }
        let context = (0..self.large.len())
            .filter(|at| self.large[*at].0.has_more())
            .min_by_key(|at| self.large[*at].1);
        context.and_then(|at| self.extent_of(at))
    }

    fn extent_of(&mut self, at: usize) -> Option<Task> {
        let (large, at_it) = &mut self.large[at];
        let index = large.claim()?;
        *at_it += 1;
        Some(Task::Extent(Arc::clone(large), index))
    }
}
