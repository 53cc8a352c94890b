//! A rate limit and a pause that may change at any time: a token bucket that holds one piece.
//!
//! Arrives: the time, limits, the size of a piece. Leaves: whether the piece may go, or how long it has to wait.
//! Must not know: clocks, threads.

use std::time::{Duration, Instant};

/// Unused time that counts towards the next piece: covers a late wake-up of a thread (a scheduler's tick is 1 to 10
/// ms), and is too short for a burst that a storage target or a queue of a switch would feel.
const SLACK: Duration = Duration::from_millis(10);

/// The longest wait that a piece gets: one piece at 1 byte/s would otherwise overflow a clock.
const LONGEST: Duration = Duration::from_secs(1_000_000);

/// What a piece may do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Turn {
    /// It may go, and is counted.
    Go,
    /// Not before this time has passed; a change of the limit may shorten it.
    Wait(Duration),
    /// Not before the pause ends.
    Paused,
}

/// The bytes that went and whose time has not passed yet. The next piece waits until there are none, at the rate of
/// the moment, so that what went at one rate delays nothing at another. Time that was not used, but for [`SLACK`], is
/// gone: a pause is not followed by a burst.
#[derive(Debug, Default)]
pub struct Limiter {
    limit: Option<u64>,
    rate: Option<u64>,
    paused: bool,
    /// Negative where time was not used.
    owed_bytes: f64,
    at: Option<Instant>,
}

impl Limiter {
    /// The user's own limit, bytes/s; None for none.
    pub fn set_limit(&mut self, now: Instant, bytes_per_s: Option<u64>) {
        self.pass(now);
        self.limit = bytes_per_s;
    }

    /// The rate that the control plane grants, bytes/s; None for any.
    pub fn set_rate(&mut self, now: Instant, bytes_per_s: Option<u64>) {
        self.pass(now);
        self.rate = bytes_per_s;
    }

    /// Begin or end a pause.
    pub fn set_paused(&mut self, now: Instant, paused: bool) {
        self.pass(now);
        // A piece of an hour ago is paid for; nothing is saved up meanwhile.
        self.owed_bytes = self.owed_bytes.max(0.0);
        self.paused = paused;
    }

    /// Whether it is paused.
    #[must_use]
    pub fn is_paused(&self) -> bool {
        self.paused
    }

    /// The limit that holds, bytes/s: the lower one.
    #[must_use]
    pub fn effective(&self) -> Option<u64> {
        match (self.limit, self.rate) {
            (Some(limit), Some(rate)) => Some(limit.min(rate)),
            (limit, rate) => limit.or(rate),
        }
    }

    /// Take `bytes` where they may go now.
    pub fn take(&mut self, now: Instant, bytes: u64) -> Turn {
        let turn = self.look(now);
        if turn == Turn::Go && self.effective().is_some() {
            self.owed_bytes += bytes as f64;
        }
        turn
    }

    /// Count `bytes` that go without being asked about.
    pub fn owe(&mut self, now: Instant, bytes: u64) {
        self.pass(now);
        if self.effective().is_some() {
            self.owed_bytes += bytes as f64;
        }
    }

    /// Whether a piece could go now; it is not counted.
    pub fn look(&mut self, now: Instant) -> Turn {
        self.pass(now);
        if self.paused {
            return Turn::Paused;
        }
        match self.effective() {
            Some(rate) if self.owed_bytes > 0.0 => {
                let wait = self.owed_bytes / rate.max(1) as f64;
                let wait = Duration::from_secs_f64(wait.min(LONGEST.as_secs_f64()));
                Turn::Wait(wait.max(Duration::from_micros(1)))
            }
            _ => Turn::Go,
        }
    }

    /// Pay for what went with the time since.
    fn pass(&mut self, now: Instant) {
        let Some(rate) = self.effective().map(|rate| rate.max(1) as f64) else {
            (self.owed_bytes, self.at) = (0.0, Some(now));
            return;
        };
        let passed = self.at.map_or(Duration::ZERO, |at| now.saturating_duration_since(at));
        // A clock that seems to go back, as threads ask in any order, gives no time twice.
        self.at = Some(self.at.map_or(now, |at| at.max(now)));
        let saved = -SLACK.as_secs_f64() * rate;
        self.owed_bytes = (self.owed_bytes - passed.as_secs_f64() * rate).max(saved);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn wait_ms(turn: Turn) -> u64 {
        match turn {
            Turn::Go => 0,
            Turn::Wait(left) => u64::try_from(left.as_millis()).unwrap_or(u64::MAX),
            Turn::Paused => u64::MAX,
        }
    }

    #[test]
    fn pieces_go_at_the_rate_of_the_moment_and_without_bursts() {
        let (mut limiter, began) = (Limiter::default(), Instant::now());
        let at = |ms| began + Duration::from_millis(ms);
        limiter.set_limit(at(0), Some(1000));
        assert_eq!(limiter.take(at(0), 500), Turn::Go);
        assert_eq!(wait_ms(limiter.take(at(100), 500)), 400);
        // Twice the rate halves what is left.
        limiter.set_limit(at(100), Some(2000));
        assert_eq!(wait_ms(limiter.take(at(100), 500)), 200);
        assert_eq!(limiter.take(at(300), 500), Turn::Go);
        // An hour later there is no burst: 10 ms are saved, at 2000 bytes/s 20 bytes.
        assert_eq!(limiter.take(at(3_600_000), 500), Turn::Go);
        assert_eq!(wait_ms(limiter.look(at(3_600_000))), 240);
        limiter.set_limit(at(3_600_000), None);
        assert_eq!(limiter.take(at(3_600_000), 500), Turn::Go);
        limiter.set_limit(at(3_600_000), Some(1));
        assert_eq!(limiter.look(at(3_600_000)), Turn::Go, "no limit leaves no debt");
    }

    #[test]
    fn the_lower_limit_holds_and_lifting_one_leaves_the_other() {
        let (mut limiter, now) = (Limiter::default(), Instant::now());
        assert_eq!(limiter.effective(), None);
        limiter.set_limit(now, Some(1000));
        limiter.set_rate(now, Some(300));
        assert_eq!(limiter.effective(), Some(300));
        limiter.set_rate(now, Some(5000));
        assert_eq!(limiter.effective(), Some(1000));
        limiter.set_limit(now, None);
        assert_eq!(limiter.effective(), Some(5000));
        limiter.set_rate(now, None);
        assert_eq!(limiter.effective(), None);
    }

    #[test]
    fn nothing_goes_in_a_pause_and_nothing_is_saved_up_in_it() {
        let (mut limiter, began) = (Limiter::default(), Instant::now());
        limiter.set_limit(began, Some(1000));
        limiter.set_paused(began, true);
        let later = began + Duration::from_secs(3600);
        assert_eq!(limiter.take(later, 1), Turn::Paused);
        limiter.set_paused(later, false);
        assert_eq!(limiter.take(later, 100), Turn::Go);
        assert_eq!(wait_ms(limiter.take(later, 100)), 100);
    }

    #[derive(Debug, Clone)]
    enum Step {
        Take(u64),
        Limit(Option<u64>),
        Rate(Option<u64>),
        Pause(bool),
    }

    fn step() -> impl Strategy<Value = Step> {
        let rate = || proptest::option::of(1_u64..1_000_000);
        prop_oneof![
            6 => (0_u64..100_000).prop_map(Step::Take),
            1 => rate().prop_map(Step::Limit),
            1 => rate().prop_map(Step::Rate),
            1 => any::<bool>().prop_map(Step::Pause),
        ]
    }

    proptest! {
        /// Between two changes no more goes than the limit allows: its time, the slack and one piece.
        #[test]
        fn no_more_goes_than_the_limits_allow(
            steps in proptest::collection::vec((0_u64..200, step()), 0..300)
        ) {
            let (mut limiter, mut now) = (Limiter::default(), Instant::now());
            let (mut went, mut budget, mut largest) = (0.0, 0.0, 0.0_f64);
            let (mut limit, mut rate, mut paused) = (None, None, false);
            for (ms, step) in steps {
                let holds: Option<u64> = [limit, rate].into_iter().flatten().min();
                if let Some(holds) = holds {
                    budget += ms as f64 / 1e3 * holds as f64;
                }
                now += Duration::from_millis(ms);
                match step {
                    Step::Take(bytes) => match limiter.take(now, bytes) {
                        Turn::Go => {
                            prop_assert!(!paused);
                            went += bytes as f64;
                            largest = largest.max(bytes as f64);
                        }
                        Turn::Wait(left) => {
                            prop_assert!(!paused && holds.is_some() && !left.is_zero());
                        }
                        Turn::Paused => prop_assert!(paused),
                    },
                    Step::Limit(bytes_per_s) => {
                        limiter.set_limit(now, bytes_per_s);
                        (limit, went, budget, largest) = (bytes_per_s, 0.0, 0.0, 0.0);
                    }
                    Step::Rate(bytes_per_s) => {
                        limiter.set_rate(now, bytes_per_s);
                        (rate, went, budget, largest) = (bytes_per_s, 0.0, 0.0, 0.0);
                    }
                    Step::Pause(whether) => {
                        limiter.set_paused(now, whether);
                        paused = whether;
                    }
                }
                let holds: Option<u64> = [limit, rate].into_iter().flatten().min();
                prop_assert_eq!(limiter.effective(), holds);
                if let Some(holds) = holds {
                    // Slack of an earlier, higher limit is cut to that of the present one.
                    let slack = SLACK.as_secs_f64() * holds as f64;
                    prop_assert!(went <= budget + slack + largest + 1.0, "{went} of {budget}");
                }
            }
        }

        /// Who waits as long as told may go then.
        #[test]
        fn a_wait_is_long_enough(bytes in 1_u64..1 << 40, rate in 1_u64..1 << 30) {
            let (mut limiter, now) = (Limiter::default(), Instant::now());
            limiter.set_rate(now, Some(rate));
            prop_assert_eq!(limiter.take(now, bytes), Turn::Go);
            if let Turn::Wait(left) = limiter.look(now) {
                if left < LONGEST {
                    let then = now + left + Duration::from_micros(1);
                    prop_assert!(matches!(limiter.look(then), Turn::Go | Turn::Wait(_)));
                    prop_assert_eq!(limiter.look(then + Duration::from_millis(1)), Turn::Go);
                }
            }
        }
    }
}
