//! The phases: following the queue, the TCP-friendly window, the cut test, and the transitions between them.

use super::hold::shallow_ns;
use super::{AckEvent, CutTest, Fair, Oscillation, Phase, Round, A, FAST_ROUNDS, MIN_WINDOW};

const GAIN: f64 = 0.5;
/// A host may send or acknowledge this late; the queue is to last meanwhile.
const HOST_NS: f64 = 300_000.0;
/// Growth by more than this part in a round trip is fast.
const FAST: f64 = 0.1;
/// With a smaller window per flow, the queues of flows in `delay` would be half of the path.
pub(super) const MIN_DELAY_WINDOW: f64 = 2.5 * A;
/// A flow that loses its window this soon after a cut test was not alone, and claims this part of it.
const RECENT_NS: u64 = 10_000_000_000;
const CLAIM: f64 = 0.7;

/// A cut of the window that keeps this part of the delivery rate took nothing from other flows.
const KEPT: f64 = 0.93;
const CUT: f64 = 0.8;
const MAX_CUTS: u32 = 10;

/// Cuts without effect that prove nothing: the other flow may just have backed off.
const FREE_CUTS: u32 = 3;

/// Beside others, a window below this part of its initial value in `delay` is claimed back.
const YIELDED: f64 = 0.7;

/// A queue that oscillates by this part of the round trip within seconds.
const OSCILLATES: f64 = 0.2;

/// A buffer is shallow where the round trip never exceeds its minimum by this factor.
const SHALLOW: f64 = 1.25;

impl Fair {
    pub(super) fn target_ns(&self, window: f64) -> f64 {
        let rtt_ns = self.rtt_ns as f64;
        let b_ns = (self.min_rtt_ns as f64 / 32.0 + HOST_NS).min(5_000_000.0);
        (self.marks.part * (b_ns + A * rtt_ns / window)).min(self.shallow_ns)
    }

    pub(super) fn on_round(&mut self, ack: &AckEvent, round: &Round) {
        self.max_rtt_ns = self.max_rtt_ns.max(round.max_rtt_ns);
        let refilled = std::mem::take(&mut self.refilling);
        if let Some(queue_ns) = round.queue_ns(ack.min_rtt_ns) {
            self.longest_queue.on_round(ack.now_ns, queue_ns);
        }
        if let Phase::Hold(hold) = self.phase {
            return self.hold_round(ack, round, hold);
        }
        let sent = ack.next_packet_number.saturating_sub(round.first);
        if let Some(share) = self.excess.on_round(round, sent, self.floor.share()) {
            return self.answer_excess(ack, round, share);
        }
        if self.floor.on_round(&mut self.buffer, &mut self.reduced_from, round, ack.min_rtt_ns) {
            self.reconsider();
        }
        match self.phase {
            Phase::Startup(_) | Phase::Hold(_) => {}
            Phase::Delay => self.follow_queue(ack, round, refilled),
            Phase::TcpFriendly => {
                let delivery_bps = self.delivery_rate.bps(self.rtt_ns);
                self.window = self.tcp_friendly.on_round(delivery_bps, self.window);
                if self.tcp_friendly.is_test_due(ack.now_ns) {
                    self.begin_cut_test(ack);
                }
            }
            Phase::CutTest(test) => self.continue_cut_test(ack, test),
        }
    }

    fn follow_queue(&mut self, ack: &AckEvent, round: &Round, refilled: bool) {
        let Some(queue_ns) = round.queue_ns(ack.min_rtt_ns) else { return };
        let target_ns = self.target_ns(self.window);
        self.max_queue_ns = round.longest_queue_ns(ack.min_rtt_ns);
        let before = self.window;
        let mut step = GAIN * (target_ns - queue_ns) / self.rtt_ns as f64;
        self.empty_rounds = if queue_ns < target_ns / 4.0 { self.empty_rounds + 1 } else { 0 };
        if self.empty_rounds > 3 {
            step *= f64::from(1_u32 << (self.empty_rounds - 3).min(10));
        }
        if refilled {
            // The round began with an empty queue.
            step = step.min(0.0);
        }
        self.marks.on_round();
        step = self.step_of_return(step.clamp(-0.25, 0.25));
        self.fast_growth_rounds = self.fast_growth_rounds.saturating_sub(1);
        if step < 0.0 || !round.app_limited {
            self.window = (self.window * (1.0 + step)).max(MIN_WINDOW);
            if step > FAST {
                self.fast_growth_rounds = FAST_ROUNDS;
            }
        }
        if self.standing.is_gone() {
            self.window_before_queue = before;
        }
        // The window from before the queue sets the limit: a small window would excuse any queue.
        self.standing.on_round(queue_ns, 2.0 * self.target_ns(self.window_before_queue));
        let range_ns = self.oscillation.on_round(ack.now_ns, queue_ns);
        let oscillates = range_ns > OSCILLATES * ack.min_rtt_ns as f64;
        if oscillates
            && !self.path_was_empty
            && self.window < before.max(self.window_at_delay) / 2.0
        {
            // Flows of the same kind settle; a queue that oscillates while this flow had to shrink is a sawtooth.
            return self.claim(ack.now_ns, self.window);
        }
        if self.others_present && self.window < YIELDED * self.window_at_delay {
            // A queue that existed before this flow and grows slowly takes the path bit by bit.
            return self.claim(ack.now_ns, self.window_at_delay);
        }
        if self.standing.is_evident() {
            // A flow that does not yield took the yielded capacity. This flow claims its window from before.
            self.claim(ack.now_ns, self.window_before_queue);
        }
    }

    /// The path has become longer, for which no flow needs to yield: the rate from before needs a larger window. One
    /// that fills a buffer grows into it.
    pub(super) fn on_longer_path(&mut self, ack: &AckEvent) {
        self.buffer.on_longer_path(ack.longer_ns);
        self.longest_queue.on_longer_path(ack.longer_ns);
        if matches!(self.phase, Phase::Delay) {
            let before_ns = ack.min_rtt_ns.saturating_sub(ack.longer_ns).max(1);
            let window = self.window.max(self.window_before_queue);
            self.window = window * ack.min_rtt_ns as f64 / before_ns as f64;
            self.empty_rounds = 0;
            self.standing.restart();
            self.oscillation = Oscillation::default();
        }
    }

    /// Claims a window in the TCP-friendly phase.
    fn claim(&mut self, now_ns: u64, window: f64) {
        self.window = self.window_beside_others(window);
        if now_ns < self.alone_at_ns + RECENT_NS {
            self.window = self.window.max(CLAIM * self.window_before_test);
        }
        self.tcp_friendly.hold(self.window);
        self.enter_tcp_friendly(now_ns);
        self.probe_share();
    }

    /// Probes the share beside flows that do not drain, once. A shallow buffer needs no probe: its losses are frequent,
    /// and each would cut the others' windows.
    pub(super) fn probe_share(&mut self) {
        let shallow = self.longest_queue.ns() < shallow_ns(self.min_rtt_ns);
        if self.others_present && !shallow && !std::mem::replace(&mut self.share_probed, true) {
            self.tcp_friendly.probe_share();
        }
    }

    pub(super) fn enter_tcp_friendly(&mut self, now_ns: u64) {
        self.phase = Phase::TcpFriendly;
        self.queue_drain.stop();
        self.path_was_empty = false;
        self.standing.reset();
        self.max_rtt_ns = 0;
        self.tcp_friendly.schedule_test(now_ns, self.window);
    }

    fn begin_cut_test(&mut self, ack: &AckEvent) {
        let Some(delivery_bps) = self.delivery_rate.bps(2 * self.rtt_ns) else { return };
        if (self.max_rtt_ns as f64) < SHALLOW * ack.min_rtt_ns as f64 {
            if ack.now_ns < self.competes_until_ns {
                return self.tcp_friendly.schedule_test(ack.now_ns, self.window);
            }
            // The queue was never long enough for a conclusive test: enter `delay`, and let loss decide.
            return self.enter_delay_at(delivery_bps, self.window, ack);
        }
        let window = self.window;
        self.phase = Phase::CutTest(CutTest { window, delivery_bps, cuts: 1, settled: false });
        self.window = (self.window * CUT).max(MIN_WINDOW);
        self.rounds.restart(ack.next_packet_number);
    }

    /// Alone, a smaller window only shortens the queue, and the delivery rate stays; beside another flow it costs a
    /// part of the share. This holds even where the minimum round trip is wrong.
    fn continue_cut_test(&mut self, ack: &AckEvent, test: CutTest) {
        if !test.settled {
            self.phase = Phase::CutTest(CutTest { settled: true, ..test });
            return;
        }
        let delivery_bps = self.delivery_rate.bps(self.rtt_ns).unwrap_or(0.0);
        if delivery_bps >= KEPT * test.delivery_bps && test.cuts < MAX_CUTS {
            self.phase = Phase::CutTest(CutTest { cuts: test.cuts + 1, settled: false, ..test });
            self.window = (self.window * CUT).max(MIN_WINDOW);
        } else if test.cuts > FREE_CUTS {
            (self.alone_at_ns, self.window_before_test) = (ack.now_ns, test.window);
            self.enter_delay_at(test.delivery_bps, test.window, ack);
        } else {
            self.window = test.window;
            self.tcp_friendly.hold(test.window);
            self.enter_tcp_friendly(ack.now_ns);
        }
    }

    /// Returns to `delay` where a queue drain found only flows that drain.
    pub(super) fn resume_delay(&mut self, ack: &AckEvent, all_drain: bool) {
        let bdp = self.window * ack.min_rtt_ns as f64 / self.rtt_ns as f64;
        let Some(bps) = self.delivery_rate.bps(2 * self.rtt_ns) else { return };
        if all_drain && bdp > MIN_DELAY_WINDOW {
            self.enter_delay_at(bps, self.window, ack);
            self.standing.settle();
        }
    }

    /// Enters `delay` with the bandwidth-delay product at this delivery rate, and at most `max_window`.
    fn enter_delay_at(&mut self, delivery_bps: f64, max_window: f64, ack: &AckEvent) {
        let bdp = delivery_bps / (1.0 - self.floor.share()) * ack.min_rtt_ns as f64 / 8e9;
        self.window = bdp.min(max_window).max(MIN_WINDOW);
        self.enter_delay();
    }

    pub(super) fn enter_delay(&mut self) {
        self.phase = Phase::Delay;
        self.others_present = false;
        self.marks = Default::default();
        self.suspected.clear();
        self.capacity_fall = None;
        self.restart_delay();
    }

    /// Follows the queue from here on, without the past.
    pub(super) fn restart_delay(&mut self) {
        self.empty_rounds = 0;
        self.standing.restart();
        self.oscillation = Oscillation::default();
        self.window_at_delay = self.window;
    }
}
