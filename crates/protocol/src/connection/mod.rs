//! One connection: the whole protocol between two ends that know each other and share a secret.
//!
//! Arrives: the time, datagrams, extents to send, room made by the application. Leaves: datagrams, bytes of extents, events,
//! and when to be called next. Must not know: sockets, clocks, files, TLS, users.
//!
//! After each call the driver asks [`Connection::transmit`] for datagrams until there are none, and calls again at
//! [`Connection::wake_ns`]. Time is nanoseconds of any clock that never goes back; one that agrees with other hosts on whole multiples of
//! five seconds, as the time of day does, lets flows look at their path together ([`crate::congestion::look`]).

mod receive;
mod transmit;

use std::collections::VecDeque;
use std::net::SocketAddr;

use crate::acks::Acks;
use crate::congestion::{AckEvent, Arrival, Controller};
use crate::loss_recovery::LossRecovery;
use crate::mtu::{self, Mtu};
use crate::pacer::Pacer;
use crate::path::Path;
use crate::protect::Protect;
use crate::reassembly::{Limits, ReassemblyBuffer};
use crate::rtt::Rtt;
use crate::send_buffer::SendBuffer;

/// What the two ends have agreed on, and what this one allows.
#[derive(Clone, Debug)]
pub struct Config {
    /// By which packets to this end are marked.
    pub local_connection: u32,
    /// By which packets to the peer are marked.
    pub peer_connection: u32,
    /// The peer's address.
    pub peer: SocketAddr,
    /// Whether the handshake has shown that the peer is there. Until it has shown that by answering a challenge, it is sent nothing else.
    pub peer_is_validated: bool,
    /// The round trip that the handshake took.
    pub initial_rtt_ns: u64,
    /// The largest UDP payload that this host's link takes.
    pub largest_datagram: usize,
    /// What the peer may make this end keep.
    pub limits: Limits,
    /// A connection without data says so often that it is alive; middleboxes forget it otherwise.
    pub keep_alive_ns: u64,
    /// A peer that says nothing for so long is gone.
    pub idle_ns: u64,
    /// Makes what others must not guess.
    pub secret: [u8; 32],
}

impl Config {
    /// The defaults for a peer at this address.
    #[must_use]
    pub fn new(peer: SocketAddr, initial_rtt_ns: u64) -> Self {
        Self {
            local_connection: 0,
            peer_connection: 0,
            peer,
            peer_is_validated: true,
            initial_rtt_ns,
            largest_datagram: 1472,
            limits: Limits::default(),
            keep_alive_ns: 10_000_000_000,
            idle_ns: 30_000_000_000,
            secret: [0; 32],
        }
    }
}

/// Where bytes of extents come from. They are asked for again when a packet is lost.
pub trait Source {
    /// Fills `into` with the bytes of the extent from `offset` on.
    fn read(&mut self, extent: u64, offset: u64, into: &mut [u8]);
}

/// Where bytes of extents go. Each comes once, in any order.
pub trait Sink {
    /// Takes bytes. They count as memory in use until [`Connection::consumed`].
    fn write(&mut self, extent: u64, offset: u64, bytes: &[u8]);
}

/// What the application is told.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// The peer holds all of an extent.
    Delivered(u64),
    /// All of an extent of this length has arrived.
    Complete {
        /// Which extent.
        extent: u64,
        /// How long it is.
        length: u64,
    },
    /// The peer is at another address now, and proved it.
    PeerMigrated(SocketAddr),
    /// The connection has ended.
    Closed(CloseReason),
}

/// How a connection ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CloseReason {
    /// This end closed it.
    Local(u64),
    /// The peer closed it: with a code, zero for a clean end, and a reason.
    Peer(u64, String),
    /// The peer broke the protocol: how.
    ProtocolViolation(&'static str),
    /// The peer has said nothing for the time that [`Config::idle_ns`] allows.
    IdleTimeout,
}

/// Codes of [`crate::frame::Frame::Close`] that the protocol itself uses; others are the application's.
pub mod codes {
    /// A clean end.
    pub const CLEAN: u64 = 0;
    /// The peer broke the protocol.
    pub const BROKEN: u64 = 1;
}

/// What keeps an end from sending more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SendLimit {
    /// There is nothing to send.
    Application,
    /// The peer has no memory left: its application takes nothing over.
    FlowControl,
    /// As much is underway as the mode allows.
    CongestionWindow,
    /// The next packet's time has not come.
    Pacing,
}

/// What a connection has done so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Datagrams sent.
    pub sent_packets: u64,
    /// Their bytes.
    pub sent_bytes: u64,
    /// Datagrams opened.
    pub received_packets: u64,
    /// Datagrams that were forged, repeated, damaged or of another version.
    pub discarded_packets: u64,
    /// Packets found lost.
    pub lost_packets: u64,
    /// Packets that arrived after they had been given up.
    pub late_packets: u64,
    /// Bytes of extents sent again.
    pub retransmitted_bytes: u64,
    /// Bytes of extents that arrived for the first time.
    pub unique_bytes: u64,
    /// Bytes of extents that arrived again.
    pub duplicate_bytes: u64,
}

#[derive(Debug, PartialEq, Eq)]
enum State {
    Open,
    /// This end closes: the peer is told until it answers, three times at most.
    Closing {
        left: u32,
        next_ns: u64,
    },
    Closed,
}

/// A time-out doubles so often at most: on a path that loses half of everything, a peer must be heard before it counts as gone.
const MOST_DOUBLINGS: u32 = 3;

/// One end of a connection.
pub struct Connection {
    config: Config,
    protect: Box<dyn Protect>,
    controller: Box<dyn Controller>,
    state: State,
    closing: (u64, Vec<u8>),
    began_ns: u64,
    heard_ns: u64,
    spoke_ns: u64,
    recovery: LossRecovery,
    acks: Acks,
    send_buffer: SendBuffer,
    reassembly: ReassemblyBuffer,
    rtt: Rtt,
    pacer: Pacer,
    mtu: Mtu,
    path: Path,
    peer_credit_bytes: u64,
    /// Of the acknowledgement with the largest number: bytes received and when, by the peer's clock.
    peer_received: (u64, u64),
    peer_marked_packets: u64,
    /// Time-outs since the last acknowledgement.
    timeouts: u32,
    timeout_from_ns: u64,
    pings: u32,
    narrow_ns: u64,
    app_limited: bool,
    /// Somebody outside wants it to send no faster, for now.
    limit_bps: f64,
    events: VecDeque<Event>,
    counters: Counters,
    end_told: bool,
}

impl Connection {
    /// A connection whose handshake is done.
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
            heard_ns: now_ns,
            spoke_ns: now_ns,
            recovery: LossRecovery::default(),
            acks: Acks::default(),
            send_buffer: SendBuffer::default(),
            reassembly: ReassemblyBuffer::new(config.limits),
            rtt: Rtt::new(config.initial_rtt_ns),
            pacer: Pacer::default(),
            mtu: Mtu::new(mtu::LEAST.min(config.largest_datagram), config.largest_datagram),
            path: Path::new(config.peer, config.peer_is_validated, config.secret),
            // Both ends start with what the handshake agreed; a shared default keeps the first round trip useful.
            peer_credit_bytes: config.limits.unconsumed_bytes,
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
            end_told: false,
            config,
        }
    }

    /// Opens an extent of no bytes yet; [`Self::append`] gives it some.
    pub fn open_extent(&mut self) -> u64 {
        self.send_buffer.open()
    }

    /// The extent has so many bytes more, the last ones if `end`. False for one that has ended.
    pub fn append(&mut self, extent: u64, bytes: u64, end: bool) -> bool {
        self.send_buffer.append(extent, bytes, end)
    }

    /// Opens an extent of a known length.
    pub fn send(&mut self, bytes: u64) -> u64 {
        let extent = self.open_extent();
        self.append(extent, bytes, true);
        extent
    }

    /// The application is done with so many bytes it was given: the disk has them.
    pub fn consumed(&mut self, now_ns: u64, bytes: u64) {
        let before = self.reassembly.credit_bytes();
        self.reassembly.consumed(bytes);
        // A peer that stands still for want of credit sends nothing that would be acknowledged: tell it unasked.
        let room = before - self.reassembly.unique_bytes().min(before);
        if room < self.config.limits.unconsumed_bytes / 2 && self.reassembly.credit_bytes() > before
        {
            self.acks.wanted(now_ns, self.rtt.ack_interval_ns(), self.rtt.busy_ack_interval_ns());
        }
    }

    /// Whether the peer holds everything that was sent.
    #[must_use]
    pub fn all_delivered(&self) -> bool {
        self.send_buffer.is_empty()
    }

    /// Ends the connection; with [`codes::CLEAN`] after everything was delivered, at any time with another code.
    pub fn close(&mut self, now_ns: u64, code: u64, reason: &str) {
        if self.state == State::Open {
            self.closing = (code, reason.as_bytes().to_vec());
            self.state = State::Closing { left: 3, next_ns: now_ns };
        }
    }

    /// This host's own address has changed: the peer is told by a packet from the new one, and the path is learned anew.
    pub fn local_address_changed(&mut self, now_ns: u64) {
        self.pings = 1;
        self.on_path_change(now_ns);
    }

    /// What the handshake told only after the first packet: how fast to send, and the memory of the peer. To be called before the
    /// first extent.
    pub fn set_peer_parameters(&mut self, controller: Box<dyn Controller>, peer_credit_bytes: u64) {
        debug_assert!(self.send_buffer.is_empty());
        self.controller = controller;
        self.peer_credit_bytes = peer_credit_bytes;
    }

    /// What has happened.
    pub fn next_event(&mut self) -> Option<Event> {
        self.events.pop_front()
    }

    /// Whether the connection has ended, and nothing is to be sent any more.
    #[must_use]
    pub fn is_closed(&self) -> bool {
        self.state == State::Closed
    }

    /// What has been sent, received, lost.
    #[must_use]
    pub fn counters(&self) -> Counters {
        Counters {
            retransmitted_bytes: self.send_buffer.retransmitted_bytes(),
            unique_bytes: self.reassembly.unique_bytes(),
            duplicate_bytes: self.reassembly.duplicate_bytes(),
            ..self.counters
        }
    }

    /// The rate and window in force, for statistics.
    #[must_use]
    pub fn controller(&self) -> &dyn Controller {
        &*self.controller
    }

    /// Send no faster than this from now on, whatever the mode would; infinite for no limit. What the mode knows of the path stays.
    pub fn limit_rate(&mut self, rate_bps: f64) {
        self.limit_bps = rate_bps;
    }

    /// Bits a second that it sends at most at this moment.
    #[must_use]
    pub fn pacing_rate_bps(&self) -> f64 {
        self.controller.control().rate_bps.min(self.limit_bps)
    }

    /// What keeps this end from sending more at this moment.
    #[must_use]
    pub fn send_limit(&self) -> SendLimit {
        if self.send_buffer.has_work(self.peer_credit_bytes) {
            let full = self.recovery.in_flight_bytes() >= self.controller.control().window_bytes;
            return if full { SendLimit::CongestionWindow } else { SendLimit::Pacing };
        }
        if self.send_buffer.has_work(u64::MAX) {
            SendLimit::FlowControl
        } else {
            SendLimit::Application
        }
    }

    /// Bytes of extents that wait to be sent for the first time: who has more gives it when there are few.
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

    /// When to call [`Self::transmit`] next, if nothing else happens before.
    #[must_use]
    pub fn wake_ns(&self) -> Option<u64> {
        match self.state {
            State::Closed => return None,
            State::Closing { next_ns, .. } => return Some(next_ns),
            State::Open => {}
        }
        let gone_ns = self.heard_ns + self.config.idle_ns;
        if !self.path.is_proved() {
            return Some(gone_ns.min(self.path.challenge_due_ns().unwrap_or(u64::MAX)));
        }
        let quiet_ns = self.heard_ns.max(self.spoke_ns) + self.config.keep_alive_ns;
        let mut wake_ns = quiet_ns.min(gone_ns);
        let mut sooner = |due_ns: Option<u64>| wake_ns = wake_ns.min(due_ns.unwrap_or(u64::MAX));
        sooner(self.acks.due_ns());
        sooner(self.path.due_ns());
        sooner(self.recovery.question_at_ns());
        sooner(self.recovery.is_waiting().then(|| self.timeout_ns()));
        if self.may_send_data() {
            sooner(Some(self.pacer.next_ns(self.pacing_rate_bps())));
        }
        Some(wake_ns)
    }

    fn timeout_ns(&self) -> u64 {
        self.timeout_from_ns + (self.rtt.timeout_ns() << self.timeouts.min(MOST_DOUBLINGS))
    }

    /// Whether there is something to send and the window allows it; the pacer decides when.
    fn may_send_data(&self) -> bool {
        self.recovery.in_flight_bytes() < self.controller.control().window_bytes
            && self.send_buffer.has_work(self.peer_credit_bytes)
    }

    fn on_path_change(&mut self, now_ns: u64) {
        self.rtt = Rtt::new(self.rtt.smoothed_ns());
        self.mtu =
            Mtu::new(mtu::LEAST.min(self.config.largest_datagram), self.config.largest_datagram);
        self.controller.on_path_change(now_ns, self.rtt.smoothed_ns());
    }

    fn end(&mut self, ending: CloseReason) {
        self.state = State::Closed;
        self.tell_end(ending);
    }

    /// The application is told of the end once.
    fn tell_end(&mut self, ending: CloseReason) {
        if !std::mem::replace(&mut self.end_told, true) {
            self.events.push_back(Event::Closed(ending));
        }
    }

    fn broken(&mut self, now_ns: u64, how: &'static str) {
        if self.state == State::Open {
            self.close(now_ns, codes::BROKEN, how);
            self.tell_end(CloseReason::ProtocolViolation(how));
        }
    }
}
