//! `aggressive`: as fast as the path and the server's grant allow, whoever else is there.
//!
//! Arrives: acks. Leaves: a rate. Must not know: the other modes.
//!
//! ```text
//! rate   = gain x max over 10 rounds of (arrival rate / (1 - min(loss, 0.3)))
//! gain   = 1.25 every eighth round, else 1.0; 0.75 while the queue is above one base round trip
//! window = 2 base RTT x rate (and what acknowledgements delay)
//! ```
//!
//! Loss is never a reason to send more slowly than what arrives suggests: it is made up for, up to 30 %. What arrives is the only
//! judge, as in BBR's first version; the one thing it refrains from is a queue longer than the path itself. A server
//! grants this mode by name, because it takes from TCP whatever it wants.

use std::collections::VecDeque;

use super::evidence::{ArrivalRate, LossFloor, Rounds};
use super::startup::Startup;
use super::{AckEvent, Control, Controller, Mode, PACKET};

const PROBE_EVERY: u64 = 8;
const PROBE: f64 = 1.25;
const MOST_LOSS: f64 = 0.3;
const MEMORY_ROUNDS: usize = 10;

/// The mode's state.
#[derive(Clone, Debug)]
pub struct Aggressive {
    cap_bps: f64,
    startup: Option<Box<Startup>>,
    floor: LossFloor,
    arrivals: ArrivalRate,
    rounds: Rounds,
    round: u64,
    best_bps: VecDeque<f64>,
    gain: f64,
    rtt_ns: u64,
    base_rtt_ns: u64,
}

impl Aggressive {
    /// Starts quickly.
    #[must_use]
    pub fn new(rtt_ns: u64, cap_bps: f64) -> Self {
        Self {
            cap_bps,
            startup: Some(Box::new(Startup::new(rtt_ns, cap_bps, true))),
            floor: LossFloor::default(),
            arrivals: ArrivalRate::default(),
            rounds: Rounds::default(),
            round: 0,
            best_bps: VecDeque::new(),
            gain: 1.0,
            rtt_ns,
            base_rtt_ns: rtt_ns,
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
    fn name(&self) -> Mode {
        Mode::Aggressive
    }

    fn phase(&self) -> &'static str {
        if self.startup.is_some() {
            "startup"
        } else {
            "take"
        }
    }

    fn on_ack(&mut self, ack: &AckEvent) {
        self.rtt_ns = ack.smoothed_rtt_ns.max(1000);
        self.base_rtt_ns = ack.base_rtt_ns;
        if let Some(startup) = &mut self.startup {
            if let Some(capacity) = startup.on_ack(ack, &mut self.floor) {
                self.startup = None;
                self.remember(capacity.bps);
                self.rounds.restart(ack.next_number);
            }
            return;
        }
        self.arrivals.on_ack(ack, 2 * self.rtt_ns);
        let Some(round) = self.rounds.on_ack(ack) else { return };
        self.round += 1;
        let packets = (round.arrived + round.lost).max(1) as f64;
        let loss = (round.lost as f64 / packets).min(MOST_LOSS);
        if let Some(arrival_bps) = self.arrivals.bps(self.rtt_ns).filter(|_| !round.limited) {
            self.remember(arrival_bps / (1.0 - loss));
        }
        let queue_ns = round.queue_ns(ack.base_rtt_ns).unwrap_or(0.0);
        self.gain = match () {
            () if queue_ns > ack.base_rtt_ns as f64 => 0.75,
            () if self.round.is_multiple_of(PROBE_EVERY) => PROBE,
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
        let window = 2.0 * self.base_rtt_ns as f64 * best_bps / 8e9 + 64.0 * PACKET;
        Control { rate_bps, window_bytes: window as u64 }
    }
}
