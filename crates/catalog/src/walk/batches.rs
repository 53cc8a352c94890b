//! Batches between the workers of a walk and its consumer: bounded, and closed by either side.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};

use crate::batch::Batch;

/// Batches that wait to be taken, at most; with those being filled this bounds the walk's memory.
const WAITING_BATCHES: usize = 4;

/// The answer to a wait for a batch.
#[derive(Debug)]
pub enum Next {
    /// A batch.
    Batch(Box<Batch>),
    /// None within the time; there will be more.
    Waiting,
    /// The walk is over.
    End,
}

pub(super) struct Batches {
    state: Mutex<State>,
    arrived: Condvar,
    taken: Condvar,
}

struct State {
    waiting: VecDeque<Batch>,
    /// Workers that have not ended.
    workers: usize,
    stopped: bool,
}

impl Batches {
    pub(super) fn new(workers: usize) -> Self {
        let state = State { waiting: VecDeque::new(), workers, stopped: false };
        Self { state: Mutex::new(state), arrived: Condvar::new(), taken: Condvar::new() }
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

    /// A worker ends; after the last one, [`Batches::next`] answers [`Next::End`].
    pub(super) fn worker_ended(&self) {
        let mut state = self.state.lock();
        state.workers -= 1;
        if state.workers == 0 {
            self.arrived.notify_all();
        }
    }

    /// The next batch, waiting until `deadline`; without one, until there is a batch or the walk is over.
    pub(super) fn next(&self, timeout: Option<Duration>) -> Next {
        let deadline = timeout.and_then(|timeout| Instant::now().checked_add(timeout));
        let mut state = self.state.lock();
        loop {
            if state.stopped {
                return Next::End;
            }
            if let Some(batch) = state.waiting.pop_front() {
                drop(state);
                self.taken.notify_one();
                return Next::Batch(Box::new(batch));
            }
            if state.workers == 0 {
                return Next::End;
            }
            match deadline {
                None => self.arrived.wait(&mut state),
                Some(deadline) => {
                    if self.arrived.wait_until(&mut state, deadline).timed_out()
                        && state.waiting.is_empty()
                        && state.workers > 0
                    {
                        return Next::Waiting;
                    }
                }
            }
        }
    }

    /// Whether [`Batches::next`] will answer [`Next::End`]; None where it would wait after `timeout`.
    pub(super) fn wait(&self, timeout: Duration) -> Option<bool> {
        let mut state = self.state.lock();
        let idle =
            |state: &mut State| state.waiting.is_empty() && state.workers > 0 && !state.stopped;
        let waited = self.arrived.wait_while_for(&mut state, idle, timeout);
        (!waited.timed_out()).then(|| state.waiting.is_empty())
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
            let consumer = scope.spawn(|| empty.next(None));
            full.stop();
            empty.stop();
            assert!(!sender.join().unwrap());
            assert!(matches!(consumer.join().unwrap(), Next::End));
        });
    }

    #[test]
    fn batches_come_in_order_and_the_end_after_the_last_worker() {
        let batches = Batches::new(1);
        assert!(matches!(batches.next(Some(Duration::ZERO)), Next::Waiting));
        for rows in 1..=2 {
            let mut batch = Batch::default();
            batch.entries.directory = vec![0; rows];
            assert!(batches.send(batch));
        }
        batches.worker_ended();
        for rows in 1..=2 {
            let Next::Batch(batch) = batches.next(None) else { panic!("no batch {rows}") };
            assert_eq!(batch.len(), rows);
        }
        assert!(matches!(batches.next(None), Next::End));
    }
}
