//! What the owner of a TLS connection and its thread share.
//!
//! Arrives: messages to write, messages that were read, the end. Leaves: the same for the other side, which is woken.
//! Must not know: TLS, the socket.

use std::collections::VecDeque;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use parking_lot::{Condvar, Mutex, MutexGuard, RwLock};
use waystage_pacing::Limiter;

use super::frames::BULK;
use crate::error::Error;
use crate::message_queue::MessageQueue;
use crate::stats::Bottleneck;

pub(super) struct Shared {
    pub(super) state: Mutex<State>,
    /// Wakes those who wait for a message, or for room.
    pub(super) changed: Condvar,
    pub(super) wake: OwnedFd,
    pub(super) incoming: RwLock<Arc<MessageQueue>>,
    /// What to do when it is lost.
    pub(super) advice: &'static str,
}

/// Whether the kernel waits longer for a silent peer.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
pub(super) enum Patience {
    #[default]
    Ordinary,
    Wanted,
    Set,
}

#[derive(Default)]
pub(super) struct State {
    pub(super) outgoing: VecDeque<Vec<u8>>,
    pub(super) waiting_bytes: usize,
    pub(super) small: VecDeque<(u8, Vec<u8>)>,
    pub(super) close: bool,
    pub(super) abort: bool,
    pub(super) patience: Patience,
    pub(super) ended: Option<String>,
    /// Whether the peer has said anything, or cannot turn this one away.
    pub(super) heard: bool,
    /// Of bulk: what was agreed on, and what holds for now.
    pub(super) limiter: Limiter,
    /// Changes of the limits so far.
    pub(super) limits: u64,
    /// Whether the channel sends nothing more.
    pub(super) bulk_stopped: bool,
    /// Whether [`Control::receive`] and [`Control::wait`] are to return.
    pub(super) interrupted: bool,
    pub(super) held_ns: [u64; Bottleneck::ALL.len()],
}

impl State {
    /// The next message to write. In a pause none of a channel: what was not begun waits.
    pub(super) fn next_outgoing(&mut self) -> Option<Vec<u8>> {
        if !self.limiter.is_paused() {
            return self.outgoing.pop_front();
        }
        let small = self.outgoing.iter().position(|frame| frame[4] != BULK)?;
        self.outgoing.remove(small)
    }

    /// Whether nothing is to be written now.
    pub(super) fn has_written_all(&self) -> bool {
        self.outgoing.is_empty() || self.limiter.is_paused() && !self.close
    }

    /// Whether no more bulk messages are taken.
    pub(super) fn takes_no_bulk(&self) -> bool {
        self.bulk_stopped || self.ended.is_some()
    }

    /// The next small message, if one has come; an error where none will, with `advice` on what to do.
    pub(super) fn received(&mut self, advice: &str) -> Result<Option<(u8, Vec<u8>)>, Error> {
        match (self.small.pop_front(), &self.ended) {
            (Some(message), _) => Ok(Some(message)),
            (None, Some(why)) if !self.heard => Err(Error::TurnedAway(format!(
                "{why} before the peer said anything: try again in a minute"
            ))),
            (None, Some(why)) => Err(Error::lost(format!("{why}: {advice}"))),
            (None, None) => Ok(None),
        }
    }
}

impl Shared {
    pub(super) fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }

    pub(super) fn incoming(&self) -> Arc<MessageQueue> {
        Arc::clone(&self.incoming.read())
    }

    pub(super) fn end(&self, why: &str) {
        self.lock().ended.get_or_insert_with(|| why.to_owned());
        self.incoming().end(why);
        self.changed.notify_all();
    }

    pub(super) fn look(&self) {
        // Only a counter that is full fails, and then it is to be looked anyway.
        let _ = rustix::io::write(&self.wake, &1_u64.to_ne_bytes());
    }
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use super::*;
    use crate::wire::framed;

    #[test]
    fn messages_that_came_before_the_end_are_received_before_its_reason() {
        let mut state = State { heard: true, ..State::default() };
        assert_eq!(state.received(""), Ok(None));
        state.small.extend([(1, vec![1]), (2, vec![])]);
        state.ended = Some("cut".to_owned());
        assert_eq!(state.received(""), Ok(Some((1, vec![1]))));
        assert_eq!(state.received(""), Ok(Some((2, vec![]))));
        for _ in 0..2 {
            assert_eq!(state.received("go on"), Err(Error::lost("cut: go on")));
        }
    }

    #[test]
    fn a_server_that_closes_without_a_word_turned_the_client_away() {
        let mut state = State { ended: Some("closed".to_owned()), ..State::default() };
        assert!(matches!(state.received(""), Err(Error::TurnedAway(_))));
    }

    #[test]
    fn in_a_pause_only_messages_of_the_connection_itself_are_written() {
        let (bulk, small) = (framed(BULK, b"bulk"), framed(7, b"small"));
        let mut state =
            State { outgoing: [bulk.clone(), small.clone()].into(), ..State::default() };
        let now = Instant::now();
        state.limiter.set_paused(now, true);
        assert_eq!((state.next_outgoing(), state.next_outgoing()), (Some(small), None));
        assert!(state.has_written_all());
        state.limiter.set_paused(now, false);
        assert!(!state.has_written_all());
        assert_eq!(state.next_outgoing(), Some(bulk));
    }
}
