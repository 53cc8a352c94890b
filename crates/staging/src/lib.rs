//! Copies files between hosts of one administration over one plain TCP connection, its sockets in network namespaces.
//!
//! Arrives: which files go which way, and between which addresses.
//! Leaves: the files, complete and verified, or an error whose kind the caller can act on.
//! Must not know: Python, jobs, paths through the network, policies.
//!
//! This is the third transport of the copy engine, beside the same machine and the wide-area channel: the messages
//! are those of `waystage-remote-copy`, each behind a header of five bytes. A connection costs one round trip, a copy
//! one for its offer; the rest of the time is the network's. TCP is left as the system has it.
//!
//! Rejected: rsync, whose processes, handshakes and sleeps of 20 ms cost 0.15 s a transfer; TLS, since the lab is one
//! machine and its cost would hide the network's.

mod channel;
mod client;
mod error;
mod request;
mod server;
mod sources;

pub use client::{Direction, Request, Staged, Step, Transfer};
pub use error::StagingError;
pub use request::StagingRequest;
pub use server::{Module, Server};
