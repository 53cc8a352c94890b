//! What the server gives to a client's session.
//!
//! Arrives: a channel to a client, the directories that it may use. Leaves: the same, for who serves. Must not know:
//! what the client asks for.

use waystage_catalog::Root;
use waystage_protocol::congestion::Mode;
use waystage_transport::channel::Channel;
use waystage_transport::control::Control;

use crate::copy_state::CopyState;
use crate::error::WanError;

/// Grants a directory for a path, to be written (`true`) or read.
pub type Grant<'a> = dyn Fn(&[u8], bool) -> Result<Granted, WanError> + 'a;

/// Grants a mode.
pub type ModeGrant<'a> = dyn Fn(Mode) -> (Mode, String) + Sync + 'a;

/// A client's copy, and what the server gives to it.
pub struct Serving<'a> {
    /// The TLS connection.
    pub control: &'a Control,
    /// The channel for bulk messages.
    pub channel: &'a Channel,
    /// Counts, and whether to stop.
    pub copy_state: &'a CopyState,
    /// The client's user, for the journal.
    pub user: &'a str,
    /// Threads that read or write files.
    pub workers: usize,
    /// Memory for a list of names.
    pub memory_bytes: u64,
    /// Whether the server ends what is idle; the connection is interrupted when that changes.
    pub draining: &'a dyn Fn() -> bool,
    /// Takes a line for the log.
    pub say: &'a dyn Fn(String),
    /// Grants the directory.
    pub grant: &'a Grant<'a>,
    /// The mode that the client gets where it asks for this one, and why it is another.
    pub mode: &'a ModeGrant<'a>,
}

/// A directory that a client may use.
pub struct Granted {
    /// The shared root.
    pub root: Root,
    /// The path below it.
    pub path: Vec<u8>,
    /// Whether the client may set owners, set-user-id bits, devices and system attributes.
    pub privileged: bool,
}
