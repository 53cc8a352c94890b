//! What one side of a copy between hosts has counted and summed up, and the rates that both allow.
//!
//! Arrives: counts, digests, limits. Leaves: the same, at any time. Must not know: files, connections.

use std::ops::Deref;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::Instant;

use crate::compression::Compression;
use crate::error::WanError;
use parking_lot::Mutex;
use waystage_copy::state::CopyState as EngineState;
use waystage_pacing::Cause;
use waystage_transport::channel::Channel;
use waystage_transport::error::Error;
use waystage_transport::flow_limits::FlowLimits;
use waystage_transport::stats::Recent;

/// The state of a copy at one side: that of the copy engine, and what two hosts need beside it.
#[derive(Default)]
pub struct CopyState {
    engine: EngineState<WanError>,
    /// What the sender has given to the connection.
    pub(crate) moved_files: AtomicU64,
    pub(crate) moved_bytes: AtomicU64,
    /// Entries whose owners the peer may not set.
    pub(crate) owners_left: AtomicU64,
    /// Whether what this side sends is compressed.
    pub(crate) compression: Compression,
    sum: Mutex<u128>,
    /// Rates, pauses and the mode that hold now.
    pub limits: FlowLimits,
    waits: Mutex<Waits>,
}

/// What limits the flow, where its threads are not asked.
#[derive(Default)]
struct Waits {
    /// Carries what this side sends.
    channel: Weak<Channel>,
    recent: Recent,
    told: Option<Cause>,
}

impl Deref for CopyState {
    type Target = EngineState<WanError>;

    fn deref(&self) -> &Self::Target {
        &self.engine
    }
}

impl CopyState {
    /// What this side sends goes over this channel.
    pub fn carried_by(&self, channel: &Arc<Channel>) {
        self.waits.lock().channel = Arc::downgrade(channel);
    }

    /// What limits a flow that is no copy, as its session finds.
    pub fn set_limited_by(&self, cause: Option<Cause>) {
        self.waits.lock().told = cause;
    }

    /// What limits this side now: a pause before all else; the connections of what it sends; else its threads' waits.
    pub fn limited_by(&self) -> Option<Cause> {
        let measured = self.pace.limited_by();
        if self.limits.is_paused() {
            return Some(Cause::Paused);
        }
        let mut waits = self.waits.lock();
        if self.moved_bytes.load(Ordering::Relaxed) > 0 {
            let status = waits.channel.upgrade()?.status();
            return waits.recent.limit(Instant::now(), &status.held_ns)?.cause();
        }
        measured.or(waits.told)
    }

    /// This side pauses the copy, or goes on; the peer hears of it in [`crate::session::exchange`].
    pub fn set_paused(&self, paused: bool) {
        self.limits.set_paused(paused);
        self.pace.gate.set_paused(self.limits.is_paused());
    }

    /// Bytes that were given to the connection, or written.
    pub fn moved(&self) -> u64 {
        self.moved_bytes.load(Ordering::Relaxed).max(self.report.tally.read().bytes)
    }

    /// Add contents that were sent from here, or have become files here.
    pub(crate) fn add(&self, digest: u128) {
        let mut sum = self.sum.lock();
        *sum = sum.wrapping_add(digest);
    }

    /// Why the copy ended with this error: a stop before it began ends its connection.
    pub(crate) fn explained(&self, error: WanError) -> WanError {
        match error {
            WanError::Session(Error::Lost(_)) if self.is_cancelled() => self.verdict(),
            error => error,
        }
    }

    pub(crate) fn sum(&self) -> u128 {
        *self.sum.lock()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_connection_that_a_stop_ended_was_not_lost() {
        let state = CopyState::default();
        assert_eq!(state.explained(WanError::lost("cut")).kind(), "lost");
        state.cancel();
        assert_eq!(state.explained(WanError::lost("cut")).kind(), "stopped");
        assert_eq!(state.explained(WanError::input("bad")).kind(), "input");
    }

    #[test]
    fn what_the_peer_said_explains_a_lost_connection() {
        let state = CopyState::default();
        for (error, stays) in [
            (WanError::lost("one"), "one"),
            (WanError::lost("two"), "one"),
            (WanError::input("three"), "three"),
            (WanError::lost("four"), "three"),
            (WanError::input("five"), "three"),
        ] {
            state.end_for(error);
            assert_eq!(state.verdict().to_string(), stays);
        }
    }
}
