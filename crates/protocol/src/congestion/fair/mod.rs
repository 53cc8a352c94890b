//! `fair`: all of a path when alone, an even share beside other flows.
//!
//! Arrives: acknowledgements. Leaves: a window and a pace. Must not know: the other controllers.
//!
//! **Phase `delay`**: alone, or among flows of the same kind. Once a round trip the window follows the queue (after
//! FAST TCP: Wei, Jin, Low, Hegde, IEEE/ACM ToN 14(6), 2006):
//!
//! ```text
//! target = b + a / rate          a = 6 packets, b = RTT/32 + 0.3 ms, at most 5 ms
//! W     <- W (1 + (target - queue) / (2 RTT))        queue = shortest RTT of the round - shortest RTT of 30 s
//! ```
//!
//! All flows of a path see the same queue and converge to the same rate `a / (queue - b)`. While the queue stays
//! empty the step doubles each round trip, up to a factor of 1.25. Loss has no effect here unless it exceeds the
//! path's random floor.
//!
//! **Phase `tcp-friendly`**: beside a flow that fills the buffer, where a flow that follows the queue would starve.
//! The window is CUBIC's after a flow has probed its share ([`super::tcp_friendly`]); only loss above the floor is a
//! loss event. The phase begins with evidence of such a flow:
//!
//! - a queue above twice the target that did not shrink in six rounds in which this flow yielded,
//! - loss above the floor, or an ECN mark,
//! - a queue that oscillates by a fifth of the round trip while the window had to halve,
//! - a queue that a synchronised drain did not empty, while the window fell below 0.7 of its initial value.
//!
//! **Phase `cut-test`**: about every ten seconds, the window is cut to 0.8. If the delivery rate stays, this flow is
//! alone with its own queue and cuts on; after more than three cuts without effect it returns to `delay`. If the rate
//! falls, another flow took the capacity, and the window is restored. A buffer that overflowed at a queue below the
//! target is shallow; the target is then half of that queue.
//!
//! **Phase `hold`**: on a path that loses what exceeds its rate before a queue tells ([`hold`]).
//!
//! **Interruptions.** A path that stops for a moment, such as a radio that is reassigned or a virtual machine that
//! waits for its processor, overflows a buffer that is shorter than the moment. Then one long run of packets is lost,
//! whereas a buffer that others keep full takes a packet as soon as one has left it. Such a loss is no evidence, nor is
//! what arrived meanwhile: the flow measures anew.
//!
//! **Undoing a response.** After a congestion event the sender is slower by 0.7 and learns the path's loss at that
//! rate. If it explains the event, the previous window is restored; likewise, at once, where all lost packets arrive
//! after all.

mod capacity_fall;
mod excess;
mod fallen;
mod held;
mod hold;
mod marks;
mod phases;
mod response;
#[cfg(test)]
mod tests;

use super::controller::{AckEvent, Control, Controller, PathState, PACKET};
use super::delivery_rate::DeliveryRate;
use super::detectors::{LongestQueue, Oscillation, SpuriousLoss, StandingQueue};
use super::loss_floor::{is_gross, BufferEstimate, LossFloor};
use super::queue_drain::{DrainState, Findings, QueueDrain};
use super::rounds::{Round, RoundCounter};
use super::startup::Startup;
use super::tcp_friendly::TcpFriendly;

/// The bytes that a flow keeps queued.
const A: f64 = 6.0 * PACKET;
const MIN_WINDOW: f64 = 4.0 * PACKET;

/// Packets leave somewhat faster than window / RTT, so that the window decides (as Linux paces TCP).
const PACE: f64 = 1.2;

/// The part of the window before an outage with which a flow begins again, paced over a round trip (as the jump of
/// draft-ietf-tsvwg-careful-resume); slow start leads to the rest.
const RESUMED: f64 = 0.5;

/// Rounds within which the losses of a window that grew fast are known.
const FAST_ROUNDS: u32 = 3;

#[derive(Clone, Debug)]
enum Phase {
    Startup(Box<Startup>),
    Delay,
    TcpFriendly,
    CutTest(CutTest),
    Hold(held::Hold),
}

/// A test for other flows in progress.
#[derive(Clone, Copy, Debug)]
struct CutTest {
    /// The window and the delivery rate before it.
    window: f64,
    delivery_bps: f64,
    cuts: u32,
    /// Whether the round that still drains the queue of the previous window is over.
    settled: bool,
}

/// The state before a response to loss, to restore if the loss was spurious.
#[derive(Clone, Debug, Default)]
struct Undo {
    window: f64,
    tcp_friendly: TcpFriendly,
    was_tcp_friendly: bool,
    shallow_ns: f64,
}

/// The controller's state.
#[derive(Clone, Debug)]
pub struct Fair {
    train: bool,
    cap_bps: f64,
    phase: Phase,
    window: f64,
    rtt_ns: u64,
    min_rtt_ns: u64,
    rounds: RoundCounter,
    floor: LossFloor,
    buffer: BufferEstimate,
    longest_queue: LongestQueue,
    /// The longest queue of the startup, which exceeds what the path carries before it ends.
    startup_queue_ns: u64,
    delivery_rate: DeliveryRate,
    tcp_friendly: TcpFriendly,
    /// Losses of packets before this number belong to an event that has been answered.
    recovery_point: u64,
    /// The round that begins with this number is the first one after the window fell: a quiet one.
    reduced_from: Option<u64>,
    /// Events answered as congestion that may have been random loss: lost, of how many packets.
    suspected: Vec<(u64, u64)>,
    window_before_suspected: f64,
    spurious: SpuriousLoss,
    undo: Undo,
    /// When the last cut test found no other flow, and the window before it.
    alone_at_ns: u64,
    window_before_test: f64,
    queue_drain: QueueDrain,
    /// Whether the last drain found the path empty.
    path_was_empty: bool,
    /// Whether a drain has confirmed the minimum round trip.
    path_is_known: bool,
    /// Whether it found a queue of flows that do not drain.
    others_present: bool,
    /// Whether this flow has probed its share since a drain last found the path empty.
    share_probed: bool,
    standing: StandingQueue,
    oscillation: Oscillation,
    /// The window when the phase `delay` began.
    window_at_delay: f64,
    empty_rounds: u32,
    /// Rounds in which losses may still be those of a window that grew fast.
    fast_growth_rounds: u32,
    window_before_queue: f64,
    shallow_ns: f64,
    max_queue_ns: f64,
    max_rtt_ns: u64,
    /// The window before an outage, to which the flow returns: half of it at once, slow start for the rest.
    window_before_outage: f64,
    /// Until then losses without a queue are another flow's.
    competes_until_ns: u64,
    /// The length of that time.
    competes_ns: u64,
    /// Whether a test of the phase `hold` on an unknown path found the buffer full.
    was_full_in_test: bool,
    excess: excess::Excess,
    /// A fall of the capacity from which the flow has not yet returned.
    capacity_fall: Option<fallen::Fall>,
    /// Whether the path stopped in the last round.
    was_interrupted: bool,
    marks: marks::Marks,
    /// Whether the window has just returned from a drain, and its queue has not.
    refilling: bool,
}

impl Fair {
    /// The controller for a path of this round trip, never above `cap_bps`.
    #[must_use]
    pub fn new(rtt_ns: u64, cap_bps: f64) -> Self {
        Self::with_train(rtt_ns, cap_bps, false)
    }

    /// The same, whose startup measures the path with a packet train where `train`.
    pub(super) fn with_train(rtt_ns: u64, cap_bps: f64, train: bool) -> Self {
        Self {
            train,
            cap_bps,
            phase: Phase::Startup(Box::new(Startup::new(rtt_ns, cap_bps, train))),
            window: MIN_WINDOW,
            rtt_ns,
            min_rtt_ns: rtt_ns,
            rounds: RoundCounter::default(),
            floor: LossFloor::default(),
            buffer: BufferEstimate::default(),
            longest_queue: LongestQueue::default(),
            delivery_rate: DeliveryRate::default(),
            tcp_friendly: TcpFriendly::default(),
            recovery_point: 0,
            reduced_from: None,
            suspected: Vec::new(),
            window_before_suspected: 0.0,
            spurious: SpuriousLoss::default(),
            undo: Undo::default(),
            alone_at_ns: 0,
            window_before_test: 0.0,
            queue_drain: QueueDrain::default(),
            path_was_empty: false,
            path_is_known: false,
            startup_queue_ns: u64::MAX,
            others_present: false,
            share_probed: false,
            standing: StandingQueue::default(),
            oscillation: Oscillation::default(),
            window_at_delay: 0.0,
            empty_rounds: 0,
            fast_growth_rounds: 0,
            window_before_queue: 0.0,
            shallow_ns: f64::INFINITY,
            max_queue_ns: 0.0,
            max_rtt_ns: 0,
            window_before_outage: 0.0,
            competes_until_ns: 0,
            competes_ns: 0,
            was_full_in_test: false,
            excess: excess::Excess::default(),
            capacity_fall: None,
            was_interrupted: false,
            marks: marks::Marks::default(),
            refilling: false,
        }
    }

    /// Whether the losses of the current round, or of the one that has ended, are evidence of congestion.
    fn is_congested(&self, ack: &AckEvent, ended: Option<&Round>) -> bool {
        if matches!(self.phase, Phase::CutTest(_)) {
            return false;
        }
        // Until a quiet round has shown the effect of the last response, there is no second one.
        if self.reduced_from.is_some() {
            return false;
        }
        if ack.marked_packets > 0 {
            // Packets that return after a drain arrive in a burst.
            return !self.refilling;
        }
        // With random loss only complete rounds are judged: more samples would only find more accidents.
        let judged = match ended {
            None if self.floor.is_clean() => Some(self.rounds.current()),
            ended => ended,
        };
        judged.is_some_and(|round| {
            let full = self.buffer.may_be_full_now(round, ack.min_rtt_ns);
            round.lost > 0
                && !round.loses_runs()
                && !self.floor.allows(round.acked + round.lost, round.lost)
                && (full || is_gross(round, &self.floor))
        })
    }

    /// The path stopped for a moment, in which a buffer overflows that is shorter than the moment. That says nothing of
    /// what the path carries: a new round begins.
    fn on_interruption(&mut self, ack: &AckEvent, round: &Round) {
        self.was_interrupted = true;
        self.delivery_rate = DeliveryRate::default();
        self.rounds.begin_recovery(ack.next_packet_number);
        if let Phase::Hold(hold) = &mut self.phase {
            hold.measure_again();
        } else if round.lost < round.acked {
            self.floor.quiet(round);
        }
    }

    fn on_drained(&mut self, ack: &AckEvent, findings: Findings) {
        let Findings { shorter, empty, others, all_drain } = findings;
        self.rounds.restart(ack.next_packet_number);
        self.path_was_empty = empty;
        self.path_is_known = !shorter;
        // A flow that competes and sees no queue at all has less than its share.
        let competes = matches!(self.phase, Phase::TcpFriendly);
        self.others_present = if competes { !empty && !shorter } else { others };
        if empty {
            // The window returns at once.
            self.refilling = true;
            self.fast_growth_rounds = FAST_ROUNDS;
        }
        if matches!(self.phase, Phase::TcpFriendly) {
            self.floor.doubt();
            self.probe_share();
            self.resume_delay(ack, all_drain);
        } else {
            self.share_probed &= !empty;
        }
        if let Phase::Hold(hold) = &mut self.phase {
            hold.watch_again();
            let hold = *hold;
            if shorter {
                self.leave_hold(hold);
            }
        }
        if shorter {
            // Earlier losses happened in a queue that was taken for the path.
            self.floor = LossFloor::default();
            self.standing.settle();
            self.oscillation = Oscillation::default();
        }
    }
}

impl Controller for Fair {
    fn phase(&self) -> &'static str {
        match self.phase {
            Phase::Startup(_) => "startup",
            Phase::Delay => "delay",
            Phase::TcpFriendly => "tcp-friendly",
            Phase::CutTest(_) => "cut-test",
            Phase::Hold(_) => "hold",
        }
    }

    fn on_ack(&mut self, ack: &AckEvent) {
        self.rtt_ns = ack.smoothed_rtt_ns.max(1000);
        self.min_rtt_ns = ack.min_rtt_ns;
        if let Phase::Startup(startup) = &mut self.phase {
            self.buffer.on_startup(ack);
            if let Some(capacity) = startup.on_ack(ack, &mut self.floor) {
                let bdp = capacity.bps * ack.min_rtt_ns as f64 / 8e9;
                self.startup_queue_ns = startup.longest_queue_ns();
                self.window = (bdp + A).max(MIN_WINDOW);
                self.enter_delay();
                self.begin_recovery(ack);
            }
            return;
        }
        if ack.longer_ns > 0 {
            self.on_longer_path(ack);
        }
        self.delivery_rate.on_ack(ack, 4 * self.rtt_ns);
        let mut ended = self.rounds.on_ack(ack);
        let latest = ended.unwrap_or(*self.rounds.current());
        if !self.was_interrupted && latest.is_interrupted() {
            ended = None;
            self.on_interruption(ack, &latest);
        }
        self.was_interrupted &= ended.is_none();
        if self.spurious.is_proved(ack) {
            self.undo_response();
        }
        if self.is_congested(ack, ended.as_ref()) {
            let round = ended.unwrap_or(*self.rounds.current());
            self.on_congestion(ack, &round);
            self.window_before_outage = 0.0;
        } else if self.window < self.window_before_outage {
            let resumed = self.window.max(RESUMED * self.window_before_outage);
            self.window = resumed + ack.acked_bytes as f64;
            if self.window >= self.window_before_outage {
                // Reached: from now on the window may fall below it again.
                self.window = std::mem::take(&mut self.window_before_outage);
            }
        } else if matches!(self.phase, Phase::TcpFriendly) && !ack.app_limited {
            self.window = self.tcp_friendly.on_ack(ack, self.window, self.rtt_ns);
        }
        let drain = match self.phase {
            Phase::Delay | Phase::TcpFriendly | Phase::Hold(_) => self.queue_drain.on_ack(ack),
            _ => DrainState::Idle,
        };
        match (drain, ended) {
            (DrainState::Idle, Some(round)) => self.on_round(ack, &round),
            (DrainState::Complete(findings), _) => self.on_drained(ack, findings),
            _ => {}
        }
    }

    fn on_timeout(&mut self, _now_ns: u64) {
        self.window_before_outage = self.window_before_outage.max(self.window);
        self.window = (self.window / 2.0).max(MIN_WINDOW);
    }

    fn on_path_change(&mut self, _now_ns: u64, rtt_ns: u64) {
        *self = Self::with_train(rtt_ns, self.cap_bps, self.train);
    }

    fn control(&self) -> Control {
        if let Phase::Startup(startup) = &self.phase {
            return startup.control(self.rtt_ns);
        }
        if let Phase::Hold(hold) = &self.phase {
            let part = self.queue_drain.part();
            let window_bytes = (part * self.held_window(hold)).max(MIN_WINDOW) as u64;
            return Control {
                rate_bps: (part * hold.gain * hold.bps).min(self.cap_bps),
                window_bytes,
            };
        }
        let rate_bps = PACE * self.window * 8e9 / self.rtt_ns as f64;
        let window = (self.queue_drain.part() * self.window).max(MIN_WINDOW);
        Control { rate_bps: rate_bps.min(self.cap_bps), window_bytes: window as u64 }
    }

    fn carried_bps(&self) -> f64 {
        match &self.phase {
            Phase::Startup(startup) => startup.carried_bps(),
            Phase::Hold(hold) => hold.bps.min(self.cap_bps),
            _ => (self.window * 8e9 / self.rtt_ns as f64).min(self.cap_bps),
        }
    }

    fn take_over(&mut self, path: &PathState) {
        self.rtt_ns = path.smoothed_rtt_ns.max(1000);
        self.min_rtt_ns = path.min_rtt_ns;
        self.window = (path.bdp_bytes() + A).max(MIN_WINDOW);
        self.enter_delay();
        self.begin_recovery(&path.as_ack());
    }
}
