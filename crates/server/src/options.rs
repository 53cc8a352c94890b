//! What a server is: users, roots, caps.
//!
//! Arrives: a checked configuration. Leaves: the same as values. Must not know: where it comes from.

use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;

use waystage_probe::Probing;
use waystage_protocol::congestion::Mode;
use waystage_proxy::Rule;
use waystage_transport::identity::{Identity, PublicKey};

use crate::account::Account;

/// A rate above this counts as unlimited.
pub(crate) const NO_CAP_BYTES_PER_S: u64 = 100_000_000_000;

/// A directory that clients may use.
#[derive(Debug, Clone)]
pub struct SharedRoot {
    /// Where it is.
    pub path: PathBuf,
    /// Whether clients may write in it.
    pub write: bool,
    /// Who may use it; empty for every user.
    pub users: Vec<String>,
    /// Whether owners, set-user-id bits, devices and attributes of the system are taken over as clients give them.
    pub privileged: bool,
}

/// A user that may log in.
#[derive(Debug, Clone)]
pub struct User {
    /// How it is called.
    pub name: String,
    /// By which keys it is known.
    pub keys: Vec<PublicKey>,
    /// Modes granted beside `fair` and `modest`.
    pub modes: Vec<Mode>,
    /// From where these modes are granted, as an address and how many bits count; empty for anywhere.
    pub networks: Vec<(IpAddr, u8)>,
    /// Bytes a second at most; None for the server's own cap.
    pub rate_bytes_per_s: Option<u64>,
    /// Connections at a time; None for its share of the server's.
    pub connections: Option<usize>,
    /// As whom the server acts for it; None for as itself.
    pub account: Option<Account>,
    /// Destinations that it may reach from here; others are denied.
    pub reach: Vec<Rule>,
    /// Where it may have this server listen for it; nowhere else.
    pub listen: Vec<Rule>,
}

/// What a server is.
#[derive(Debug, Clone)]
pub struct ServerOptions {
    /// TCP and UDP; port 0 for one that is free.
    pub listen: SocketAddr,
    /// Who it is.
    pub identity: Identity,
    /// Who may come in.
    pub users: Vec<User>,
    /// What they may use, the first for paths that are not absolute.
    pub roots: Vec<SharedRoot>,
    /// Bytes a second of one connection at most.
    pub rate_bytes_per_s: Option<u64>,
    /// Connections at a time.
    pub connections: usize,
    /// Connections of one copy at most.
    pub copy_connections: u32,
    /// UDP sockets at the port, each with a thread that receives.
    pub sockets: usize,
    /// Memory in front of the disk, for each connection or copy.
    pub memory_bytes: u64,
    /// Whether data goes over UDP.
    pub udp: bool,
    /// Threads that read or write files, for each connection.
    pub workers: usize,
    /// Who may measure the path to this server.
    pub probing: Probing,
    /// The newest version of the protocol that it goes on in, as an older server would.
    pub newest_version: u32,
}

#[cfg(test)]
impl User {
    /// A user without rights beyond a login.
    pub(crate) fn named(name: &str, keys: &[PublicKey]) -> Self {
        Self {
            name: name.to_owned(),
            keys: keys.to_vec(),
            modes: Vec::new(),
            networks: Vec::new(),
            rate_bytes_per_s: None,
            connections: None,
            account: None,
            reach: Vec::new(),
            listen: Vec::new(),
        }
    }
}

#[cfg(test)]
impl ServerOptions {
    /// A server of these users without caps, that grants no probe.
    pub(crate) fn of(users: Vec<User>) -> Self {
        Self {
            listen: ([10, 0, 0, 1], 0).into(),
            identity: Identity::ephemeral().unwrap(),
            users,
            roots: Vec::new(),
            rate_bytes_per_s: None,
            connections: 8,
            copy_connections: 4,
            sockets: 1,
            memory_bytes: 1 << 30,
            udp: true,
            workers: 1,
            probing: Probing {
                users: Vec::new(),
                rate_bytes_per_s: None,
                longest: std::time::Duration::ZERO,
            },
            newest_version: u32::MAX,
        }
    }
}
