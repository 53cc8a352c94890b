//! The data that a connection exchanges with its driver.
//!
//! Arrives: nothing. Leaves: configuration, events, counters, and where bytes of extents come from and go to.
//! Must not know: the connection.

use std::net::SocketAddr;

use crate::reassembly::Limits;

/// The parameters that the handshake agreed on, and the limits of this end.
#[derive(Clone, Debug)]
pub struct Config {
    /// The connection number of packets to this end.
    pub local_connection: u32,
    /// The connection number of packets to the peer.
    pub peer_connection: u32,
    /// The peer's address.
    pub peer: SocketAddr,
    /// Whether the handshake has validated that address. Before the peer has, by answering a challenge, it is sent
    /// nothing else.
    pub peer_is_validated: bool,
    /// The round trip of the handshake.
    pub initial_rtt_ns: u64,
    /// The largest UDP payload of this host's link.
    pub largest_datagram: usize,
    /// The memory that the peer can make this end use.
    pub limits: Limits,
    /// The time without packets after which a ping is sent, so that middleboxes keep their state.
    pub keep_alive_ns: u64,
    /// The time without a packet of the peer after which the connection ends.
    pub idle_ns: u64,
    /// The seed of challenges, which others must not guess.
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

/// The source of the bytes of extents. A retransmission reads them again.
pub trait Source {
    /// Fills `into` with the bytes of the extent from `offset` on.
    fn read(&mut self, extent: u64, offset: u64, into: &mut [u8]);
}

/// The destination of the bytes of extents. Each byte arrives once, in any order.
pub trait Sink {
    /// Takes bytes. They count as memory in use until [`super::Connection::consumed`].
    fn write(&mut self, extent: u64, offset: u64, bytes: &[u8]);
}

/// An event for the application.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// The peer has all of an extent.
    Delivered(u64),
    /// All of an extent has arrived.
    Complete {
        /// The extent.
        extent: u64,
        /// Its length in bytes.
        length: u64,
    },
    /// The next bytes of the peer's control stream.
    Control(Vec<u8>),
    /// The peer has another address, which is validated.
    PeerMigrated(SocketAddr),
    /// The connection has ended.
    Closed(CloseReason),
}

/// Why a connection ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CloseReason {
    /// This end closed it, with a code.
    Local(u64),
    /// The peer closed it, with a code, zero for a clean end, and a reason.
    Peer(u64, String),
    /// The peer violated the protocol: the rule.
    ProtocolViolation(String),
    /// No packet of the peer arrived within [`Config::idle_ns`].
    IdleTimeout,
    /// The peer acknowledged none of the pings that [`super::Connection::expect_answer`] sent.
    NoAnswer,
}

/// Codes of [`crate::frame::Frame::Close`] that the protocol uses. Others belong to the application.
pub mod codes {
    /// A clean end.
    pub const CLEAN: u64 = 0;
    /// The peer violated the protocol.
    pub const PROTOCOL_VIOLATION: u64 = 1;
}

/// What limits the rate of sending.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SendLimit {
    /// The application has nothing to send.
    Application,
    /// The peer's memory is full: its application consumes nothing.
    FlowControl,
    /// The congestion window is full.
    CongestionWindow,
    /// The next packet is not due yet.
    Pacing,
}

/// Statistics of a connection.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Datagrams sent.
    pub sent_packets: u64,
    /// Their bytes.
    pub sent_bytes: u64,
    /// Datagrams opened.
    pub received_packets: u64,
    /// Datagrams discarded: forged, repeated, damaged or of another version.
    pub discarded_packets: u64,
    /// Packets declared lost.
    pub lost_packets: u64,
    /// Packets that arrived after they had been declared lost.
    pub late_packets: u64,
    /// Bytes of extents sent again.
    pub retransmitted_bytes: u64,
    /// Bytes of extents that arrived for the first time.
    pub unique_bytes: u64,
    /// Bytes of extents that arrived again.
    pub duplicate_bytes: u64,
}
