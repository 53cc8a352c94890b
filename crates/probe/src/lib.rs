//! Probes: what a path is like, each direction by itself.
//!
//! Arrives: trains to send, echoes to answer, streams to carry. Leaves: what came of them, counted where it arrived.
//! Must not know: what the figures mean, which train is sent next: that is `python/waystage/wan/probing`.
//!
//! Decision 0026: both ends know one another by TLS over TCP, as for copies. Then packets that measure go over UDP at
//! the same port, from their own sockets. Their tag comes from TLS, so no other host can add to a count; a server sends
//! nothing that measures to an address that has not shown it.
//!
//! `packet` is what packets say, `counting` what came of a train, `train` sends one; `probe_socket` and `receiver` are
//! the socket and the thread that listens; `messages` is what the ends say; [`Probe`] is the client, `serve` the server
//! with its state machine `server_session`; `stream` compares with TCP.

mod client;
mod counting;
mod messages;
mod packet;
mod probe_socket;
mod probes;
mod receiver;
mod serve;
mod server_session;
mod stream;
mod train;

use std::time::Duration;

pub use client::{Probe, ProbeRequest, Reached};
pub use counting::{Count, Delays, Part, PARTS};
pub use messages::Hello;
pub use probes::Probes;
pub use receiver::Echo;
pub use serve::{serve, serve_stream, ProbeClient};
pub use stream::Streamed;
pub use train::{Sent, Train, HEADERS_IPV4, HEADERS_IPV6, LATE_NS};

/// Who may probe a server, and how much.
#[derive(Debug, Clone, Default)]
pub struct Probing {
    /// Users by name; empty for none.
    pub users: Vec<String>,
    /// Bytes a second in each direction at most, beside what the user may have; None for no other cap.
    pub rate_bytes_per_s: Option<u64>,
    /// How long a session may last.
    pub longest: Duration,
}
