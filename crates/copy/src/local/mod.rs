//! Copies on one machine: bytes go from file to file, within the kernel where it can.
//!
//! Arrives: two paths and options. Leaves: a copy. Must not know: transports, the other hosts of a copy.

mod contents;
mod context;
mod direct;
mod engine;
mod large_file;
mod queue;
mod worker;

pub use engine::{not_a_directory, Copy};
