//! The response to congestion, and its reversal where the loss was random or spurious.

use super::{AckEvent, Fair, Phase, Round, SpuriousLoss, Undo, A, MIN_WINDOW};

/// A queue of fewer bytes marks by the bursts of its packets.
const LEAST_MARKING: f64 = 2.0 * A;

impl Fair {
    pub(super) fn on_congestion(&mut self, ack: &AckEvent, round: &Round) {
        self.spurious = SpuriousLoss::watch(ack, round.lost);
        self.undo = Undo {
            window: self.window,
            tcp_friendly: self.tcp_friendly,
            was_tcp_friendly: matches!(self.phase, Phase::TcpFriendly),
            shallow_ns: self.shallow_ns,
        };
        if self.suspected.is_empty() {
            self.window_before_suspected = self.window;
        }
        if ack.marked_packets == 0 && self.suspected.len() < 8 {
            self.suspected.push((round.lost, round.acked + round.lost));
        }
        if self.hold_instead(ack, round) {
            return self.begin_recovery(ack);
        }
        if matches!(self.phase, Phase::Delay) {
            if self.follow_fallen_capacity(ack, round) || self.follow_shorter_queue(ack, round) {
                return self.begin_recovery(ack);
            }
            self.learn_shallow_buffer(ack, round);
            self.tcp_friendly.reset();
            self.enter_tcp_friendly(ack.now_ns);
        }
        let short = ack.marked_packets > 0 && self.marks_by_bursts(ack, round);
        self.window = self.tcp_friendly.on_congestion(self.window, short).max(MIN_WINDOW);
        self.begin_recovery(ack);
    }

    /// Whether the queue that marked is too short for a window to follow.
    fn marks_by_bursts(&self, ack: &AckEvent, round: &Round) -> bool {
        let queue_ns = round.longest_queue_ns(ack.min_rtt_ns);
        self.window * queue_ns / (ack.min_rtt_ns as f64 + queue_ns) < LEAST_MARKING
    }

    /// Answers a mark in the phase `delay` by a shorter queue. False where a flow that grows has to be answered.
    fn follow_shorter_queue(&mut self, ack: &AckEvent, round: &Round) -> bool {
        if ack.marked_packets == 0
            || self.marks_by_bursts(ack, round)
            || !self.marks.on_mark(self.window)
        {
            return false;
        }
        let queue_ns = round.longest_queue_ns(ack.min_rtt_ns);
        let target_ns = self.target_ns(self.window).min(queue_ns);
        let min_rtt_ns = ack.min_rtt_ns as f64;
        self.window *= (min_rtt_ns + target_ns) / (min_rtt_ns + queue_ns);
        self.window = self.window.max(MIN_WINDOW);
        self.restart_delay();
        true
    }

    /// A buffer that overflows at a queue near the target is shallow.
    pub(super) fn learn_shallow_buffer(&mut self, ack: &AckEvent, round: &Round) {
        let queue_ns = round.longest_queue_ns(ack.min_rtt_ns);
        let queue_ns = queue_ns.max(self.max_queue_ns);
        if queue_ns < 1.5 * self.target_ns(self.window) {
            self.shallow_ns = (queue_ns / 2.0).max(20_000.0);
        }
    }

    pub(super) fn begin_recovery(&mut self, ack: &AckEvent) {
        self.recovery_point = ack.next_packet_number;
        self.reduced_from = Some(ack.next_packet_number);
        self.rounds.begin_recovery(ack.next_packet_number);
    }

    /// Restores the state before the response: the packets were late, not lost.
    pub(super) fn undo_response(&mut self) {
        if matches!(self.phase, Phase::CutTest(_)) {
            return;
        }
        self.window = self.window.max(self.undo.window);
        self.tcp_friendly = self.undo.tcp_friendly;
        self.shallow_ns = self.undo.shallow_ns;
        if !self.undo.was_tcp_friendly {
            self.phase = Phase::Delay;
        }
        self.capacity_fall = None;
        self.suspected.pop();
        self.reduced_from = None;
    }

    /// Restores the window where the floor, as a quiet round has shown it, explains every loss answered as congestion.
    pub(super) fn reconsider(&mut self) {
        let mut all = self.suspected.iter();
        if all.len() == 0 || !all.all(|&(lost, packets)| self.floor.allows(packets, lost)) {
            return;
        }
        self.suspected.clear();
        self.capacity_fall = None;
        self.window = self.window.max(self.window_before_suspected);
        self.phase = Phase::Delay;
        self.shallow_ns = f64::INFINITY;
        self.empty_rounds = 0;
    }
}
