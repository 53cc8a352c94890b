//! What the process reports of itself.

use crate::control::App;

/// A status.
#[derive(Clone, Debug, Default)]
pub struct Status {
    /// `NAME@HOST:PORT`.
    pub address: String,
    /// Ranks connected.
    pub ranks: usize,
    /// Bytes of the pool, and of images in it.
    pub pool_bytes: u64,
    /// Bytes of images of windows in work.
    pub image_bytes: u64,
    /// Files attached, and operations in progress at this aggregator.
    pub files: usize,
    /// See `files`.
    pub operations: usize,
    /// By application: its control points, where its rank 0 is on this node.
    pub apps: Vec<(String, App)>,
    /// By application: what this aggregator's storage requests took, since the start.
    pub served: Vec<(String, Served)>,
    /// Addresses of aggregators that do not answer.
    pub lost: Vec<String>,
}

/// What an application's requests took.
#[derive(Clone, Copy, Debug, Default)]
pub struct Served {
    /// Bytes moved.
    pub bytes: u64,
    /// Time in which at least one request was in a system call, counted for each window.
    pub busy_ns: u64,
    /// Windows.
    pub windows: u64,
    /// Bytes whose requests have not ended.
    pub queue_bytes: u64,
}
