//! An emulated striped file system: real or generated files, served at the pace of emulated storage targets.
//!
//! Arrives: FUSE requests; a shape: targets, metadata servers, striping.
//! Leaves: answers when the emulated servers would have given them; counts of what each of them did.
//! Must not know: Python, YAML, the programs that read.
//!
//! The decision here: waiting is virtual. A [`model`] takes a time and a request and says when it is done; no
//! thread sleeps for a request and none spins, so that hundreds of readers fit two cores, and emulated time can be
//! slower than real time by a factor. Rejected: delaying the real files with a throttled block device. It has one
//! queue, no slowdown by contention, no metadata server, and its caches cannot be separated from the emulation.
//!
//! It shows what a way of reading does to queues. It is no Lustre, and its times are no measurement of one.

pub mod error;
pub mod fs;
pub mod layout;
pub mod model;
pub mod mount;
mod pump;
pub mod statistics;
pub mod tree;

pub use error::PfsError;
