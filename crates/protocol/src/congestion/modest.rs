//! `modest`: takes what others leave, and gives it back within a round trip.
//!
//! Arrives: acks. Leaves: a window and a pace. Must not know: the other modes.
//!
//! The window follows the queue as in `fair`, towards a target that is a quarter of its: `a = 5 packets, b = RTT/128 within 0.1 .. 1.5 ms`. A queue
//! above twice the target for two rounds, loss above the random floor, or a mark halves it, once a round trip, down to two packets; after a
//! loss it does not grow for 1 s, then 2 s, up to 30 s. There is no phase in which it competes. That it yields to any flow that keeps a queue is the aim of LEDBAT (RFC 6817), without
//! its target of 100 ms; that it does not oscillate comes from following the round's least queue, not each packet's.

use super::evidence::{is_gross, Answered, Buffer, LossFloor, Round, Rounds};
use super::startup::Startup;
use super::{AckEvent, Control, Controller, Mode, PACKET};

const A: f64 = 5.0 * PACKET;
const GAIN: f64 = 0.25;
const LEAST_WINDOW: f64 = 2.0 * PACKET;
const PACE: f64 = 1.1;

/// Up to this part of what the path is taken to hold it grows faster and faster; what is sent too much shows two rounds later.
const NEAR: f64 = 0.85;

/// After so many rounds without a queue there, the path is taken to be larger by a quarter.
const PATIENT_ROUNDS: u32 = 16;
const DOUBT: f64 = 1.25;

/// How long it does not grow after a loss: at first, and at most.
const LEAST_WAIT_NS: u64 = 1_000_000_000;
const MOST_WAIT_NS: u64 = 30_000_000_000;

/// The mode's state.
#[derive(Clone, Debug)]
pub struct Modest {
    cap_bps: f64,
    startup: Option<Box<Startup>>,
    window: f64,
    /// The window that the path is taken to hold.
    known: f64,
    /// It has found the path empty and grown since it was last halved.
    has_grown: bool,
    rtt_ns: u64,
    rounds: Rounds,
    floor: LossFloor,
    buffer: Buffer,
    answered_to: u64,
    quiet_from: Option<u64>,
    empty_rounds: u32,
    queued_rounds: u32,
    grow_from_ns: u64,
    wait_ns: u64,
    /// The loss that halved the window last, and the window before it.
    suspicion: Option<(u64, u64, f64)>,
    answered: Answered,
}

impl Modest {
    /// Begins as `fair` does: below the path's capacity there is nobody to yield to.
    #[must_use]
    pub fn new(rtt_ns: u64, cap_bps: f64) -> Self {
        Self {
            cap_bps,
            startup: Some(Box::new(Startup::new(rtt_ns, cap_bps, false))),
            window: LEAST_WINDOW,
            known: LEAST_WINDOW,
            has_grown: true,
            rtt_ns,
            rounds: Rounds::default(),
            floor: LossFloor::default(),
            buffer: Buffer::default(),
            answered_to: 0,
            quiet_from: None,
            empty_rounds: 0,
            queued_rounds: 0,
            grow_from_ns: 0,
            wait_ns: LEAST_WAIT_NS,
            suspicion: None,
            answered: Answered::default(),
        }
    }

    fn halve(&mut self, ack: &AckEvent) {
        // A queue that stays, time after time, says nothing of the path: it is others that fill it.
        if std::mem::take(&mut self.has_grown) {
            self.known = self.window.max(self.known / DOUBT);
        }
        self.window = (self.window / 2.0).max(LEAST_WINDOW);
        (self.empty_rounds, self.queued_rounds) = (0, 0);
        self.be_quiet(ack);
    }

    fn be_quiet(&mut self, ack: &AckEvent) {
        self.answered_to = ack.next_number;
        self.quiet_from = Some(ack.next_number);
        self.rounds.answered(ack.next_number);
    }

    fn end_of_round(&mut self, ack: &AckEvent, round: &Round) {
        if self.floor.on_round(&mut self.buffer, &mut self.quiet_from, round, ack.base_rtt_ns) {
            let innocent = |(lost, packets, _)| self.floor.allows(packets, lost);
            if self.suspicion.is_some_and(innocent) {
                self.take_back();
            }
            self.suspicion = None;
        }
        let Some(queue_ns) = round.queue_ns(ack.base_rtt_ns) else { return };
        let b_ns = (ack.base_rtt_ns as f64 / 128.0).clamp(100_000.0, 1_500_000.0);
        let target_ns = b_ns + A * self.rtt_ns as f64 / self.window;
        // A quarter of the round trip bounds what few packets may take to queue.
        let target_ns = target_ns.min(ack.base_rtt_ns as f64 / 16.0).max(100_000.0);
        self.queued_rounds = if queue_ns > 2.0 * target_ns { self.queued_rounds + 1 } else { 0 };
        if self.queued_rounds >= 2 {
            return self.halve(ack);
        }
        self.empty_rounds = if queue_ns < target_ns / 4.0 { self.empty_rounds + 1 } else { 0 };
        let mut step = GAIN * (target_ns - queue_ns) / self.rtt_ns as f64;
        if self.window < NEAR * self.known {
            if self.empty_rounds > 3 {
                step *= f64::from(1_u32 << (self.empty_rounds - 3).min(10));
            }
        } else if self.empty_rounds > PATIENT_ROUNDS {
            // There is more room than it was thought.
            self.known *= DOUBT;
            self.empty_rounds = 0;
        }
        let most = if self.window < self.known / 2.0 { 0.25 } else { 0.0625 };
        let may_grow = !round.limited && ack.now_ns >= self.grow_from_ns;
        self.has_grown |= may_grow && self.empty_rounds > 3;
        if step < 0.0 || may_grow {
            self.window = (self.window * (1.0 + step.clamp(-0.25, most))).max(LEAST_WINDOW);
        }
    }

    /// What was answered was no congestion.
    fn take_back(&mut self) {
        if let Some((_, _, before)) = self.suspicion.take() {
            self.window = self.window.max(before);
            (self.grow_from_ns, self.wait_ns) = (0, LEAST_WAIT_NS);
        }
    }

    /// After a loss it waits before it grows again, twice as long each time: the loss was another flow's too.
    fn wait(&mut self, now_ns: u64) {
        if now_ns >= self.grow_from_ns + 2 * MOST_WAIT_NS {
            self.wait_ns = LEAST_WAIT_NS;
        }
        self.grow_from_ns = now_ns + self.wait_ns;
        self.wait_ns = (2 * self.wait_ns).min(MOST_WAIT_NS);
    }
}

impl Controller for Modest {
    fn name(&self) -> Mode {
        Mode::Modest
    }

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
                self.window = (capacity.bps * ack.base_rtt_ns as f64 / 8e9).max(LEAST_WINDOW);
                self.known = self.window;
                self.startup = None;
                self.be_quiet(ack);
            }
            return;
        }
        let ended = self.rounds.on_ack(ack);
        if self.answered.is_void(ack) {
            self.take_back();
            self.quiet_from = None;
        }
        let judged = if self.floor.is_clean() { Some(*self.rounds.current()) } else { ended };
        let round = judged.filter(|_| self.quiet_from.is_none()).unwrap_or_default();
        let packets = round.arrived + round.lost;
        let full =
            self.buffer.may_be_full_now(&round, ack.base_rtt_ns) || is_gross(&round, &self.floor);
        if round.lost > 0 && full && !self.floor.allows(packets, round.lost) {
            self.suspicion = Some((round.lost, packets, self.window));
            self.answered = Answered::now(ack, round.lost);
            self.wait(ack.now_ns);
            self.halve(ack);
        } else if ack.marked_packets > 0 && ack.newest_spoken_of > self.answered_to {
            self.halve(ack);
        }
        if let Some(round) = ended {
            self.end_of_round(ack, &round);
        }
    }

    fn on_timeout(&mut self, _now_ns: u64) {
        self.window = LEAST_WINDOW;
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
}
