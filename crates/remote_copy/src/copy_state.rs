//! What one side of a copy between hosts has counted and summed up, and the rates that both allow.
//!
//! Arrives: counts, digests, limits. Leaves: the same, at any time. Must not know: files, connections.

use std::ops::Deref;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::error::WanError;
use parking_lot::Mutex;
use waystage_copy::state::CopyState as EngineState;
use waystage_transport::error::Error;

/// The state of a copy at one side: that of the copy engine, and what two hosts need beside it.
#[derive(Default)]
pub struct CopyState {
    engine: EngineState<WanError>,
    /// What the sender has given to the connection.
    pub(crate) moved_files: AtomicU64,
    pub(crate) moved_bytes: AtomicU64,
    /// Entries whose owners the peer may not set.
    pub(crate) owners_left: AtomicU64,
    sum: Mutex<u128>,
    /// Rate limits that hold now.
    pub limits: Limits,
}

impl Deref for CopyState {
    type Target = EngineState<WanError>;

    fn deref(&self) -> &Self::Target {
        &self.engine
    }
}

impl CopyState {
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

/// The most that each side wants to be sent for now, in bytes a second; 0 for what was agreed at the start.
#[derive(Default)]
pub struct Limits {
    own: AtomicU64,
    peers: AtomicU64,
}

impl Limits {
    /// This side's schedule has come to another limit.
    pub fn set_own(&self, bytes_per_s: Option<u64>) {
        self.own.store(bytes_per_s.map_or(0, |rate| rate.max(1)), Ordering::Relaxed);
    }

    /// The peer's has.
    pub(crate) fn set_theirs(&self, bytes_per_s: u64) {
        self.peers.store(bytes_per_s, Ordering::Relaxed);
    }

    pub(crate) fn own(&self) -> u64 {
        self.own.load(Ordering::Relaxed)
    }

    /// What both sides allow.
    pub(crate) fn both(&self) -> Option<u64> {
        [self.own(), self.peers.load(Ordering::Relaxed)].into_iter().filter(|rate| *rate > 0).min()
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
