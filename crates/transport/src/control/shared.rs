//! What the owner of a TLS connection and its thread share.
//!
//! Arrives: messages to write, messages that were read, the end. Leaves: the same for the other side, which is woken.
//! Must not know: TLS, the socket.

use std::collections::VecDeque;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use parking_lot::{Condvar, Mutex, MutexGuard, RwLock};
use waystage_protocol::token_bucket::TokenBucket;

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

#[derive(Default)]
pub(super) struct State {
    pub(super) outgoing: VecDeque<Vec<u8>>,
    pub(super) waiting_bytes: usize,
    pub(super) small: VecDeque<(u8, Vec<u8>)>,
    pub(super) close: bool,
    pub(super) abort: bool,
    pub(super) ended: Option<String>,
    /// Whether the peer has said anything, or cannot turn this one away.
    pub(super) heard: bool,
    /// Bytes a second of bulk that were agreed on, and that hold for now; None for no limit.
    pub(super) rates: [Option<u64>; 2],
    pub(super) bucket: TokenBucket,
    /// Whether [`Control::receive`] and [`Control::wait`] are to return.
    pub(super) interrupted: bool,
    pub(super) held_ns: [u64; Bottleneck::ALL.len()],
}

impl State {
    /// The rate limit of bulk messages.
    pub(super) fn rate(&self) -> Option<u64> {
        self.rates.iter().flatten().min().copied()
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
