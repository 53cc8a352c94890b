//! Capacity that falls, and returns, while a flow follows the queue: no other flow is the cause of the loss.
//!
//! In the phase `delay` no flow fills the buffer. Where a queue nevertheless grows within two round trips until packets
//! are lost, and less arrives than the window would deliver without a queue, either the capacity has fallen or another
//! flow begins; or this flow grew faster than it saw the queue grow. What arrives is what the flow may have in all
//! these cases, so the window becomes the bandwidth-delay product of that rate, and the phase stays. What happens next
//! tells: a queue of this flow drains, and the window follows it again; losses or a queue that stand are another
//! flow's, and the flow competes from the window that CUBIC would have.
//!
//! Where the queue is empty later, the flow returns at once to nearly the window of before the fall, by half of the
//! window each round trip: the path has carried it.

use super::hold::shallow_ns;
use super::phases::MIN_DELAY_WINDOW;
use super::{AckEvent, Fair, Round, A, MIN_WINDOW};

/// The capacity has fallen where less than this part of the window arrives in a minimum round trip.
const FALLEN: f64 = 0.7;

/// The part of a round trip over which what arrives is measured: a short buffer overflows before a whole one is over.
const LATEST: u64 = 4;

/// Rounds with an empty queue before the flow returns to the window of before a fall.
const RETURN_ROUNDS: u32 = 2;

impl Fair {
    /// Answers a loss in the phase `delay` by the window of the rate that arrives, where the capacity seems to have
    /// fallen; returns whether it does.
    pub(super) fn follow_fallen_capacity(&mut self, ack: &AckEvent, round: &Round) -> bool {
        let fall = self.capacity_fall.unwrap_or_default();
        let first = fall.unconfirmed() == 0;
        let others = self.others_present || first && !self.standing.is_recent();
        let Some(bps) = self.delivery_rate.bps(self.rtt_ns / LATEST) else { return false };
        let queue_ns = round.longest_queue_ns(ack.min_rtt_ns);
        let kept = A.min(bps * queue_ns / 8e9 / 2.0);
        let window = (bps * ack.min_rtt_ns as f64 / 8e9 + kept).max(MIN_WINDOW);
        let grew = self.fast_growth_rounds > 0;
        let part = if first && !grew { FALLEN } else { 1.0 };
        if ack.marked_packets > 0
            || others
            || window >= part * self.window
            || fall.is_exhausted()
            || queue_ns < shallow_ns(ack.min_rtt_ns)
            || window < MIN_DELAY_WINDOW
        {
            self.window = self.window_beside_others(self.window);
            return false;
        }
        self.capacity_fall = Some(fall.falls(self.window, window, grew));
        self.window = window;
        self.learn_shallow_buffer(ack, round);
        self.restart_delay();
        true
    }

    /// The step of the window in a round trip, where it may return faster than by `step`.
    pub(super) fn step_of_return(&mut self, step: f64) -> f64 {
        let Some(fall) = &mut self.capacity_fall else { return step };
        if fall.on_round(self.window) {
            self.capacity_fall = None;
            return step;
        }
        if self.empty_rounds >= RETURN_ROUNDS {
            step.max(fall.step(self.window))
        } else {
            step
        }
    }

    /// The window with which to compete, at least `window`.
    pub(super) fn window_beside_others(&mut self, window: f64) -> f64 {
        window.max(self.capacity_fall.take().map_or(0.0, |fall| fall.window_beside_others()))
    }
}
