//! A rate limit that may change at any time, as a token bucket that holds one message.
//!
//! Arrives: the time, a rate, the size of a message. Leaves: whether the message may go, or how long it has to wait.
//! Must not know: clocks, threads.

use std::time::{Duration, Instant};

/// The bytes that went and whose time has not passed yet. The next message waits until there are none, at the rate of
/// the moment, so that what went at one rate delays nothing at another. Unused time is gone: a pause is not followed by
/// a burst.
#[derive(Debug, Default)]
pub struct TokenBucket {
    owed_bytes: f64,
    at: Option<Instant>,
}

impl TokenBucket {
    /// Take `bytes` where nothing is owed, and return zero; else return how long to wait before asking again.
    pub fn take(&mut self, now: Instant, rate: Option<u64>, bytes: usize) -> Duration {
        let wait = self.wait(now, rate);
        if wait.is_zero() && rate.is_some() {
            self.owed_bytes = bytes as f64;
        }
        wait
    }

    /// How long to wait before the next message may go.
    pub fn wait(&mut self, now: Instant, rate: Option<u64>) -> Duration {
        let Some(rate) = rate.map(|rate| rate.max(1) as f64) else {
            *self = Self::default();
            return Duration::ZERO;
        };
        let passed = self.at.map_or(Duration::ZERO, |at| now.saturating_duration_since(at));
        self.at = Some(now);
        self.owed_bytes = (self.owed_bytes - passed.as_secs_f64() * rate).max(0.0);
        if self.owed_bytes == 0.0 {
            return Duration::ZERO;
        }
        Duration::from_secs_f64((self.owed_bytes / rate).min(1e6)).max(Duration::from_micros(1))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_go_at_the_rate_of_the_moment_and_without_bursts() {
        let (mut bucket, began) = (TokenBucket::default(), Instant::now());
        let at = |ms| began + Duration::from_millis(ms);
        assert_eq!(bucket.take(at(0), Some(1000), 500), Duration::ZERO);
        assert_eq!(bucket.take(at(100), Some(1000), 500), Duration::from_millis(400));
        // Twice the rate halves what is left.
        assert_eq!(bucket.take(at(200), Some(2000), 500), Duration::from_millis(100));
        assert_eq!(bucket.take(at(300), Some(2000), 500), Duration::ZERO);
        // An hour later there is no burst.
        assert_eq!(bucket.take(at(3_600_000), Some(1000), 500), Duration::ZERO);
        assert_eq!(bucket.wait(at(3_600_000), Some(1000)), Duration::from_millis(500));
        assert_eq!(bucket.take(at(3_600_000), None, 500), Duration::ZERO);
        assert_eq!(bucket.wait(at(3_600_000), Some(1)), Duration::ZERO, "no limit leaves no debt");
    }
}
