//! Messages of the peer.

use super::message::Message;
use super::{codes, Event, State, Streams};
use crate::error::Error;

/// The most chunks after a gap, over all streams. Neighbours are joined, so each stands for a loss.
const MAX_WAITING_CHUNKS: usize = 1 << 16;

/// The most messages in the queue, windows excluded. Only a peer that opens streams and reads nothing exceeds it.
const MAX_QUEUED: usize = 1 << 14;

impl Streams {
    /// Processes a message of the peer: the first `length` bytes of `buffer`.
    ///
    /// # Errors
    /// The peer violated the protocol.
    pub fn receive(&mut self, now_ns: u64, buffer: Vec<u8>, length: usize) -> Result<(), Error> {
        let message = Message::read(&buffer[..length])?;
        match message {
            Message::Open { stream, window, target } => {
                self.on_open(now_ns, stream, window, target)?
            }
            Message::Opened { stream, window } => self.on_opened(stream, window),
            Message::Refused { stream, code, reason } => {
                let reason = String::from_utf8_lossy(reason).into_owned();
                if let Some(State::Requested(cancelled)) = self.remove(stream) {
                    if cancelled.is_none() {
                        self.events.push_back(Event::Refused { stream, code, reason });
                    }
                }
            }
            Message::Data { stream, offset, bytes } => {
                let at = length - bytes.len();
                return self.on_data(stream, offset, buffer, at, length);
            }
            Message::End { stream, length } => {
                if let Some(found) = self.streams.get_mut(&stream) {
                    found.assembler.set_length(length)?;
                    if found.state == State::Open {
                        self.events.push_back(Event::Readable(stream));
                    }
                }
            }
            Message::Window { stream, limit } => {
                if let Some(found) = self.streams.get_mut(&stream) {
                    found.allowed = found.allowed.max(limit);
                    if std::mem::take(&mut found.blocked) {
                        found.queued = true;
                        self.turns.push_back(stream);
                    }
                }
            }
            Message::Reset { stream, code } => {
                if let Some(state) = self.remove(stream) {
                    if !matches!(state, State::Requested(Some(_))) {
                        self.events.push_back(Event::Reset { stream, code });
                    }
                }
            }
            Message::Drain => self.events.push_back(Event::Drain),
        }
        self.keep(Some(buffer));
        if self.messages.len() > MAX_QUEUED {
            return Err(Error::Violation("it requests more than it reads answers for"));
        }
        Ok(())
    }

    fn on_open(
        &mut self,
        now_ns: u64,
        stream: u64,
        window: u64,
        target: &[u8],
    ) -> Result<(), Error> {
        if !self.is_peers(stream) || self.seen.contains(stream / 2) {
            return Err(Error::Violation("it opened a stream twice"));
        }
        self.seen.insert(stream / 2..stream / 2 + 1);
        if self.offered >= self.limits.streams {
            let reason = b"as many connections as one session takes are open";
            self.queue(&Message::Refused { stream, code: codes::TOO_MANY, reason });
            return Ok(());
        }
        self.add(now_ns, stream, State::Offered, window);
        self.events.push_back(Event::Offered { stream, target: target.to_vec() });
        Ok(())
    }

    fn on_opened(&mut self, stream: u64, window: u64) {
        let Some(found) = self.streams.get_mut(&stream) else { return };
        let State::Requested(cancelled) = found.state else { return };
        found.state = State::Open;
        found.allowed = found.allowed.max(window);
        if let Some(code) = cancelled {
            return self.close(stream, code);
        }
        let readable = found.assembler.is_ready() || found.assembler.has_length();
        self.events.push_back(Event::Opened(stream));
        if readable {
            // The first bytes have overtaken the answer.
            self.events.push_back(Event::Readable(stream));
        }
    }

    fn on_data(
        &mut self,
        stream: u64,
        offset: u64,
        buffer: Vec<u8>,
        at: usize,
        end: usize,
    ) -> Result<(), Error> {
        let Some(found) = self.streams.get_mut(&stream) else {
            self.keep(Some(buffer));
            return Ok(());
        };
        if found.state == State::Offered || offset + (end - at) as u64 > found.granted {
            return Err(Error::Violation("it sent more on a stream than it may"));
        }
        let (was_ready, waiting) = (found.assembler.is_ready(), found.assembler.waiting_chunks());
        let left = found.assembler.insert(offset, buffer, at, end)?;
        self.waiting_chunks = self.waiting_chunks + found.assembler.waiting_chunks() - waiting;
        if !was_ready && found.assembler.is_ready() && found.state == State::Open {
            self.events.push_back(Event::Readable(stream));
        }
        self.keep(left);
        if self.waiting_chunks > MAX_WAITING_CHUNKS {
            return Err(Error::Violation("too much of its streams is missing"));
        }
        Ok(())
    }
}
