//! `modest`: only capacity that other flows leave unused, given back within a round trip.
//!
//! Arrives: acknowledgements. Leaves: a window and a pace. Must not know: the other controllers.
//!
//! The window follows the queue as in `fair`, towards a quarter of its target:
//!
//! ```text
//! target = b + a / rate          a = 5 packets, b = RTT/128 within 0.1 .. 1.5 ms
//! W     <- W / 2        at a queue above twice the target for two rounds, loss above the random floor, or a mark
//! ```
//!
//! It halves once a round trip at most, down to two packets. After a loss it does not grow for 1 s, then 2 s, up to
//! 30 s. There is no TCP-friendly phase. The aim is that of LEDBAT (RFC 6817), to yield to any flow that keeps a
//! queue, without its target of 100 ms. It follows the shortest queue of the round and not each packet's, and so does
//! not oscillate.

use super::controller::{AckEvent, Control, Controller, PathState, PACKET};
use super::detectors::SpuriousLoss;
use super::loss_floor::{is_gross, BufferEstimate, LossFloor};
use super::rounds::{Round, RoundCounter};
use super::startup::Startup;

const A: f64 = 5.0 * PACKET;
const GAIN: f64 = 0.25;
const MIN_WINDOW: f64 = 2.0 * PACKET;
const PACE: f64 = 1.1;

/// Below this part of the assumed capacity, growth accelerates; an excess becomes visible two rounds later.
const NEAR: f64 = 0.85;

/// After this many rounds without a queue at the assumed capacity, a quarter is added to it.
const PATIENT_ROUNDS: u32 = 16;
const DOUBT: f64 = 1.25;

/// The shortest and the longest time without growth after a loss.
const MIN_WAIT_NS: u64 = 1_000_000_000;
const MAX_WAIT_NS: u64 = 30_000_000_000;

/// The controller's state.
#[derive(Clone, Debug)]
pub struct Modest {
    cap_bps: f64,
    startup: Option<Box<Startup>>,
    window: f64,
    /// The assumed capacity of the path, as a window.
    capacity: f64,
    /// Whether the path was empty and the window grew since it was last halved.
    has_grown: bool,
    rtt_ns: u64,
    rounds: RoundCounter,
    floor: LossFloor,
    buffer: BufferEstimate,
    recovery_point: u64,
    reduced_from: Option<u64>,
    empty_rounds: u32,
    queued_rounds: u32,
    grow_from_ns: u64,
    wait_ns: u64,
    /// The last loss that halved the window: lost, of how many packets, and the window before.
    suspected: Option<(u64, u64, f64)>,
    spurious: SpuriousLoss,
}

impl Modest {
    /// The controller for a path of this round trip, never above `cap_bps`. It starts as `fair` does: below the
    /// path's capacity there is no flow to yield to.
    #[must_use]
    pub fn new(rtt_ns: u64, cap_bps: f64) -> Self {
        Self {
            cap_bps,
            startup: Some(Box::new(Startup::new(rtt_ns, cap_bps, false))),
            window: MIN_WINDOW,
            capacity: MIN_WINDOW,
            has_grown: true,
            rtt_ns,
            rounds: RoundCounter::default(),
            floor: LossFloor::default(),
            buffer: BufferEstimate::default(),
            recovery_point: 0,
            reduced_from: None,
            empty_rounds: 0,
            queued_rounds: 0,
            grow_from_ns: 0,
            wait_ns: MIN_WAIT_NS,
            suspected: None,
            spurious: SpuriousLoss::default(),
        }
    }

    fn halve(&mut self, ack: &AckEvent) {
        // A queue that persists over several halvings is caused by other flows and measures nothing.
        if std::mem::take(&mut self.has_grown) {
            self.capacity = self.window.max(self.capacity / DOUBT);
        }
        self.window = (self.window / 2.0).max(MIN_WINDOW);
        (self.empty_rounds, self.queued_rounds) = (0, 0);
        self.begin_recovery(ack);
    }

    fn begin_recovery(&mut self, ack: &AckEvent) {
        self.recovery_point = ack.next_packet_number;
        self.reduced_from = Some(ack.next_packet_number);
        self.rounds.begin_recovery(ack.next_packet_number);
    }

    fn end_of_round(&mut self, ack: &AckEvent, round: &Round) {
        if self.floor.on_round(&mut self.buffer, &mut self.reduced_from, round, ack.min_rtt_ns) {
            let innocent = |(lost, packets, _)| self.floor.allows(packets, lost);
            if self.suspected.is_some_and(innocent) {
                self.undo_response();
            }
            self.suspected = None;
        }
        let Some(queue_ns) = round.queue_ns(ack.min_rtt_ns) else { return };
        let b_ns = (ack.min_rtt_ns as f64 / 128.0).clamp(100_000.0, 1_500_000.0);
        let target_ns = b_ns + A * self.rtt_ns as f64 / self.window;
        // A sixteenth of the round trip bounds the target of a few packets.
        let target_ns = target_ns.min(ack.min_rtt_ns as f64 / 16.0).max(100_000.0);
        self.queued_rounds = if queue_ns > 2.0 * target_ns { self.queued_rounds + 1 } else { 0 };
        if self.queued_rounds >= 2 {
            return self.halve(ack);
        }
        self.empty_rounds = if queue_ns < target_ns / 4.0 { self.empty_rounds + 1 } else { 0 };
        let mut step = GAIN * (target_ns - queue_ns) / self.rtt_ns as f64;
        if self.window < NEAR * self.capacity {
            if self.empty_rounds > 3 {
                step *= f64::from(1_u32 << (self.empty_rounds - 3).min(10));
            }
        } else if self.empty_rounds > PATIENT_ROUNDS {
            // The capacity exceeds the assumption.
            self.capacity *= DOUBT;
            self.empty_rounds = 0;
        }
        let max_step = if self.window < self.capacity / 2.0 { 0.25 } else { 0.0625 };
        let may_grow = !round.app_limited && ack.now_ns >= self.grow_from_ns;
        self.has_grown |= may_grow && self.empty_rounds > 3;
        if step < 0.0 || may_grow {
            self.window = (self.window * (1.0 + step.clamp(-0.25, max_step))).max(MIN_WINDOW);
        }
    }

    /// Restores the window: the loss was no congestion.
    fn undo_response(&mut self) {
        if let Some((_, _, before)) = self.suspected.take() {
            self.window = self.window.max(before);
            (self.grow_from_ns, self.wait_ns) = (0, MIN_WAIT_NS);
        }
    }

    /// Waits before it grows again, twice as long after each loss: another flow lost packets too.
    fn wait(&mut self, now_ns: u64) {
        if now_ns >= self.grow_from_ns + 2 * MAX_WAIT_NS {
            self.wait_ns = MIN_WAIT_NS;
        }
        self.grow_from_ns = now_ns + self.wait_ns;
        self.wait_ns = (2 * self.wait_ns).min(MAX_WAIT_NS);
    }
}

impl Controller for Modest {
    fn phase(&self) -> &'static str {
        if self.startup.is_some() {
            "startup"
        } else {
            "yield"
        }
    }

    fn on_ack(&mut self, ack: &AckEvent) {
        self.rtt_ns = ack.smoothed_rtt_ns.max(1000);
        if let Some(startup) = &mut self.startup {
            if let Some(capacity) = startup.on_ack(ack, &mut self.floor) {
                self.window = (capacity.bps * ack.min_rtt_ns as f64 / 8e9).max(MIN_WINDOW);
                self.capacity = self.window;
                self.startup = None;
                self.begin_recovery(ack);
            }
            return;
        }
        let ended = self.rounds.on_ack(ack);
        if self.spurious.is_proved(ack) {
            self.undo_response();
            self.reduced_from = None;
        }
        let judged = if self.floor.is_clean() { Some(*self.rounds.current()) } else { ended };
        let round = judged.filter(|_| self.reduced_from.is_none()).unwrap_or_default();
        let packets = round.acked + round.lost;
        let full =
            self.buffer.may_be_full_now(&round, ack.min_rtt_ns) || is_gross(&round, &self.floor);
        if round.lost > 0 && full && !self.floor.allows(packets, round.lost) {
            self.suspected = Some((round.lost, packets, self.window));
            self.spurious = SpuriousLoss::watch(ack, round.lost);
            self.wait(ack.now_ns);
            self.halve(ack);
        } else if ack.marked_packets > 0 && ack.largest_acknowledged >= Some(self.recovery_point) {
            self.halve(ack);
        }
        if let Some(round) = ended {
            self.end_of_round(ack, &round);
        }
    }

    fn on_timeout(&mut self, _now_ns: u64) {
        self.window = MIN_WINDOW;
    }

    fn on_path_change(&mut self, _now_ns: u64, rtt_ns: u64) {
        *self = Self::new(rtt_ns, self.cap_bps);
    }

    fn control(&self) -> Control {
        if let Some(startup) = &self.startup {
            return startup.control(self.rtt_ns);
        }
        let rate_bps = PACE * self.window * 8e9 / self.rtt_ns as f64;
        Control { rate_bps: rate_bps.min(self.cap_bps), window_bytes: self.window as u64 }
    }

    fn carried_bps(&self) -> f64 {
        match &self.startup {
            Some(startup) => startup.carried_bps(),
            None => (self.window * 8e9 / self.rtt_ns as f64).min(self.cap_bps),
        }
    }

    fn take_over(&mut self, path: &PathState) {
        self.rtt_ns = path.smoothed_rtt_ns.max(1000);
        self.window = path.bdp_bytes().max(MIN_WINDOW);
        self.capacity = self.window;
        self.startup = None;
        self.begin_recovery(&path.as_ack());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RTT_NS: u64 = 20_000_000;

    fn started(window: f64) -> Modest {
        let mut controller = Modest::new(RTT_NS, 1e9);
        (controller.startup, controller.window, controller.capacity) = (None, window, window);
        controller.rounds.restart(100);
        controller
    }

    fn round(number: u64, queue_ns: u64) -> AckEvent {
        AckEvent {
            now_ns: number * RTT_NS,
            rtt_ns: Some(RTT_NS + queue_ns),
            min_rtt_ns: RTT_NS,
            smoothed_rtt_ns: RTT_NS,
            acked_packets: 100,
            largest_acknowledged: Some(100 * number),
            next_packet_number: 100 * (number + 1),
            ..AckEvent::default()
        }
    }

    #[test]
    fn a_queue_of_two_rounds_halves_the_window_down_to_two_packets() {
        let mut controller = started(100.0 * PACKET);
        controller.on_ack(&round(1, RTT_NS));
        assert!(controller.window > 70.0 * PACKET, "one round decides nothing");
        let before = controller.window;
        controller.on_ack(&round(2, RTT_NS));
        assert_eq!(controller.window, before / 2.0);
        (3..60).for_each(|number| controller.on_ack(&round(number, RTT_NS)));
        assert_eq!(controller.window, MIN_WINDOW);
    }

    #[test]
    fn after_a_loss_it_waits_twice_as_long_each_time() {
        let mut controller = started(100.0 * PACKET);
        let waits = [0, 1, 2, 3, 4, 5].map(|number| {
            controller.wait(number);
            controller.grow_from_ns - number
        });
        assert_eq!(waits.map(|wait_ns| wait_ns / 1_000_000_000), [1, 2, 4, 8, 16, 30]);
    }

    #[test]
    fn a_mark_halves_once_a_round_trip() {
        let mut controller = started(100.0 * PACKET);
        let marked = AckEvent { marked_packets: 1, largest_acknowledged: Some(50), ..round(1, 0) };
        controller.on_ack(&marked);
        assert_eq!(controller.window, 50.0 * PACKET);
        controller.on_ack(&AckEvent { largest_acknowledged: Some(150), ..marked });
        assert_eq!(controller.window, 50.0 * PACKET, "packets sent before the response");
    }
}
