//! Wide-area paths in virtual time: what a transfer meets between two sites, without sockets or clocks.
//!
//! Arrives: a path (rate, delay, jitter, buffer, loss, reordering, duplication, corruption), flows, a seed. Leaves: what each flow
//! delivered when. Must not know: real time, threads, files.
//!
//! [`link`](mod@link) is one direction of a path, [`world`] the events, [`bulk`] a flow of the wide-area protocol, its real code at both ends,
//! [`tcp`] its competitors, [`study`] the figures. The same seed gives the same bits. Rates are of IP packets: 28 bytes more
//! than a UDP payload; what a flow delivered is payload alone.

pub mod bulk;
pub mod link;
pub mod study;
pub mod tcp;
pub mod world;
