//! Batches between the workers of a walk and its consumer: bounded, and closed by either side.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use waystage_sync::{Condvar, Mutex};

use crate::batch::Batch;

/// Batches that wait to be taken, at most; with those being filled this bounds the walk's memory.
const WAITING_BATCHES: usize = 4;

pub(super) struct Batches {
    state: Mutex<State>,
    arrived: Condvar,
    taken: Condvar,
    /// Consumers that wait for a batch.
    idle: AtomicUsize,
}

struct State {
    waiting: VecDeque<Batch>,
    /// Workers that have not ended.
    workers: usize,
    stopped: bool,
}

impl State {
    /// Whether a consumer waits.
    fn is_idle(&mut self) -> bool {
        self.waiting.is_empty() && self.workers > 0 && !self.stopped
    }
}

impl Batches {
    pub(super) fn new(workers: usize) -> Self {
        let state = State { waiting: VecDeque::new(), workers, stopped: false };
        let (arrived, taken) = (Condvar::new(), Condvar::new());
        Self { state: Mutex::new(state), arrived, taken, idle: AtomicUsize::new(0) }
    }

    /// Hand a batch over, waiting for room; false after [`Batches::stop`].
    pub(super) fn send(&self, batch: Batch) -> bool {
        let mut state = self.state.lock();
        self.taken.wait_while(&mut state, |state| {
            state.waiting.len() >= WAITING_BATCHES && !state.stopped
        });
        if state.stopped {
            return false;
        }
        state.waiting.push_back(batch);
        drop(state);
        self.arrived.notify_one();
        true
    }

    /// A worker ends; after the last one, [`Batches::next`] returns None.
    pub(super) fn worker_ended(&self) {
        let mut state = self.state.lock();
        state.workers -= 1;
        if state.workers == 0 {
            self.arrived.notify_all();
        }
    }

    /// Wait for at most `timeout`: true once the walk is over, false where a batch waits, None otherwise.
    pub(super) fn wait(&self, timeout: Duration) -> Option<bool> {
        let mut state = self.state.lock();
        self.idle.fetch_add(1, Ordering::Relaxed);
        let waited = self.arrived.wait_while_for(&mut state, State::is_idle, timeout);
        self.idle.fetch_sub(1, Ordering::Relaxed);
        (!waited.timed_out()).then(|| state.waiting.is_empty())
    }

    /// The next batch, waiting for it; None where the walk is over.
    pub(super) fn next(&self) -> Option<Batch> {
        let mut state = self.state.lock();
        self.idle.fetch_add(1, Ordering::Relaxed);
        self.arrived.wait_while(&mut state, State::is_idle);
        self.idle.fetch_sub(1, Ordering::Relaxed);
        let batch = state.waiting.pop_front();
        drop(state);
        self.taken.notify_one();
        batch
    }

    /// A batch that waits.
    pub(super) fn try_next(&self) -> Option<Batch> {
        let batch = self.state.lock().waiting.pop_front();
        self.taken.notify_one();
        batch
    }

    /// Whether a consumer waits for a batch.
    pub(super) fn is_awaited(&self) -> bool {
        self.idle.load(Ordering::Relaxed) > 0
    }

    /// Drop the batches that wait, and wake both sides.
    pub(super) fn stop(&self) {
        let mut state = self.state.lock();
        state.stopped = true;
        state.waiting.clear();
        self.arrived.notify_all();
        self.taken.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stop_wakes_a_worker_that_waits_for_room_and_a_consumer_that_waits_for_a_batch() {
        let full = Batches::new(1);
        (0..WAITING_BATCHES).for_each(|_| assert!(full.send(Batch::default())));
        let empty = Batches::new(1);
        std::thread::scope(|scope| {
            let sender = scope.spawn(|| full.send(Batch::default()));
            let consumer = scope.spawn(|| empty.next());
            full.stop();
            empty.stop();
            assert!(!sender.join().unwrap());
            assert!(consumer.join().unwrap().is_none());
        });
    }

    #[test]
    fn batches_come_in_order_and_the_end_after_the_last_worker() {
        let batches = Batches::new(1);
        assert_eq!(batches.wait(Duration::ZERO), None);
        assert!(batches.try_next().is_none());
        for rows in 1..=2 {
            let mut batch = Batch::default();
            batch.entries.directory = vec![0; rows];
            assert!(batches.send(batch));
        }
        batches.worker_ended();
        assert_eq!(batches.wait(Duration::ZERO), Some(false));
        for rows in 1..=2 {
            assert_eq!(batches.next().unwrap().len(), rows);
        }
        assert!(batches.next().is_none());
        assert_eq!(batches.wait(Duration::ZERO), Some(true));
    }
}
