//! What the process is started with.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Memory without an option.
pub const MEMORY: u64 = 256 << 20;

/// Memory at least: a window of the least size on both sides, and lists.
pub const LEAST_MEMORY: u64 = 1 << 20;

/// Options of the process.
#[derive(Clone, Debug)]
pub struct Options {
    /// The unix socket for ranks, in a directory that only its user may enter.
    pub socket: PathBuf,
    /// Where processes of other nodes connect: `ADDRESS:PORT`; port 0: any.
    pub listen: String,
    /// The name of this aggregator: `HOST` or `HOST/n`.
    pub name: String,
    /// The token of the launch.
    pub token: String,
    /// The application of ranks that do not say theirs.
    pub app: String,
    /// Bytes of the pool.
    pub memory: u64,
    /// Nothing heard for this long: the peer is lost.
    pub lease: Duration,
    /// A request that the storage has not ended after this long is an error.
    pub storage_timeout: Duration,
    /// End once the last rank has gone for this long; None: never. Before the first rank it waits ten times as long.
    pub linger: Option<Duration>,
    /// End when this process has ended.
    pub parent: Option<u32>,
    /// Sleep before each window; for tests and benchmarks.
    pub delay: Duration,
    /// A file with microseconds to sleep more, read again and again.
    pub delay_file: Option<PathBuf>,
}

/// Microseconds in a file, for [`Options::delay_file`]; 0 where there is none.
pub fn delay_of(path: &Path) -> Duration {
    let text = File::open(path).and_then(std::io::read_to_string).unwrap_or_default();
    Duration::from_micros(text.trim().parse().unwrap_or(0))
}
