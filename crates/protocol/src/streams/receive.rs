//! A message of the peer comes in.

use super::message::Message;
use super::{codes, Broken, Event, State, Streams};

/// Pieces that wait for others before them, over all streams. Neighbours are joined, so each stands for a loss.
const MOST_PIECES: usize = 1 << 16;

/// Messages that wait to be sent, windows left out. Only a peer that opens streams and reads nothing gets so far.
const MOST_SAID: usize = 1 << 14;

impl Streams {
    /// Takes in a message of the peer: the first `length` bytes of `buffer`.
    pub fn receive(&mut self, now_ns: u64, buffer: Vec<u8>, length: usize) -> Result<(), Broken> {
        let message = Message::read(&buffer[..length]).map_err(|malformed| Broken(malformed.0))?;
        match message {
            Message::Open { stream, window, target } => {
                self.offered(now_ns, stream, window, target)?
            }
            Message::Opened { stream, window } => self.answered(stream, window),
            Message::Refused { stream, code, reason } => {
                let reason = String::from_utf8_lossy(reason).into_owned();
                if let Some(State::Asked(given_up)) = self.remove(stream) {
                    if given_up.is_none() {
                        self.events.push_back(Event::Refused { stream, code, reason });
                    }
                }
            }
            Message::Data { stream, offset, bytes } => {
                let at = length - bytes.len();
                return self.data(stream, offset, buffer, at, length);
            }
            Message::End { stream, length } => {
                if let Some(found) = self.streams.get_mut(&stream) {
                    let known = found.arriving.ends_at(length);
                    known.map_err(|_| Broken("a stream had two ends, or bytes behind its end"))?;
                    if found.state == State::Open {
                        self.events.push_back(Event::Readable(stream));
                    }
                }
            }
            Message::Window { stream, limit } => {
                if let Some(found) = self.streams.get_mut(&stream) {
                    found.allowed = found.allowed.max(limit);
                    if std::mem::take(&mut found.starved) {
                        found.queued = true;
                        self.turns.push_back(stream);
                    }
                }
            }
            Message::Reset { stream, code } => {
                if let Some(state) = self.remove(stream) {
                    if !matches!(state, State::Asked(Some(_))) {
                        self.events.push_back(Event::Reset { stream, code });
                    }
                }
            }
            Message::Drain => self.events.push_back(Event::Drain),
        }
        self.keep(Some(buffer));
        if self.said.len() > MOST_SAID {
            return Err(Broken("it wants more than it takes answers for"));
        }
        Ok(())
    }

    fn offered(
        &mut self,
        now_ns: u64,
        stream: u64,
        window: u64,
        target: &[u8],
    ) -> Result<(), Broken> {
        if !self.is_peers(stream) || self.seen.contains(stream / 2) {
            return Err(Broken("it opened a stream twice"));
        }
        self.seen.insert(stream / 2..stream / 2 + 1);
        if self.offered >= self.limits.streams {
            let reason = b"as many connections as one session takes are open";
            self.say(&Message::Refused { stream, code: codes::TOO_MANY, reason });
            return Ok(());
        }
        self.add(now_ns, stream, State::Offered, window);
        self.events.push_back(Event::Offered { stream, target: target.to_vec() });
        Ok(())
    }

    fn answered(&mut self, stream: u64, window: u64) {
        let Some(found) = self.streams.get_mut(&stream) else { return };
        let State::Asked(given_up) = found.state else { return };
        found.state = State::Open;
        found.allowed = found.allowed.max(window);
        if let Some(code) = given_up {
            return self.close(stream, code);
        }
        let readable = found.arriving.is_ready() || found.arriving.has_length();
        self.events.push_back(Event::Opened(stream));
        if readable {
            // Its first bytes have overtaken the answer.
            self.events.push_back(Event::Readable(stream));
        }
    }

    fn data(
        &mut self,
        stream: u64,
        offset: u64,
        buffer: Vec<u8>,
        at: usize,
        end: usize,
    ) -> Result<(), Broken> {
        let Some(found) = self.streams.get_mut(&stream) else {
            self.keep(Some(buffer));
            return Ok(());
        };
        if found.state == State::Offered || offset + (end - at) as u64 > found.granted {
            return Err(Broken("it sent more on a stream than it may"));
        }
        let (was_ready, pieces) = (found.arriving.is_ready(), found.arriving.pieces());
        let left = found.arriving.insert(offset, buffer, at, end);
        let left = left.map_err(|_| Broken("it sent bytes of a stream twice"))?;
        self.pieces = self.pieces + found.arriving.pieces() - pieces;
        if !was_ready && found.arriving.is_ready() && found.state == State::Open {
            self.events.push_back(Event::Readable(stream));
        }
        self.keep(left);
        if self.pieces > MOST_PIECES {
            return Err(Broken("too much of its streams is missing"));
        }
        Ok(())
    }
}
