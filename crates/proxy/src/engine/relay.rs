//! Open connections: relays bytes between programs and streams.

use std::sync::atomic::AtomicU64;

use waystage_protocol::streams::Event;

use super::{Ending, Engine, REST_TIME};
use crate::network::{Network, Transport};
use crate::record::{add, Counts};
use crate::socks::{self, replies};
use crate::stream_codes::REPLY;
use crate::tunnel::{Fed, Ingress, State};

impl<N: Network> Engine<N> {
    /// What has happened to streams.
    pub(super) fn events(&mut self) {
        loop {
            let Some(session) = &mut self.session else { return };
            let Some(event) = session.streams.next_event() else { return };
            match event {
                Event::Offered { stream, target } => self.offered(stream, &target),
                Event::Opened(stream) => self.opened(stream),
                Event::Refused { stream, code, reason } => {
                    if let Some(token) = self.by_stream.get(&stream).copied() {
                        let code = code.checked_sub(REPLY).and_then(|code| u8::try_from(code).ok());
                        self.refuse(token, code.unwrap_or(replies::FAILURE), &reason);
                    }
                }
                Event::Readable(stream) => {
                    if let Some(token) = self.by_stream.get(&stream).copied() {
                        self.pump(token);
                    }
                }
                Event::Reset { stream, .. } => {
                    if let Some(token) = self.by_stream.get(&stream).copied() {
                        self.end(token, Ending::Reset("the peer reset it".to_owned()));
                    }
                }
                Event::Drain => session.draining = true,
            }
        }
    }

    fn opened(&mut self, stream: u64) {
        let Some(token) = self.by_stream.get(&stream).copied() else { return };
        let Some(tunnel) = self.tunnels.get_mut(&token) else { return };
        tunnel.state = State::Open;
        if tunnel.ingress == Ingress::Socks {
            if let Err(error) = tunnel.say(&socks::reply(replies::SUCCEEDED)) {
                return self.end(token, Ending::Reset(error.to_string()));
            }
        }
        self.pump(token);
    }

    /// Carry what this connection has now.
    pub(super) fn pump(&mut self, token: u64) {
        let Some(session) = &mut self.session else { return };
        let Some(tunnel) = self.tunnels.get_mut(&token) else { return };
        let Some(stream) = tunnel.stream.filter(|_| tunnel.is_open()) else { return };
        match tunnel.drain(&mut session.streams, stream) {
            Ok(bytes) => add(written_bytes(&self.counts, tunnel.ingress), bytes),
            Err(error) => return self.end(token, Ending::Reset(error.to_string())),
        }
        if tunnel.readable && !tunnel.read_ended {
            session.streams.wants_to_send(stream);
        }
        if tunnel.read_ended && tunnel.write_ended {
            self.end(token, Ending::Closed);
        }
    }

    /// Write what is left of a stream whose session is gone.
    pub(super) fn finish_writing(&mut self, token: u64) {
        let Some(tunnel) = self.tunnels.get_mut(&token) else { return };
        match tunnel.drain_rest() {
            Err(error) => self.end(token, Ending::Reset(error.to_string())),
            Ok(bytes) => {
                add(written_bytes(&self.counts, tunnel.ingress), bytes);
                if tunnel.write_ended {
                    self.end(token, Ending::Closed);
                } else if bytes > 0 || tunnel.deadline.is_none() {
                    self.set_deadline(token, REST_TIME);
                }
            }
        }
    }

    /// Give the session as much as it can carry soon, each stream in its turn.
    pub(super) fn fill(&mut self) {
        loop {
            let Some(session) = &mut self.session else { return };
            while session.transport.has_place() {
                let Some(message) = session.streams.next_message() else { break };
                session.transport.send(message);
            }
            session.transport.spare(std::iter::from_fn(|| session.streams.surplus()));
            if !session.transport.has_room() {
                return;
            }
            let Some((stream, room)) = session.streams.turn() else { return };
            let Some(token) = self.by_stream.get(&stream).copied() else { continue };
            let Some(tunnel) = self.tunnels.get_mut(&token) else { continue };
            match tunnel.feed(&mut session.streams, stream, room) {
                Fed::Message(message, bytes) => {
                    let asked_there = tunnel.ingress == Ingress::Offered;
                    let count = if asked_there {
                        &self.counts.received_bytes
                    } else {
                        &self.counts.sent_bytes
                    };
                    add(count, bytes);
                    session.streams.sent(stream, bytes);
                    session.transport.send(message);
                    session.streams.wants_to_send(stream);
                }
                Fed::Dry => {}
                Fed::Ended => {
                    tunnel.read_ended = true;
                    session.streams.end(stream);
                    if tunnel.write_ended {
                        self.end(token, Ending::Closed);
                    }
                }
                Fed::Failed(error) => self.end(token, Ending::Reset(error.to_string())),
            }
        }
    }
}

/// Where bytes count that a program was given: at the end that connects, the program that asked is at the other.
fn written_bytes(counts: &Counts, ingress: Ingress) -> &AtomicU64 {
    if ingress == Ingress::Offered {
        &counts.sent_bytes
    } else {
        &counts.received_bytes
    }
}
