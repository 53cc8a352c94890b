//! A session as a flow: what it does, and how far it is.

use std::net::SocketAddr;
use std::path::PathBuf;

use waystage_pacing::FlowCounts;

/// What a session does.
#[derive(Clone, Debug)]
pub struct Work {
    /// Whether its client sends files.
    pub push: bool,
    /// Whether it carries connections of programs, in both directions.
    pub proxy: bool,
    /// Of a copy: the shared directory that its tree is in.
    pub tree: PathBuf,
}

/// A session as a flow.
#[derive(Debug)]
pub struct SessionFlow {
    /// Its number.
    pub id: u64,
    /// The user's name in the configuration.
    pub user: String,
    /// The client's address.
    pub from: SocketAddr,
    /// What it does.
    pub work: Work,
    /// Bytes, and what limits them.
    pub counts: FlowCounts,
}
