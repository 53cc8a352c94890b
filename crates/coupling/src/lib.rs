//! Arrays by name, version and box, from the ranks of one application to those of another, without a file.
//!
//! Arrives: requests of ranks of both applications, data of the writers in shared memory.
//! Leaves: answers; pieces of arrays to the readers that ask for them.
//! Must not know: MPI, files, which library the ranks use.
//!
//! [`region`], [`directory`] and [`wire`] are pure. The decision: docs/decisions/0055-coupling-by-name.md.

pub mod address;
pub mod client;
pub mod directory;
pub mod failure;
pub mod link;
mod meeting;
pub mod memory;
mod owner;
mod reach;
pub mod region;
pub mod request;
pub mod service;
pub mod wire;
