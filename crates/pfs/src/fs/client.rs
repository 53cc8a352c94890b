//! How the client of the file system behaves, and for whom.
//!
//! Arrives: settings.
//! Leaves: the settings.
//! Must not know: servers, what the file system holds.

use std::time::Duration;

use crate::model::Ns;

/// How the client behaves.
#[derive(Clone, Copy, Debug)]
pub struct Client {
    /// How long a name stays known, in real time.
    pub names: Duration,
    /// How long attributes stay known, in real time.
    pub attributes: Duration,
    /// Whether pages are not kept: every read is a request.
    pub direct: bool,
    /// Entries in one message of a directory.
    pub entries_per_message: usize,
    /// What asking targets for a file's size takes.
    pub glimpse_ns: Ns,
    /// Emulated time is real time over this.
    pub dilation: f64,
    /// Whether every user may use it, with their own rights.
    pub shared: bool,
}
