//! A connection: the complete protocol between two ends that have authenticated each other and share a secret.
//!
//! Arrives: the time, datagrams, extents to send, credit from the application. Leaves: datagrams, bytes of extents,
//! events, and the time of the next call. Must not know: sockets, clocks, files, TLS, users.
//!
//! After each call the driver calls [`Connection::transmit`] until it returns no datagram, and again at
//! [`Connection::wake_ns`]. Time is in nanoseconds of any clock that never goes back. One that agrees with other
//! hosts on multiples of five seconds, as the time of day does, lets flows drain the queue of their path together
//! ([`crate::congestion::queue_drain`]).

mod interface;
mod receive;
mod transmit;

use std::collections::VecDeque;

use crate::ack_gaps::AckGaps;
use crate::acks::Acks;
use crate::congestion::controller::{Controller, PathState};
use crate::congestion::null::Null;
use crate::control_stream::{ControlReceiver, ControlSender};
use crate::delay_step::DelaySteps;
use crate::error::Error;
use crate::loss_recovery::LossRecovery;
use crate::mtu::{Mtu, MIN_DATAGRAM};
use crate::pacer::Pacer;
use crate::path::Path;
use crate::protect::Protect;
use crate::reassembly::ReassemblyBuffer;
use crate::rtt::{ReturnDelay, Rtt};
use crate::send_buffer::SendBuffer;

pub use interface::{codes, CloseReason, Config, Counters, Event, SendLimit, Sink, Source};

#[derive(Debug, PartialEq, Eq)]
enum State {
    Open,
    /// This end closes: it repeats the close frame until the peer answers, three times at most.
    Closing {
        left: u32,
        next_ns: u64,
    },
    Closed,
}

/// Doublings of the timeout, at most: on a path that loses half of the packets, a live peer must be heard within the
/// idle timeout.
const MAX_DOUBLINGS: u32 = 3;

/// After a timeout pings go an eighth of an undoubled timeout apart, within these bounds. They are fewer bytes than one
/// full-sized packet a round trip, and each is acknowledged by itself: a burst of losses counted in packets ends with
/// packets, also one on the way back.
const SILENCE_PROBES: u64 = 8;
const SILENCE_PROBE_NS: u64 = 1_000_000;
/// In a long silence they are a part of it apart, but no further than a timeout: its end is found within that.
const SILENCE_PART: u64 = 32;
const LONG_SILENCE_PROBE_NS: u64 = 10_000_000;

/// A sender without credit asks for it again at most this far apart: a report of new credit that was lost must not hold
/// a copy up until the keep-alive.
const CREDIT_PROBE_MOST_NS: u64 = 1_000_000_000;

/// How long a peer that is thought dead may take to acknowledge a ping: at least this, and at least this number of
/// its timeouts.
const ANSWER_NS: u64 = 2_000_000_000;
const ANSWER_TIMEOUTS: u64 = 10;

/// Pings sent in that time: a live peer on a path that loses half of the packets acknowledges one.
const ANSWER_PINGS: u64 = 100;

/// A peer that may be dead.
struct Doubt {
    /// The first packet that only a live peer acknowledges.
    first_number: u64,
    until_ns: u64,
    ping_ns: u64,
    every_ns: u64,
}

/// One end of a connection.
pub struct Connection {
    config: Config,
    protect: Box<dyn Protect>,
    controller: Box<dyn Controller>,
    state: State,
    closing: (u64, Vec<u8>),
    began_ns: u64,
    /// When the last packet arrived, and when the last one left.
    received_ns: u64,
    sent_ns: u64,
    recovery: LossRecovery,
    acks: Acks,
    send_buffer: SendBuffer,
    reassembly: ReassemblyBuffer,
    control_sender: ControlSender,
    control_receiver: ControlReceiver,
    /// Of the control stream, which neither a limit nor a pause holds back.
    control_pacer: Pacer,
    /// Since when the peer may be dead.
    doubt: Option<Doubt>,
    ack_gaps: AckGaps,
    rtt: Rtt,
    delay_steps: DelaySteps,
    return_delay: ReturnDelay,
    pacer: Pacer,
    mtu: Mtu,
    path: Path,
    peer_credit_bytes: u64,
    /// Probes for credit since it last grew.
    credit_probes: u32,
    /// From the acknowledgement with the largest number: bytes received and when, by the peer's clock.
    peer_received: (u64, u64),
    peer_marked_packets: u64,
    /// Timeouts since the last acknowledgement.
    timeouts: u32,
    timeout_from_ns: u64,
    pings: u32,
    /// When the reordering window narrows next.
    narrow_ns: u64,
    app_limited: bool,
    /// The limit that the driver has set.
    limit_bps: f64,
    events: VecDeque<Event>,
    counters: Counters,
    end_reported: bool,
}

impl Connection {
    /// A connection after its handshake.
    #[must_use]
    pub fn new(
        config: Config,
        now_ns: u64,
        protect: Box<dyn Protect>,
        controller: Box<dyn Controller>,
    ) -> Self {
        Self {
            protect,
            controller,
            state: State::Open,
            closing: (0, Vec::new()),
            began_ns: now_ns,
            received_ns: now_ns,
            sent_ns: now_ns,
            recovery: LossRecovery::default(),
            acks: Acks::default(),
            send_buffer: SendBuffer::default(),
            reassembly: ReassemblyBuffer::new(config.limits),
            control_sender: ControlSender::default(),
            control_receiver: ControlReceiver::default(),
            control_pacer: Pacer::default(),
            doubt: None,
            ack_gaps: AckGaps::default(),
            rtt: Rtt::new(config.initial_rtt_ns),
            delay_steps: DelaySteps::default(),
            return_delay: ReturnDelay::default(),
            pacer: Pacer::default(),
            mtu: Mtu::new(MIN_DATAGRAM.min(config.largest_datagram), config.largest_datagram),
            path: Path::new(config.peer, config.peer_is_validated, config.secret),
            // Both ends start with what the handshake agreed; a shared default keeps the first round trip useful.
            peer_credit_bytes: config.limits.unconsumed_bytes,
            credit_probes: 0,
            peer_received: (0, 0),
            peer_marked_packets: 0,
            timeouts: 0,
            timeout_from_ns: now_ns,
            pings: 0,
            narrow_ns: now_ns,
            app_limited: false,
            limit_bps: f64::INFINITY,
            events: VecDeque::new(),
            counters: Counters::default(),
            end_reported: false,
            config,
        }
    }

    /// Opens an empty extent; [`Self::append`] extends it.
    pub fn open_extent(&mut self) -> u64 {
        self.send_buffer.open()
    }

    /// Appends `bytes` to an extent, the last ones if `end`. False for an extent that has ended.
    pub fn append(&mut self, extent: u64, bytes: u64, end: bool) -> bool {
        self.send_buffer.append(extent, bytes, end)
    }

    /// Opens an extent of a known length.
    pub fn send(&mut self, bytes: u64) -> u64 {
        let extent = self.open_extent();
        self.append(extent, bytes, true);
        extent
    }

    /// The application has finished with `bytes` that it received, for example written them to disk.
    pub fn consumed(&mut self, now_ns: u64, bytes: u64) {
        let before = self.reassembly.credit_bytes();
        self.reassembly.consumed(bytes);
        // A peer without credit sends nothing that would be acknowledged: report the new credit unasked.
        let room = before - self.reassembly.unique_bytes().min(before);
        if room < self.config.limits.unconsumed_bytes / 2 && self.reassembly.credit_bytes() > before
        {
            self.acks.schedule(now_ns, self.rtt.ack_interval_ns(), self.rtt.busy_ack_interval_ns());
        }
    }

    /// Whether the peer has acknowledged everything.
    #[must_use]
    pub fn all_delivered(&self) -> bool {
        self.send_buffer.is_empty() && self.control_sender.is_empty()
    }

    /// Appends bytes to the control stream, which arrives in order, and neither a limit nor the peer's memory holds it
    /// back. Only for a peer that knows control frames.
    pub fn send_control(&mut self, bytes: &[u8]) {
        self.control_sender.push(bytes);
    }

    /// The peer may be dead: the connection ends unless it acknowledges one of a hundred pings, sent within two seconds
    /// or ten timeouts.
    pub fn expect_answer(&mut self, now_ns: u64) {
        if self.state == State::Open && self.doubt.is_none() {
            let time_ns = ANSWER_NS.max(ANSWER_TIMEOUTS * self.rtt.timeout_ns());
            self.doubt = Some(Doubt {
                first_number: self.recovery.next_packet_number(),
                until_ns: now_ns + time_ns,
                ping_ns: now_ns,
                every_ns: time_ns / ANSWER_PINGS,
            });
        }
    }

    /// Ends the connection: with [`codes::CLEAN`] once everything was delivered, with another code at any time.
    pub fn close(&mut self, now_ns: u64, code: u64, reason: &str) {
        if self.state == State::Open {
            self.closing = (code, reason.as_bytes().to_vec());
            self.state = State::Closing { left: 3, next_ns: now_ns };
        }
    }

    /// This host's address has changed: a packet from the new one informs the peer, and the path is measured anew.
    pub fn local_address_changed(&mut self, now_ns: u64) {
        self.pings = 1;
        self.on_path_change(now_ns);
    }

    /// Sets what the handshake reported after the first packet: the congestion controller, and the memory of the
    /// peer. To be called before the first extent.
    pub fn set_peer_parameters(&mut self, controller: Box<dyn Controller>, peer_credit_bytes: u64) {
        debug_assert!(self.send_buffer.is_empty());
        self.controller = controller;
        self.peer_credit_bytes = peer_credit_bytes;
    }

    /// Goes on with another congestion controller, which `make` returns, from what the present one knows of the path.
    /// Packets in flight stay, and so does the pacer's debt: the change itself sends nothing.
    pub fn change_controller(&mut self, now_ns: u64, make: impl FnOnce() -> Box<dyn Controller>) {
        let path = PathState {
            now_ns,
            carried_bps: self.controller.carried_bps(),
            min_rtt_ns: self.rtt.min_ns(),
            smoothed_rtt_ns: self.rtt.smoothed_ns(),
            next_packet_number: self.recovery.next_packet_number(),
        };
        // Of a group's connections the present one has left before the next one joins.
        self.controller = Box::new(Null::new(path.smoothed_rtt_ns, path.carried_bps));
        self.controller = make();
        self.controller.take_over(&path);
    }

    /// The next event.
    pub fn next_event(&mut self) -> Option<Event> {
        self.events.pop_front()
    }

    /// Whether the connection has ended and sends nothing more.
    #[must_use]
    pub fn is_closed(&self) -> bool {
        self.state == State::Closed
    }

    /// The statistics so far.
    #[must_use]
    pub fn counters(&self) -> Counters {
        Counters {
            retransmitted_bytes: self.send_buffer.retransmitted_bytes(),
            unique_bytes: self.reassembly.unique_bytes(),
            duplicate_bytes: self.reassembly.duplicate_bytes(),
            ..self.counters
        }
    }

    /// The congestion controller, for statistics.
    #[must_use]
    pub fn controller(&self) -> &dyn Controller {
        &*self.controller
    }

    /// Limits the rate of sending; infinite for no limit, 0 for a pause, in which acknowledgements and keep-alives
    /// are sent all the same. The controller keeps its state, and takes the application for what limits the rate.
    pub fn limit_rate(&mut self, rate_bps: f64) {
        self.limit_bps = rate_bps;
    }

    /// The pacing rate in bits a second.
    #[must_use]
    pub fn pacing_rate_bps(&self) -> f64 {
        self.controller.control().rate_bps.min(self.limit_bps)
    }

    /// What limits the rate of sending at this moment.
    #[must_use]
    pub fn send_limit(&self) -> SendLimit {
        if self.send_buffer.has_work(self.peer_credit_bytes) {
            let full = self.recovery.bytes_in_flight() >= self.controller.control().window_bytes;
            return if full { SendLimit::CongestionWindow } else { SendLimit::Pacing };
        }
        if self.send_buffer.has_work(u64::MAX) {
            SendLimit::FlowControl
        } else {
            SendLimit::Application
        }
    }

    /// Bytes of extents that were never sent. An application with more appends it when there are few.
    #[must_use]
    pub fn unsent_bytes(&self) -> u64 {
        self.send_buffer.unsent_bytes()
    }

    /// The round-trip estimates.
    #[must_use]
    pub fn rtt(&self) -> &Rtt {
        &self.rtt
    }

    /// The UDP payload in use.
    #[must_use]
    pub fn datagram_size(&self) -> usize {
        self.mtu.current()
    }

    /// When to call [`Self::transmit`] next, unless another call comes first.
    #[must_use]
    pub fn wake_ns(&self) -> Option<u64> {
        match self.state {
            State::Closed => return None,
            State::Closing { next_ns, .. } => return Some(next_ns),
            State::Open => {}
        }
        let idle_ns = self.received_ns + self.config.idle_ns;
        if !self.path.is_validated() {
            return Some(idle_ns.min(self.path.challenge_due_ns().unwrap_or(u64::MAX)));
        }
        let mut wake_ns = self.ping_at_ns().min(idle_ns);
        let mut sooner = |due_ns: Option<u64>| wake_ns = wake_ns.min(due_ns.unwrap_or(u64::MAX));
        sooner(self.acks.due_ns());
        sooner(self.path.due_ns());
        sooner(self.recovery.request_at_ns());
        sooner(self.recovery.is_in_flight().then(|| self.timeout_at_ns()));
        sooner(self.doubt.as_ref().map(|doubt| doubt.ping_ns.min(doubt.until_ns)));
        if self.may_send_control() {
            sooner(Some(self.control_pacer.next_ns(self.controller.control().rate_bps)));
        }
        if self.has_data() {
            let paced_ns = self.pacer.next_ns(self.pacing_rate_bps());
            sooner(self.window_opens_ns().map(|opens_ns| opens_ns.max(paced_ns)));
        }
        Some(wake_ns)
    }

    /// When a ping is due if nothing else is sent or arrives: for liveness, or earlier in a silence or for credit. The
    /// report of new credit is not repeated, so a sender that has data, no credit and nothing in flight asks, at
    /// doubling intervals as TCP's persist timer does (RFC 9293, section 3.8.6.1); each acknowledgement carries the
    /// credit.
    fn ping_at_ns(&self) -> u64 {
        if self.timeouts > 0 && self.recovery.is_in_flight() {
            let timeout_ns = self.rtt.timeout_ns();
            let silent_ns = self.sent_ns.saturating_sub(self.received_ns);
            let apart_ns = (timeout_ns / SILENCE_PROBES).max(SILENCE_PROBE_NS);
            let most_ns = timeout_ns.max(LONG_SILENCE_PROBE_NS);
            return self.sent_ns + apart_ns.max(silent_ns / SILENCE_PART).min(most_ns);
        }
        let blocked = self.limit_bps > 0.0
            && !self.recovery.is_in_flight()
            && self.send_limit() == SendLimit::FlowControl;
        let most_ns = self.config.keep_alive_ns;
        let after_ns = if blocked {
            let doubled_ns = self.rtt.timeout_ns().saturating_mul(1 << self.credit_probes.min(16));
            doubled_ns.min(CREDIT_PROBE_MOST_NS.max(self.rtt.timeout_ns())).min(most_ns)
        } else {
            most_ns
        };
        self.received_ns.max(self.sent_ns) + after_ns
    }

    fn timeout_at_ns(&self) -> u64 {
        self.timeout_from_ns + (self.rtt.timeout_ns() << self.timeouts.min(MAX_DOUBLINGS))
    }

    /// Whether the control stream has bytes and the window allows them.
    fn may_send_control(&self) -> bool {
        self.control_sender.has_work()
            && self.recovery.bytes_in_flight() < self.controller.control().window_bytes
    }

    /// Whether data is ready.
    fn has_data(&self) -> bool {
        self.limit_bps > 0.0 && self.send_buffer.has_work(self.peer_credit_bytes)
    }

    /// Whether the window allows data, with what gaps between acknowledgements allow. The pacer decides when.
    fn window_is_open(&self, now_ns: u64) -> bool {
        let window_bytes = self.controller.control().window_bytes;
        let in_flight = self.recovery.bytes_in_flight();
        in_flight < window_bytes
            || in_flight - window_bytes
                < self.ack_gaps.allowed_bytes(now_ns, window_bytes, self.rtt.smoothed_ns())
    }

    /// When it does, if no acknowledgement has to come first.
    fn window_opens_ns(&self) -> Option<u64> {
        let window_bytes = self.controller.control().window_bytes;
        let in_flight = self.recovery.bytes_in_flight();
        if in_flight < window_bytes {
            return Some(0);
        }
        let bytes = in_flight - window_bytes + self.mtu.current() as u64;
        self.ack_gaps.allowed_at_ns(bytes, window_bytes, self.rtt.smoothed_ns())
    }

    fn on_path_change(&mut self, now_ns: u64) {
        let smoothed_ns = self.rtt.smoothed_ns();
        (self.rtt, self.delay_steps) = (Rtt::new(smoothed_ns), DelaySteps::default());
        self.return_delay = ReturnDelay::default();
        let largest = self.config.largest_datagram;
        self.mtu = Mtu::new(MIN_DATAGRAM.min(largest), largest);
        self.controller.on_path_change(now_ns, smoothed_ns);
    }

    fn end(&mut self, reason: CloseReason) {
        self.state = State::Closed;
        self.report_end(reason);
    }

    /// Reports the end to the application, once.
    fn report_end(&mut self, reason: CloseReason) {
        if !std::mem::replace(&mut self.end_reported, true) {
            self.events.push_back(Event::Closed(reason));
        }
    }

    fn on_violation(&mut self, now_ns: u64, error: &Error) {
        if self.state == State::Open {
            self.close(now_ns, codes::PROTOCOL_VIOLATION, error.detail());
            self.report_end(CloseReason::ProtocolViolation(error.detail().to_owned()));
        }
    }
}
