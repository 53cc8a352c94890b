//! A limit on bytes a second, shared by all workers, that may change at any time.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use crate::error::Failure;

/// A sleeper checks this often whether it is to end, or the limit has changed.
const CHECK_INTERVAL: Duration = Duration::from_millis(50);

/// A token bucket that starts empty and goes into debt: what was taken is paid at the rate of the moment, and the next
/// piece waits until nothing is owed. So a burst is one piece, and a changed rate applies at once.
#[derive(Debug, Default)]
pub struct TokenBucket {
    bytes: f64,
    at: Option<Instant>,
}

impl TokenBucket {
    /// Take `bytes` where nothing is owed, else say how long to wait before asking again. Unused time is lost: a pause
    /// must not be followed by a burst.
    pub fn take(&mut self, now: Instant, rate: Option<u64>, bytes: usize) -> Duration {
        let Some(rate) = rate else {
            *self = Self::default();
            return Duration::ZERO;
        };
        let rate = rate.max(1) as f64;
        let passed = self.at.map_or(Duration::ZERO, |at| now.saturating_duration_since(at));
        self.at = Some(now);
        self.bytes = (self.bytes - passed.as_secs_f64() * rate).max(0.0);
        if self.bytes > 0.0 {
            let left = (self.bytes / rate).min(1e6);
            return Duration::from_secs_f64(left).max(Duration::from_micros(1));
        }
        self.bytes = bytes as f64;
        Duration::ZERO
    }
}

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

    #[test]
    fn a_debt_is_paid_at_the_rate_of_the_moment_and_a_pause_saves_nothing() {
        let (mut bucket, now) = (TokenBucket::default(), Instant::now());
        let after = |seconds| now + Duration::from_secs(seconds);
        assert_eq!(bucket.take(now, Some(10), 100), Duration::ZERO);
        assert_eq!(bucket.take(after(4), Some(10), 100), Duration::from_secs(6));
        assert_eq!(bucket.take(after(5), Some(25), 100), Duration::from_secs_f64(1.4));
        assert_eq!(bucket.take(after(1000), Some(25), 100), Duration::ZERO);
        assert_eq!(bucket.take(after(1000), Some(25), 100), Duration::from_secs(4));
        assert_eq!(bucket.take(after(1000), None, 100), Duration::ZERO);
        assert_eq!(bucket.take(after(1000), Some(1), 100), Duration::ZERO);
    }
}
