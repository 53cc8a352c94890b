//! Locks that a forked process can use, also where other threads held some when it was forked; values that it must not
//! drop.
//!
//! Arrives: values to guard.
//! Leaves: guards, and waits for changes.
//! Must not know: what is guarded.
//!
//! Threads that wait for any lock of `parking_lot` stand in one table of the process, which separate locks protect. A
//! process that is forked while another thread changes that table inherits it locked, without the thread that unlocks
//! it: the first lock that two threads of the child want at once then waits for ever. PyTorch's `DataLoader` forks.
//! These are the standard library's locks, which are futexes by themselves, with the interface of `parking_lot`: a
//! panic of a thread that holds one leaves it usable.

mod process;

use std::ops::{Deref, DerefMut};
use std::sync::{PoisonError, RwLockReadGuard, RwLockWriteGuard, TryLockError};
use std::time::{Duration, Instant};

pub use process::ProcessLocal;

/// A mutual exclusion lock without poisoning.
#[derive(Debug, Default)]
pub struct Mutex<T>(std::sync::Mutex<T>);

/// Holds a [`Mutex`] until it is dropped.
#[derive(Debug)]
pub struct MutexGuard<'a, T>(Option<std::sync::MutexGuard<'a, T>>);

/// A lock that several readers hold at once, without poisoning.
#[derive(Debug, Default)]
pub struct RwLock<T>(std::sync::RwLock<T>);

/// Lets threads wait for a change of what a [`Mutex`] guards.
#[derive(Debug, Default)]
pub struct Condvar(std::sync::Condvar);

/// Whether a wait ended by its time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WaitTimeoutResult(bool);

impl<T> Mutex<T> {
    /// A lock that is free.
    pub const fn new(value: T) -> Self {
        Self(std::sync::Mutex::new(value))
    }

    /// The value.
    pub fn into_inner(self) -> T {
        self.0.into_inner().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until it is free, and takes it.
    pub fn lock(&self) -> MutexGuard<'_, T> {
        MutexGuard(Some(self.0.lock().unwrap_or_else(PoisonError::into_inner)))
    }

    /// Takes it where it is free.
    pub fn try_lock(&self) -> Option<MutexGuard<'_, T>> {
        match self.0.try_lock() {
            Ok(guard) => Some(MutexGuard(Some(guard))),
            Err(TryLockError::Poisoned(error)) => Some(MutexGuard(Some(error.into_inner()))),
            Err(TryLockError::WouldBlock) => None,
        }
    }

    /// The value, without a lock: there is no other reference.
    pub fn get_mut(&mut self) -> &mut T {
        self.0.get_mut().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<T> RwLock<T> {
    /// A lock that is free.
    pub const fn new(value: T) -> Self {
        Self(std::sync::RwLock::new(value))
    }

    /// Waits until no thread writes, and takes it to read.
    pub fn read(&self) -> RwLockReadGuard<'_, T> {
        self.0.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until it is free, and takes it to write.
    pub fn write(&self) -> RwLockWriteGuard<'_, T> {
        self.0.write().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<'a, T> MutexGuard<'a, T> {
    /// Runs a wait of the standard library, which takes the guard and gives it back.
    fn during<R>(
        &mut self,
        wait: impl FnOnce(std::sync::MutexGuard<'a, T>) -> (std::sync::MutexGuard<'a, T>, R),
    ) -> R {
        let (guard, result) = wait(self.0.take().expect("a guard is held except in a wait"));
        self.0 = Some(guard);
        result
    }
}

impl<T> Deref for MutexGuard<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        self.0.as_ref().expect("a guard is held except in a wait")
    }
}

impl<T> DerefMut for MutexGuard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        self.0.as_mut().expect("a guard is held except in a wait")
    }
}

impl Condvar {
    /// Nothing waits for it yet.
    #[must_use]
    pub const fn new() -> Self {
        Self(std::sync::Condvar::new())
    }

    /// Wakes one thread that waits.
    pub fn notify_one(&self) {
        self.0.notify_one();
    }

    /// Wakes all threads that wait.
    pub fn notify_all(&self) {
        self.0.notify_all();
    }

    /// Waits until it is notified, or spuriously woken; the lock is free meanwhile.
    pub fn wait<T>(&self, guard: &mut MutexGuard<'_, T>) {
        guard.during(|held| (self.0.wait(held).unwrap_or_else(PoisonError::into_inner), ()));
    }

    /// The same, for `time` at most.
    pub fn wait_for<T>(&self, guard: &mut MutexGuard<'_, T>, time: Duration) -> WaitTimeoutResult {
        guard.during(|held| {
            let (held, timeout) =
                self.0.wait_timeout(held, time).unwrap_or_else(PoisonError::into_inner);
            (held, WaitTimeoutResult(timeout.timed_out()))
        })
    }

    /// The same, until `deadline` at most.
    pub fn wait_until<T>(
        &self,
        guard: &mut MutexGuard<'_, T>,
        deadline: Instant,
    ) -> WaitTimeoutResult {
        self.wait_for(guard, deadline.saturating_duration_since(Instant::now()))
    }

    /// Waits as long as `condition` holds.
    pub fn wait_while<T>(
        &self,
        guard: &mut MutexGuard<'_, T>,
        mut condition: impl FnMut(&mut T) -> bool,
    ) {
        while condition(guard) {
            self.wait(guard);
        }
    }

    /// Waits as long as `condition` holds, for `time` at most.
    pub fn wait_while_for<T>(
        &self,
        guard: &mut MutexGuard<'_, T>,
        mut condition: impl FnMut(&mut T) -> bool,
        time: Duration,
    ) -> WaitTimeoutResult {
        let began = Instant::now();
        while condition(guard) {
            let left = time.saturating_sub(began.elapsed());
            if left.is_zero() {
                return WaitTimeoutResult(true);
            }
            self.wait_for(guard, left);
        }
        WaitTimeoutResult(false)
    }
}

impl WaitTimeoutResult {
    /// Whether it did.
    #[must_use]
    pub fn timed_out(&self) -> bool {
        self.0
    }
}

#[cfg(test)]
mod tests {
    use std::panic::{catch_unwind, AssertUnwindSafe};
    use std::sync::Arc;

    use super::*;

    #[test]
    fn a_lock_is_usable_after_a_panic() {
        let mut lock = Mutex::new(1);
        let panicked = catch_unwind(AssertUnwindSafe(|| {
            let _held = lock.lock();
            panic!("as a thread that holds it may");
        }));
        assert!(panicked.is_err());
        *lock.lock() += 1;
        assert_eq!(lock.try_lock().as_deref(), Some(&2));
        assert_eq!((*lock.get_mut(), lock.into_inner()), (2, 2));
    }

    #[test]
    fn a_lock_of_readers_is_usable_after_a_panic() {
        let lock = RwLock::<i32>::default();
        let panicked = catch_unwind(AssertUnwindSafe(|| {
            let _held = lock.write();
            panic!("as a thread that holds it may");
        }));
        assert!(panicked.is_err());
        *lock.write() += 1;
        let (one, other) = (lock.read(), lock.read());
        assert_eq!((*one, *other), (1, 1));
    }

    #[test]
    fn a_lock_that_is_held_is_not_taken() {
        let lock = Mutex::new(());
        let held = lock.lock();
        assert!(lock.try_lock().is_none());
        drop(held);
        assert!(lock.try_lock().is_some());
    }

    #[test]
    fn waits_end_with_the_condition_or_their_time() {
        let shared = Arc::new((Mutex::new(0), Condvar::new()));
        let thread = std::thread::spawn({
            let shared = Arc::clone(&shared);
            move || {
                for _ in 0..3 {
                    *shared.0.lock() += 1;
                    shared.1.notify_all();
                }
            }
        });
        let (lock, changed) = &*shared;
        let mut held = lock.lock();
        while *held < 3 {
            changed.wait(&mut held);
        }
        assert!(changed.wait_while_for(&mut held, |_| true, Duration::from_millis(1)).timed_out());
        assert!(!changed.wait_while_for(&mut held, |_| false, Duration::ZERO).timed_out());
        assert!(changed.wait_until(&mut held, Instant::now()).timed_out());
        assert_eq!(*held, 3);
        thread.join().expect("it ends");
    }
}
