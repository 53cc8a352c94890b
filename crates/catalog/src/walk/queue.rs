//! Work stealing: each worker takes its own newest task first, and steals the oldest of another's.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use waystage_sync::{Condvar, Mutex};

/// Last in, first out keeps the tasks of a walk few (depth first); the oldest task is the best to steal, because
/// the largest subtrees were found first.
pub(super) struct Queue<T> {
    own: Vec<Mutex<VecDeque<T>>>,
    /// Tasks that wait or are in progress; 0 means the end.
    pending: AtomicUsize,
    sleepers: AtomicUsize,
    sleep: Mutex<()>,
    wake: Condvar,
    stopped: AtomicBool,
}

impl<T> Queue<T> {
    pub(super) fn new(workers: usize) -> Self {
        Self {
            own: (0..workers).map(|_| Mutex::new(VecDeque::new())).collect(),
            pending: AtomicUsize::new(0),
            sleepers: AtomicUsize::new(0),
            sleep: Mutex::new(()),
            wake: Condvar::new(),
            stopped: AtomicBool::new(false),
        }
    }

    /// Give `worker` tasks; others may steal them.
    pub(super) fn push(&self, worker: usize, tasks: impl ExactSizeIterator<Item = T>) {
        let count = tasks.len();
        if count == 0 {
            return;
        }
        self.pending.fetch_add(count, Ordering::SeqCst);
        self.own[worker].lock().extend(tasks);
        if self.sleepers.load(Ordering::SeqCst) > 0 {
            let _sleep = self.sleep.lock();
            if count == 1 {
                self.wake.notify_one();
            } else {
                self.wake.notify_all();
            }
        }
    }

    /// The next task, waiting for one; None when all are done, or after `stop`.
    pub(super) fn take(&self, worker: usize) -> Option<T> {
        if let Some(task) = self.find(worker) {
            return (!self.is_stopped()).then_some(task);
        }
        let mut sleep = self.sleep.lock();
        // Announced before the queues are searched again: a push from here on sees a sleeper and wakes it. `stop` and
        // the last `done` notify under this lock.
        self.sleepers.fetch_add(1, Ordering::SeqCst);
        let task = loop {
            if self.is_stopped() || self.pending.load(Ordering::SeqCst) == 0 {
                break None;
            }
            if let Some(task) = self.find(worker) {
                break Some(task);
            }
            self.wake.wait(&mut sleep);
        };
        self.sleepers.fetch_sub(1, Ordering::SeqCst);
        task
    }

    /// A task that can be had at once.
    pub(super) fn try_take(&self, worker: usize) -> Option<T> {
        self.find(worker).filter(|_| !self.is_stopped())
    }

    /// Whether a worker waits for a task.
    pub(super) fn has_idle(&self) -> bool {
        self.sleepers.load(Ordering::Relaxed) > 0
    }

    /// A task that was taken is done, and has pushed the tasks that follow from it.
    pub(super) fn done(&self) {
        if self.pending.fetch_sub(1, Ordering::SeqCst) == 1 {
            let _sleep = self.sleep.lock();
            self.wake.notify_all();
        }
    }

    /// Take out the tasks that no worker has begun and that are `wanted`.
    pub(super) fn take_waiting(&self, wanted: impl Fn(&T) -> bool) -> Vec<T> {
        let mut taken = Vec::new();
        for own in &self.own {
            let mut tasks = own.lock();
            let (out, kept): (VecDeque<T>, VecDeque<T>) = tasks.drain(..).partition(&wanted);
            *tasks = kept;
            taken.extend(out);
        }
        taken.iter().for_each(|_| self.done());
        taken
    }

    /// Tasks that wait or are in progress.
    pub(super) fn pending(&self) -> usize {
        self.pending.load(Ordering::Relaxed)
    }

    /// Let every worker end as soon as it takes a task.
    pub(super) fn stop(&self) {
        self.stopped.store(true, Ordering::SeqCst);
        let _sleep = self.sleep.lock();
        self.wake.notify_all();
    }

    pub(super) fn is_stopped(&self) -> bool {
        self.stopped.load(Ordering::Relaxed)
    }

    fn find(&self, worker: usize) -> Option<T> {
        if let Some(task) = self.own[worker].lock().pop_back() {
            return Some(task);
        }
        let others = (worker + 1..self.own.len()).chain(0..worker);
        others.into_iter().find_map(|other| self.own[other].lock().pop_front())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tasks_that_were_taken_out_are_not_waited_for() {
        let queue = Queue::new(2);
        queue.push(0, [1u32, 2, 3].into_iter());
        queue.push(1, [4, 5].into_iter());
        assert_eq!(queue.take(0), Some(3));
        let mut out = queue.take_waiting(|task| *task != 2);
        out.sort_unstable();
        assert_eq!(out, [1, 4, 5]);
        assert_eq!(queue.take(1), Some(2));
        queue.done();
        queue.done();
        assert_eq!((queue.take(0), queue.take(1)), (None, None));
    }

    #[test]
    fn every_task_is_taken_once_though_tasks_make_tasks() {
        let queue = Queue::new(4);
        queue.push(0, [16u32].into_iter());
        let taken = AtomicUsize::new(0);
        std::thread::scope(|scope| {
            for worker in 0..4 {
                let (queue, taken) = (&queue, &taken);
                scope.spawn(move || {
                    while let Some(depth) = queue.take(worker) {
                        taken.fetch_add(1, Ordering::SeqCst);
                        if depth > 0 {
                            queue.push(worker, [depth - 1, depth - 1].into_iter());
                        }
                        queue.done();
                    }
                });
            }
        });
        assert_eq!(taken.load(Ordering::SeqCst), (1 << 17) - 1);
    }

    #[test]
    fn a_stop_ends_workers_that_wait() {
        let queue = Queue::<u32>::new(2);
        queue.push(0, [1].into_iter());
        assert_eq!(queue.take(0), Some(1));
        std::thread::scope(|scope| {
            let waiting = scope.spawn(|| queue.take(1));
            queue.stop();
            assert_eq!(waiting.join().unwrap(), None);
        });
    }
}
