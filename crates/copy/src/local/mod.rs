//! Copies on one machine: bytes go from file to file, within the kernel where it can.
//!
//! Arrives: two paths and options. Leaves: a copy. Must not know: transports, the other hosts of a copy.

mod by_target;
mod contents;
mod context;
mod direct;
mod engine;
mod fill;
mod grouper;
mod large_file;
mod queue;
mod striped;
mod task;
mod worker;

pub(crate) use contents::ContentMover;
pub use engine::{not_a_directory, Copy, CopyJob};
pub use fill::{Fill, FillJob, FillOptions};
