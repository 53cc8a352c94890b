//! A limit on bytes a second, shared by all workers, that may change at any time.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use waystage_protocol::token_bucket::TokenBucket;

use crate::error::Failure;

/// A sleeper checks this often whether it is to end, or the limit has changed.
const CHECK_INTERVAL: Duration = Duration::from_millis(50);

/// Each piece owes the time it takes at the given rate, which the next one waits for.
pub(crate) struct RateLimiter {
    /// Bytes a second; 0 for no limit.
    rate: AtomicU64,
    limited: bool,
    bucket: Mutex<TokenBucket>,
}

impl RateLimiter {
    pub(crate) fn new(rate: Option<u64>, changes: bool) -> Self {
        let limiter = Self {
            rate: AtomicU64::new(0),
            limited: rate.is_some() || changes,
            bucket: Mutex::default(),
        };
        limiter.limit(rate);
        limiter
    }

    pub(crate) fn limit(&self, rate: Option<u64>) {
        self.rate.store(rate.map_or(0, |rate| rate.max(1)), Ordering::Relaxed);
    }

    /// Whether there is or may come to be a limit.
    pub(crate) fn limited(&self) -> bool {
        self.limited
    }

    /// Wait for the turn of `bytes`.
    pub(crate) fn take(&self, bytes: usize, stop: &AtomicBool) -> Result<(), Failure> {
        if !self.limited {
            return Ok(());
        }
        loop {
            if stop.load(Ordering::Relaxed) {
                return Err(Failure::Stopped);
            }
            let rate = Some(self.rate.load(Ordering::Relaxed)).filter(|rate| *rate > 0);
            let mut bucket = self.bucket.lock();
            let left = bucket.take(Instant::now(), rate, bytes);
            drop(bucket);
            if left.is_zero() {
                return Ok(());
            }
            std::thread::sleep(left.min(CHECK_INTERVAL));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_take_the_time_that_the_rate_gives_them() {
        let (limiter, stop) = (RateLimiter::new(Some(1_000_000), false), AtomicBool::new(false));
        let began = Instant::now();
        for _ in 0..5 {
            limiter.take(50_000, &stop).unwrap();
        }
        // The first goes at once and the last is not waited for.
        assert!(began.elapsed() >= Duration::from_millis(200));
    }

    #[test]
    fn a_stop_ends_the_longest_wait() {
        let (limiter, stop) = (RateLimiter::new(Some(1), false), AtomicBool::new(false));
        limiter.take(1_000_000, &stop).unwrap();
        std::thread::scope(|scope| {
            let waiting = scope.spawn(|| limiter.take(1, &stop));
            stop.store(true, Ordering::Relaxed);
            assert_eq!(waiting.join().unwrap(), Err(Failure::Stopped));
        });
    }

    #[test]
    fn another_limit_holds_for_those_who_wait_already() {
        let (limiter, stop) = (RateLimiter::new(Some(1), true), AtomicBool::new(false));
        limiter.take(1_000_000_000, &stop).unwrap();
        std::thread::scope(|scope| {
            let waiting = scope.spawn(|| limiter.take(1, &stop));
            limiter.limit(None);
            assert_eq!(waiting.join().unwrap(), Ok(()));
        });
    }
}
