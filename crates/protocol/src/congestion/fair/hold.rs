//! The phase `hold`, for a path that loses what exceeds its rate before a queue tells: a shallow buffer or a policer.
//!
//! There a window that grows until a loss and is cut to 0.7 leaves a sixth of the path unused. The loss itself shows
//! the rate: what arrives meanwhile is the most that the path carries (as BBR takes its bandwidth). A test at a lower
//! rate shows whether the excess was the cause. If so, the flow keeps to that rate and probes for more now and then.
//! Losses that begin while it holds are watched: if they go on, the rate was too high after all, and is lowered.
//! Losses of a full buffer in the test, or that end by themselves, are another flow's, and so is a queue that stands at
//! the rate held: then it competes as CUBIC does.

use super::super::cubic::regain_rounds;
use super::held::{Beginning, Hold};
use super::{AckEvent, Fair, LossFloor, Phase, Round, A, MIN_WINDOW, PACKET};

/// A queue below this is none that a window could follow: an eighth of the round trip, or 1 ms.
pub(super) fn shallow_ns(min_rtt_ns: u64) -> f64 {
    (min_rtt_ns as f64 / 8.0).max(1_000_000.0)
}

/// No more than a host's delays: this part of the round trip, or this time.
const NO_QUEUE_PART: f64 = 1.0 / 32.0;
const NO_QUEUE_NS: f64 = 500_000.0;

/// A phase that ends by another flow before this is over was too early.
const SOON_NS: u64 = 20_000_000_000;

/// Once a CUBIC flow has regained its window it fills the buffer: this many times the time for the window.
const SHOWN: f64 = 2.0;

/// The time for which a flow competes before it may hold again; doubled where it had to compete again soon.
const COMPETE_NS: [u64; 2] = [10_000_000_000, 80_000_000_000];

impl Fair {
    /// Whether the loss of this round happened on a path without a queue that a window could follow.
    fn is_shallow(&self, ack: &AckEvent, round: &Round) -> bool {
        let queue_ns = round.longest_queue_ns(ack.min_rtt_ns);
        queue_ns.max(self.longest_queue.ns()) < shallow_ns(ack.min_rtt_ns)
    }

    /// Whether there was no queue, where the startup exceeded what the path carries, nor since. No drain is needed to
    /// know the path then: what dropped the packets has no buffer that another flow could fill.
    fn was_never_queued(&self, ack: &AckEvent) -> bool {
        let queue_ns = self.longest_queue.ns().max(self.startup_queue_ns as f64);
        queue_ns < (ack.min_rtt_ns as f64 * NO_QUEUE_PART).max(NO_QUEUE_NS)
    }

    /// Whether the buffer overflowed at a short queue in the startup, and now at one that is hardly shorter: it is
    /// shallow, or others keep it full. A test shows which, once: until a drain has measured the path.
    fn may_be_shallow(&self, ack: &AckEvent, round: &Round) -> bool {
        let startup_queue_ns = self.startup_queue_ns as f64;
        !self.was_full_in_test
            && startup_queue_ns < shallow_ns(ack.min_rtt_ns)
            && round.longest_queue_ns(ack.min_rtt_ns) >= startup_queue_ns / 2.0
    }

    /// The rounds in which a CUBIC flow with half of the path regains what a loss took from it, and shows itself.
    fn regain_rounds(&self, bps: f64) -> u32 {
        let half = bps * self.rtt_ns as f64 / 8e9 / 2.0;
        (SHOWN * regain_rounds(half, self.rtt_ns)) as u32
    }

    /// What arrives over this time. Right after an interruption the measured rate is that of the pause.
    fn arrives_bps(&self, round: &Round, window_ns: u64) -> f64 {
        let acked_bps = round.acked as f64 * PACKET * 8e9 / self.rtt_ns as f64;
        self.delivery_rate.bps(window_ns).unwrap_or(0.0).max(acked_bps / 2.0)
    }

    /// Answers congestion by holding the rate that arrives, where that is the right answer.
    pub(super) fn hold_instead(&mut self, ack: &AckEvent, round: &Round) -> bool {
        let bps = self.arrives_bps(round, self.rtt_ns);
        if ack.now_ns < self.competes_until_ns || !self.is_shallow(ack, round) {
            return false;
        }
        match self.phase {
            Phase::Hold(hold) => self.answer_held(ack, round, hold),
            // A mark tells of a queue, which a window can follow.
            Phase::Delay | Phase::TcpFriendly if ack.marked_packets > 0 => false,
            Phase::Delay | Phase::TcpFriendly => self.begin_hold(ack, round, bps),
            Phase::Startup(_) | Phase::CutTest(_) => false,
        }
    }

    fn begin_hold(&mut self, ack: &AckEvent, round: &Round, bps: f64) -> bool {
        let path_is_known = self.path_is_known || self.was_never_queued(ack);
        if !path_is_known && !self.may_be_shallow(ack, round) {
            return false;
        }
        let lost = round.lost as f64 / (round.acked + round.lost).max(1) as f64;
        self.hold_rate(ack, round, bps, lost, path_is_known);
        true
    }

    /// Begins to hold a rate, at which `lost` of all packets were lost.
    fn hold_rate(
        &mut self,
        ack: &AckEvent,
        round: &Round,
        bps: f64,
        lost: f64,
        path_is_known: bool,
    ) {
        self.phase = Phase::Hold(Hold::begin(&Beginning {
            now_ns: ack.now_ns,
            bps,
            lost,
            queue_ns: round.longest_queue_ns(ack.min_rtt_ns),
            after_others: self.competes_ns > 0,
            path_is_known,
            window: self.window,
            unqueued_bps: if self.was_never_queued(ack) {
                self.window * 8e9 / self.rtt_ns as f64
            } else {
                0.0
            },
            regain_rounds: self.regain_rounds(bps),
        }));
    }

    /// Answers losses of what exceeds the path's rate, and were taken for random.
    pub(super) fn answer_excess(&mut self, ack: &AckEvent, round: &Round, lost: f64) {
        let bps = self.arrives_bps(round, 2 * self.rtt_ns);
        self.excess = Default::default();
        self.floor = LossFloor::default();
        self.suspected.clear();
        self.capacity_fall = None;
        self.window_before_outage = 0.0;
        self.window = self.window.min(bps * self.rtt_ns as f64 / 8e9).max(MIN_WINDOW);
        if ack.now_ns >= self.competes_until_ns && self.is_shallow(ack, round) {
            self.hold_rate(ack, round, bps, lost, true);
        } else {
            self.tcp_friendly.reset();
            self.enter_tcp_friendly(ack.now_ns);
            self.window = self.tcp_friendly.on_congestion(self.window, false).max(MIN_WINDOW);
        }
        self.begin_recovery(ack);
    }

    /// What arrives in a round trip, where no host was late.
    fn undelayed_bps(&self, ack: &AckEvent, round: &Round, hold: &mut Hold) -> Option<f64> {
        let longest_ns = round.longest_queue_ns(ack.min_rtt_ns);
        let is_undelayed = hold.is_undelayed(longest_ns, shallow_ns(ack.min_rtt_ns));
        self.delivery_rate.bps(self.rtt_ns).filter(|_| is_undelayed)
    }

    fn answer_held(&mut self, ack: &AckEvent, round: &Round, mut hold: Hold) -> bool {
        let queue_ns = round.longest_queue_ns(ack.min_rtt_ns);
        if hold.gain > 1.0 {
            hold.lose_at(queue_ns);
            let delivery_bps = self.undelayed_bps(ack, round, &mut hold);
            hold.end_probe(delivery_bps);
            self.phase = Phase::Hold(hold);
            return true;
        }
        if hold.is_late() || hold.watch() || !hold.may_be_full(queue_ns) {
            hold.lose_at(queue_ns);
            self.phase = Phase::Hold(hold);
            return true;
        }
        self.compete(ack, &hold);
        false
    }

    /// Ends the phase beside another flow.
    fn compete(&mut self, ack: &AckEvent, hold: &Hold) {
        let window = hold.bps * self.rtt_ns as f64 / 8e9;
        self.tcp_friendly.reset();
        if !hold.is_certain {
            // Goes on as without the test.
            self.was_full_in_test = true;
            self.window = window.max(hold.window_before).max(MIN_WINDOW);
            return self.enter_tcp_friendly(ack.now_ns);
        }
        let soon = ack.now_ns < hold.begun_ns + SOON_NS;
        self.competes_ns = if soon { (2 * self.competes_ns).min(COMPETE_NS[1]) } else { 0 };
        self.competes_ns = self.competes_ns.max(COMPETE_NS[0]);
        self.competes_until_ns = ack.now_ns + self.competes_ns;
        self.window = window.max(MIN_WINDOW);
        self.enter_tcp_friendly(ack.now_ns);
    }

    /// A round of holding or probing. The floor of random loss learns nothing here: a flow that holds beside others
    /// would take their losses for random.
    pub(super) fn hold_round(&mut self, ack: &AckEvent, round: &Round, mut hold: Hold) {
        let queue_ns = round.queue_ns(ack.min_rtt_ns).unwrap_or(0.0);
        if queue_ns > shallow_ns(ack.min_rtt_ns) {
            // There is a queue after all.
            return self.leave_hold(hold);
        }
        if self.reduced_from.is_some_and(|from| round.first > from) {
            self.reduced_from = None;
        }
        let delivery_bps = self.undelayed_bps(ack, round, &mut hold);
        if hold.shows_others(round, ack.min_rtt_ns, delivery_bps) {
            self.compete(ack, &hold);
            self.window = self.tcp_friendly.on_congestion(self.window, false).max(MIN_WINDOW);
            return self.begin_recovery(ack);
        }
        hold.regain_rounds = self.regain_rounds(hold.bps);
        hold.probe(round, delivery_bps);
        self.window = self.held_window(&hold);
        self.phase = Phase::Hold(hold);
    }

    /// Bytes in flight: they follow from the rate, so the window only bounds them.
    pub(super) fn held_window(&self, hold: &Hold) -> f64 {
        (1.25 * hold.bps * self.rtt_ns as f64 / 8e9 + A).max(MIN_WINDOW)
    }

    /// Follows the queue again.
    pub(super) fn leave_hold(&mut self, hold: Hold) {
        self.window = (hold.bps * self.min_rtt_ns as f64 / 8e9 + A).max(MIN_WINDOW);
        self.enter_delay();
    }
}
