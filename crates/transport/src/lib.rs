//! Messages between two hosts over UDP, or over TLS on TCP where UDP is blocked.
//!
//! Arrives: a server's address and keys, messages to send. Leaves: messages, each complete and at most once, in any
//! order; statistics, the bottleneck. Must not know: files, copies, proxied connections, Python.
//!
//! The decisions here (docs/decisions/0024-wide-area-sockets.md): a TLS 1.3 connection over TCP authenticates both ends
//! by raw public keys and yields the secret of the UDP packets; one thread drives each connection of
//! `waystage_protocol`; a *message* of some megabytes is one extent of the protocol, so that no message waits for
//! another one's lost packets.
//!
//! From the bottom up: [`socket`] and [`endpoint`] move datagrams, [`datagram_receiver`] hands them to their
//! connection; [`link`] is a protocol connection on a socket and [`udp`] the thread that drives it; [`control`] is the
//! TLS connection; [`channel`] joins one or several connections; [`handshake`] sets them up.

pub mod backpressure;
pub mod channel;
pub mod channel_connection;
pub mod clock;
pub mod control;
pub mod control_messages;
mod control_path;
pub mod datagram_receiver;
pub mod endpoint;
pub mod error;
pub mod flow_limits;
pub mod handshake;
pub mod identity;
pub mod link;
pub mod message;
pub mod message_queue;
pub mod parameters;
pub mod route;
pub mod socket;
pub mod stats;
pub mod tls;
pub mod udp;
pub mod waker;
pub mod wire;

pub use error::{protocol_violation, Error};
pub use handshake::client::Peer;
pub use message::MEMORY_BYTES;
