//! How a client and a server begin a session: TCP and TLS, versions, and what each end offers.

pub mod accept;
pub mod client;
pub mod connect;
pub mod hello;
pub mod version;
