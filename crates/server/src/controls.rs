//! What the control plane may change of a server that runs: the rate of its sessions together, and a pause.
//!
//! Arrives: a rate, a pause, sessions that begin and end. Leaves: each session's part. Must not know: what sessions do.

use std::collections::HashMap;
use std::sync::atomic::Ordering;

use waystage_pacing::{Cause, FlowCounts};
use waystage_remote_copy::CopyState;

use crate::server::Server;
use crate::shared::{Session, Shared};

impl Server {
    /// The rate of all sessions together, in bytes a second, beside the limits of users: each has an even part of it.
    pub fn set_rate(&self, bytes_per_s: Option<u64>) {
        self.shared.granted.lock().0 = bytes_per_s;
        self.shared.grant(&self.shared.lock());
        self.shared.interrupt();
    }

    /// Let all sessions pause, those that begin meanwhile as well, or go on.
    pub fn set_paused(&self, paused: bool) {
        self.shared.granted.lock().1 = paused;
        self.shared.grant(&self.shared.lock());
        self.shared.interrupt();
    }

    /// Bytes of all sessions so far.
    pub fn flow(&self) -> FlowCounts {
        let present: u64 = self.shared.lock().values().map(|each| moved(&each.copy_state)).sum();
        let paused = self.shared.granted.lock().1;
        FlowCounts {
            bytes_done: self.shared.past_bytes.load(Ordering::Relaxed) + present,
            bytes_total: 0,
            limited_by: paused.then_some(Cause::Paused),
        }
    }
}

/// Bytes of a session: of a copy contents, of a proxy what its programs sent and received.
fn moved(state: &CopyState) -> u64 {
    state.moved().max(state.pace.bytes())
}

impl Shared {
    /// Give each session of a user its part.
    pub(crate) fn grant(&self, sessions: &HashMap<u64, Session>) {
        let (rate, paused) = *self.granted.lock();
        let of_users = || sessions.values().filter(|session| session.user.is_some());
        let count = of_users().count().max(1) as u64;
        for session in of_users() {
            session.copy_state.limits.set_rate(rate.map(|rate| (rate / count).max(1)));
            session.copy_state.set_paused(paused);
        }
    }

    /// A session has ended: the others have its part.
    pub(crate) fn left(&self, id: u64) {
        let mut sessions = self.lock();
        if let Some(session) = sessions.remove(&id) {
            self.past_bytes.fetch_add(moved(&session.copy_state), Ordering::Relaxed);
        }
        if self.granted.lock().0.is_some() {
            self.grant(&sessions);
            for control in sessions.values().filter_map(|session| session.control.as_ref()) {
                control.interrupt();
            }
        }
    }
}
