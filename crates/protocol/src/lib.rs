//! The wide-area protocol: bulk data over UDP, at the path's rate in spite of delay and random loss.
//!
//! Arrives: the time, datagrams, extents to send. Leaves: datagrams, bytes of extents, when to be called again.
//! Must not know: sockets, clocks, threads, files, TLS, Python. A test takes it through hours of simulated networks
//! (`crates/wansim`) in seconds, and the driver that has a socket adds nothing to what it decides.
//!
//! `docs/reference/wide-area-protocol.md` specifies what is sent, with test vectors; `docs/reference/wide-area-modes.md` how fast.
//! From the bottom up: [`varint`], [`packet`], [`frame`] and [`protect`] are the wire; [`received`] and [`acks`] the receiving
//! half, [`sent`] finds losses, [`outgoing`] and [`incoming`] hold extents; [`modes`] decide the rate; [`connection`] joins them;
//! [`streams`] are bytes in order on top of it.

pub mod acks;
pub mod connection;
pub mod frame;
pub mod incoming;
pub mod modes;
pub mod mtu;
pub mod outgoing;
pub mod pacer;
pub mod packet;
pub mod path;
pub mod protect;
pub mod ranges;
pub mod received;
pub mod rtt;
pub mod sent;
pub mod streams;
pub mod varint;
