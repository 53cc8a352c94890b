//! `aggressive`: as fast as the path and the server's grant allow, regardless of other traffic.
//!
//! Arrives: acknowledgements. Leaves: a rate. Must not know: the other controllers.
//!
//! ```text
//! rate   = gain x max over 10 rounds of (delivery rate / (1 - min(loss, 0.3)))
//! gain   = 1.25 every eighth round, else 1.0; 0.75 while the queue is above one minimum round trip
//! window = 2 min RTT x rate (and the delay of acknowledgements)
//! ```
//!
//! The delivery rate alone decides, as in the first version of BBR. Loss up to 30 % is compensated and never slows
//! the sender down. The one limit is a queue longer than the path itself. A server grants this mode by name, because
//! it takes from TCP what it wants.

use std::collections::VecDeque;

use super::controller::{AckEvent, Control, Controller, PathState, PACKET};
use super::delivery_rate::DeliveryRate;
use super::loss_floor::LossFloor;
use super::rounds::RoundCounter;
use super::startup::Startup;

const GAIN_INTERVAL_ROUNDS: u64 = 8;
const GAIN: f64 = 1.25;
const MAX_LOSS: f64 = 0.3;
const MEMORY_ROUNDS: usize = 10;

/// The controller's state.
#[derive(Clone, Debug)]
pub struct Aggressive {
    cap_bps: f64,
    startup: Option<Box<Startup>>,
    floor: LossFloor,
    delivery_rate: DeliveryRate,
    rounds: RoundCounter,
    round: u64,
    best_bps: VecDeque<f64>,
    gain: f64,
    rtt_ns: u64,
    min_rtt_ns: u64,
}

impl Aggressive {
    /// The controller for a path of this round trip, never above `cap_bps`. It starts with a packet train.
    #[must_use]
    pub fn new(rtt_ns: u64, cap_bps: f64) -> Self {
        Self {
            cap_bps,
            startup: Some(Box::new(Startup::new(rtt_ns, cap_bps, true))),
            floor: LossFloor::default(),
            delivery_rate: DeliveryRate::default(),
            rounds: RoundCounter::default(),
            round: 0,
            best_bps: VecDeque::new(),
            gain: 1.0,
            rtt_ns,
            min_rtt_ns: rtt_ns,
        }
    }

    fn remember(&mut self, bps: f64) {
        self.best_bps.push_back(bps.min(self.cap_bps));
        if self.best_bps.len() > MEMORY_ROUNDS {
            self.best_bps.pop_front();
        }
    }
}

impl Controller for Aggressive {
    fn phase(&self) -> &'static str {
        if self.startup.is_some() {
            "startup"
        } else {
            "take"
        }
    }

    fn on_ack(&mut self, ack: &AckEvent) {
        self.rtt_ns = ack.smoothed_rtt_ns.max(1000);
        self.min_rtt_ns = ack.min_rtt_ns;
        if let Some(startup) = &mut self.startup {
            if let Some(capacity) = startup.on_ack(ack, &mut self.floor) {
                self.startup = None;
                self.remember(capacity.bps);
                self.rounds.restart(ack.next_packet_number);
            }
            return;
        }
        self.delivery_rate.on_ack(ack, 2 * self.rtt_ns);
        let Some(round) = self.rounds.on_ack(ack) else { return };
        self.round += 1;
        let packets = (round.acked + round.lost).max(1) as f64;
        let loss = (round.lost as f64 / packets).min(MAX_LOSS);
        if let Some(delivery_bps) =
            self.delivery_rate.bps(self.rtt_ns).filter(|_| !round.app_limited)
        {
            self.remember(delivery_bps / (1.0 - loss));
        }
        let queue_ns = round.queue_ns(ack.min_rtt_ns).unwrap_or(0.0);
        self.gain = match () {
            () if queue_ns > ack.min_rtt_ns as f64 => 0.75,
            () if self.round.is_multiple_of(GAIN_INTERVAL_ROUNDS) => GAIN,
            () => 1.0,
        };
    }

    fn on_timeout(&mut self, _now_ns: u64) {
        for bps in &mut self.best_bps {
            *bps /= 2.0;
        }
    }

    fn on_path_change(&mut self, _now_ns: u64, rtt_ns: u64) {
        *self = Self::new(rtt_ns, self.cap_bps);
    }

    fn control(&self) -> Control {
        if let Some(startup) = &self.startup {
            return startup.control(self.rtt_ns);
        }
        let best_bps = self.best_bps.iter().copied().fold(64_000.0, f64::max);
        let rate_bps = (self.gain * best_bps).min(self.cap_bps);
        let window = 2.0 * self.min_rtt_ns as f64 * best_bps / 8e9 + 64.0 * PACKET;
        Control { rate_bps, window_bytes: window as u64 }
    }

    fn carried_bps(&self) -> f64 {
        match &self.startup {
            Some(startup) => startup.carried_bps(),
            None => self.best_bps.iter().copied().fold(64_000.0, f64::max).min(self.cap_bps),
        }
    }

    fn take_over(&mut self, path: &PathState) {
        self.rtt_ns = path.smoothed_rtt_ns.max(1000);
        self.min_rtt_ns = path.min_rtt_ns;
        self.startup = None;
        self.remember(path.carried_bps);
        self.rounds.restart(path.next_packet_number);
    }
}

#[cfg(test)]
mod tests {
    use super::super::controller::Delivery;
    use super::*;

    const RTT_NS: u64 = 10_000_000;

    /// One round trip in which the path delivers at this rate.
    fn round(number: u64, delivery_bps: f64, lost_packets: u64, rtt_ns: u64) -> AckEvent {
        let bytes = (delivery_bps / 8e9 * RTT_NS as f64) as u64;
        let delivery = Some(Delivery { bytes, interval_ns: RTT_NS, ..Delivery::default() });
        AckEvent {
            now_ns: number * RTT_NS,
            rtt_ns: Some(rtt_ns),
            min_rtt_ns: RTT_NS,
            smoothed_rtt_ns: RTT_NS,
            acked_packets: 90,
            lost_packets,
            largest_lost: (lost_packets > 0).then_some(100 * number),
            largest_acknowledged: Some(100 * number),
            next_packet_number: 100 * (number + 1),
            delivery,
            ..AckEvent::default()
        }
    }

    /// Past the startup, on a path that delivers 100 Mbit/s.
    fn started() -> (Aggressive, u64) {
        let mut controller = Aggressive::new(RTT_NS, 1e9);
        controller.startup = None;
        controller.rounds.restart(100);
        let mut number = 1;
        while controller.round < 4 {
            controller.on_ack(&round(number, 1e8, 0, RTT_NS));
            number += 1;
        }
        (controller, number)
    }

    #[test]
    fn loss_is_compensated_and_slows_nothing_down() {
        let (mut controller, number) = started();
        assert!((controller.control().rate_bps / 1e8 - 1.0).abs() < 0.01);
        controller.on_ack(&round(number, 1e8, 10, RTT_NS));
        assert!((controller.control().rate_bps / 1e8 - 1.0 / 0.9).abs() < 0.01);
    }

    #[test]
    fn a_queue_longer_than_the_path_lowers_the_rate() {
        let (mut controller, number) = started();
        controller.on_ack(&round(number, 1e8, 0, 3 * RTT_NS));
        assert!((controller.control().rate_bps / 1e8 - 0.75).abs() < 0.01);
    }
}
