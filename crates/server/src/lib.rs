//! The server: admits clients, and runs each one's copy, proxy or probe within its rights.
//!
//! Arrives: users, roots and caps. Leaves: sessions, lines of a log. Must not know: Python, configuration files, how a
//! copy, proxy or probe works.
//!
//! A client is authenticated by its key; what it may do follows from the user that owns the key. Nothing is sent over
//! UDP to an address that has not shown that it has the keys, so there is nothing to amplify.

mod account;
mod additional_connections;
mod admission;
mod connection_limits;
mod controls;
mod copies;
mod dispatch;
mod flow;
mod mode_rules;
mod options;
mod rights;
mod server;
mod session;
mod shared;
mod welcome;

pub use account::Account;
pub use flow::{SessionFlow, Work};
pub use options::{ServerOptions, SharedRoot, User};
pub use server::Server;
