//! The wide-area protocol: bulk data over UDP, at the path's rate despite delay and random loss.
//!
//! Arrives: the time, datagrams, extents to send. Leaves: datagrams, bytes of extents, the time of the next call.
//! Must not know: sockets, clocks, threads, files, TLS, Python. A test runs it through hours of simulated networks
//! (`crates/wansim`) in seconds; the driver with the socket decides nothing.
//!
//! | module | contents |
//! |---|---|
//! | [`congestion`] | congestion control: controllers, their registry and their building blocks |
//! | [`loss_recovery`], [`rtt`] | loss detection and round-trip estimates of the sender |
//! | [`acks`], [`received`] | acknowledgements of the receiver |
//! | [`send_buffer`], [`reassembly`], [`segment`], [`ranges`] | extents on their way out and in |
//! | [`pacer`], [`mtu`], [`path`] | pacing, path MTU discovery, path validation |
//! | [`varint`], [`packet`], [`frame`], [`protect`] | the wire and packet protection |
//! | [`connection`] | the state machine that joins them |
//! | [`control_stream`] | one ordered stream of bytes beside the extents |
//! | [`streams`] | ordered byte streams on top of extents |
//!
//! `docs/reference/wide-area-protocol.md` specifies the wire, with test vectors; `docs/reference/wide-area-modes.md`
//! the congestion control.

pub mod ack_gaps;
pub mod acks;
pub mod congestion;
pub mod connection;
pub mod control_stream;
pub mod delay_step;
pub mod error;
pub mod frame;
pub mod loss_recovery;
pub mod mtu;
pub mod pacer;
pub mod packet;
pub mod path;
pub mod protect;
pub mod ranges;
pub mod reassembly;
pub mod received;
pub mod rtt;
pub mod segment;
pub mod send_buffer;
pub mod streams;
pub mod varint;

pub use error::Error;
