//! TCP connections of other programs, carried inside the wide-area protocol: both ends of `waystage proxy`.
//!
//! Arrives: connections, rules, a server. Leaves: the same bytes at the other side, halves closed and connections reset
//! as they were here; a record of each connection, without contents. Must not know: Python, files of configuration.
//!
//! One session, over UDP or the TLS connection, carries all connections as streams (`waystage_protocol::streams`). Each
//! end has one thread for all of them. The decision with its reasons is docs/decisions/0027-proxy.md.

mod address;
mod client;
mod destination;
mod engine;
mod listener;
mod local_address;
mod network;
mod poller;
mod record;
mod resolver;
mod rules;
mod server;
mod session_transport;
mod sockets;
mod socks;
mod splice;
mod stream_codes;
mod tunnel;

pub use client::{Proxy, ProxyOptions};
pub use destination::Destination;
pub use engine::Phase;
pub use listener::{Kind, Place};
pub use record::{Notice, Record};
pub use rules::Rule;
pub use server::{serve, Flow, Rights};
