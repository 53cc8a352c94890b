//! The mover for a local network: one TCP connection, one file after the other.
//!
//! The decision here: nothing happens but the transfer. A connection costs one round trip, a file one
//! small frame before and one after it, and nobody sleeps where the network could work; so the time
//! of a short transfer is the network's. Every file is hashed by both ends (XXH3, 128 bits) and
//! appears under its name only when whole. TCP is left as the system has it.
//!
//! Rejected: rsync, whose processes, handshakes and 20 ms sleeps cost 0.15 s a transfer; TLS, since
//! this mover is for networks inside one administration and its costs would hide theirs.

mod arrival;
mod channel;
mod client;
mod contents;
mod error;
mod modules;
mod server;
mod stop;
#[cfg(test)]
mod testing;
pub mod wire;

pub use client::{FilePair, Moved, Request, Step, Transfer};
pub use error::{ErrorKind, TransferError};
pub use modules::Module;
pub use server::Server;
pub use wire::Way;
