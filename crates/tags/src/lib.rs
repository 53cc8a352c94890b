//! Tags: every packet of an MPI message carries what it belongs to in its destination MAC address.
//!
//! Arrives: requests of a node's programs over a unix socket, and the tags that they write into shared memory.
//! Leaves: a program in the kernel that stamps their packets, of their TCP connections alone.
//! Must not know: MPI, topologies, how switches forward.
//!
//! Programs write (position in the stream, tag) into memory that the kernel's program reads, so no message costs a
//! system call. The kernel's program chooses by the TCP sequence number, so queued and retransmitted bytes keep their
//! tag. It is assembled here, since neither clang nor an unstable Rust is wanted on a build machine.
//! Rejected: `SO_MARK`, which costs a system call a message and belongs to the socket, so bytes that wait get the tag
//! of a later message.

mod assembler;
mod attach;
mod kernel;
mod program;
mod service;
mod ticket;
mod wire;

pub use program::Layout;
pub use service::{Service, Setup, TagError};
