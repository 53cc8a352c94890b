//! One metadata server: a queue of messages in order of arrival, and a latency.
//!
//! A message waits for those before it, is worked on for 1 / rate, and is answered a latency later: the network, and
//! work of client and server that does not block other messages.

use super::request::Ns;
use crate::error::PfsError;

/// What a metadata server is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation {
    /// Name to attributes.
    Lookup,
    /// Open, by name or of a file that is known.
    Open,
    /// The last close of an open file.
    Close,
    /// A file's layout, or another extended attribute.
    Layout,
    /// One message of directory entries.
    ReadDirectory,
    /// Create, remove, rename, link, change attributes.
    Change,
}

impl Operation {
    /// All of them, in the order of the statistics.
    pub const ALL: [Self; 6] =
        [Self::Lookup, Self::Open, Self::Close, Self::Layout, Self::ReadDirectory, Self::Change];

    /// Its name in shapes and statistics.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Lookup => "lookup",
            Self::Open => "open",
            Self::Close => "close",
            Self::Layout => "layout",
            Self::ReadDirectory => "readdir",
            Self::Change => "change",
        }
    }
}

/// A server: see the module.
#[derive(Clone, Debug)]
pub struct MetadataServer {
    turn_ns: f64,
    latency_ns: [u64; 6],
    free_at: f64,
    /// Messages by [`Operation::ALL`].
    pub asked: [u64; 6],
    /// Time in which it worked.
    pub busy_ns: f64,
    /// Time that messages waited for their turn, all together.
    pub waiting_ns: f64,
}

impl MetadataServer {
    /// An idle server of `rate_ops` messages a second; latencies in the order of [`Operation::ALL`].
    ///
    /// # Errors
    /// Where the rate is no rate.
    pub fn new(rate_ops: f64, latency_ns: [u64; 6]) -> Result<Self, PfsError> {
        if !rate_ops.is_finite() || rate_ops <= 0.0 {
            return Err(PfsError::Shape(
                "a metadata server needs a rate above 0 messages a second".into(),
            ));
        }
        Ok(Self {
            turn_ns: 1e9 / rate_ops,
            latency_ns,
            free_at: 0.0,
            asked: [0; 6],
            busy_ns: 0.0,
            waiting_ns: 0.0,
        })
    }

    /// A message comes at `now`; when its answer is there.
    pub(super) fn ask(&mut self, now: Ns, operation: Operation) -> Ns {
        let begins = self.free_at.max(now as f64);
        self.free_at = begins + self.turn_ns;
        self.waiting_ns += begins - now as f64;
        self.busy_ns += self.turn_ns;
        self.asked[operation as usize] += 1;
        (self.free_at.ceil() as u64).saturating_add(self.latency_ns[operation as usize])
    }

    /// A lookup turns out to have been an open: how much longer that takes.
    pub(super) fn open_looked_up(&mut self) -> Ns {
        let (lookup, open) = (Operation::Lookup as usize, Operation::Open as usize);
        self.asked[lookup] = self.asked[lookup].saturating_sub(1);
        self.asked[open] += 1;
        self.latency_ns[open].saturating_sub(self.latency_ns[lookup])
    }

    pub(super) fn reset_counts(&mut self) {
        self.asked = [0; 6];
        self.busy_ns = 0.0;
        self.waiting_ns = 0.0;
    }
}
