//! Arrays by name, version and box, from the ranks of one application to those of another, without a file.
//!
//! Arrives: requests of ranks of both applications, data of the writers in shared memory.
//! Leaves: answers; pieces of arrays to the readers that ask for them.
//! Must not know: MPI, files, which library the ranks use.
//!
//! [`region`], [`slabs`], [`directory`] and [`wire`] are pure. The decisions: docs/decisions/0055-coupling-by-name.md,
//! 0071-names-as-files.md.

pub mod address;
pub mod client;
mod client_file;
mod codec;
pub mod directory;
mod directory_files;
pub mod failure;
mod group;
pub mod link;
mod meeting;
pub mod memory;
mod open_file;
mod owner;
mod reach;
pub mod region;
pub mod request;
pub mod service;
pub mod slabs;
pub mod wire;
