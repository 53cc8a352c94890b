//! Flows that behave as TCP does: CUBIC, and BBR's first version.
//!
//! Arrives: acknowledgements. Leaves: segments. Must not know: the path, other flows.
//!
//! Each transmission has a number and is acknowledged by it, so losses are detected as with selective acknowledgements:
//! three later transmissions arrived. A flow has bytes to send until it ends. Losses of a real TCP that small
//! socket buffers or interrupts cause do not occur here.

use std::collections::VecDeque;

use waystage_protocol::congestion::controller::PACKET;
use waystage_protocol::congestion::cubic::Cubic;

use crate::simulation::{Body, End, Flow, Packet};

/// Bytes of a segment with its headers, and of its payload (with time stamps).
const SEGMENT: usize = 1500;
const PAYLOAD: u64 = 1448;
const ACK: usize = 52;

/// Later transmissions acknowledged before one counts as lost.
const REORDERING: u64 = 3;

/// The congestion control of a TCP, in packets.
#[derive(Clone, Debug)]
pub enum Control {
    /// RFC 9438, with HyStart's delay criterion (RFC 9406) at the end of slow start.
    Cubic(CubicControl),
    /// draft-cardwell-iccrg-bbr-congestion-control-00.
    Bbr(BbrControl),
}

/// CUBIC's state.
#[derive(Clone, Debug)]
pub struct CubicControl {
    window: f64,
    threshold: f64,
    cubic: Cubic,
}

/// BBR's state.
#[derive(Clone, Debug)]
pub struct BbrControl {
    rates: VecDeque<(u64, f64)>,
    full: (f64, u32),
    phase: BbrPhase,
    phase_ns: u64,
    bbr_min_rtt_ns: u64,
    min_at_ns: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum BbrPhase {
    Startup,
    Drain,
    Probe(usize),
    ProbeRtt,
}

impl Control {
    /// CUBIC at the start of a flow.
    #[must_use]
    pub fn cubic() -> Self {
        let cubic = Cubic::default();
        Self::Cubic(CubicControl { window: 10.0, threshold: f64::INFINITY, cubic })
    }

    /// BBR at the start of a flow.
    #[must_use]
    pub fn bbr() -> Self {
        Self::Bbr(BbrControl {
            rates: VecDeque::new(),
            full: (0.0, 0),
            phase: BbrPhase::Startup,
            phase_ns: 0,
            bbr_min_rtt_ns: u64::MAX,
            min_at_ns: 0,
        })
    }
}

#[derive(Clone, Copy, Debug)]
struct Transmission {
    sent_ns: u64,
    /// Packets delivered when it was sent, and when the last of them was, for BBR's rate samples.
    delivered: u64,
    delivered_ns: u64,
    resolved: bool,
}

/// A TCP-like flow.
#[derive(Clone, Debug)]
pub struct Tcp {
    control: Control,
    transmissions: VecDeque<Transmission>,
    first: u64,
    in_flight: u64,
    delivered: u64,
    delivered_ns: u64,
    largest_acked: Option<u64>,
    recovery_point: u64,
    round_end: u64,
    rounds: u64,
    round_rtt_ns: u64,
    min_rtt_ns: u64,
    smoothed_ns: u64,
    acked_ns: u64,
    next_send_ns: u64,
    /// Segments to acknowledge, and whether each had a mark.
    acks: Vec<(u64, bool)>,
    received: u64,
    ends_ns: u64,
    heeds_marks: bool,
}

impl Tcp {
    /// A flow that begins now and ends at `ends_ns`.
    #[must_use]
    pub fn new(now_ns: u64, ends_ns: u64, control: Control) -> Self {
        Self {
            control,
            ends_ns,
            transmissions: VecDeque::new(),
            first: 0,
            in_flight: 0,
            delivered: 0,
            delivered_ns: now_ns,
            largest_acked: None,
            recovery_point: 0,
            round_end: 0,
            rounds: 0,
            round_rtt_ns: u64::MAX,
            min_rtt_ns: u64::MAX,
            smoothed_ns: 0,
            acked_ns: now_ns,
            next_send_ns: now_ns,
            acks: Vec::new(),
            received: 0,
            heeds_marks: false,
        }
    }

    /// The same flow with ECN (RFC 3168): a mark counts as a loss does, as in Linux.
    #[must_use]
    pub fn heeding_marks(mut self) -> Self {
        self.heeds_marks = true;
        self
    }

    fn next_number(&self) -> u64 {
        self.first + self.transmissions.len() as u64
    }

    fn on_ack(&mut self, now_ns: u64, number: u64, marked: bool) {
        let Some(index) = number.checked_sub(self.first) else { return };
        let Some(transmission) = self.transmissions.get_mut(index as usize) else { return };
        if std::mem::replace(&mut transmission.resolved, true) {
            return;
        }
        let transmission = *transmission;
        self.acked_ns = now_ns;
        self.in_flight -= 1;
        self.delivered += 1;
        self.delivered_ns = now_ns;
        self.largest_acked = Some(self.largest_acked.unwrap_or(0).max(number));
        let rtt_ns = now_ns - transmission.sent_ns;
        self.min_rtt_ns = self.min_rtt_ns.min(rtt_ns);
        self.smoothed_ns =
            if self.smoothed_ns == 0 { rtt_ns } else { (7 * self.smoothed_ns + rtt_ns) / 8 };
        self.round_rtt_ns = self.round_rtt_ns.min(rtt_ns);
        let lost = self.detect_losses();
        let round_rtt_ns = (number >= self.round_end).then_some(self.round_rtt_ns);
        if round_rtt_ns.is_some() {
            self.round_end = self.next_number();
            self.rounds += 1;
            self.round_rtt_ns = u64::MAX;
        }
        let congested = lost.is_some_and(|newest| newest >= self.recovery_point)
            || (marked && self.heeds_marks && number >= self.recovery_point);
        if congested {
            self.recovery_point = self.next_number();
        }
        let recovering = number < self.recovery_point;
        let min_rtt_ns = self.min_rtt_ns;
        match &mut self.control {
            Control::Cubic(control) => {
                control.on_ack(
                    now_ns,
                    self.smoothed_ns,
                    congested,
                    recovering,
                    round_rtt_ns,
                    min_rtt_ns,
                );
            }
            Control::Bbr(control) => {
                let packets = (self.delivered - transmission.delivered) as f64;
                let span_ns = (now_ns - transmission.delivered_ns).max(1) as f64;
                let rate = packets * 1e9 / span_ns;
                control.on_ack(
                    now_ns,
                    rate,
                    rtt_ns,
                    self.rounds,
                    round_rtt_ns.is_some(),
                    self.in_flight,
                );
            }
        }
    }

    fn detect_losses(&mut self) -> Option<u64> {
        let newest = self.largest_acked?;
        let mut lost = None;
        while let Some(front) = self.transmissions.front() {
            if !front.resolved {
                if self.first + REORDERING > newest {
                    break;
                }
                self.in_flight -= 1;
                lost = Some(self.first);
            }
            self.transmissions.pop_front();
            self.first += 1;
        }
        lost
    }

    fn window(&self) -> f64 {
        match &self.control {
            Control::Cubic(control) => control.window,
            Control::Bbr(control) => control.window(self.rounds),
        }
    }

    fn timeout_ns(&self) -> u64 {
        // Before the first measurement, a second (RFC 6298).
        let least_ns = if self.smoothed_ns == 0 { 1_000_000_000 } else { 200_000_000 };
        self.acked_ns + (3 * self.smoothed_ns).max(least_ns)
    }

    fn on_timeout(&mut self, now_ns: u64) {
        self.first = self.next_number();
        self.transmissions.clear();
        self.in_flight = 0;
        self.acked_ns = now_ns;
        self.recovery_point = self.first;
        if let Control::Cubic(control) = &mut self.control {
            control.threshold = (control.window / 2.0).max(2.0);
            control.window = 1.0;
            control.cubic = Cubic::default();
        }
    }
}

impl CubicControl {
    fn on_ack(
        &mut self,
        now_ns: u64,
        rtt_ns: u64,
        congested: bool,
        recovering: bool,
        round_rtt_ns: Option<u64>,
        min_rtt_ns: u64,
    ) {
        if congested {
            self.window = (self.cubic.on_congestion(self.window * PACKET, false) / PACKET).max(2.0);
            self.threshold = self.window;
        } else if recovering {
        } else if self.window < self.threshold {
            self.window += 1.0;
            let limit_ns = min_rtt_ns + (min_rtt_ns / 8).clamp(4_000_000, 16_000_000);
            if round_rtt_ns.is_some_and(|rtt_ns| rtt_ns > limit_ns) {
                self.threshold = self.window;
            }
        } else {
            let bytes = self.window * PACKET;
            self.window = self.cubic.on_ack(now_ns, bytes, PACKET as u64, rtt_ns) / PACKET;
        }
    }
}

const BBR_STARTUP: f64 = 2.885;
const BBR_GAINS: [f64; 8] = [1.25, 0.75, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0];
const BBR_RATE_ROUNDS: u64 = 10;
const BBR_MIN_RTT_NS: u64 = 10_000_000_000;
const BBR_PROBE_RTT_NS: u64 = 200_000_000;

impl BbrControl {
    fn on_ack(
        &mut self,
        now_ns: u64,
        rate: f64,
        rtt_ns: u64,
        round: u64,
        round_ended: bool,
        in_flight: u64,
    ) {
        while self.rates.back().is_some_and(|&(_, older)| older <= rate) {
            self.rates.pop_back();
        }
        self.rates.push_back((round, rate));
        while self.rates.front().is_some_and(|&(at, _)| at + BBR_RATE_ROUNDS < round) {
            self.rates.pop_front();
        }
        if rtt_ns <= self.bbr_min_rtt_ns {
            (self.bbr_min_rtt_ns, self.min_at_ns) = (rtt_ns, now_ns);
        }
        let bdp = self.rate() * self.bbr_min_rtt_ns as f64 / 1e9;
        match self.phase {
            BbrPhase::Startup if round_ended => {
                if self.rate() > 1.25 * self.full.0 {
                    self.full = (self.rate(), 0);
                } else {
                    self.full.1 += 1;
                }
                if self.full.1 >= 3 {
                    self.phase = BbrPhase::Drain;
                }
            }
            BbrPhase::Drain if in_flight as f64 <= bdp => self.enter(BbrPhase::Probe(2), now_ns),
            BbrPhase::Probe(index) => {
                let passed = now_ns - self.phase_ns > self.bbr_min_rtt_ns;
                let drained = index == 1 && in_flight as f64 <= bdp;
                if passed || drained {
                    self.enter(BbrPhase::Probe((index + 1) % 8), now_ns);
                }
            }
            BbrPhase::ProbeRtt if now_ns - self.phase_ns > BBR_PROBE_RTT_NS => {
                self.min_at_ns = now_ns;
                self.enter(BbrPhase::Probe(2), now_ns);
            }
            _ => {}
        }
        let known = !matches!(self.phase, BbrPhase::Startup | BbrPhase::ProbeRtt);
        if known && now_ns - self.min_at_ns > BBR_MIN_RTT_NS {
            self.bbr_min_rtt_ns = rtt_ns;
            self.enter(BbrPhase::ProbeRtt, now_ns);
        }
    }

    fn enter(&mut self, phase: BbrPhase, now_ns: u64) {
        (self.phase, self.phase_ns) = (phase, now_ns);
    }

    /// Packets a second.
    fn rate(&self) -> f64 {
        self.rates.front().map_or(0.0, |&(_, rate)| rate)
    }

    fn pacing(&self) -> f64 {
        let gain = match self.phase {
            BbrPhase::Startup => BBR_STARTUP,
            BbrPhase::Drain => 1.0 / BBR_STARTUP,
            BbrPhase::Probe(index) => BBR_GAINS[index],
            BbrPhase::ProbeRtt => 1.0,
        };
        gain * self.rate()
    }

    fn window(&self, round: u64) -> f64 {
        if self.bbr_min_rtt_ns == u64::MAX || round == 0 {
            return 10.0;
        }
        let bdp = self.rate() * self.bbr_min_rtt_ns as f64 / 1e9;
        match self.phase {
            BbrPhase::ProbeRtt => 4.0,
            BbrPhase::Startup => (BBR_STARTUP * bdp).max(10.0),
            _ => (2.0 * bdp).max(4.0),
        }
    }
}

impl Flow for Tcp {
    fn on_packet(&mut self, now_ns: u64, _end: End, packet: Packet) {
        match packet.body {
            Body::Segment(number) => {
                self.received += 1;
                self.acks.push((number, packet.marked));
            }
            Body::Ack(number, marked) => self.on_ack(now_ns, number, marked),
            Body::Datagram(_) => {}
        }
    }

    fn poll(&mut self, now_ns: u64, out: &mut Vec<(End, Packet)>) {
        for (number, marked) in self.acks.drain(..) {
            let body = Body::Ack(number, marked);
            out.push((End::Receiver, Packet { bytes: ACK, body, marked: false }));
        }
        if self.in_flight > 0 && now_ns >= self.timeout_ns() {
            self.on_timeout(now_ns);
        }
        let pacing = match &self.control {
            Control::Bbr(control) if control.rate() > 0.0 => Some(control.pacing()),
            _ => None,
        };
        while now_ns < self.ends_ns && (self.in_flight as f64) < self.window().floor().max(1.0) {
            if let Some(pacing) = pacing {
                // Up to 0.1 ms in advance, as the quanta of the kernel's pacing.
                if self.next_send_ns > now_ns + 100_000 {
                    break;
                }
                self.next_send_ns = self.next_send_ns.max(now_ns) + (1e9 / pacing) as u64;
            }
            let number = self.next_number();
            if self.in_flight == 0 {
                (self.acked_ns, self.delivered_ns) = (now_ns, now_ns);
            }
            self.transmissions.push_back(Transmission {
                sent_ns: now_ns,
                delivered: self.delivered,
                delivered_ns: self.delivered_ns,
                resolved: false,
            });
            self.in_flight += 1;
            out.push((
                End::Sender,
                Packet { bytes: SEGMENT, body: Body::Segment(number), marked: false },
            ));
        }
    }

    fn wake_ns(&self) -> Option<u64> {
        if self.acked_ns >= self.ends_ns {
            return None;
        }
        let paced = matches!(&self.control, Control::Bbr(control) if control.rate() > 0.0)
            && (self.in_flight as f64) < self.window().floor().max(1.0);
        let timeout_ns = self.timeout_ns();
        Some(if paced { timeout_ns.min(self.next_send_ns - 100_000) } else { timeout_ns })
    }

    fn delivered_bytes(&self) -> u64 {
        self.received * PAYLOAD
    }
}
