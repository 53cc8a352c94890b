//! Loss as evidence of congestion: only above the path's random floor, and only where a buffer may have overflowed.
//!
//! Arrives: rounds. Leaves: the share of packets lost at random; whether a loss is evidence. Must not know: the
//! response to it.
//!
//! A loss by itself proves nothing on a path with random loss. Random loss is the same at any rate, whereas loss in a
//! full buffer ends when the sender slows down. The floor is therefore learned only from *quiet* rounds, sent at no
//! more than 0.9 of the previous rate, and from rounds that lose less than the floor. A loss at full rate is evidence
//! only where it exceeds the floor.
//!
//! Random loss comes in bursts on many paths. The variance of a number of losses is the sum of the squares of the
//! bursts, so ten packets lost in a row prove as little as one, and ten lost one by one prove more.

use super::controller::AckEvent;
use super::rounds::Round;

/// Packets that the floor remembers.
const MEMORY: f64 = 20_000.0;

/// Packets that it remembers after [`LossFloor::doubt`].
const DOUBTED: f64 = 1000.0;

/// Bursts, of equal lengths, that show how long those of random loss are.
const CREDIBLE: f64 = 16.0;

/// The share of packets that the path loses at any rate.
#[derive(Clone, Copy, Debug, Default)]
pub struct LossFloor {
    lost: f64,
    /// The sum of the squares of the lengths of their bursts.
    squares: f64,
    packets: f64,
}

impl LossFloor {
    /// Processes a round. Returns whether it was the quiet round that shows the effect of a response to loss.
    /// `reduced_from` is the number of the first packet sent after such a response.
    pub fn on_round(
        &mut self,
        buffer: &mut BufferEstimate,
        reduced_from: &mut Option<u64>,
        round: &Round,
        min_rtt_ns: u64,
    ) -> bool {
        let may_be_full = buffer.may_be_full(round, min_rtt_ns);
        // Where other flows keep the buffer full, losses of a round that was quiet here are caused by them.
        let stands = buffer.stands(round, min_rtt_ns);
        match *reduced_from {
            // Packets sent before the response: acknowledgements are counted and losses are not, which gives no
            // share. The round counts only where others fill the buffer, so that their losses do not look random.
            Some(from) if round.first <= from => {
                if stands {
                    self.loud(round);
                }
                false
            }
            Some(_) => {
                *reduced_from = None;
                self.learn(round, stands);
                !stands
            }
            None => {
                self.learn(round, may_be_full || is_gross(round, self));
                false
            }
        }
    }

    fn learn(&mut self, round: &Round, at_full_rate: bool) {
        if at_full_rate {
            self.loud(round);
        } else {
            self.quiet(round);
        }
    }

    /// Learns from a quiet round.
    pub fn quiet(&mut self, round: &Round) {
        let packets = (round.acked + round.lost) as f64;
        let kept = if self.packets + packets > MEMORY {
            (MEMORY - packets).max(0.0) / self.packets.max(1.0)
        } else {
            1.0
        };
        self.lost = self.lost * kept + round.lost as f64;
        self.squares = self.squares * kept + round.lost_squares.max(round.lost) as f64;
        self.packets = self.packets * kept + packets;
    }

    /// Learns from a round at full rate, which is informative only if it lost less than the floor.
    fn loud(&mut self, round: &Round) {
        let packets = (round.acked + round.lost) as f64;
        if self.lost > 0.0 && (round.lost as f64) < packets * self.share() {
            self.quiet(round);
        }
    }

    /// Halves the losses believed random and forgets all but a few packets, so that a real floor is relearned soon.
    pub fn doubt(&mut self) {
        let kept = (DOUBTED / self.packets.max(1.0)).min(1.0);
        self.lost *= kept / 2.0;
        self.squares *= kept / 2.0;
        self.packets *= kept;
    }

    /// The variance of a number of losses for each loss expected: the sum of the squares of the bursts by the sum of
    /// their lengths, 1 where each packet is lost by itself, and where fewer than [`CREDIBLE`] bursts are known: the
    /// queue of others overflows in bursts too.
    #[must_use]
    pub fn dispersion(&self) -> f64 {
        if self.lost * self.lost < CREDIBLE * self.squares {
            return 1.0;
        }
        (self.squares / self.lost.max(1.0)).max(1.0)
    }

    /// The standard deviation of the difference between the floor and the share lost among `packets`, if both are
    /// samples of a path that loses `share`.
    #[must_use]
    pub fn deviation(&self, share: f64, packets: f64) -> f64 {
        let samples = 1.0 / packets.max(1.0) + 1.0 / self.packets.max(1.0);
        (self.dispersion() * share * (1.0 - share) * samples).sqrt()
    }

    /// The share lost at random, at most a half.
    #[must_use]
    pub fn share(&self) -> f64 {
        if self.packets > 0.0 {
            (self.lost / self.packets).min(0.5)
        } else {
            0.0
        }
    }

    /// The share if this round were included.
    #[must_use]
    pub fn with(&self, round: &Round) -> f64 {
        let packets = self.packets + (round.acked + round.lost) as f64;
        ((self.lost + round.lost as f64) / packets.max(1.0)).min(0.5)
    }

    /// Whether `lost` of `packets` are no evidence: the expected number, four standard deviations, and a margin of
    /// twice the floor, at most 2 %. Where the path has never lost at random, one loss is evidence, as for TCP. Bursts
    /// do not count as such here, where the queue is long: a buffer overflows in bursts too.
    #[must_use]
    pub fn allows(&self, packets: u64, lost: u64) -> bool {
        let share = self.share();
        let expected = share * packets as f64;
        let margin = (2.0 * share).min(0.02) * packets as f64;
        lost as f64 <= expected + 4.0 * (expected * (1.0 - share)).sqrt() + margin
    }

    /// Whether the path may lose this share or more: what was lost, and two standard deviations.
    #[must_use]
    pub fn may_lose(&self, share: f64) -> bool {
        self.lost + 2.0 * self.squares.sqrt() > share * self.packets
    }

    /// Whether other losses, of as many packets as wanted, are more than this floor explains.
    #[must_use]
    pub fn is_exceeded_by(&self, other: &Self) -> bool {
        let share = self.share();
        let expected = share * other.packets;
        let variance = (self.dispersion() * expected).max(other.squares);
        let margin = ((2.0 * share).min(0.02) + 0.001) * other.packets;
        other.lost > expected + 4.0 * variance.sqrt() + margin
    }

    /// Whether the path has never lost at random.
    #[must_use]
    pub fn is_clean(&self) -> bool {
        self.lost < 1.0
    }
}

/// Loss that exceeds the floor by this share is evidence with any queue.
const GROSS: f64 = 0.05;

/// Whether the round lost far more than the floor, in more bursts than chance explains: a few long ones are chance.
#[must_use]
pub fn is_gross(round: &Round, floor: &LossFloor) -> bool {
    let packets = (round.acked + round.lost).max(1) as f64;
    let expected = floor.share().max(0.01) * packets;
    let variance = (floor.dispersion() * expected).max(round.lost_squares.max(round.lost) as f64);
    packets >= 20.0 && round.lost as f64 > (floor.share() + GROSS) * packets + 4.0 * variance.sqrt()
}

/// The longest queue that the path has held. A buffer that held it does not overflow at half of it, so loss at a
/// short queue is random, unless it is gross: a policer drops without a queue. What a busy host delays is no queue: it
/// would make the losses of a buffer that is shorter than such delays look random, and the more is sent the more of
/// them there are.
#[derive(Clone, Copy, Debug, Default)]
pub struct BufferEstimate {
    held_ns: u64,
    previous_ns: u64,
}

/// A shorter queue is indistinguishable from the resolution of the time stamps.
const MIN_QUEUE_NS: u64 = 40_000;

impl BufferEstimate {
    /// Learns from an acknowledgement of the startup, which exceeds what the path carries before it ends.
    pub fn on_startup(&mut self, ack: &AckEvent) {
        self.held_ns = self.held_ns.max(ack.network_queue_ns());
    }

    /// The path has become longer by this much, which counted as a queue.
    pub fn on_longer_path(&mut self, by_ns: u64) {
        self.held_ns = self.held_ns.saturating_sub(by_ns);
        self.previous_ns = self.previous_ns.saturating_sub(by_ns);
    }

    /// Processes a round. Returns whether the buffer may have been full in it or in the one before.
    pub fn may_be_full(&mut self, round: &Round, min_rtt_ns: u64) -> bool {
        let queue_ns = round.max_rtt_ns.saturating_sub(min_rtt_ns);
        self.held_ns = self.held_ns.max(round.network_queue_ns);
        let longest_ns = queue_ns.max(self.previous_ns);
        self.previous_ns = queue_ns;
        self.is_long(longest_ns)
    }

    /// The same for the current round.
    #[must_use]
    pub fn may_be_full_now(&self, round: &Round, min_rtt_ns: u64) -> bool {
        let queue_ns = round.max_rtt_ns.saturating_sub(min_rtt_ns);
        self.is_long(queue_ns.max(self.previous_ns))
    }

    /// Whether the queue was long throughout a round.
    #[must_use]
    pub fn stands(&self, round: &Round, min_rtt_ns: u64) -> bool {
        round.min_rtt_ns.is_some_and(|rtt| self.is_long(rtt.saturating_sub(min_rtt_ns)))
    }

    fn is_long(&self, queue_ns: u64) -> bool {
        queue_ns >= MIN_QUEUE_NS && 2 * queue_ns >= self.held_ns
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn round(acked: u64, lost: u64) -> Round {
        Round { acked, lost, ..Round::default() }
    }

    #[test]
    fn one_loss_is_evidence_only_where_the_path_never_loses() {
        let mut floor = LossFloor::default();
        floor.quiet(&round(5000, 0));
        assert!(!floor.allows(1000, 1));
        floor.quiet(&round(4950, 50));
        assert!(floor.allows(1000, 5));
        assert!(!floor.allows(1000, 30));
    }

    #[test]
    fn less_loss_at_full_rate_lowers_the_floor_and_a_full_buffer_never_raises_it() {
        let mut floor = LossFloor::default();
        floor.quiet(&round(900, 100));
        floor.loud(&round(500, 500));
        assert!((floor.share() - 0.1).abs() < 1e-9);
        for _ in 0..100 {
            floor.loud(&round(1000, 0));
        }
        assert!(floor.share() < 0.01);
    }

    #[test]
    fn a_doubted_floor_is_relearned_soon() {
        let mut floor = LossFloor::default();
        for _ in 0..100 {
            floor.quiet(&round(900, 100));
        }
        assert!(!floor.allows(1000, 200));
        floor.doubt();
        assert!(floor.share() < 0.06);
        floor.quiet(&round(900, 100));
        floor.quiet(&round(900, 100));
        assert!(floor.share() > 0.08 && floor.allows(1000, 100));
    }

    #[test]
    fn a_buffer_may_be_full_from_half_of_the_longest_queue_on() {
        let mut buffer = BufferEstimate::default();
        let mut full = |ms: u64, queue_ms: u64| {
            let round = Round {
                max_rtt_ns: ms * 1_000_000,
                network_queue_ns: queue_ms * 1_000_000,
                ..Round::default()
            };
            buffer.may_be_full(&round, 20_000_000)
        };
        assert!(!full(20, 0), "no queue");
        assert!(full(60, 40));
        assert!(full(30, 10), "the round before had a long queue");
        assert!(!full(39, 19));
        assert!(full(40, 20));
        full(200, 20);
        full(20, 0);
        assert!(full(40, 20), "a host delayed some packets");
    }
}
