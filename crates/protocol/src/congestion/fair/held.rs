//! The rate that the phase `hold` keeps to.
//!
//! Arrives: rounds, what a probe found. Leaves: the rate, when to probe, whether another flow is there. Must not know:
//! the other phases.
//!
//! Two things tell of another flow: losses that begin at the rate held while the buffer is full, and a queue that
//! stands. Each probe overflows the buffer and cuts another flow's window, so the time between two of them is that in
//! which a CUBIC flow regains what a loss takes (as BBRv2 does for Reno): else probes would keep it small and unseen.

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
/// Rounds of a probe that loses nothing.
const MOST_PROBE_ROUNDS: u32 = 4;

/// A probe that failed delivered what the path carries; the rate held is a little below, so that it loses nothing.
const BELOW: f64 = 0.99;

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
        let regained = if from.after_others { from.regain_rounds } else { 0 };
        Self {
            bps: from.bps,
            gain: TEST,
            rounds: 0,
            wait_rounds: PROBE_ROUNDS[0].max(regained),
            regain_rounds: from.regain_rounds,
            excess: PROBE - 1.0,
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
    fn lower_for_queue(&mut self, delivery_bps: f64) -> bool {
        if self.steps == 0 || self.calm.share() < UNCERTAIN {
            return false;
        }
        self.steps -= 1;
        self.bps = BELOW * self.bps.min(delivery_bps);
        true
    }

    /// Processes a round in which `delivery_bps` arrives, the path's round trip being `min_rtt_ns`. Returns whether
    /// its losses, or its queue, are another flow's.
    pub(super) fn shows_others(
        &mut self,
        round: &Round,
        min_rtt_ns: u64,
        delivery_bps: f64,
    ) -> bool {
        let delivery_bps = self.carried(delivery_bps);
        let longest_ns = round.longest_queue_ns(min_rtt_ns);
        self.rounds += 1;
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
        self.end_watch();
        true
    }

    fn end_watch(&mut self) {
        (self.watched, self.rounds, self.losses) = (None, 0, LossFloor::default());
    }

    /// Begins a probe where one is due, and judges one by what arrived in its second round: the first still delivers
    /// what was sent before. One that loses nothing has found no limit; a host may have been late.
    pub(super) fn probe(&mut self, round: &Round, delivery_bps: f64) {
        let holds = self.gain <= 1.0;
        let calm = self.tested.is_none() && self.watched.is_none();
        if holds && calm && self.rounds >= self.wait_rounds && !round.app_limited {
            (self.gain, self.rounds) = (1.0 + self.excess, 0);
        }
        if holds || self.rounds < 2 {
            return;
        }
        let carried_bps = self.carried(delivery_bps);
        if carried_bps <= (1.0 + self.excess / 2.0) * self.bps {
            if round.lost > 0 {
                self.end_probe(delivery_bps);
            } else if self.rounds >= MOST_PROBE_ROUNDS {
                self.end_probe(f64::INFINITY);
            }
            return;
        }
        self.bps = self.bps.max(carried_bps);
        self.excess = (2.0 * self.excess).min(MOST_PROBE - 1.0);
        (self.gain, self.rounds, self.wait_rounds) = (1.0 + self.excess, 0, PROBE_ROUNDS[0]);
    }

    /// Ends a probe in which no more than `bps` arrived.
    pub(super) fn end_probe(&mut self, bps: f64) {
        self.bps = self.bps.min(BELOW * self.carried(bps));
        let most = PROBE_ROUNDS[1].max(self.regain_rounds);
        self.wait_rounds = if self.after_others { most } else { (2 * self.wait_rounds).min(most) };
        (self.gain, self.rounds, self.excess) = (1.0, 0, PROBE - 1.0);
        self.steps = STEPS;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIN_RTT_NS: u64 = 20_000_000;

    /// After its test, with a buffer that overflowed at 1 ms.
    fn held() -> Hold {
        let from = Beginning { bps: 1e8, lost: 0.01, queue_ns: 1e6, ..Beginning::default() };
        let mut hold = Hold::begin(&from);
        for _ in 0..TEST_ROUNDS + SETTLED_ROUNDS + 1 {
            assert!(!hold.shows_others(&round(0, 0, 0), MIN_RTT_NS, 1e8));
        }
        hold
    }

    /// A round that loses packets: the shortest and the longest queueing delay.
    fn round(lost: u64, shortest_ns: u64, longest_ns: u64) -> Round {
        Round {
            acked: 1000 - lost,
            lost,
            lost_squares: lost,
            min_rtt_ns: Some(MIN_RTT_NS + shortest_ns),
            max_rtt_ns: MIN_RTT_NS + longest_ns,
            ..Round::default()
        }
    }

    #[test]
    fn a_queue_that_stands_at_the_rate_held_is_another_flows() {
        for (queue_ns, found) in [(100_000, false), (200_000, true)] {
            let mut hold = held();
            let standing = round(0, queue_ns, 900_000);
            let others = (0..40).any(|_| hold.shows_others(&standing, MIN_RTT_NS, 1e8));
            assert_eq!(others, found, "{queue_ns} ns");
        }
    }

    #[test]
    fn what_hosts_delay_by_themselves_is_no_queue_that_stands() {
        for (queue_ns, found) in [(350_000, false), (500_000, true)] {
            let from = Beginning { bps: 1e8, lost: 0.01, queue_ns: 1e6, ..Beginning::default() };
            let mut hold = Hold::begin(&from);
            for _ in 0..TEST_ROUNDS {
                hold.shows_others(&round(0, 300_000, 500_000), MIN_RTT_NS, 1e8);
            }
            let standing = round(0, queue_ns, 900_000);
            let others = (0..60).any(|_| hold.shows_others(&standing, MIN_RTT_NS, 1e8));
            assert_eq!(others, found, "{queue_ns} ns");
        }
    }

    #[test]
    fn losses_of_a_full_buffer_in_the_test_are_another_flows() {
        // Whether the path is known, rounds of the test that lose packets, their queueing delay.
        for (path_is_known, losing, queue_ns, found) in [
            (true, 4, 900_000, true),
            (true, 2, 900_000, false),
            (true, 4, 100_000, false),
            (false, 1, 900_000, true),
            (false, 4, 100_000, false),
        ] {
            let from = Beginning {
                bps: 1e8,
                lost: 0.2,
                queue_ns: 1e6,
                path_is_known,
                ..Beginning::default()
            };
            let mut hold = Hold::begin(&from);
            let others = (0..TEST_ROUNDS).any(|number| {
                let lost = if (1..=losing).contains(&number) { 20 } else { 0 };
                hold.shows_others(&round(lost, 0, queue_ns), MIN_RTT_NS, 1e8)
            });
            assert_eq!(others, found, "{path_is_known}, {losing} rounds, {queue_ns} ns");
            assert_eq!(hold.is_certain, path_is_known || !found);
        }
    }

    #[test]
    fn losses_that_end_are_another_flows_only_where_the_buffer_was_full() {
        for (queue_ns, found) in [(100_000, false), (900_000, true)] {
            let mut hold = held();
            let lossy = round(100, 0, queue_ns);
            assert!(!hold.shows_others(&lossy, MIN_RTT_NS, 1e8), "watched");
            let quiet = round(0, 0, 0);
            let others = (0..20).any(|_| hold.shows_others(&quiet, MIN_RTT_NS, 1e8));
            assert_eq!(others, found, "{queue_ns} ns");
        }
    }

    #[test]
    fn after_another_flow_a_probe_waits_until_it_would_show_itself() {
        for (after_others, waited) in [(false, PROBE_ROUNDS[0]), (true, 500)] {
            let from = Beginning {
                bps: 1e8,
                lost: 0.01,
                after_others,
                regain_rounds: 500,
                ..Beginning::default()
            };
            let mut hold = Hold::begin(&from);
            let mut rounds = 0;
            while hold.gain <= 1.0 {
                assert!(!hold.shows_others(&round(0, 0, 0), MIN_RTT_NS, 1e8));
                hold.probe(&round(0, 0, 0), 1e8);
                rounds += 1;
            }
            assert_eq!(rounds, TEST_ROUNDS + waited);
        }
    }

    #[test]
    fn a_probe_in_which_a_host_is_late_and_nothing_is_lost_has_found_no_limit() {
        // Packets lost in the probe's second round, what arrives in it and in the third, and the rate held then.
        for (lost, second_bps, third_bps, held_bps) in
            [(0, 0.9e8, 1.05e8, 1.05e8), (0, 0.9e8, 0.9e8, 1e8), (9, 0.9e8, 1.05e8, 0.891e8)]
        {
            let mut hold = held();
            hold.bps = 1e8;
            let quiet = round(0, 0, 0);
            while hold.gain <= 1.0 {
                hold.shows_others(&quiet, MIN_RTT_NS, 1e8);
                hold.probe(&quiet, 1e8);
            }
            let arrives = [(0, 1e8), (lost, second_bps), (0, third_bps), (0, third_bps)];
            for (lost, bps) in arrives {
                let is_first_probe = hold.gain == PROBE;
                if is_first_probe {
                    hold.shows_others(&round(lost, 0, 0), MIN_RTT_NS, bps);
                    hold.probe(&round(lost, 0, 0), bps);
                }
            }
            assert!((hold.bps / held_bps - 1.0).abs() < 1e-6, "{lost} {third_bps}: {}", hold.bps);
        }
    }

    #[test]
    fn a_rate_held_is_what_is_sent_where_packets_are_lost_at_random() {
        const CARRIES: f64 = 1e8;
        // A tenth more was sent than the path carries, and a twentieth is lost at random.
        let from = Beginning { bps: 0.95 * CARRIES, lost: 0.14, ..Beginning::default() };
        let mut hold = Hold::begin(&from);
        for _ in 0..500 {
            let sent = hold.gain * hold.bps;
            let delivered = 0.95 * sent.min(CARRIES);
            let lost = (1000.0 * (1.0 - delivered / sent)) as u64;
            let round = Round { acked: 1000 - lost, lost, lost_squares: lost, ..Round::default() };
            assert!(!hold.shows_others(&round, 0, delivered), "none");
            hold.probe(&round, delivered);
        }
        assert!((0.95..1.06).contains(&(hold.bps / CARRIES)), "{}", hold.bps / CARRIES);
    }
}
