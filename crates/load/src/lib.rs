//! Reading what a catalog names, object by object, each loader from the storage target it is bound to.
//!
//! Arrives: files and their objects by storage target, a seed, a rank, what readers measured.
//! Leaves: which object is read next by whom, how many loaders a target takes, the bytes in buffers.
//! Must not know: Python, Parquet, jobs, the network.
//!
//! The decisions ([`configure`]) are pure: they open no file and read no clock, so that every node works out the same
//! without talking, and a test or a simulation asks them the same questions as a run.

pub mod buffer;
pub mod chunking;
pub mod configure;
pub mod dedup;
pub mod digest;
pub mod error;
pub mod files;
pub mod plan;
pub mod progress;
pub mod read;
pub mod schedule;
pub mod simulate;
mod stream;
#[cfg(test)]
mod testing;
