//! What counts as congestion: a standing queue, marks, and loss above the path's random floor.
//!
//! Arrives: acks. Leaves: rounds, rates of arrival, whether a loss is one too many. Must not know: what a mode makes of it.
//!
//! Loss alone says nothing on a path that loses at random. What tells the two apart is that random loss is the same at any rate, and
//! loss in a full buffer ends when the sender slows down. So the floor is learned only from rounds sent at no more than 0.9 of the
//! rate before (*quiet* rounds), or from any round that loses less than the floor; and a loss at full rate is evidence only
//! if it is more than the floor explains.

use std::collections::VecDeque;

use super::AckEvent;

/// What happened in one round trip.
#[derive(Clone, Copy, Debug, Default)]
pub struct Round {
    /// The number of the first packet sent in it; what it tells is about those before.
    pub first: u64,
    /// Packets that arrived.
    pub arrived: u64,
    /// Packets that did not.
    pub lost: u64,
    /// The least round trip of its acknowledgements.
    pub least_rtt_ns: Option<u64>,
    /// The largest of all packets.
    pub largest_rtt_ns: u64,
    /// Packets marked.
    pub marked: u64,
    /// Whether the sender was held back by something else than its mode.
    pub limited: bool,
}

impl Round {
    /// The least queue of the round.
    #[must_use]
    pub fn queue_ns(&self, base_rtt_ns: u64) -> Option<f64> {
        self.least_rtt_ns.map(|rtt| rtt.saturating_sub(base_rtt_ns) as f64)
    }
}

/// Cuts time into round trips: a round ends when its first packet is spoken of. What is learned in it is about packets that were sent
/// in the round before.
#[derive(Clone, Debug, Default)]
pub struct Rounds {
    current: Round,
    end: u64,
    /// Losses of packets before this one belong to an event that was answered.
    answered_to: u64,
}

impl Rounds {
    /// Begins a round now, with the packet to be sent next.
    pub fn restart(&mut self, next_number: u64) {
        self.current = Round { first: next_number, ..Round::default() };
        self.end = next_number;
    }

    /// Begins a round after an answer to congestion: losses of what was sent before it are not counted any more.
    pub fn answered(&mut self, next_number: u64) {
        self.answered_to = next_number;
        self.restart(next_number);
    }

    /// Takes in a ack; a round where one has ended.
    pub fn on_ack(&mut self, ack: &AckEvent) -> Option<Round> {
        if self.end == 0 {
            self.end = ack.next_number;
        }
        let round = &mut self.current;
        round.arrived += ack.arrived_packets;
        if ack.newest_lost.is_some_and(|lost| lost >= self.answered_to) {
            round.lost += ack.lost_packets;
        }
        // Each that is late was counted as lost once, if not in this round then in one before.
        round.lost = round.lost.saturating_sub(ack.late_packets);
        round.marked += ack.marked_packets;
        round.limited |= ack.limited;
        if let Some(rtt_ns) = ack.rtt_ns {
            round.least_rtt_ns = Some(round.least_rtt_ns.unwrap_or(u64::MAX).min(rtt_ns));
            round.largest_rtt_ns = round.largest_rtt_ns.max(rtt_ns + ack.spread_ns);
        }
        if ack.newest_spoken_of <= self.end {
            return None;
        }
        let ended = *round;
        self.restart(ack.next_number);
        Some(ended)
    }

    /// The round that runs.
    #[must_use]
    pub fn current(&self) -> &Round {
        &self.current
    }
}

/// An answer to losses, until it is known whether they were any: a packet that comes after all was late, not lost (Eifel, RFC 3522 and 4015).
#[derive(Clone, Debug, Default)]
pub struct Answered {
    lost: u64,
    answered_to: u64,
    until_ns: u64,
}

/// A packet that is later than so many round trips is forgotten by the sender.
const LATE_ROUNDS: u64 = 4;

impl Answered {
    /// The answer given now to so many losses.
    #[must_use]
    pub fn now(ack: &AckEvent, lost: u64) -> Self {
        Self {
            lost,
            answered_to: ack.next_number,
            until_ns: ack.now_ns + LATE_ROUNDS * ack.smoothed_rtt_ns,
        }
    }

    /// Takes in a ack; whether all that was answered has arrived after all, which is said once.
    pub fn is_void(&mut self, ack: &AckEvent) -> bool {
        if self.lost == 0 || ack.now_ns > self.until_ns {
            return false;
        }
        if ack.newest_lost.is_some_and(|lost| lost < self.answered_to) {
            self.lost += ack.lost_packets;
        }
        self.lost = self.lost.saturating_sub(ack.late_packets);
        self.lost == 0
    }
}

/// So many packets are remembered by the floor.
const MEMORY: f64 = 20_000.0;

/// So many after a doubt.
const DOUBTED: f64 = 1000.0;

/// The share of packets that the path loses at any rate.
#[derive(Clone, Debug, Default)]
pub struct LossFloor {
    lost: f64,
    seen: f64,
}

impl LossFloor {
    /// Takes in any round; whether it was the quiet one that shows what an answer to losses was worth. `quiet_from` is the number of the first packet
    /// sent after such an answer.
    pub fn on_round(
        &mut self,
        buffer: &mut Buffer,
        quiet_from: &mut Option<u64>,
        round: &Round,
        base_rtt_ns: u64,
    ) -> bool {
        let may_be_full = buffer.may_be_full(round, base_rtt_ns);
        // Where others keep the buffer full, what is lost in a round that was quiet here is their doing.
        let stands = buffer.stands(round, base_rtt_ns);
        match *quiet_from {
            // Of what was sent before the answer arrivals are counted, losses are not: no share. It is taken for one where
            // others fill the buffer, whose losses must not look random.
            Some(from) if round.first <= from => {
                if stands {
                    self.loud(round);
                }
                false
            }
            Some(_) => {
                *quiet_from = None;
                self.learn(round, stands);
                !stands
            }
            None => {
                self.learn(round, may_be_full || is_gross(round, self));
                false
            }
        }
    }

    /// Takes in a round that was sent at full rate, or not.
    fn learn(&mut self, round: &Round, at_full_rate: bool) {
        if at_full_rate {
            self.loud(round);
        } else {
            self.quiet(round);
        }
    }

    /// Takes in a quiet round.
    pub fn quiet(&mut self, round: &Round) {
        let seen = (round.arrived + round.lost) as f64;
        let kept = if self.seen + seen > MEMORY {
            (MEMORY - seen).max(0.0) / self.seen.max(1.0)
        } else {
            1.0
        };
        self.lost = self.lost * kept + round.lost as f64;
        self.seen = self.seen * kept + seen;
    }

    /// Takes in a round at full rate, which tells something only if it lost less than the floor.
    fn loud(&mut self, round: &Round) {
        let seen = (round.arrived + round.lost) as f64;
        if self.lost > 0.0 && (round.lost as f64) < seen * self.share() {
            self.quiet(round);
        }
    }

    /// Halves the losses that were taken for random ones, and forgets all but a few packets, so that they are seen again soon.
    pub fn doubt(&mut self) {
        let kept = (DOUBTED / self.seen.max(1.0)).min(1.0);
        self.lost *= kept / 2.0;
        self.seen *= kept;
    }

    /// The standard deviation of the difference between the floor and the share that so many packets lose, if both are of one path
    /// that loses this share.
    #[must_use]
    pub fn deviation(&self, share: f64, packets: f64) -> f64 {
        (share * (1.0 - share) * (1.0 / packets.max(1.0) + 1.0 / self.seen.max(1.0))).sqrt()
    }

    /// The share lost at random.
    #[must_use]
    pub fn share(&self) -> f64 {
        if self.seen > 0.0 {
            (self.lost / self.seen).min(0.5)
        } else {
            0.0
        }
    }

    /// What it would be with this round.
    #[must_use]
    pub fn with(&self, round: &Round) -> f64 {
        let seen = self.seen + (round.arrived + round.lost) as f64;
        ((self.lost + round.lost as f64) / seen.max(1.0)).min(0.5)
    }

    /// Whether so many losses are no evidence: the expected number and four standard deviations, and a margin of twice the
    /// floor, at most 2 %. Where the path has never lost at random, one loss is evidence, as for TCP.
    #[must_use]
    pub fn allows(&self, packets: u64, lost: u64) -> bool {
        let share = self.share();
        let expected = share * packets as f64;
        let margin = (2.0 * share).min(0.02) * packets as f64;
        lost as f64 <= expected + 4.0 * (expected * (1.0 - share)).sqrt() + margin
    }

    /// Whether the path has lost at random at all.
    #[must_use]
    pub fn is_clean(&self) -> bool {
        self.lost < 1.0
    }
}

/// How long a queue the path has been seen to hold. A buffer that held it does not overflow at half of it, so what is lost at a short
/// queue is lost at random, unless it is a great deal: a policer drops without any queue.
#[derive(Clone, Copy, Debug, Default)]
pub struct Buffer {
    held_ns: u64,
    before_ns: u64,
}

/// A shorter queue cannot be told from the time stamps' resolution.
const LEAST_QUEUE_NS: u64 = 40_000;

/// Above the floor by so much, loss is evidence whatever the queue.
const GROSS: f64 = 0.05;

impl Buffer {
    /// Takes in a round; whether the queue was so long in it, or in the one before, that the buffer may have been full.
    pub fn may_be_full(&mut self, round: &Round, base_rtt_ns: u64) -> bool {
        let queue_ns = round.largest_rtt_ns.saturating_sub(base_rtt_ns);
        self.held_ns = self.held_ns.max(queue_ns);
        let longest_ns = queue_ns.max(self.before_ns);
        self.before_ns = queue_ns;
        self.is_long(longest_ns)
    }

    /// The same for the round that runs.
    #[must_use]
    pub fn may_be_full_now(&self, round: &Round, base_rtt_ns: u64) -> bool {
        let queue_ns = round.largest_rtt_ns.saturating_sub(base_rtt_ns);
        self.is_long(queue_ns.max(self.before_ns))
    }

    /// Whether the queue was so long through all of a round.
    #[must_use]
    pub fn stands(&self, round: &Round, base_rtt_ns: u64) -> bool {
        round.least_rtt_ns.is_some_and(|rtt| self.is_long(rtt.saturating_sub(base_rtt_ns)))
    }

    fn is_long(&self, queue_ns: u64) -> bool {
        queue_ns >= LEAST_QUEUE_NS && 2 * queue_ns >= self.held_ns
    }
}

/// How much the queue has differed over the last five to ten seconds.
#[derive(Clone, Copy, Debug, Default)]
pub struct Swing {
    /// Least and largest of the half of the window that runs, and of the one before.
    halves: [Option<(f64, f64)>; 2],
    half_ends_ns: u64,
}

const SWING_HALF_NS: u64 = 5_000_000_000;

impl Swing {
    /// Takes in a round's queue; the difference, zero until five seconds are known.
    pub fn on_round(&mut self, now_ns: u64, queue_ns: f64) -> f64 {
        if now_ns >= self.half_ends_ns {
            self.halves = [None, self.halves[0]];
            self.half_ends_ns = now_ns + SWING_HALF_NS;
        }
        let (least, largest) = self.halves[0].unwrap_or((queue_ns, queue_ns));
        self.halves[0] = Some((least.min(queue_ns), largest.max(queue_ns)));
        match self.halves {
            [Some(one), Some(other)] => one.1.max(other.1) - one.0.min(other.0),
            _ => 0.0,
        }
    }
}

/// Rounds in which a queue stood while this flow yielded.
#[derive(Clone, Copy, Debug, Default)]
pub struct Standing {
    rounds: u32,
    settling_rounds: u32,
    queue_before_ns: f64,
}

const PATIENCE_ROUNDS: u32 = 6;

/// After a look that showed a shorter path, or that all are alike, the queue is longer than it is to be, and they need time to settle.
const SETTLING_ROUNDS: u32 = 60;

/// A queue that falls below this part of itself in a round is on its way out.
const SHRINKS: f64 = 0.9;

impl Standing {
    /// Takes in a round's queue, which is a long one above `most_ns`.
    pub fn on_round(&mut self, queue_ns: f64, most_ns: f64) {
        let stands = queue_ns > SHRINKS * self.queue_before_ns;
        self.queue_before_ns = queue_ns;
        if self.settling_rounds > 0 || queue_ns <= most_ns {
            self.rounds = 0;
        } else {
            self.rounds += u32::from(stands);
        }
        self.settling_rounds = self.settling_rounds.saturating_sub(1);
    }

    /// Whether the last round had none.
    #[must_use]
    pub fn is_gone(&self) -> bool {
        self.rounds == 0
    }

    /// Whether it stood long enough to belong to somebody who does not yield.
    #[must_use]
    pub fn is_evident(&self) -> bool {
        self.rounds >= PATIENCE_ROUNDS
    }

    /// Counts again from here.
    pub fn begin(&mut self) {
        self.rounds = 0;
    }

    /// Counts again when the queue has had time to settle.
    pub fn settle(&mut self) {
        (self.rounds, self.settling_rounds) = (0, SETTLING_ROUNDS);
    }

    /// Counts again from here, settled or not.
    pub fn forget(&mut self) {
        (self.rounds, self.settling_rounds) = (0, 0);
    }
}

/// Whether the round lost far more than the floor.
#[must_use]
pub fn is_gross(round: &Round, floor: &LossFloor) -> bool {
    let packets = (round.arrived + round.lost).max(1) as f64;
    let share = round.lost as f64 / packets;
    packets >= 20.0
        && share > floor.share() + GROSS + 4.0 * (floor.share().max(0.01) / packets).sqrt()
}

/// The rate at which bytes arrive at the peer, by the peer's clock: queues and delays on the way back do not touch it.
#[derive(Clone, Debug, Default)]
pub struct ArrivalRate {
    /// Time and bytes, both summed up from the beginning.
    steps: VecDeque<(u64, u64)>,
}

impl ArrivalRate {
    /// Takes in a ack and remembers at least `window_ns`.
    pub fn on_ack(&mut self, ack: &AckEvent, window_ns: u64) {
        let Some(arrival) = ack.arrival else { return };
        let (at, bytes) = self.steps.back().copied().unwrap_or((0, 0));
        self.steps.push_back((at + arrival.span_ns, bytes + arrival.bytes));
        while self.steps.len() > 2 && self.steps[1].0 + window_ns < at {
            self.steps.pop_front();
        }
    }

    /// Bits a second over the last `window_ns`, or somewhat more where acknowledgements are rarer.
    #[must_use]
    pub fn bps(&self, window_ns: u64) -> Option<f64> {
        let &(end, bytes) = self.steps.back()?;
        let from =
            self.steps.iter().rev().find(|(at, _)| at + window_ns <= end).or(self.steps.front())?;
        (end > from.0).then(|| (bytes - from.1) as f64 * 8e9 / (end - from.0) as f64)
    }

    /// Forgets everything.
    pub fn clear(&mut self) {
        self.steps.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn round(arrived: u64, lost: u64) -> Round {
        Round { arrived, lost, ..Round::default() }
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
    fn a_path_that_becomes_better_lowers_the_floor_at_full_rate_and_a_full_buffer_never_raises_it()
    {
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
    fn a_doubted_floor_is_learned_again_soon() {
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
    fn an_answer_is_void_when_all_that_was_lost_arrives_and_soon() {
        let rtt = AckEvent { smoothed_rtt_ns: 10, ..AckEvent::default() };
        let answer = || Answered::now(&AckEvent { now_ns: 100, next_number: 50, ..rtt }, 2);
        let at = |now_ns, late_packets| AckEvent { now_ns, late_packets, ..rtt };
        let mut answered = answer();
        assert!(!answered.is_void(&at(110, 1)));
        assert!(answered.is_void(&at(120, 1)));
        assert!(!answered.is_void(&at(121, 1)), "said once");
        assert!(!answer().is_void(&at(141, 2)), "too late");
        let mut more = answer();
        let lost = AckEvent { lost_packets: 1, newest_lost: Some(49), ..at(110, 0) };
        assert!(!more.is_void(&lost));
        assert!(!more.is_void(&at(111, 2)), "one that was sent before the answer is missing");
        let newer = AckEvent { newest_lost: Some(50), ..lost };
        assert!(!more.is_void(&newer));
        assert!(more.is_void(&at(112, 1)), "losses after the answer are another matter");
        assert!(!Answered::default().is_void(&at(1, 1)));
    }
}
