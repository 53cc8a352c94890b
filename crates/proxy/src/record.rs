//! What is recorded of connections: counts, and a line for each that has ended. Never what they carried.
//!
//! Arrives: what happens to connections. Leaves: numbers by name, records. Must not know: who reads them.

use std::sync::atomic::{AtomicU64, Ordering};

/// A connection that has ended.
#[derive(Debug, Clone)]
pub struct Record {
    /// Who asked for it: an address and port.
    pub origin: String,
    /// What it was to.
    pub target: String,
    /// `session` or `direct`.
    pub way: &'static str,
    /// Bytes from who asked for it.
    pub sent_bytes: u64,
    /// Bytes to who asked for it.
    pub received_bytes: u64,
    /// From its first byte to its end.
    pub seconds: f64,
    /// `closed`, `reset`, `refused` or `lost`.
    pub end: &'static str,
    /// Why, where that is not plain; empty otherwise.
    pub why: String,
}

impl std::fmt::Display for Record {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { origin, target, sent_bytes, received_bytes, seconds, end, why, way } = self;
        let way = if *way == "direct" { " directly" } else { "" };
        write!(f, "{origin} to {target}{way}: {end} after {seconds:.3} s, {sent_bytes} bytes there, {received_bytes} back")?;
        if !why.is_empty() {
            write!(f, ": {why}")?;
        }
        Ok(())
    }
}

/// Something to tell.
#[derive(Debug, Clone)]
pub enum Notice {
    /// A connection has ended.
    Connection(Record),
    /// There is a session: how it is carried, and what the user should know of it.
    Session {
        /// Whether over UDP.
        udp: bool,
        /// Where the server listens for reverse forwards.
        reverse: Vec<String>,
        /// Sentences.
        notes: Vec<String>,
    },
    /// The session is over, and there will be another: why.
    Lost(String),
}

/// Numbers that only grow, but for `open`.
#[derive(Debug, Default)]
pub(super) struct Counts {
    pub(super) connections: AtomicU64,
    pub(super) open: AtomicU64,
    pub(super) refused: AtomicU64,
    pub(super) reset: AtomicU64,
    pub(super) lost: AtomicU64,
    pub(super) sent_bytes: AtomicU64,
    pub(super) received_bytes: AtomicU64,
    pub(super) sessions: AtomicU64,
}

impl Counts {
    /// Bytes of programs, in both directions.
    pub(super) fn bytes(&self) -> u64 {
        self.sent_bytes.load(Ordering::Relaxed) + self.received_bytes.load(Ordering::Relaxed)
    }

    /// Bytes of programs, there and back.
    pub(super) fn both(&self) -> (u64, u64) {
        (self.sent_bytes.load(Ordering::Relaxed), self.received_bytes.load(Ordering::Relaxed))
    }

    pub(super) fn by_name(&self) -> Vec<(&'static str, u64)> {
        let read = |count: &AtomicU64| count.load(Ordering::Relaxed);
        vec![
            ("connections", read(&self.connections)),
            ("open", read(&self.open)),
            ("refused", read(&self.refused)),
            ("reset", read(&self.reset)),
            ("lost", read(&self.lost)),
            ("sent_bytes", read(&self.sent_bytes)),
            ("received_bytes", read(&self.received_bytes)),
            ("sessions", read(&self.sessions)),
        ]
    }
}

pub(super) fn add(count: &AtomicU64, more: u64) {
    count.fetch_add(more, Ordering::Relaxed);
}
