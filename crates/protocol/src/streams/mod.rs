//! Streams: many ordered byte streams in both directions, on messages that arrive in any order.
//!
//! Arrives: streams to open, bytes taken and sent, messages of the peer. Leaves: messages, the next stream to send,
//! events. Must not know: sockets, clocks, how messages travel, the meaning of a target.
//!
//! - Each message is an extent, so a loss delays only the stream whose bytes were lost.
//! - A window for each stream bounds the memory of its receiver, and all windows together bound the total: a stream
//!   that is not read stops itself and no other.
//! - Windows begin small, and double while they limit their stream.
//! - Streams with bytes to send take turns.
//!
//! Rejected alternative: extents without an end. They would need windows, resets and turns inside the packet layer,
//! and another form for TCP.

mod assembler;
pub mod message;
mod receive;
#[cfg(test)]
mod tests;

use std::collections::{HashMap, VecDeque};

use crate::protect::Side;
use crate::ranges::Ranges;
use assembler::Assembler;
use message::{put_data_head, Message, MAX_REASON, MAX_TARGET};

/// The smallest window of a stream, regardless of the others.
pub const LEAST_WINDOW_BYTES: u64 = 64 << 10;

/// The largest window of a new stream.
const FIRST_WINDOW_BYTES: u64 = 1 << 20;

/// A window that is taken within this many round trips limits its stream: half of it would still be full while a second
/// retransmission is in flight.
const QUICK_ROUND_TRIPS: u64 = 4;

/// Buffers kept for later messages.
const SPARE_BUFFERS: usize = 32;

/// The limits of this end.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// The most open streams of the peer.
    pub streams: usize,
    /// The most memory of all windows together; each stream gets [`LEAST_WINDOW_BYTES`] nevertheless.
    pub memory_bytes: u64,
}

/// An event for the application.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// The peer opens a stream: answer with [`Streams::accept`] or [`Streams::refuse`].
    Offered {
        /// Its number.
        stream: u64,
        /// Its target.
        target: Vec<u8>,
    },
    /// The peer has accepted a stream.
    Opened(u64),
    /// The peer has refused a stream; its number is forgotten.
    Refused {
        /// Its number.
        stream: u64,
        /// The code, for programs.
        code: u64,
        /// The reason, for users.
        reason: String,
    },
    /// Bytes or the end of the stream are available.
    Readable(u64),
    /// The peer has reset the stream; its number is forgotten.
    Reset {
        /// Its number.
        stream: u64,
        /// The code, for programs.
        code: u64,
    },
    /// The peer accepts no more streams.
    Drain,
}

/// Codes that the streams use. Others belong to the application.
pub mod codes {
    /// The limit of streams is reached.
    pub const TOO_MANY: u64 = 1;
    /// The stream was cancelled before it was accepted.
    pub const CANCELLED: u64 = 2;
}

#[derive(Debug, PartialEq, Eq)]
enum State {
    /// Opened by this end, not answered; with a code if it was cancelled since.
    Requested(Option<u64>),
    /// Opened by the peer, not answered.
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
    /// Waits for its turn to send.
    queued: bool,
    /// Its turn came without a window: it waits for one.
    blocked: bool,
    assembler: Assembler,
    window: u64,
    /// The limit that the peer has.
    granted: u64,
    window_queued: bool,
    /// When the window last changed, or a complete window was last taken: nanoseconds, bytes taken.
    epoch: (u64, u64),
}

/// All streams of a connection.
#[derive(Debug)]
pub struct Streams {
    side: Side,
    limits: Limits,
    rtt_ns: u64,
    opened: u64,
    /// Stream numbers of the peer, halved.
    seen: Ranges,
    streams: HashMap<u64, Stream>,
    offered: usize,
    promised_bytes: u64,
    waiting_chunks: usize,
    messages: VecDeque<Vec<u8>>,
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
            waiting_chunks: 0,
            messages: VecDeque::new(),
            windows: VecDeque::new(),
            turns: VecDeque::new(),
            events: VecDeque::new(),
            spare: Vec::new(),
        }
    }

    /// Sets the current round trip.
    pub fn set_rtt(&mut self, rtt_ns: u64) {
        self.rtt_ns = rtt_ns;
    }

    /// The number of streams.
    #[must_use]
    pub fn count(&self) -> usize {
        self.streams.len()
    }

    /// The sum of all windows.
    #[must_use]
    pub fn promised_bytes(&self) -> u64 {
        self.promised_bytes
    }

    /// Opens a stream. Its `target` is at most [`MAX_TARGET`] bytes long.
    pub fn open(&mut self, now_ns: u64, target: &[u8]) -> u64 {
        debug_assert!(target.len() <= MAX_TARGET);
        let stream = 2 * self.opened + u64::from(self.side == Side::Server);
        self.opened += 1;
        let window = self.add(now_ns, stream, State::Requested(None), 0);
        self.queue(&Message::Open { stream, window, target });
        stream
    }

    /// Accepts an offered stream. False if it no longer exists.
    pub fn accept(&mut self, stream: u64) -> bool {
        let Some(found) = self.streams.get_mut(&stream) else { return false };
        if found.state != State::Offered {
            return false;
        }
        found.state = State::Open;
        let window = found.granted;
        self.queue(&Message::Opened { stream, window });
        true
    }

    /// Refuses an offered stream. A reason longer than [`MAX_REASON`] is cut.
    pub fn refuse(&mut self, stream: u64, code: u64, reason: &str) {
        if self.streams.get(&stream).is_some_and(|found| found.state == State::Offered) {
            let reason = &reason.as_bytes()[..reason.len().min(MAX_REASON)];
            self.queue(&Message::Refused { stream, code, reason });
            self.remove(stream);
        }
    }

    /// Accepts no more streams of the peer.
    pub fn drain(&mut self) {
        self.queue(&Message::Drain);
    }

    /// The application has finished with a stream: one that has not ended in both directions is reset.
    pub fn close(&mut self, stream: u64, code: u64) {
        let Some(found) = self.streams.get_mut(&stream) else { return };
        match found.state {
            // The reset follows the answer: it might overtake the request.
            State::Requested(_) => found.state = State::Requested(Some(code)),
            State::Offered => self.refuse(stream, code, ""),
            State::Open => {
                if !(found.end_sent && found.assembler.is_finished()) {
                    self.queue(&Message::Reset { stream, code });
                }
                self.remove(stream);
            }
        }
    }

    /// Marks a stream as ready to send: it gets a turn once its window allows it.
    pub fn wants_to_send(&mut self, stream: u64) {
        if let Some(found) = self.streams.get_mut(&stream) {
            if !found.queued && !found.blocked && !found.end_sent && found.state == State::Open {
                found.queued = true;
                self.turns.push_back(stream);
            }
        }
    }

    /// The next stream to send, and how many bytes it may. It leaves the queue until [`Self::wants_to_send`].
    pub fn turn(&mut self) -> Option<(u64, u64)> {
        while let Some(stream) = self.turns.pop_front() {
            let Some(found) = self.streams.get_mut(&stream) else { continue };
            found.queued = false;
            if found.sent < found.allowed {
                return Some((stream, found.allowed - found.sent));
            }
            found.blocked = true;
        }
        None
    }

    /// Appends the head of a message with the next bytes of a stream.
    pub fn put_head(&self, stream: u64, out: &mut Vec<u8>) {
        if let Some(found) = self.streams.get(&stream) {
            put_data_head(out, stream, found.sent);
        }
    }

    /// `bytes` were sent after such a head.
    pub fn sent(&mut self, stream: u64, bytes: u64) {
        if let Some(found) = self.streams.get_mut(&stream) {
            found.sent += bytes;
            debug_assert!(found.sent <= found.allowed);
        }
    }

    /// Ends the sending direction of a stream.
    pub fn end(&mut self, stream: u64) {
        let Some(found) = self.streams.get_mut(&stream) else { return };
        if found.state == State::Open && !std::mem::replace(&mut found.end_sent, true) {
            let length = found.sent;
            self.queue(&Message::End { stream, length });
        }
    }

    /// The next message without bytes of a stream. These are sent before those with bytes.
    pub fn next_message(&mut self) -> Option<Vec<u8>> {
        if let Some(message) = self.messages.pop_front() {
            return Some(message);
        }
        while let Some(stream) = self.windows.pop_front() {
            let Some(found) = self.streams.get_mut(&stream) else { continue };
            found.window_queued = false;
            found.granted = found.assembler.taken() + found.window;
            let mut message = Vec::with_capacity(20);
            Message::Window { stream, limit: found.granted }.put(&mut message);
            return Some(message);
        }
        None
    }

    /// The next event.
    pub fn next_event(&mut self) -> Option<Event> {
        self.events.pop_front()
    }

    /// The next ordered bytes of a stream; empty if none are available.
    #[must_use]
    pub fn front(&self, stream: u64) -> &[u8] {
        self.streams.get(&stream).map_or(&[], |found| found.assembler.front())
    }

    /// The application has taken `bytes` of them.
    pub fn taken(&mut self, now_ns: u64, stream: u64, bytes: usize) {
        let free_bytes = self.limits.memory_bytes.saturating_sub(self.promised_bytes);
        let Some(found) = self.streams.get_mut(&stream) else { return };
        let buffer = found.assembler.take(bytes);
        let taken = found.assembler.taken();
        if taken - found.epoch.1 >= found.window {
            let quick = now_ns - found.epoch.0 < QUICK_ROUND_TRIPS * self.rtt_ns;
            // A doubling leaves at least as much to other streams as it takes.
            if quick && 2 * found.window <= free_bytes {
                self.promised_bytes += found.window;
                found.window *= 2;
            }
            found.epoch = (now_ns, taken);
        }
        let due = taken + found.window - found.granted >= found.window / 4;
        if due && !found.window_queued && !found.assembler.has_length() {
            found.window_queued = true;
            self.windows.push_back(stream);
        }
        self.keep(buffer);
    }

    /// Whether the application has taken the complete stream of the peer.
    #[must_use]
    pub fn is_finished(&self, stream: u64) -> bool {
        self.streams.get(&stream).is_some_and(|found| found.assembler.is_finished())
    }

    /// Whether all bytes of the peer's stream are here, and its end.
    #[must_use]
    pub fn is_complete(&self, stream: u64) -> bool {
        self.streams.get(&stream).is_some_and(|found| found.assembler.is_complete())
    }

    /// Takes all ordered bytes of a stream.
    pub fn take_all(&mut self, stream: u64) -> Vec<u8> {
        let Some(found) = self.streams.get_mut(&stream) else { return Vec::new() };
        let mut bytes = Vec::new();
        while found.assembler.is_ready() {
            bytes.extend_from_slice(found.assembler.front());
            found.assembler.take(usize::MAX);
        }
        bytes
    }

    /// Whether no message without bytes of a stream waits.
    #[must_use]
    pub fn is_flushed(&self) -> bool {
        self.messages.is_empty() && self.windows.is_empty()
    }

    /// A free buffer, of any length.
    pub fn spare(&mut self) -> Option<Vec<u8>> {
        self.spare.pop()
    }

    /// A free buffer, if more are spare than the streams need.
    pub fn surplus(&mut self) -> Option<Vec<u8>> {
        if self.spare.len() <= SPARE_BUFFERS / 2 {
            return None;
        }
        self.spare.pop()
    }

    /// Returns free buffers.
    pub fn recycle(&mut self, buffers: impl IntoIterator<Item = Vec<u8>>) {
        buffers.into_iter().for_each(|buffer| self.keep(Some(buffer)));
    }

    fn keep(&mut self, buffer: Option<Vec<u8>>) {
        if let Some(buffer) = buffer.filter(|_| self.spare.len() < SPARE_BUFFERS) {
            self.spare.push(buffer);
        }
    }

    fn queue(&mut self, message: &Message<'_>) {
        let mut bytes = Vec::with_capacity(24);
        message.put(&mut bytes);
        self.messages.push_back(bytes);
    }

    /// Adds a stream; returns its window.
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
            blocked: false,
            assembler: Assembler::default(),
            window,
            granted: window,
            window_queued: false,
            epoch: (now_ns, 0),
        };
        self.streams.insert(stream, fresh);
        window
    }

    fn remove(&mut self, stream: u64) -> Option<State> {
        let found = self.streams.remove(&stream)?;
        self.promised_bytes -= found.window;
        self.waiting_chunks -= found.assembler.waiting_chunks();
        self.offered -= usize::from(self.is_peers(stream));
        Some(found.state)
    }

    fn is_peers(&self, stream: u64) -> bool {
        (stream % 2 == 1) != (self.side == Side::Server)
    }
}
