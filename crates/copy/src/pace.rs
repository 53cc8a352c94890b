//! A limit on bytes a second, shared by all workers.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use crate::error::Failure;

/// A sleeper looks this often whether it is to end.
const LOOK_ROUND: Duration = Duration::from_millis(50);

/// Each piece books the time it takes at the given rate, and waits until those before it have had theirs.
pub(crate) struct Pace {
    rate: Option<u64>,
    free_from: Mutex<Option<Instant>>,
}

impl Pace {
    pub(crate) fn new(rate: Option<u64>) -> Self {
        Self { rate: rate.map(|rate| rate.max(1)), free_from: Mutex::new(None) }
    }

    pub(crate) fn limited(&self) -> bool {
        self.rate.is_some()
    }

    /// Wait for the turn of `bytes`.
    pub(crate) fn take(&self, bytes: usize, stop: &AtomicBool) -> Result<(), Failure> {
        let Some(rate) = self.rate else { return Ok(()) };
        let now = Instant::now();
        let turn = {
            let mut free_from = self.free_from.lock().unwrap_or_else(PoisonError::into_inner);
            // Time that nobody used is gone: a pause must not be followed by a burst.
            let turn = free_from.map_or(now, |free_from| free_from.max(now));
            let nanoseconds =
                (bytes as u128 * 1_000_000_000 / u128::from(rate)).min(u128::from(u64::MAX));
            *free_from = Some(turn + Duration::from_nanos(nanoseconds as u64));
            turn
        };
        loop {
            if stop.load(Ordering::Relaxed) {
                return Err(Failure::Stopped);
            }
            let left = turn.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Ok(());
            }
            std::thread::sleep(left.min(LOOK_ROUND));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_take_the_time_that_the_rate_gives_them() {
        let (pace, stop) = (Pace::new(Some(1_000_000)), AtomicBool::new(false));
        let began = Instant::now();
        for _ in 0..5 {
            pace.take(50_000, &stop).unwrap();
        }
        // The first goes at once and the last is not waited for.
        assert!(began.elapsed() >= Duration::from_millis(200));
    }

    #[test]
    fn a_stop_ends_the_longest_wait() {
        let (pace, stop) = (Pace::new(Some(1)), AtomicBool::new(false));
        pace.take(1_000_000, &stop).unwrap();
        std::thread::scope(|scope| {
            let waiting = scope.spawn(|| pace.take(1, &stop));
            stop.store(true, Ordering::Relaxed);
            assert_eq!(waiting.join().unwrap(), Err(Failure::Stopped));
        });
    }
}
