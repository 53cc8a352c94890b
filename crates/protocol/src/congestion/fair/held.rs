//! The rate that the phase `hold` keeps to.
//!
//! Arrives: rounds, what a probe found. Leaves: the rate, when to probe, whether another flow is there. Must not know:
//! the other phases.

use super::super::loss_floor::LossFloor;
use super::super::rounds::Round;

/// The first rounds are a test at this part of the rate, after one that still delivers what was sent before: if the
/// excess was the cause, the losses end.
const TEST: f64 = 0.85;
const TEST_ROUNDS: u32 = 5;

/// Rounds after the end of a probe or of the test in which losses of what was sent before arrive.
const LATE_ROUNDS: u32 = 3;

/// Rounds between two probes for more, doubled after one that failed.
const PROBE_ROUNDS: [u32; 2] = [8, 64];
/// The rate of a probe, of the rate held; the excess doubles after one that succeeded.
const PROBE: f64 = 1.05;
const MOST_PROBE: f64 = 1.25;

/// A probe that failed delivered what the path carries; the rate held is a little below, so that it loses nothing.
const BELOW: f64 = 0.99;

/// Random loss is taken for no more than this.
const MOST_RANDOM: f64 = 0.3;

/// Rounds, after the late ones, for which losses that began while the rate was held are watched.
const WATCH_ROUNDS: u32 = 5;
/// Losses in this many of them are those of a rate that is too high.
const LOSING_ROUNDS: u32 = 3;
/// A single one is enough where less than this part of the rate held arrives.
const EXCEEDED: f64 = 0.98;
/// Times that such losses may lower the rate between two probes.
const STEPS: u32 = 2;

/// The rate held.
#[derive(Clone, Copy, Debug)]
pub(super) struct Hold {
    pub(super) bps: f64,
    /// The factor in use: 1 between probes.
    pub(super) gain: f64,
    /// The rounds of the present part, holding or probing, and those until the next probe.
    rounds: u32,
    wait_rounds: u32,
    excess: f64,
    pub(super) begun_ns: u64,
    /// The share lost in the round that began the phase, while the test lasts.
    tested: Option<f64>,
    /// While losses that began at the rate held are watched: the rounds with losses.
    watched: Option<u32>,
    /// Times that the rate may still be lowered before the next probe.
    steps: u32,
    /// What was lost in the test, and while holding.
    calm: LossFloor,
    losses: LossFloor,
}

impl Hold {
    /// Begins with the test, after a round that lost the share `lost` and delivered `bps`.
    pub(super) fn begin(now_ns: u64, bps: f64, lost: f64) -> Self {
        Self {
            bps,
            gain: TEST,
            rounds: 0,
            wait_rounds: PROBE_ROUNDS[0],
            excess: PROBE - 1.0,
            begun_ns: now_ns,
            tested: Some(lost),
            watched: None,
            steps: STEPS,
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

    /// Processes a round's losses, while `delivery_bps` arrives. Returns whether another flow causes them.
    pub(super) fn shows_others(&mut self, round: &Round, delivery_bps: f64) -> bool {
        let delivery_bps = self.carried(delivery_bps);
        self.rounds += 1;
        match (self.tested, self.watched) {
            (Some(lost), _) if self.rounds > 1 => {
                self.calm.quiet(round);
                if self.rounds < TEST_ROUNDS {
                    return false;
                }
                (self.tested, self.gain, self.rounds) = (None, 1.0, 0);
                self.bps = self.carried(self.bps);
                self.calm.may_lose(lost / 2.0)
            }
            (None, Some(losing)) if !self.is_late() => {
                let losing = losing + u32::from(round.lost > 0);
                self.watched = Some(losing);
                self.rounds >= LATE_ROUNDS + WATCH_ROUNDS && !self.lower(losing, delivery_bps)
            }
            (None, None) if self.gain == 1.0 && !self.is_late() => {
                self.losses.quiet(round);
                if self.calm.is_exceeded_by(&self.losses) {
                    self.watch();
                }
                false
            }
            _ => false,
        }
    }

    /// Watches losses at the rate held, unless the test is not over. Another flow slows down after it has filled the
    /// buffer, which ends them; those of a rate that is too high go on.
    pub(super) fn watch(&mut self) -> bool {
        if self.watched.is_none() && self.tested.is_none() {
            (self.watched, self.rounds) = (Some(0), 0);
        }
        self.watched.is_some()
    }

    /// Watches anew after a time at a lower rate, in which the losses of any cause may have ended.
    pub(super) fn watch_again(&mut self) {
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
    fn lower(&mut self, losing: u32, delivery_bps: f64) -> bool {
        let exceeded = losing >= LOSING_ROUNDS || losing > 0 && delivery_bps < EXCEEDED * self.bps;
        if !exceeded || self.steps == 0 {
            return false;
        }
        self.bps = BELOW * self.bps.min(delivery_bps);
        self.steps -= 1;
        (self.watched, self.rounds, self.losses) = (None, 0, LossFloor::default());
        true
    }

    /// Begins a probe where one is due, and judges one by what arrived in its second round: the first still delivers
    /// what was sent before.
    pub(super) fn probe(&mut self, delivery_bps: f64, app_limited: bool) {
        let holds = self.gain <= 1.0;
        let calm = self.tested.is_none() && self.watched.is_none();
        if holds && calm && self.rounds >= self.wait_rounds && !app_limited {
            (self.gain, self.rounds) = (1.0 + self.excess, 0);
        }
        if holds || self.rounds < 2 {
            return;
        }
        let carried_bps = self.carried(delivery_bps);
        if carried_bps <= (1.0 + self.excess / 2.0) * self.bps {
            return self.end_probe(delivery_bps);
        }
        self.bps = self.bps.max(carried_bps);
        self.excess = (2.0 * self.excess).min(MOST_PROBE - 1.0);
        (self.gain, self.rounds, self.wait_rounds) = (1.0 + self.excess, 0, PROBE_ROUNDS[0]);
    }

    /// Ends a probe in which no more than `bps` arrived.
    pub(super) fn end_probe(&mut self, bps: f64) {
        self.bps = self.bps.min(BELOW * self.carried(bps));
        self.wait_rounds = (2 * self.wait_rounds).min(PROBE_ROUNDS[1]);
        (self.gain, self.rounds, self.excess) = (1.0, 0, PROBE - 1.0);
        self.steps = STEPS;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rate_held_is_what_is_sent_where_packets_are_lost_at_random() {
        const CARRIES: f64 = 1e8;
        // A tenth more was sent than the path carries, and a twentieth is lost at random.
        let mut hold = Hold::begin(0, 0.95 * CARRIES, 0.14);
        for _ in 0..500 {
            let sent = hold.gain * hold.bps;
            let delivered = 0.95 * sent.min(CARRIES);
            let lost = (1000.0 * (1.0 - delivered / sent)) as u64;
            let round = Round { acked: 1000 - lost, lost, lost_squares: lost, ..Round::default() };
            assert!(!hold.shows_others(&round, delivered), "none");
            hold.probe(delivered, false);
        }
        assert!((0.95..1.06).contains(&(hold.bps / CARRIES)), "{}", hold.bps / CARRIES);
    }
}
