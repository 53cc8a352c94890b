//! The rate that the phase `hold` keeps to.
//!
//! Arrives: rounds, what a probe found. Leaves: the rate, when to probe, whether another flow is there. Must not know:
//! the other phases.
//!
//! Two things tell of another flow: losses that begin at the rate held while the buffer is full, and a queue that
//! stands. Each probe overflows the buffer and cuts another flow's window, so the time between two of them is that in
//! which a CUBIC flow regains what a loss takes (as BBRv2 does for Reno): else probes would keep it small and unseen.

#[cfg(test)]
mod tests;

use super::super::loss_floor::LossFloor;
use super::super::rounds::Round;

/// The first rounds are a test at this part of the rate, after one that still delivers what was sent before: if the
/// excess was the cause, the losses end.
const TEST: f64 = 0.85;
const TEST_ROUNDS: u32 = 5;

/// Rounds after the end of a probe or of the test in which losses of what was sent before arrive.
const LATE_ROUNDS: u32 = 3;

/// Rounds between two probes for more, doubled after one that failed up to this or the time that another flow needs.
const PROBE_ROUNDS: [u32; 2] = [8, 64];
/// The rate of a probe, of the rate held; the excess doubles after one that succeeded.
const PROBE: f64 = 1.05;
const MOST_PROBE: f64 = 1.25;
/// A probe by this part or more may lose packets and have found much more than the rate held.
const COARSE: f64 = 0.1;
/// Rounds of a probe that loses nothing.
const MOST_PROBE_ROUNDS: u32 = 4;

/// A probe that failed delivered what the path carries; the rate held is a little below, so that it loses nothing.
const BELOW: f64 = 0.99;

/// A host is late at this factor of the delays that hosts cause in the test.
const USUAL: f64 = 2.0;

/// Random loss is taken for no more than this.
const MOST_RANDOM: f64 = 0.3;

/// Rounds, after the late ones, for which losses that began while the rate was held are watched.
const WATCH_ROUNDS: u32 = 5;
/// Losses in this many of them are those of a rate that is too high.
const LOSING_ROUNDS: u32 = 2;
/// A single one is enough where less than this part of the rate held arrives.
const EXCEEDED: f64 = 0.99;
/// Times that such losses may lower the rate between two probes.
const STEPS: u32 = 2;

/// A queue of less than this tells nothing of the buffer.
const LEAST_QUEUE_NS: f64 = 200_000.0;
/// The buffer is full at this part of the queue at which it overflowed.
const FULL: f64 = 0.5;
/// Rounds of the test that lose packets of a full buffer: others fill it.
const FULL_ROUNDS: u32 = 3;
/// A queue stands where each packet of this many rounds finds this part of it.
const STANDS: f64 = 1.0 / 8.0;
const STANDING_ROUNDS: u32 = 8;
/// What a probe has queued is gone after these rounds at the rate held.
const SETTLED_ROUNDS: u32 = 16;
/// Random loss of more than this makes the rate uncertain, and a queue that stands may be this flow's.
const UNCERTAIN: f64 = 0.002;

/// What is known when the phase begins.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Beginning {
    pub(super) now_ns: u64,
    /// What arrived in the round that lost packets, the share lost in it, and its longest queueing delay.
    pub(super) bps: f64,
    pub(super) lost: f64,
    pub(super) queue_ns: f64,
    /// Whether another flow was there before.
    pub(super) after_others: bool,
    /// Whether the path's own round trip is known: else others may keep the buffer full.
    pub(super) path_is_known: bool,
    /// The window before.
    pub(super) window: f64,
    /// Its rate, where no buffer was ever seen that another flow could fill: what was sent, a part of which arrived.
    pub(super) unqueued_bps: f64,
    /// The rounds in which another flow regains what a loss takes from it.
    pub(super) regain_rounds: u32,
}

/// The rate held.
#[derive(Clone, Copy, Debug)]
pub(super) struct Hold {
    pub(super) bps: f64,
    /// The factor in use: 1 between probes.
    pub(super) gain: f64,
    /// The rounds of the present part, holding or probing, and those until the next probe.
    rounds: u32,
    wait_rounds: u32,
    pub(super) regain_rounds: u32,
    excess: f64,
    /// The rate held when the present probes began.
    held_bps: f64,
    /// After a probe: what it showed to be carried at least, until what arrives in the next round shows how much is.
    unconfirmed: Option<f64>,
    /// Whether a host was late in the round before.
    was_delayed: bool,
    /// Whether another flow was there before: each probe then waits until it would show itself.
    after_others: bool,
    pub(super) begun_ns: u64,
    /// The longest queueing delay of rounds in which the buffer overflowed.
    overflow_ns: f64,
    /// The rounds in which a queue stood, less those in which none did.
    standing: u32,
    /// The share lost in the round that began the phase, while the test lasts.
    tested: Option<f64>,
    /// While losses that began at the rate held are watched: the rounds with losses.
    watched: Option<u32>,
    /// Whether the buffer was full in one of those.
    lost_when_full: bool,
    /// Times that the rate may still be lowered before the next probe.
    steps: u32,
    /// Whether the path's own round trip is known, or the test has found no other flow.
    pub(super) is_certain: bool,
    pub(super) window_before: f64,
    /// The rounds of the test that lost packets of a full buffer.
    full_rounds: u32,
    /// The least of the shortest and of the longest queueing delays of the test's rounds: what hosts cause by
    /// themselves.
    calm_queue_ns: f64,
    calm_longest_ns: f64,
    /// What was lost in the test, and while holding.
    calm: LossFloor,
    losses: LossFloor,
}

impl Hold {
    /// Begins with the test.
    pub(super) fn begin(from: &Beginning) -> Self {
        let is_low = from.unqueued_bps > MOST_PROBE * from.bps;
        let wait_rounds = match (from.after_others, is_low) {
            (true, _) => PROBE_ROUNDS[0].max(from.regain_rounds),
            (false, true) => 0,
            (false, false) => PROBE_ROUNDS[0],
        };
        let halfway = (from.unqueued_bps / from.bps.max(1.0) - 1.0) / 2.0;
        Self {
            bps: from.bps,
            gain: TEST,
            rounds: 0,
            wait_rounds,
            regain_rounds: from.regain_rounds,
            excess: halfway.clamp(PROBE - 1.0, MOST_PROBE - 1.0),
            held_bps: from.bps,
            unconfirmed: None,
            was_delayed: false,
            after_others: from.after_others,
            begun_ns: from.now_ns,
            overflow_ns: from.queue_ns,
            standing: 0,
            tested: Some(from.lost),
            watched: None,
            lost_when_full: false,
            steps: STEPS,
            is_certain: from.path_is_known,
            window_before: from.window,
            full_rounds: 0,
            calm_queue_ns: f64::INFINITY,
            calm_longest_ns: f64::INFINITY,
            calm: LossFloor::default(),
            losses: LossFloor::default(),
        }
    }

    /// Whether losses may still be of what was sent before this part.
    pub(super) fn is_late(&self) -> bool {
        self.rounds <= LATE_ROUNDS
    }

    /// The rate that is to be sent for this one to arrive, where packets are lost at random.
    fn carried(&self, delivery_bps: f64) -> f64 {
        delivery_bps / (1.0 - self.calm.share().min(MOST_RANDOM))
    }

    /// Whether the buffer may be full at this queueing delay. It also may where no queue has been seen.
    pub(super) fn may_be_full(&self, queue_ns: f64) -> bool {
        let empty_ns = if self.tested.is_some() { 0.0 } else { self.calm_longest_ns };
        let empty_ns = empty_ns.min(self.overflow_ns);
        self.overflow_ns < LEAST_QUEUE_NS
            || queue_ns >= empty_ns + FULL * (self.overflow_ns - empty_ns)
    }

    /// Notes the longest queueing delay of a round with losses.
    pub(super) fn lose_at(&mut self, queue_ns: f64) {
        if self.gain > 1.0 {
            self.overflow_ns = self.overflow_ns.max(queue_ns);
        }
        self.lost_when_full |= self.may_be_full(queue_ns);
    }

    /// Processes the longest delay of a round, of a queue that is never longer than `shallow_ns`. Returns whether hosts
    /// were no later than they always are, in this round and the one before: what arrived is what was sent then.
    pub(super) fn is_undelayed(&mut self, longest_ns: f64, shallow_ns: f64) -> bool {
        let delayed = longest_ns > shallow_ns.max(USUAL * self.calm_longest_ns);
        let was_delayed = std::mem::replace(&mut self.was_delayed, delayed);
        !delayed && !was_delayed
    }

    /// In the round after a probe arrives what it sent too fast, when a policer's bucket is empty: no more than that is
    /// carried.
    fn confirm(&mut self, delivery_bps: Option<f64>) {
        if let (Some(least_bps), Some(bps)) = (self.unconfirmed.take(), delivery_bps) {
            self.bps = self.bps.min((BELOW * bps).max(least_bps));
        }
    }

    /// Whether a queue stands at the rate held.
    fn is_queue_standing(&mut self, queue_ns: f64) -> bool {
        let stands = self.gain == 1.0
            && self.tested.is_none()
            && self.rounds > SETTLED_ROUNDS
            && self.overflow_ns >= LEAST_QUEUE_NS
            && queue_ns >= self.calm_queue_ns + STANDS * self.overflow_ns;
        self.standing = if stands { self.standing + 1 } else { self.standing.saturating_sub(1) };
        if self.standing < STANDING_ROUNDS {
            return false;
        }
        self.standing = 0;
        true
    }

    /// Answers a queue that stands by a lower rate, where this flow may cause it.
    fn lower_for_queue(&mut self, delivery_bps: Option<f64>) -> bool {
        if self.steps == 0 || self.calm.share() < UNCERTAIN {
            return false;
        }
        self.lower_to(delivery_bps);
        true
    }

    /// Processes a round in which `delivery_bps` arrives, where that is known, the path's round trip being
    /// `min_rtt_ns`. Returns whether its losses, or its queue, are another flow's.
    pub(super) fn shows_others(
        &mut self,
        round: &Round,
        min_rtt_ns: u64,
        delivery_bps: Option<f64>,
    ) -> bool {
        let delivery_bps = delivery_bps.map(|bps| self.carried(bps));
        let longest_ns = round.longest_queue_ns(min_rtt_ns);
        self.rounds += 1;
        if self.gain <= 1.0 {
            self.confirm(delivery_bps);
        }
        if self.is_queue_standing(round.queue_ns(min_rtt_ns).unwrap_or(0.0))
            && !self.lower_for_queue(delivery_bps)
        {
            return true;
        }
        match (self.tested, self.watched) {
            (Some(lost), _) if self.rounds > 1 => self.test(round, min_rtt_ns, lost),
            (None, Some(losing)) if !self.is_late() => {
                let losing = losing + u32::from(round.lost > 0);
                self.watched = Some(losing);
                if round.lost > 0 {
                    self.lose_at(longest_ns);
                }
                if self.rounds < LATE_ROUNDS + WATCH_ROUNDS || self.lower(losing, delivery_bps) {
                    return false;
                }
                if losing >= LOSING_ROUNDS || self.lost_when_full {
                    return true;
                }
                // A few packets, while there was room in the buffer: random loss.
                self.end_watch();
                false
            }
            (None, None) if self.gain == 1.0 && !self.is_late() => {
                self.losses.quiet(round);
                if self.calm.is_exceeded_by(&self.losses) {
                    self.watch();
                    self.lose_at(longest_ns);
                }
                false
            }
            _ => false,
        }
    }

    /// A round of the test. Returns whether the test is over and has shown another flow.
    fn test(&mut self, round: &Round, min_rtt_ns: u64, lost: f64) -> bool {
        let longest_ns = round.longest_queue_ns(min_rtt_ns);
        let queue_ns = round.queue_ns(min_rtt_ns).unwrap_or(0.0);
        self.calm.quiet(round);
        self.calm_queue_ns = self.calm_queue_ns.min(queue_ns);
        self.calm_longest_ns = self.calm_longest_ns.min(longest_ns);
        let full = self.overflow_ns >= LEAST_QUEUE_NS && self.may_be_full(longest_ns);
        self.full_rounds += u32::from(full && round.lost > 0);
        if self.rounds < TEST_ROUNDS {
            return false;
        }
        (self.tested, self.gain, self.rounds) = (None, 1.0, 0);
        self.bps = self.carried(self.bps);
        let most_full = if self.is_certain { FULL_ROUNDS } else { 1 };
        if self.full_rounds >= most_full || self.calm.may_lose(lost / 2.0) {
            return true;
        }
        self.is_certain = true;
        false
    }

    /// Watches losses at the rate held, unless the test is not over. Another flow slows down after it has filled the
    /// buffer, which ends them; those of a rate that is too high go on.
    pub(super) fn watch(&mut self) -> bool {
        if self.watched.is_none() && self.tested.is_none() {
            (self.watched, self.rounds, self.lost_when_full) = (Some(0), 0, false);
        }
        self.watched.is_some()
    }

    /// Watches anew after a time at a lower rate, in which the losses of any cause may have ended.
    pub(super) fn watch_again(&mut self) {
        self.unconfirmed = None;
        if self.watched.is_some() {
            (self.watched, self.rounds) = (Some(0), 0);
        }
    }

    /// Begins the present test, probe or watch anew: the path stopped meanwhile.
    pub(super) fn measure_again(&mut self) {
        self.watch_again();
        if self.tested.is_some() {
            (self.calm, self.rounds) = (LossFloor::default(), 0);
        }
        if self.gain > 1.0 {
            self.rounds = 0;
        }
    }

    /// Lowers the rate to what arrives, if losses have gone on. A probe finds more than a policer's rate while its
    /// bucket has tokens.
    fn lower(&mut self, losing: u32, delivery_bps: Option<f64>) -> bool {
        let less_arrives = delivery_bps.is_some_and(|bps| bps < EXCEEDED * self.bps);
        let exceeded = losing >= LOSING_ROUNDS || losing > 0 && less_arrives;
        if !exceeded || self.steps == 0 {
            return false;
        }
        self.lower_to(delivery_bps);
        self.end_watch();
        true
    }

    fn lower_to(&mut self, delivery_bps: Option<f64>) {
        self.bps = BELOW * delivery_bps.unwrap_or(f64::INFINITY).min(self.bps);
        self.steps -= 1;
    }

    fn end_watch(&mut self) {
        (self.watched, self.rounds, self.losses) = (None, 0, LossFloor::default());
    }

    /// Begins a probe where one is due, and judges one by what arrived in its second round: the first still delivers
    /// what was sent before. One that loses nothing has found no limit.
    pub(super) fn probe(&mut self, round: &Round, delivery_bps: Option<f64>) {
        let holds = self.gain <= 1.0;
        let calm = self.tested.is_none() && self.watched.is_none();
        if holds && calm && self.rounds >= self.wait_rounds && !round.app_limited {
            (self.gain, self.rounds, self.held_bps) = (1.0 + self.excess, 0, self.bps);
        }
        if holds || self.rounds < 2 {
            return;
        }
        match delivery_bps.filter(|&bps| self.has_found_more(bps)) {
            Some(bps) => {
                self.unconfirmed = Some(self.bps);
                self.bps = self.bps.max(self.carried(bps));
                self.excess = (2.0 * self.excess).min(MOST_PROBE - 1.0);
                (self.gain, self.rounds) = (1.0 + self.excess, 0);
                self.wait_rounds = PROBE_ROUNDS[0];
            }
            None if round.lost > 0 => self.end_probe(delivery_bps),
            None if self.rounds >= MOST_PROBE_ROUNDS => {
                self.unconfirmed = None;
                self.hold_again();
            }
            None => {}
        }
    }

    /// Whether more than half of what a probe has sent more arrives.
    fn has_found_more(&self, delivery_bps: f64) -> bool {
        self.carried(delivery_bps) > (1.0 + self.excess / 2.0) * self.bps
    }

    /// Ends a probe that lost packets, in which `delivery_bps` arrived, where that is known: what the path carries.
    /// Where that is less than was held, some may have come late; the next round tells.
    pub(super) fn end_probe(&mut self, delivery_bps: Option<f64>) {
        if let Some(bps) = delivery_bps {
            let carried_bps = BELOW * self.carried(bps);
            if self.excess >= COARSE && self.has_found_more(bps) {
                (self.unconfirmed, self.bps) = (Some(self.bps), carried_bps);
            } else if carried_bps < self.held_bps {
                (self.unconfirmed, self.bps) = (Some(carried_bps), self.held_bps);
            } else {
                self.bps = self.bps.min(carried_bps);
            }
        }
        self.hold_again();
    }

    fn hold_again(&mut self) {
        let most = PROBE_ROUNDS[1].max(self.regain_rounds);
        let longer = 2 * self.wait_rounds.max(PROBE_ROUNDS[0]);
        self.wait_rounds = if self.after_others { most } else { longer.min(most) };
        (self.gain, self.rounds, self.excess) = (1.0, 0, PROBE - 1.0);
        self.steps = STEPS;
    }
}
