//! What other threads want of a connection's thread, and what it reports to them.
//!
//! Arrives: messages to send, limits, the wish to end. Leaves: the same for the thread that drives the connection,
//! which is woken. Must not know: sockets, the protocol.

use std::collections::VecDeque;
use std::sync::{Arc, Weak};

use parking_lot::{Condvar, Mutex, MutexGuard};
use waystage_protocol::congestion::Mode;

use crate::backpressure::Backpressure;
use crate::control_path::{ControlPath, ControlSink};
use crate::parameters::TransportParameters;
use crate::stats::Status;
use crate::waker::Waker;

/// Messages that may be in flight: fewer than the extents that a peer may have open.
pub(super) const MOST_IN_FLIGHT: usize = 1024;

/// Where a connection's thread gets what others have for it.
pub(super) struct CommandQueue {
    state: Mutex<PendingCommands>,
    /// Wakes the thread.
    pub(super) waker: Arc<Waker>,
    /// Wakes those who wait for the peer: to be heard, to hold everything.
    pub(super) heard: Condvar,
    /// Wakes those who wait to send.
    pub(super) backpressure: Arc<Backpressure>,
}

#[derive(Default)]
pub(super) struct PendingCommands {
    pub(super) messages: VecDeque<Vec<u8>>,
    /// Bytes for the control stream.
    pub(super) control: Vec<u8>,
    /// Where the peer's control stream goes, and what came before that was known.
    pub(super) control_sink: Option<Weak<dyn ControlSink>>,
    pub(super) control_early: Vec<u8>,
    /// Whether the peer may be dead, and the thread does not know.
    pub(super) expect_answer: bool,
    pub(super) consumed_bytes: u64,
    pub(super) spare: Vec<Vec<u8>>,
    pub(super) most_spare: usize,
    /// Messages that the peer does not hold yet.
    pub(super) in_flight: usize,
    pub(super) in_flight_bytes: u64,
    pub(super) most_in_flight_bytes: u64,
    /// What was agreed on since the connection began.
    pub(super) settled: Option<Box<TransportParameters>>,
    pub(super) close: bool,
    pub(super) abort: bool,
    /// Another way is taken: the end is not reported.
    pub(super) given_up: bool,
    pub(super) sleeping: bool,
    /// A limit that the thread does not know yet.
    pub(super) limit: Option<Option<u64>>,
    /// A mode that the thread does not know yet.
    pub(super) mode: Option<Mode>,
    pub(super) over: bool,
    pub(super) heard: bool,
    /// Whether a thread that waits until all is delivered is to return.
    pub(super) interrupted: bool,
    /// Whether a message has come.
    pub(super) came: bool,
    pub(super) status: Status,
}

impl PendingCommands {
    /// Whether no more messages are taken for now.
    pub(super) fn is_full(&self) -> bool {
        self.in_flight >= MOST_IN_FLIGHT || self.in_flight_bytes >= self.most_in_flight_bytes
    }
}

impl ControlPath for CommandQueue {
    fn send(&self, bytes: &[u8]) {
        let mut pending = self.lock();
        if !pending.over {
            pending.control.extend_from_slice(bytes);
            self.wake_up(&pending);
        }
    }

    fn expect_answer(&self) {
        let mut pending = self.lock();
        pending.expect_answer = true;
        self.wake_up(&pending);
    }
}

impl CommandQueue {
    /// Hand on bytes of the peer's control stream, or keep them.
    pub(super) fn control_bytes(&self, bytes: Vec<u8>) {
        let mut pending = self.lock();
        match pending.control_sink.clone() {
            Some(sink) => {
                drop(pending);
                if let Some(sink) = sink.upgrade() {
                    sink.control_bytes(&bytes);
                }
            }
            // Never much: the peer learns of this end's version from an answer that the sink's owner gives.
            None if pending.control_early.len() < 1 << 20 => pending.control_early.extend(bytes),
            None => {}
        }
    }

    /// From now on the peer's control stream goes there.
    pub(super) fn set_sink(&self, sink: Weak<dyn ControlSink>) {
        let mut pending = self.lock();
        let early = std::mem::take(&mut pending.control_early);
        // Under the lock, so that nothing overtakes it.
        if let Some(sink) = sink.upgrade().filter(|_| !early.is_empty()) {
            sink.control_bytes(&early);
        }
        pending.control_sink = Some(sink);
    }

    pub(super) fn new(
        pending: PendingCommands,
        waker: Arc<Waker>,
        backpressure: Arc<Backpressure>,
    ) -> Self {
        Self { state: Mutex::new(pending), waker, heard: Condvar::new(), backpressure }
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, PendingCommands> {
        self.state.lock()
    }

    pub(super) fn wake_up(&self, pending: &PendingCommands) {
        if pending.sleeping {
            self.waker.wake();
        }
    }
}
