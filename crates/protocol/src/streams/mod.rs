//! Streams: bytes in order, both ways, many beside one another, on messages that arrive in any order.
//!
//! Arrives: what to open, bytes taken and given, messages of the peer. Leaves: messages, whose turn it is to send, events.
//! Must not know: sockets, clocks, how messages travel, what a target means.
//!
//! Each message is an extent by itself, so a loss holds back only the stream whose bytes were lost. A window for each stream bounds
//! what its receiver has to keep, and all windows together bound the memory: a stream that nobody reads stops itself and no other.
//! Windows begin small and double while they are what holds a stream back. Streams with something to send take turns.
//! The alternative, extents without end, would need windows, resets and turns inside the packet layer, and another form for TCP.

mod arriving;
pub mod message;
mod receive;
#[cfg(test)]
mod tests;

use std::collections::{HashMap, VecDeque};

use crate::protect::Side;
use crate::ranges::Ranges;
use arriving::Arriving;
use message::{put_data_head, Message, MOST_REASON, MOST_TARGET};

/// The least window of a stream, whatever the others hold.
pub const LEAST_WINDOW_BYTES: u64 = 64 << 10;

/// The most that a new stream gets.
const FIRST_WINDOW_BYTES: u64 = 1 << 20;

/// A window that is taken within so many round trips is what holds its stream back: with half of that it would still be
/// full while a repair of a repair is underway.
const QUICK_ROUND_TRIPS: u64 = 4;

/// Buffers kept for messages to come.
const SPARE_BUFFERS: usize = 32;

/// What this end allows.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Streams at a time that the peer may have opened.
    pub streams: usize,
    /// What all windows together should not exceed; each stream gets [`LEAST_WINDOW_BYTES`] nevertheless.
    pub memory_bytes: u64,
}

/// What has happened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// The peer wants a stream: answer with [`Streams::accept`] or [`Streams::refuse`].
    Offered {
        /// Its number.
        stream: u64,
        /// To what.
        target: Vec<u8>,
    },
    /// The peer has accepted a stream of ours.
    Opened(u64),
    /// It has not; the number is forgotten.
    Refused {
        /// Its number.
        stream: u64,
        /// Why, for programs.
        code: u64,
        /// Why, for people.
        reason: String,
    },
    /// There are bytes to take, or the end.
    Readable(u64),
    /// The peer has ended the stream at once; the number is forgotten.
    Reset {
        /// Its number.
        stream: u64,
        /// Why, for programs.
        code: u64,
    },
    /// The peer takes no more streams.
    Drain,
}

/// Codes that the streams themselves use; others are the application's.
pub mod codes {
    /// As many streams as there may be.
    pub const TOO_MANY: u64 = 1;
    /// A stream that was given up before it was opened.
    pub const GIVEN_UP: u64 = 2;
}

/// The peer broke a rule: which.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Broken(pub &'static str);

#[derive(Debug, PartialEq, Eq)]
enum State {
    /// Opened here, not answered; with a code where it was given up since.
    Asked(Option<u64>),
    /// Opened there, not answered.
    Offered,
    Open,
}

#[derive(Debug)]
struct Stream {
    state: State,
    sent: u64,
    /// Bytes below may be sent.
    allowed: u64,
    end_sent: bool,
    /// Wants to send, and waits for its turn.
    queued: bool,
    /// Its turn came before a window: it comes back with one.
    starved: bool,
    arriving: Arriving,
    window: u64,
    /// The limit that the peer was told.
    granted: u64,
    telling: bool,
    /// When the window was last as large as now, or a window's bytes were last taken: nanoseconds, bytes taken.
    epoch: (u64, u64),
}

/// All streams of a connection.
#[derive(Debug)]
pub struct Streams {
    side: Side,
    limits: Limits,
    rtt_ns: u64,
    opened: u64,
    /// Numbers that the peer has used, halved.
    seen: Ranges,
    streams: HashMap<u64, Stream>,
    offered: usize,
    promised_bytes: u64,
    pieces: usize,
    said: VecDeque<Vec<u8>>,
    windows: VecDeque<u64>,
    turns: VecDeque<u64>,
    events: VecDeque<Event>,
    spare: Vec<Vec<u8>>,
}

impl Streams {
    /// No streams yet.
    #[must_use]
    pub fn new(side: Side, limits: Limits, rtt_ns: u64) -> Self {
        Self {
            side,
            limits,
            rtt_ns,
            opened: 0,
            seen: Ranges::default(),
            streams: HashMap::new(),
            offered: 0,
            promised_bytes: 0,
            pieces: 0,
            said: VecDeque::new(),
            windows: VecDeque::new(),
            turns: VecDeque::new(),
            events: VecDeque::new(),
            spare: Vec::new(),
        }
    }

    /// The round trip, as it is known now.
    pub fn set_rtt(&mut self, rtt_ns: u64) {
        self.rtt_ns = rtt_ns;
    }

    /// Streams there are.
    #[must_use]
    pub fn count(&self) -> usize {
        self.streams.len()
    }

    /// What all windows come to.
    #[must_use]
    pub fn promised_bytes(&self) -> u64 {
        self.promised_bytes
    }

    /// Ask the peer for a stream; `target` is at most [`MOST_TARGET`] bytes long.
    pub fn open(&mut self, now_ns: u64, target: &[u8]) -> u64 {
        debug_assert!(target.len() <= MOST_TARGET);
        let stream = 2 * self.opened + u64::from(self.side == Side::Server);
        self.opened += 1;
        let window = self.add(now_ns, stream, State::Asked(None), 0);
        self.say(&Message::Open { stream, window, target });
        stream
    }

    /// Accept a stream that was offered. False where it is not there any more.
    pub fn accept(&mut self, stream: u64) -> bool {
        let Some(found) = self.streams.get_mut(&stream) else { return false };
        if found.state != State::Offered {
            return false;
        }
        found.state = State::Open;
        let window = found.granted;
        self.say(&Message::Opened { stream, window });
        true
    }

    /// Refuse it. Longer reasons are cut.
    pub fn refuse(&mut self, stream: u64, code: u64, reason: &str) {
        if self.streams.get(&stream).is_some_and(|found| found.state == State::Offered) {
            let reason = &reason.as_bytes()[..reason.len().min(MOST_REASON)];
            self.say(&Message::Refused { stream, code, reason });
            self.remove(stream);
        }
    }

    /// No more streams are taken from the peer.
    pub fn drain(&mut self) {
        self.say(&Message::Drain);
    }

    /// The application has nothing more to do with a stream: one that is not finished in both directions is reset.
    pub fn close(&mut self, stream: u64, code: u64) {
        let Some(found) = self.streams.get_mut(&stream) else { return };
        match found.state {
            // The peer learns it with its answer: a reset might overtake the question.
            State::Asked(_) => found.state = State::Asked(Some(code)),
            State::Offered => self.refuse(stream, code, ""),
            State::Open => {
                if !(found.end_sent && found.arriving.is_finished()) {
                    self.say(&Message::Reset { stream, code });
                }
                self.remove(stream);
            }
        }
    }

    /// A stream has bytes to send: it gets its turn when it may send some.
    pub fn wants_to_send(&mut self, stream: u64) {
        if let Some(found) = self.streams.get_mut(&stream) {
            if !found.queued && !found.starved && !found.end_sent && found.state == State::Open {
                found.queued = true;
                self.turns.push_back(stream);
            }
        }
    }

    /// Whose turn it is to send, and how many bytes it may. It has to say again that it wants to send.
    pub fn turn(&mut self) -> Option<(u64, u64)> {
        while let Some(stream) = self.turns.pop_front() {
            let Some(found) = self.streams.get_mut(&stream) else { continue };
            found.queued = false;
            if found.sent < found.allowed {
                return Some((stream, found.allowed - found.sent));
            }
            found.starved = true;
        }
        None
    }

    /// The head of a message with the stream's next bytes.
    pub fn put_head(&self, stream: u64, out: &mut Vec<u8>) {
        if let Some(found) = self.streams.get(&stream) {
            put_data_head(out, stream, found.sent);
        }
    }

    /// So many bytes were sent behind such a head.
    pub fn sent(&mut self, stream: u64, bytes: u64) {
        if let Some(found) = self.streams.get_mut(&stream) {
            found.sent += bytes;
            debug_assert!(found.sent <= found.allowed);
        }
    }

    /// The stream has no more bytes to send.
    pub fn end(&mut self, stream: u64) {
        let Some(found) = self.streams.get_mut(&stream) else { return };
        if found.state == State::Open && !std::mem::replace(&mut found.end_sent, true) {
            let length = found.sent;
            self.say(&Message::End { stream, length });
        }
    }

    /// The next message to send that carries no bytes of a stream; these go before those that do.
    pub fn next_message(&mut self) -> Option<Vec<u8>> {
        if let Some(message) = self.said.pop_front() {
            return Some(message);
        }
        while let Some(stream) = self.windows.pop_front() {
            let Some(found) = self.streams.get_mut(&stream) else { continue };
            found.telling = false;
            found.granted = found.arriving.taken() + found.window;
            let mut message = Vec::with_capacity(20);
            Message::Window { stream, limit: found.granted }.put(&mut message);
            return Some(message);
        }
        None
    }

    /// What has happened.
    pub fn next_event(&mut self) -> Option<Event> {
        self.events.pop_front()
    }

    /// The next bytes of a stream in order; empty where there are none now.
    #[must_use]
    pub fn front(&self, stream: u64) -> &[u8] {
        self.streams.get(&stream).map_or(&[], |found| found.arriving.front())
    }

    /// So many of these bytes were taken.
    pub fn taken(&mut self, now_ns: u64, stream: u64, bytes: usize) {
        let free_bytes = self.limits.memory_bytes.saturating_sub(self.promised_bytes);
        let Some(found) = self.streams.get_mut(&stream) else { return };
        let buffer = found.arriving.take(bytes);
        let taken = found.arriving.taken();
        if taken - found.epoch.1 >= found.window {
            let quick = now_ns - found.epoch.0 < QUICK_ROUND_TRIPS * self.rtt_ns;
            // A doubling leaves at least as much to the others as it takes.
            if quick && 2 * found.window <= free_bytes {
                self.promised_bytes += found.window;
                found.window *= 2;
            }
            found.epoch = (now_ns, taken);
        }
        let due = taken + found.window - found.granted >= found.window / 4;
        if due && !found.telling && !found.arriving.has_length() {
            found.telling = true;
            self.windows.push_back(stream);
        }
        self.keep(buffer);
    }

    /// Whether all bytes of the peer have been taken, and there will be no more.
    #[must_use]
    pub fn is_finished(&self, stream: u64) -> bool {
        self.streams.get(&stream).is_some_and(|found| found.arriving.is_finished())
    }

    /// A buffer that is free, of any length.
    pub fn spare(&mut self) -> Option<Vec<u8>> {
        self.spare.pop()
    }

    /// One that will not be missed here.
    pub fn surplus(&mut self) -> Option<Vec<u8>> {
        if self.spare.len() <= SPARE_BUFFERS / 2 {
            return None;
        }
        self.spare.pop()
    }

    /// Buffers that are free again.
    pub fn recycle(&mut self, buffers: impl IntoIterator<Item = Vec<u8>>) {
        buffers.into_iter().for_each(|buffer| self.keep(Some(buffer)));
    }

    fn keep(&mut self, buffer: Option<Vec<u8>>) {
        if let Some(buffer) = buffer.filter(|_| self.spare.len() < SPARE_BUFFERS) {
            self.spare.push(buffer);
        }
    }

    fn say(&mut self, message: &Message<'_>) {
        let mut bytes = Vec::with_capacity(24);
        message.put(&mut bytes);
        self.said.push_back(bytes);
    }

    /// A new stream; its window.
    fn add(&mut self, now_ns: u64, stream: u64, state: State, allowed: u64) -> u64 {
        let free_bytes = self.limits.memory_bytes.saturating_sub(self.promised_bytes);
        let window = (free_bytes / 16).clamp(LEAST_WINDOW_BYTES, FIRST_WINDOW_BYTES);
        self.promised_bytes += window;
        self.offered += usize::from(state == State::Offered);
        let fresh = Stream {
            state,
            sent: 0,
            allowed,
            end_sent: false,
            queued: false,
            starved: false,
            arriving: Arriving::default(),
            window,
            granted: window,
            telling: false,
            epoch: (now_ns, 0),
        };
        self.streams.insert(stream, fresh);
        window
    }

    fn remove(&mut self, stream: u64) -> Option<State> {
        let found = self.streams.remove(&stream)?;
        self.promised_bytes -= found.window;
        self.pieces -= found.arriving.pieces();
        self.offered -= usize::from(self.is_peers(stream));
        Some(found.state)
    }

    fn is_peers(&self, stream: u64) -> bool {
        (stream % 2 == 1) != (self.side == Side::Server)
    }
}
