//! What the control plane may change of a server that runs: the rate of its sessions together, and a pause.
//!
//! Arrives: a rate, a pause, sessions that begin and end. Leaves: each session's part. Must not know: what sessions do.

use std::collections::HashMap;
use std::sync::atomic::Ordering;

use waystage_pacing::{Cause, FlowCounts};
use waystage_remote_copy::CopyState;

use crate::flow::SessionFlow;
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

    /// The rate of one session, beside its part of the rate of all. A session that has ended takes none.
    pub fn set_session_rate(&self, id: u64, bytes_per_s: Option<u64>) {
        self.ask(id, |asked| asked.0 = bytes_per_s);
    }

    /// Let one session pause, or go on where not all do.
    pub fn set_session_paused(&self, id: u64, paused: bool) {
        self.ask(id, |asked| asked.1 = paused);
    }

    fn ask(&self, id: u64, change: impl FnOnce(&mut (Option<u64>, bool))) {
        let mut sessions = self.shared.lock();
        let Some(session) = sessions.get_mut(&id) else { return };
        change(&mut session.asked);
        self.shared.grant(&sessions);
        if let Some(control) = sessions.get(&id).and_then(|session| session.control.as_ref()) {
            control.interrupt();
        }
    }

    /// The copies and proxies in progress.
    pub fn sessions(&self) -> Vec<SessionFlow> {
        let sessions = self.shared.lock();
        let flow = |(id, session): (&u64, &Session)| {
            Some(SessionFlow {
                id: *id,
                user: session.user.clone()?,
                from: session.from?,
                work: session.work.clone()?,
                counts: counts(session),
            })
        };
        sessions.iter().filter_map(flow).collect()
    }

    /// Bytes of all sessions so far, and what limits most of those that move.
    pub fn flow(&self) -> FlowCounts {
        let sessions = self.shared.lock();
        let flows: Vec<FlowCounts> = sessions.values().map(counts).collect();
        let mut found: Vec<(Cause, usize)> = Vec::new();
        for cause in sessions
            .values()
            .zip(&flows)
            .filter_map(|(session, flow)| session.work.as_ref().and(flow.limited_by))
        {
            match found.iter_mut().find(|(other, _)| *other == cause) {
                Some((_, count)) => *count += 1,
                None => found.push((cause, 1)),
            }
        }
        let most = found.into_iter().max_by_key(|(_, count)| *count).map(|(cause, _)| cause);
        let paused = self.shared.granted.lock().1;
        FlowCounts {
            bytes_done: self.shared.past_bytes.load(Ordering::Relaxed)
                + flows.iter().map(|flow| flow.bytes_done).sum::<u64>(),
            bytes_total: 0,
            limited_by: if paused { Some(Cause::Paused) } else { most },
        }
    }
}

fn counts(session: &Session) -> FlowCounts {
    FlowCounts {
        bytes_done: moved(&session.copy_state),
        bytes_total: session.copy_state.report.tally.read().found_bytes,
        limited_by: session.copy_state.limited_by(),
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
            let part = rate.map(|rate| (rate / count).max(1));
            let (asked, held) = session.asked;
            session.copy_state.limits.set_rate(part.into_iter().chain(asked).min());
            session.copy_state.set_paused(paused || held);
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
