//! Capacity that falls, and returns, while a flow follows the queue: no other flow is the cause of the loss.
//!
//! In the phase `delay` no flow fills the buffer. Where a queue nevertheless grows within two round trips until packets
//! are lost, and less arrives than the window would deliver without a queue, either the capacity has fallen or another
//! flow begins; or this flow grew faster than it saw the queue grow. What arrives is what the flow may have in all these
//! cases, so the window becomes the bandwidth-delay product of that rate, and the phase stays. What happens next tells:
//! a queue of this flow drains, and the window follows it again; losses or a queue that stand are another flow's, and
//! the flow competes from the window that CUBIC would have.
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

/// Round trips after a response in which another flow may show.
const ROUNDS: u32 = 8;

/// Responses before what goes on to fall is another flow's doing.
const MOST_RESPONSES: u32 = 3;

/// What CUBIC keeps of a window after a loss.
const KEPT_BY_CUBIC: f64 = 0.7;

/// The part of the window before a fall to which a flow returns faster, and the growth in each round trip.
const RETURN: f64 = 0.9;
const RETURN_STEP: f64 = 0.5;

/// Rounds with an empty queue before it does so.
const RETURN_ROUNDS: u32 = 2;

/// A fall of the capacity.
#[derive(Clone, Copy, Debug)]
pub(super) struct CapacityFall {
    /// The window before the first response that is not confirmed.
    window_before: f64,
    /// The largest window before a fall, to which the flow has not yet returned.
    highest: f64,
    responses: u32,
    /// Round trips since the last response.
    rounds: u32,
}

impl CapacityFall {
    fn is_confirmed(&self) -> bool {
        self.rounds > ROUNDS
    }
}

impl Fair {
    /// Answers a loss in the phase `delay` by the window of the rate that arrives, where the capacity seems to have
    /// fallen; returns whether it does.
    pub(super) fn follow_fallen_capacity(&mut self, ack: &AckEvent, round: &Round) -> bool {
        let unconfirmed = self.capacity_fall.filter(|fall| !fall.is_confirmed());
        let responses = unconfirmed.map_or(0, |fall| fall.responses);
        let others = self.others_present || responses == 0 && !self.standing.is_recent();
        let Some(bps) = self.delivery_rate.bps(self.rtt_ns / LATEST) else { return false };
        let queue_ns = round.max_rtt_ns.saturating_sub(ack.min_rtt_ns) as f64;
        let kept = A.min(bps * queue_ns / 8e9 / 2.0);
        let window = (bps * ack.min_rtt_ns as f64 / 8e9 + kept).max(MIN_WINDOW);
        let grew = self.fast_growth_rounds > 0;
        let part = if grew || responses > 0 { 1.0 } else { FALLEN };
        if ack.marked_packets > 0
            || others
            || window >= part * self.window
            || responses >= MOST_RESPONSES
            || queue_ns < shallow_ns(ack)
            || window < MIN_DELAY_WINDOW
        {
            self.window = self.window_beside_others();
            return false;
        }
        let highest = self.capacity_fall.map_or(self.window, |fall| fall.highest.max(self.window));
        self.capacity_fall = Some(CapacityFall {
            window_before: unconfirmed.map_or(self.window, |fall| fall.window_before),
            // What the flow has grown to was too much.
            highest: if grew { window } else { highest },
            responses: responses + 1,
            rounds: 0,
        });
        self.window = window;
        self.learn_shallow_buffer(ack, round);
        self.restart_delay();
        true
    }

    /// The step of the window while the capacity returns, if larger than `step`: a part of the window.
    pub(super) fn step_of_return(&mut self, step: f64) -> f64 {
        let Some(fall) = &mut self.capacity_fall else { return step };
        fall.rounds = fall.rounds.saturating_add(1);
        let room = RETURN * fall.highest / self.window - 1.0;
        if !fall.is_confirmed() {
            return step;
        }
        if room <= 0.0 {
            self.capacity_fall = None;
        } else if self.empty_rounds >= RETURN_ROUNDS {
            return step.max(room.min(RETURN_STEP));
        }
        step
    }

    /// The window with which to compete, where what seemed to be a fall was another flow.
    pub(super) fn window_beside_others(&mut self) -> f64 {
        let fall = self.capacity_fall.take().filter(|fall| !fall.is_confirmed());
        self.window.max(fall.map_or(0.0, |fall| KEPT_BY_CUBIC * fall.window_before))
    }
}
