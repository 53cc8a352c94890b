//! Detectors: a standing queue, an oscillating queue, and losses that were spurious.
//!
//! Arrives: queueing delays of rounds, acknowledgements. Leaves: yes or no. Must not know: the response to it.

use super::controller::AckEvent;

/// Detects spurious losses: a packet that arrives after all was late, not lost (Eifel, RFC 3522 and RFC 4015).
#[derive(Clone, Debug, Default)]
pub struct SpuriousLoss {
    lost: u64,
    recovery_point: u64,
    until_ns: u64,
}

/// A packet that is later than this many round trips has been forgotten by the sender.
const LATE_ROUNDS: u64 = 4;

impl SpuriousLoss {
    /// Watches the losses that a congestion response has just answered.
    #[must_use]
    pub fn watch(ack: &AckEvent, lost: u64) -> Self {
        Self {
            lost,
            recovery_point: ack.next_packet_number,
            until_ns: ack.now_ns + LATE_ROUNDS * ack.smoothed_rtt_ns,
        }
    }

    /// Processes an acknowledgement. True once, where every answered loss has arrived after all.
    pub fn is_proved(&mut self, ack: &AckEvent) -> bool {
        if self.lost == 0 || ack.now_ns > self.until_ns {
            return false;
        }
        if ack.largest_lost.is_some_and(|lost| lost < self.recovery_point) {
            self.lost += ack.lost_packets;
        }
        self.lost = self.lost.saturating_sub(ack.late_packets);
        self.lost == 0
    }
}

/// Detects oscillation: the range of the queueing delay over the last five to ten seconds.
#[derive(Clone, Copy, Debug, Default)]
pub struct Oscillation {
    /// Minimum and maximum of the current half of the window, and of the previous half.
    halves: [Option<(f64, f64)>; 2],
    half_ends_ns: u64,
}

const OSCILLATION_HALF_NS: u64 = 5_000_000_000;

impl Oscillation {
    /// Processes a round's queueing delay. Returns the range in ns; zero until five seconds are known.
    pub fn on_round(&mut self, now_ns: u64, queue_ns: f64) -> f64 {
        if now_ns >= self.half_ends_ns {
            self.halves = [None, self.halves[0]];
            self.half_ends_ns = now_ns + OSCILLATION_HALF_NS;
        }
        let (min, max) = self.halves[0].unwrap_or((queue_ns, queue_ns));
        self.halves[0] = Some((min.min(queue_ns), max.max(queue_ns)));
        match self.halves {
            [Some(one), Some(other)] => one.1.max(other.1) - one.0.min(other.0),
            _ => 0.0,
        }
    }
}

/// The longest queue that stood for a round trip, within the last ten to twenty seconds. Packets that a busy host
/// delays do not count, as they do in [`super::loss_floor::BufferEstimate`].
#[derive(Clone, Copy, Debug, Default)]
pub struct LongestQueue {
    halves: [f64; 2],
    half_ends_ns: u64,
}

const LONGEST_HALF_NS: u64 = 10_000_000_000;

impl LongestQueue {
    /// Processes the shortest queueing delay of a round.
    pub fn on_round(&mut self, now_ns: u64, queue_ns: f64) {
        if now_ns >= self.half_ends_ns {
            self.halves = [0.0, self.halves[0]];
            self.half_ends_ns = now_ns + LONGEST_HALF_NS;
        }
        self.halves[0] = self.halves[0].max(queue_ns);
    }

    /// The path has become longer by this much, which counted as a queue.
    pub fn on_longer_path(&mut self, by_ns: u64) {
        self.halves = self.halves.map(|half| (half - by_ns as f64).max(0.0));
    }

    /// The longest.
    #[must_use]
    pub fn ns(&self) -> f64 {
        self.halves[0].max(self.halves[1])
    }
}

/// Detects a standing queue: rounds in which the queue persisted while this flow yielded.
#[derive(Clone, Copy, Debug, Default)]
pub struct StandingQueue {
    rounds: u32,
    settling_rounds: u32,
    previous_ns: f64,
}

/// Rounds after which the queue belongs to a flow that does not yield.
const PATIENCE_ROUNDS: u32 = 6;

/// Within these a queue fills the buffer when the capacity falls.
const RECENT_ROUNDS: u32 = 2;

/// After a queue drain that found a shorter path, or only flows that drain, the queue exceeds its target and needs
/// time to settle.
const SETTLING_ROUNDS: u32 = 60;

/// A queue that falls below this part of itself within a round is draining.
const SHRINKS: f64 = 0.9;

impl StandingQueue {
    /// Processes a round's queueing delay, which is long above `limit_ns`.
    pub fn on_round(&mut self, queue_ns: f64, limit_ns: f64) {
        let stands = queue_ns > SHRINKS * self.previous_ns;
        self.previous_ns = queue_ns;
        if self.settling_rounds > 0 || queue_ns <= limit_ns {
            self.rounds = 0;
        } else {
            self.rounds += u32::from(stands);
        }
        self.settling_rounds = self.settling_rounds.saturating_sub(1);
    }

    /// Whether the last round had no standing queue.
    #[must_use]
    pub fn is_gone(&self) -> bool {
        self.rounds == 0
    }

    /// Whether no queue has stood for longer than two rounds.
    #[must_use]
    pub fn is_recent(&self) -> bool {
        self.rounds <= RECENT_ROUNDS
    }

    /// Whether it stood long enough to belong to a flow that does not yield.
    #[must_use]
    pub fn is_evident(&self) -> bool {
        self.rounds >= PATIENCE_ROUNDS
    }

    /// Restarts the count.
    pub fn restart(&mut self) {
        self.rounds = 0;
    }

    /// Restarts the count once the queue has had time to settle.
    pub fn settle(&mut self) {
        (self.rounds, self.settling_rounds) = (0, SETTLING_ROUNDS);
    }

    /// Restarts the count and ends any time to settle.
    pub fn reset(&mut self) {
        (self.rounds, self.settling_rounds) = (0, 0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn losses_are_spurious_when_all_of_them_arrive_and_soon() {
        let rtt = AckEvent { smoothed_rtt_ns: 10, ..AckEvent::default() };
        let watch =
            || SpuriousLoss::watch(&AckEvent { now_ns: 100, next_packet_number: 50, ..rtt }, 2);
        let at = |now_ns, late_packets| AckEvent { now_ns, late_packets, ..rtt };
        let mut spurious = watch();
        assert!(!spurious.is_proved(&at(110, 1)));
        assert!(spurious.is_proved(&at(120, 1)));
        assert!(!spurious.is_proved(&at(121, 1)), "reported once");
        assert!(!watch().is_proved(&at(141, 2)), "too late");
        let mut more = watch();
        let lost = AckEvent { lost_packets: 1, largest_lost: Some(49), ..at(110, 0) };
        assert!(!more.is_proved(&lost));
        assert!(!more.is_proved(&at(111, 2)), "a packet sent before the response is missing");
        let newer = AckEvent { largest_lost: Some(50), ..lost };
        assert!(!more.is_proved(&newer));
        assert!(more.is_proved(&at(112, 1)), "losses after the response do not count");
        assert!(!SpuriousLoss::default().is_proved(&at(1, 1)));
    }

    #[test]
    fn a_queue_that_persists_for_six_rounds_is_evident_and_a_shrinking_one_is_not() {
        let mut standing = StandingQueue::default();
        for round in 0..6 {
            assert!(!standing.is_evident(), "{round}");
            standing.on_round(10.0, 5.0);
        }
        assert!(standing.is_evident());
        standing.on_round(4.0, 5.0);
        assert!(standing.is_gone());
        let mut queue_ns = 1e6;
        for _ in 0..20 {
            standing.on_round(queue_ns, 5.0);
            queue_ns *= 0.8;
        }
        assert!(!standing.is_evident());
        standing.settle();
        (0..SETTLING_ROUNDS).for_each(|_| standing.on_round(1e6, 5.0));
        assert!(standing.is_gone(), "it had time to settle");
        standing.on_round(1e6, 5.0);
        assert!(!standing.is_gone());
    }

    #[test]
    fn oscillation_is_the_range_of_the_last_seconds() {
        let mut oscillation = Oscillation::default();
        let second = 1_000_000_000;
        assert_eq!(oscillation.on_round(0, 3.0), 0.0);
        assert_eq!(oscillation.on_round(second, 9.0), 0.0, "too early");
        assert_eq!(oscillation.on_round(6 * second, 5.0), 6.0);
        assert_eq!(oscillation.on_round(12 * second, 5.0), 0.0, "older extremes are forgotten");
    }
}
