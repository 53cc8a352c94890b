//! Transport parameters of one connection, agreed on over TLS.
//!
//! Arrives: what both ends offered. Leaves: values. Must not know: sockets, messages.

use std::net::IpAddr;

use waystage_protocol::congestion::coupled::Group;
use waystage_protocol::congestion::{Controller, Mode};
use waystage_protocol::protect::{Side, Suite};

use crate::message::MOST_BYTES;

/// Jumbo frames; probes find what the path carries.
pub const LARGEST_DATAGRAM: usize = 8972;

/// Buffers kept for messages to come, at most: what they take is memory of the connection as well.
const SPARE_BUFFERS: usize = 32;

/// As many as a connection of this memory keeps.
pub(crate) fn spare_buffers(memory_bytes: u64) -> usize {
    let fit = memory_bytes / 8 / MOST_BYTES as u64;
    usize::try_from(fit).unwrap_or(SPARE_BUFFERS).clamp(1, SPARE_BUFFERS)
}

/// What both ends have agreed on by TLS.
#[derive(Clone)]
pub struct TransportParameters {
    /// The secret of packet protection.
    pub secret: [u8; 32],
    /// The cipher suite.
    pub suite: Suite,
    /// Whether this end is the client.
    pub side: Side,
    /// The connection id in packets to this end.
    pub local_connection: u32,
    /// The connection id in packets to the peer.
    pub peer_connection: u32,
    /// The congestion controller.
    pub mode: Mode,
    /// This end sends no faster.
    pub rate_bps: f64,
    /// Bytes of messages that may be unconsumed.
    pub memory_bytes: u64,
    /// The round trip that the handshake took.
    pub rtt_ns: u64,
    /// No datagram is larger; probes find what the path carries.
    pub largest_datagram: usize,
    /// At a server: the address that the client has shown to be at. Another one has to be shown first; None where any
    /// is believed.
    pub proved: Option<IpAddr>,
    /// The connections with which this one takes what one would; None where it takes its own share.
    pub group: Option<Group>,
}

impl TransportParameters {
    /// What decides how fast to send, on a path of this round trip.
    pub(crate) fn mode(&self, rtt_ns: u64) -> Box<dyn Controller> {
        let mode = self.mode.start(rtt_ns.max(10_000), self.rate_bps);
        match &self.group {
            Some(group) => Box::new(group.join(mode)),
            None => mode,
        }
    }
}
