//! Reads catalogued files object by object, each loader from the storage target it is bound to.
//!
//! Arrives: files and their objects by storage target, a seed, a rank, what readers measured.
//! Leaves: the next object of each loader, the number of loaders for a target, the bytes in buffers.
//! Must not know: Python, Parquet, jobs, the network.
//!
//! The decisions ([`configure`]) are pure: they open no file and read no clock, so that every node computes the same
//! without communication, and a test or a simulation calls the same code as a run.

pub mod binding;
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
pub mod stripes;
#[cfg(test)]
mod testing;
