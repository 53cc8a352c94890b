//! libwaystage_io: collective and independent I/O of a rank, through the aggregator process of its node.
//!
//! Arrives: calls of a C program (`shim/include/waystage_io.h`) or of Rust, requests of the process.
//! Leaves: data in files and in the rank's memory.
//! Must not know: MPI. What must be collective the caller does with its own library.
//!
//! The decision: docs/decisions/0053-client-library.md.

pub mod error;
pub mod ffi;
pub mod file;
mod independent;
pub mod memory;
mod named;
pub mod node;
pub mod open;
mod registry;
mod serve;
mod store;
mod stored;
