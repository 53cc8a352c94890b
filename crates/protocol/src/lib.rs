//! The wide-area protocol: bulk data over UDP, at the path's rate in spite of delay and random loss.
//!
//! Arrives: the time, datagrams, extents to send. Leaves: datagrams, bytes of extents, when to be called again.
//! Must not know: sockets, clocks, threads, files, TLS, Python. A test takes it through hours of simulated networks
//! (`crates/wansim`) in seconds, and the driver that has a socket adds nothing to what it decides.
//!
//! `docs/reference/wide-area-protocol.md` specifies what is sent, with test vectors; `docs/reference/wide-area-modes.md` how fast.
//! From the bottom up: [`varint`], [`packet`], [`frame`] and [`protect`] are the wire; [`received`] and [`acks`] the receiving
//! half, [`loss_recovery`] finds losses, [`send_buffer`] and [`reassembly`] hold extents; [`congestion`] controllers decide the rate; [`connection`] joins them;
//! [`streams`] are bytes in order on top of it.

pub mod acks;
pub mod congestion;
pub mod connection;
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
pub mod send_buffer;
pub mod streams;
pub mod varint;
