//! What the owner of a TLS connection and its thread share.
//!
//! Arrives: messages to write, messages that were read, the end. Leaves: the same for the other side, which is woken.
//! Must not know: TLS, the socket.

use std::collections::VecDeque;
use std::io::Read;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use parking_lot::{Condvar, Mutex, MutexGuard, RwLock};
use waystage_pacing::Limiter;

use super::frames::{Frame, FrameDecoder, FrameError, BULK, LONGEST_SMALL};
use crate::control_path::{ControlPath, ControlSink};
use crate::error::Error;
use crate::message::Message;
use crate::message_queue::MessageQueue;
use crate::stats::Bottleneck;

/// Messages of other kinds that may wait to be read, and their bytes.
pub(super) const MOST_SMALL: usize = 1024;
pub(super) const MOST_SMALL_BYTES: usize = 4 * LONGEST_SMALL;

/// From this version of the protocol on the control stream carries messages.
const CONTROL_STREAM_VERSION: u32 = 4;

/// Bytes of messages that are kept until it is known whether the control stream carries them, too.
const MOST_SAID_BYTES: usize = 1 << 20;

/// Bytes of messages that wait for a TCP connection that stands still, before it is done without.
const MOST_STUCK_BYTES: usize = 4 * LONGEST_SMALL;

pub(super) const BROKEN: &str = "the peer broke the protocol: it says too much";
pub(super) const TOO_LONG: &str = "the peer broke the protocol: a message was too long";

/// By which way a message came.
#[derive(Clone, Copy)]
pub(super) enum By {
    Tls,
    Udp,
}

/// Messages that have come by each way and were handed out. Each way brings all of them in order, so a message is new
/// if the other way has not brought as many.
#[derive(Clone, Copy, Default)]
pub(super) struct Arrived {
    by: [u64; 2],
    handed_out: u64,
}

impl Arrived {
    fn is_new(&mut self, by: By) -> bool {
        let count = &mut self.by[by as usize];
        *count += 1;
        let new = *count > self.handed_out;
        self.handed_out = self.handed_out.max(*count);
        new
    }
}

pub(super) struct Shared {
    pub(super) state: Mutex<State>,
    /// Wakes those who wait for a message, or for room.
    pub(super) changed: Condvar,
    pub(super) wake: OwnedFd,
    pub(super) incoming: RwLock<Arc<MessageQueue>>,
    /// Of the control stream.
    pub(super) frames: Mutex<FrameDecoder>,
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

pub(super) struct State {
    /// Everything sent so far, while the control stream may have to carry it, too.
    pub(super) said: Option<Vec<Vec<u8>>>,
    pub(super) version: u32,
    /// The control stream.
    pub(super) path: Option<Arc<dyn ControlPath>>,
    /// Whether nothing more goes over TCP.
    pub(super) tcp_gone: bool,
    /// Of messages of a channel and of others.
    pub(super) arrived: [Arrived; 2],
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

impl Default for State {
    fn default() -> Self {
        Self {
            said: Some(Vec::new()),
            version: 0,
            path: None,
            tcp_gone: false,
            arrived: Default::default(),
            outgoing: VecDeque::new(),
            waiting_bytes: 0,
            small: VecDeque::new(),
            close: false,
            abort: false,
            patience: Patience::default(),
            ended: None,
            heard: false,
            limiter: Limiter::default(),
            limits: 0,
            bulk_stopped: false,
            interrupted: false,
            held_ns: Default::default(),
        }
    }
}

impl State {
    /// Send a message by both ways, as far as both are there.
    pub(super) fn send(&mut self, frame: Vec<u8>) {
        if let Some(said) = &mut self.said {
            let bytes: usize = said.iter().map(Vec::len).sum();
            if bytes + frame.len() <= MOST_SAID_BYTES {
                said.push(frame.clone());
            } else {
                self.said = None;
            }
        }
        if let Some(path) = &self.path {
            path.send(&frame);
            let stuck: usize = self.outgoing.iter().map(Vec::len).sum();
            if stuck > MOST_STUCK_BYTES {
                self.tcp_gone = true;
            }
        }
        if !self.tcp_gone {
            self.outgoing.push_back(frame);
        }
    }

    pub(super) fn be_patient(&mut self) {
        if self.patience == Patience::Ordinary {
            self.patience = Patience::Wanted;
        }
    }

    /// See [`super::Control::rely_on_udp`].
    pub(super) fn rely_on_udp(&mut self, path: Arc<dyn ControlPath>) {
        self.be_patient();
        let said = self.said.take().filter(|_| self.version >= CONTROL_STREAM_VERSION);
        if let Some(said) = said {
            said.iter().for_each(|frame| path.send(frame));
            self.path = Some(path);
        }
    }

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

    /// End at once.
    fn give_up(&self, why: &str) {
        self.end(why);
        self.look();
    }

    pub(super) fn end(&self, why: &str) {
        self.lock().ended.get_or_insert_with(|| why.to_owned());
        self.incoming().end(why);
        self.changed.notify_all();
    }

    /// Hand a frame to the channel or to [`super::Control::receive`], unless it has come by the other way.
    pub(super) fn deliver(&self, (kind, body): Frame, by: By) -> Result<(), String> {
        // Held, so that none goes to a queue that was just left.
        let incoming = self.incoming.read();
        let mut state = self.lock();
        if !state.arrived[usize::from(kind == BULK)].is_new(by) {
            return Ok(());
        }
        if kind == BULK {
            drop(state);
            let length = body.len();
            incoming.put(Message { buffer: body, length, by: None });
            return Ok(());
        }
        let waiting: usize = state.small.iter().map(|(_, body)| body.len()).sum();
        if state.small.len() >= MOST_SMALL || waiting > MOST_SMALL_BYTES {
            return Err(BROKEN.to_owned());
        }
        state.heard = true;
        state.small.push_back((kind, body));
        self.changed.notify_all();
        incoming.wake();
        Ok(())
    }

    pub(super) fn look(&self) {
        // Only a counter that is full fails, and then it is to be looked anyway.
        let _ = rustix::io::write(&self.wake, &1_u64.to_ne_bytes());
    }
}

impl ControlSink for Shared {
    fn control_bytes(&self, mut bytes: &[u8]) {
        let mut frames = self.frames.lock();
        while !bytes.is_empty() {
            let frame = match frames.fill(bytes.len(), |into| bytes.read(into)) {
                Ok((_, frame)) => frame,
                Err(FrameError::TooLong | FrameError::Read(_)) => return self.give_up(TOO_LONG),
            };
            if let Some(why) = frame.and_then(|frame| self.deliver(frame, By::Udp).err()) {
                return self.give_up(&why);
            }
        }
    }

    fn udp_ended(&self, why: &str, silent: bool) {
        let mut state = self.lock();
        let carried = state.path.take().is_some();
        let over = carried && (silent || state.tcp_gone);
        drop(state);
        if over {
            self.give_up(why);
        }
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
