//! An emulated wide-area path for real packets.
//!
//! Arrives: packets of two network namespaces, or UDP datagrams; what each direction of the path is like; a seed.
//! Leaves: the packets that the path lets through, when they are due; what was lost, and why; what this machine was too slow for.
//! Must not know: Python, who made namespaces, protocols under test.
//!
//! [`model`] decides, by packet number alone; [`line`](mod@line) and [`store`] hold what is under way; [`frame`] and [`packet`] know how packets are cut;
//! [`forwarder`] is one direction at work, between two [`ends`]; [`tun`] is an end for any IP traffic, [`relay`] one for UDP without root; [`report`] has the counts and the verdict.
//!
//! The decision here: packets pass through a process of ours. The kernel's `netem` is not in every kernel, does not repeat what it did, and cannot
//! say that it was late. Packets are handed over and back in the kernel's own large frames, or two processors would not carry 1 Gbit/s beside the
//! programs under test; but each packet of a frame is decided on by itself.

pub mod delay_line;
pub mod endpoint;
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
