//! Looks at the empty path, by all flows at the same moment.
//!
//! Arrives: acks. Leaves: whether a look is on, and what part of its window a flow keeps meanwhile. Must not know: the mode.
//!
//! Flows that follow a queue keep one, and whoever comes later takes the queue of the others for a part of the path: its base round trip is too
//! long, and its share too large (Low, Peterson, Wang: "Understanding TCP Vegas", JACM 49(2), 2002, section 4). One flow that
//! pauses does not empty the queue of sixteen. So all pause when their clocks have whole multiples of five seconds, which hosts with the
//! time of day do within milliseconds: the queue empties for a part of a round trip, and each sees the path as it is.
//! Clocks that disagree only take the gain away.
//!
//! ```text
//! W_look = 0.85 W base / RTT        until the first packet that was sent after the pause has arrived
//! ```

use super::AckEvent;

/// Looks are so far apart, or the least doubling of it that is a hundred round trips.
const EVERY_NS: u64 = 5_000_000_000;
const ROUND_TRIPS: u64 = 100;

/// Of what the path holds without a queue, so much stays underway.
const KEPT: f64 = 0.85;

/// All look where less than `queue / GONE` of a queue longer than `base / LONG` is left: beside `1 - s` of others that do not,
/// `(1 - s) queue - 0.15 s base` would be.
const LONG: u64 = 2;
const GONE: u64 = 16;

/// Of a queue shorter than `base / SHORT` nothing can be told. One that is longer may be gone once while others back off, but not at two looks in a row.
const SHORT: u64 = 16;

/// What a ack said of looking.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Looking {
    /// It is not time.
    No,
    /// The window is smaller now.
    On,
    /// This ack ended it.
    Over {
        /// The base round trip turned out to be shorter than had been thought.
        shorter: bool,
        /// The queue was gone: nobody is there who does not look.
        empty: bool,
        /// All that fill the path look: a long queue was gone, or one was for the second time in a row.
        alike: bool,
    },
}

#[derive(Clone, Copy, Debug)]
struct Pause {
    /// The first packet to be sent after it began.
    first: u64,
    /// What part of the window is kept.
    part: f64,
    /// Round trips before: the base, and the smoothed one.
    base_ns: u64,
    rtt_ns: u64,
}

/// When to look.
#[derive(Clone, Debug, Default)]
pub struct Look {
    slot: Option<u64>,
    on: Option<Pause>,
    /// Whether the last look saw a queue, and it was gone.
    gone_before: bool,
}

impl Look {
    /// Takes in a ack.
    pub fn on_ack(&mut self, ack: &AckEvent) -> Looking {
        if let Some(pause) = self.on {
            if ack.newest_spoken_of <= pause.first {
                return Looking::On;
            }
            self.on = None;
            let queue_ns = pause.rtt_ns.saturating_sub(ack.base_rtt_ns);
            let left_ns = ack.rtt_ns.unwrap_or(pause.rtt_ns).saturating_sub(ack.base_rtt_ns);
            let base_ns = ack.base_rtt_ns;
            let empty = left_ns < queue_ns / 4;
            let gone = empty && queue_ns > base_ns / SHORT;
            let again = std::mem::replace(&mut self.gone_before, gone) && gone;
            return Looking::Over {
                shorter: base_ns < pause.base_ns - pause.base_ns / 32,
                empty,
                alike: again || queue_ns > base_ns / LONG && left_ns < queue_ns / GONE,
            };
        }
        let mut every_ns = EVERY_NS;
        while every_ns < ROUND_TRIPS * ack.base_rtt_ns {
            every_ns *= 2;
        }
        let slot = ack.now_ns / every_ns;
        let due = self.slot.is_some_and(|before| before != slot);
        self.slot = Some(slot);
        if !due {
            return Looking::No;
        }
        let part = ack.base_rtt_ns as f64 / ack.smoothed_rtt_ns.max(1) as f64;
        self.on = Some(Pause {
            first: ack.next_number,
            part: KEPT * part.min(1.0),
            base_ns: ack.base_rtt_ns,
            rtt_ns: ack.smoothed_rtt_ns,
        });
        Looking::On
    }

    /// The part of its window that a flow keeps now.
    #[must_use]
    pub fn part(&self) -> f64 {
        self.on.map_or(1.0, |pause| pause.part)
    }

    /// Looks no more, until it is time again.
    pub fn stop(&mut self) {
        (self.slot, self.on) = (None, None);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    fn ack(now_ms: u64, base_ms: u64, rtt_ms: u64) -> AckEvent {
        AckEvent {
            now_ns: now_ms * MS,
            rtt_ns: Some(rtt_ms * MS),
            base_rtt_ns: base_ms * MS,
            smoothed_rtt_ns: rtt_ms * MS,
            ..AckEvent::default()
        }
    }

    #[test]
    fn two_flows_look_at_the_same_moment_whenever_they_began() {
        for began_ms in [12_000, 14_999] {
            let mut look = Look::default();
            let on = (began_ms..20_001).find(|&ms| look.on_ack(&ack(ms, 20, 30)) == Looking::On);
            assert_eq!(on, Some(15_000));
            assert!((look.part() - KEPT * 20.0 / 30.0).abs() < 1e-9);
        }
        let mut long = Look::default();
        let mut times = (0..50_000).filter(|&ms| match long.on_ack(&ack(ms, 200, 300)) {
            Looking::On => std::mem::take(&mut long.on).is_some(),
            _ => false,
        });
        assert_eq!(
            (times.next(), times.next()),
            (Some(20_000), Some(40_000)),
            "a hundred round trips"
        );
    }

    #[test]
    fn it_ends_with_the_first_packet_sent_after_it_began_and_says_what_it_saw() {
        for (rtt_before_ms, base_ms, rtt_ms, shorter, empty, alike) in [
            (30, 20, 20, false, true, false),
            (32, 20, 20, false, true, true),
            (32, 20, 21, false, true, false),
            (30, 20, 29, false, false, false),
            (30, 15, 15, true, true, true),
        ] {
            let mut look = Look::default();
            assert_eq!(look.on_ack(&ack(9_999, 20, rtt_before_ms)), Looking::No);
            let begin = AckEvent { next_number: 7, ..ack(10_000, 20, rtt_before_ms) };
            assert_eq!(look.on_ack(&begin), Looking::On);
            let before = AckEvent { newest_spoken_of: 7, ..ack(10_010, 20, rtt_before_ms) };
            assert_eq!(look.on_ack(&before), Looking::On);
            let after = AckEvent { newest_spoken_of: 8, ..ack(10_020, base_ms, rtt_ms) };
            assert_eq!(look.on_ack(&after), Looking::Over { shorter, empty, alike });
            assert_eq!((look.part(), look.on_ack(&after)), (1.0, Looking::No));
        }
    }

    #[test]
    fn a_short_queue_that_is_gone_twice_in_a_row_was_of_those_who_look() {
        let mut look = Look::default();
        let mut at = |begin_ms: u64, rtt_before_ms, rtt_ms| {
            look.on_ack(&ack(begin_ms - 1, 20, rtt_before_ms));
            look.on_ack(&ack(begin_ms, 20, rtt_before_ms));
            match look.on_ack(&AckEvent { newest_spoken_of: 1, ..ack(begin_ms + 20, 20, rtt_ms) }) {
                Looking::Over { alike, .. } => alike,
                other => panic!("{other:?}"),
            }
        };
        let looks = [(24, 20), (24, 23), (24, 20), (21, 20), (24, 20), (24, 20), (24, 20)];
        let said: Vec<bool> =
            (2..).zip(looks).map(|(slot, (before, left))| at(5_000 * slot, before, left)).collect();
        assert_eq!(said, [false, false, false, false, false, true, true]);
        look.stop();
        assert!(look.gone_before, "a test for others does not make it forget");
    }
}
