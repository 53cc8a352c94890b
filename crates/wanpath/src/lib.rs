//! An emulated wide-area path for real packets.
//!
//! Arrives: packets of two network namespaces, or UDP datagrams; the properties of each direction; a seed.
//! Leaves: the packets that the path delivers, when they are due; losses and their causes; errors of this machine.
//! Must not know: Python, the owner of the namespaces, the protocols under test.
//!
//! - [`model`] decides the fate of each packet, by its number alone.
//! - [`forwarder`] is the thread of one direction, between a packet source and a packet sink ([`endpoint`]).
//! - [`delay_line`] and [`packet_buffer`] hold packets in flight.
//! - [`tun`] is an endpoint for any IP traffic, [`relay`] one for UDP without root.
//! - [`frame`] and [`packet`] split the kernel's large frames; [`report`] has the counts and the verdict.
//!
//! The decision here: packets pass through a user-space process. The kernel's `netem` is missing in some kernels,
//! does not repeat its decisions, and cannot report that it was late. Packets cross in the kernel's own large frames,
//! since two processors could not carry 1 Gbit/s beside the programs under test otherwise; each packet of a frame has
//! its own fate.

pub mod delay_line;
pub mod endpoint;
pub mod error;
pub mod forwarder;
pub mod frame;
pub mod model;
pub mod packet;
pub mod packet_buffer;
pub mod path;
pub mod relay;
pub mod report;
mod runqueue;
pub mod tun;
