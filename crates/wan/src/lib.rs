//! The wide-area protocol with sockets, keys and files: what `waystage serve` and copies between hosts are made of.
//!
//! Arrives: a server's configuration, or an address, a user, a key and two paths. Leaves: a copy whose files bear their names only
//! when whole, at this end or the other; counts, problems, what limited it. Must not know: Python, jobs, networks other than by
//! their sockets, and how the protocol decides what to send when (`crates/protocol`).
//!
//! The decisions here (docs/decisions/0024-wide-area-sockets.md): a TLS 1.3 connection over TCP gives both ends' identity, by raw
//! public keys, and the secret of the UDP packets; a thread for each connection owns its protocol; and what is copied travels in
//! *messages* of some megabytes, each an extent, complete in itself, so that nothing waits for anything that is lost.
//!
//! From the bottom up: [`identity`] and `tls` are who is who; `socket`, `endpoint`, `seat`, `member` and `lane` carry messages over UDP or,
//! where it is blocked, over TCP; `entry`, `send` and `receive` are the two ends of a copy; [`client`] and [`server`] join them.

mod account;
mod asked;
mod bell;
mod book;
mod client;
mod control;
mod dial;
mod digest;
mod endpoint;
mod entry;
mod error;
mod hello;
pub mod identity;
mod lane;
mod list;
pub mod loopback;
mod member;
mod pile;
mod place;
pub mod probe;
pub mod proxy;
mod reach;
mod receive;
mod reception;
mod seat;
mod send;
mod sending;
mod server;
mod session;
mod socket;
mod tls;
mod trust;
mod udp;
mod version;
mod waiting;
mod wire;

pub use account::Account;
pub use client::{Client, Ends, Request};
pub use dial::Peer;
pub use error::{WanError, WanErrorKind};
pub use lane::MEMORY_BYTES;
pub use server::{Server, ServerOptions, SharedRoot, User};
pub use session::{CopyOptions, Dry};
