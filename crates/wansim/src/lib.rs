//! Wide-area paths in virtual time, without sockets or clocks.
//!
//! Arrives: a path (rate, delay, jitter, buffer, loss, reordering, duplication, corruption), flows, a seed.
//! Leaves: the bytes that each flow delivered, over time. Must not know: real time, threads, files.
//!
//! - [`link`](mod@link): one direction of a path.
//! - [`simulation`]: the event queue of a path and its flows.
//! - [`bulk`]: a flow of the wide-area protocol, which runs the protocol's code at both ends.
//! - [`tcp`]: its competitors, CUBIC and BBR.
//! - [`scenario`]: flows on a path, and their rates.
//!
//! The same seed gives the same bits. Rates are of IP packets, 28 bytes more than the UDP payload; delivered bytes are
//! payload alone.

pub mod bulk;
pub mod link;
pub mod scenario;
pub mod simulation;
pub mod tcp;
