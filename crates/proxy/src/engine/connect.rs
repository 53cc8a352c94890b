//! Connections until they are open: accept, SOCKS, rules, name look-up, connect.

use std::collections::VecDeque;
use std::net::SocketAddr;

use waystage_protocol::protect::Side;

use super::targets;
use super::{add_gauge, Ending, Engine, CONNECT_TIME, GREETING_TIME, RETRY_TIME};
use crate::destination::{Destination, Host, Offer};
use crate::listener::Kind;
use crate::local_address::is_local;
use crate::network::{Accepted, Network};
use crate::poller::Ready;
use crate::record::add;
use crate::rules::Verdict;
use crate::socks::{self, replies};
use crate::splice::Splice;
use crate::stream_codes;
use crate::tunnel::{Ingress, ProgramSocket, State, Tunnel};

/// Connections taken at a time from one place, so that the others have their turn.
const MOST_TAKEN: usize = 64;

impl<N: Network> Engine<N> {
    pub(super) fn accept(&mut self, listener: u64) {
        for _ in 0..MOST_TAKEN {
            let Some(place) = self.listeners.get(&listener) else { return };
            let Accepted { socket, from, kind, found } = match self.network.accept(place) {
                Ok(accepted) => accepted,
                Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => return,
                Err(_) => {
                    // Such as no descriptor left: it is tried again in a while, and not as fast as it can.
                    self.network.watch_listener(place, None);
                    self.note_deadline(self.network.now() + RETRY_TIME);
                    return self.paused.push(listener);
                }
            };
            let token = self.token();
            if self.network.watch(&socket, token).is_err() {
                continue;
            }
            let ingress = if matches!(kind, Kind::Socks) { Ingress::Socks } else { Ingress::Plain };
            let origin = SocketAddr::new(from.ip().to_canonical(), from.port()).to_string();
            self.begin(token, Tunnel::new(Some(socket), ingress, origin));
            match (kind, found) {
                (Kind::Socks, _) => self.set_deadline(token, GREETING_TIME),
                (Kind::Reverse(index), _) => {
                    if let Some(tunnel) = self.tunnels.get_mut(&token) {
                        tunnel.target = format!("the client's reverse forward {}", index + 1);
                        tunnel.reverse = index;
                    }
                    self.ask(token);
                }
                (_, Ok(Some(destination))) => self.route(token, &destination),
                (_, Ok(None)) => {}
                (_, Err(why)) => self.refuse(token, replies::FAILURE, &why),
            }
        }
    }

    pub(super) fn begin(&mut self, token: u64, tunnel: Tunnel<N::Socket>) {
        self.tunnels.insert(token, tunnel);
        add(&self.counts.connections, 1);
        add_gauge(&self.counts, 1);
    }

    pub(super) fn set_deadline(&mut self, token: u64, time: std::time::Duration) {
        let deadline = self.network.now() + time;
        if let Some(tunnel) = self.tunnels.get_mut(&token) {
            tunnel.deadline = Some(deadline);
            self.note_deadline(deadline);
        }
    }

    /// A socket is ready for something.
    pub(super) fn ready(&mut self, ready: &Ready, token: u64) {
        if self.splices.contains_key(&token) {
            return self.carry_on(token, ready.failed);
        }
        let Some(tunnel) = self.tunnels.get_mut(&token) else { return };
        tunnel.readable |= ready.readable;
        tunnel.writable |= ready.writable;
        match tunnel.state {
            State::Connecting(_) if ready.writable || ready.failed => self.connected(token),
            State::Connecting(_) => {}
            _ if ready.failed => {
                let error = tunnel.socket.as_ref().and_then(ProgramSocket::take_error);
                let why = error.map_or_else(String::new, |error| error.to_string());
                self.end(token, Ending::Reset(why));
            }
            State::Greeting(_) if ready.readable => self.greet(token),
            State::Open => self.pump(token),
            State::Finishing(..) => self.finish_writing(token),
            _ => {}
        }
    }

    /// SOCKS: read what there is of the greeting and the request.
    fn greet(&mut self, token: u64) {
        let mut seen = [0; socks::LONGEST];
        while let Some(tunnel) = self.tunnels.get_mut(&token) {
            let State::Greeting(greeted) = tunnel.state else { return };
            let bytes = match tunnel.peek(&mut seen) {
                Ok(Some(0)) => return self.end(token, Ending::Closed),
                Ok(Some(count)) => &seen[..count],
                Ok(None) => return,
                Err(error) => return self.end(token, Ending::Reset(error.to_string())),
            };
            let (length, destination) = if greeted {
                match socks::request(bytes) {
                    Ok(Some((length, destination))) => (length, Some(destination)),
                    Ok(None) => return,
                    Err(odd) => return self.malformed(token, &odd.0, bytes.len()),
                }
            } else {
                match socks::greeting(bytes) {
                    Ok(Some(length)) => (length, None),
                    Ok(None) => return,
                    Err(odd) => return self.malformed(token, &odd.0, bytes.len()),
                }
            };
            let said = tunnel.skip(length).and_then(|()| {
                if greeted {
                    Ok(())
                } else {
                    tunnel.say(&socks::GREETED)
                }
            });
            if let Err(error) = said {
                return self.end(token, Ending::Reset(error.to_string()));
            }
            match destination {
                Some(destination) => return self.route(token, &destination),
                None => tunnel.state = State::Greeting(true),
            }
        }
    }

    /// It said `seen` bytes that make no sense here.
    fn malformed(&mut self, token: u64, answer: &[u8], seen: usize) {
        if let Some(tunnel) = self.tunnels.get_mut(&token) {
            // Unread bytes would make the kernel reset the connection and drop the answer.
            let _ = tunnel.skip(seen).and_then(|()| tunnel.say(answer));
        }
        let why = "it speaks no SOCKS 5 without authentication, or asks for more than CONNECT";
        self.end(token, Ending::Refused(why.to_owned()));
    }

    /// Where a connection of this side is to go, and by which way.
    fn route(&mut self, token: u64, destination: &Destination) {
        let Some(tunnel) = self.tunnels.get_mut(&token) else { return };
        tunnel.target = destination.to_string();
        tunnel.destination = Some(destination.clone());
        let (host, port) = (&destination.host, destination.port);
        let judged = self.settings.rules.judge(host, None, port, &is_local);
        match judged.verdict {
            Verdict::Allow => self.ask(token),
            Verdict::Deny => {
                let why = format!("a rule here denies {destination}{}", judged.remedy());
                self.refuse(token, replies::NOT_ALLOWED, &why);
            }
            Verdict::Direct => self.connect(token, destination),
        }
    }

    /// Ask the peer for a stream, or wait until there is a session.
    pub(super) fn ask(&mut self, token: u64) {
        let wait = self.settings.wait;
        let Some(tunnel) = self.tunnels.get_mut(&token) else { return };
        let session = self.session.as_mut().filter(|session| !session.draining);
        let Some(session) = session else {
            if !matches!(tunnel.state, State::Waiting) {
                tunnel.state = State::Waiting;
                self.set_deadline(token, wait);
            }
            if self.waiting.len() > 2 * self.tunnels.len() {
                // Connections that have ended since would pile up where no session comes.
                self.waiting.retain(|token| self.tunnels.contains_key(token));
            }
            return self.waiting.push_back(token);
        };
        let origin = tunnel.origin.clone();
        let offer = match tunnel.destination.clone() {
            Some(destination) => Offer::Forward { destination, origin },
            None => Offer::Reverse { index: tunnel.reverse, origin },
        };
        let stream = session.streams.open(waystage_transport::clock::now_ns(), &offer.encode());
        tunnel.stream = Some(stream);
        tunnel.state = State::Asked;
        tunnel.deadline = None;
        self.by_stream.insert(stream, token);
    }

    /// The peer wants a stream.
    pub(super) fn offered(&mut self, stream: u64, target: &[u8]) {
        let token = self.token();
        let requested = targets::requested(self.settings.side, target, &self.settings.reverse);
        let (origin, destination) = match requested {
            Ok(requested) => requested,
            Err((code, why)) => return self.refuse_stream(stream, code, why),
        };
        let mut tunnel = Tunnel::new(None, Ingress::Offered, origin);
        tunnel.stream = Some(stream);
        tunnel.target = destination.to_string();
        tunnel.destination = Some(destination.clone());
        self.by_stream.insert(stream, token);
        self.begin(token, tunnel);
        self.connect(token, &destination);
    }

    fn refuse_stream(&mut self, stream: u64, code: u8, why: &str) {
        if let Some(session) = &mut self.session {
            session.streams.refuse(stream, stream_codes::REPLY + u64::from(code), why);
        }
    }

    /// Connect to a destination from here.
    fn connect(&mut self, token: u64, destination: &Destination) {
        self.set_deadline(token, CONNECT_TIME);
        let Some(tunnel) = self.tunnels.get_mut(&token) else { return };
        tunnel.state = State::Resolving;
        match &destination.host {
            Host::Address(address) => {
                let address = SocketAddr::new(*address, destination.port);
                self.resolved(token, Ok(vec![address]));
            }
            Host::Name(name) => self.network.resolve(token, name, destination.port),
        }
    }

    /// The addresses of a destination are known: try those that may be reached.
    pub(super) fn resolved(&mut self, token: u64, found: Result<Vec<SocketAddr>, String>) {
        let Some(tunnel) = self.tunnels.get(&token) else { return };
        let found = match found {
            Ok(found) => found,
            Err(why) => return self.refuse(token, replies::HOST_UNREACHABLE, &why),
        };
        // A client chose the destinations of its reverse forwards itself: rules are about what others choose.
        let chosen = self.settings.side == Side::Client && tunnel.ingress == Ingress::Offered;
        let destination = tunnel.destination.as_ref().filter(|_| !chosen);
        let rules = &self.settings.rules;
        let allowed = match targets::allowed(rules, destination, found, &is_local) {
            Ok(allowed) => allowed,
            Err(remedy) => {
                let target = &tunnel.target;
                let why = match self.settings.side {
                    Side::Server => {
                        format!("the server does not let this user reach {target}{remedy}")
                    }
                    Side::Client => format!("a rule here denies {target}{remedy}"),
                };
                return self.refuse(token, replies::NOT_ALLOWED, &why);
            }
        };
        self.try_next(token, allowed, None);
    }

    fn try_next(
        &mut self,
        token: u64,
        mut left: VecDeque<SocketAddr>,
        mut last: Option<std::io::Error>,
    ) {
        while let Some(address) = left.pop_front() {
            match self.network.connect(address, token + 1) {
                Ok(socket) => {
                    if let Some(tunnel) = self.tunnels.get_mut(&token) {
                        tunnel.state = State::Connecting(left);
                        match tunnel.ingress {
                            Ingress::Offered => tunnel.socket = Some(socket),
                            _ => tunnel.far = Some(socket),
                        }
                    }
                    return;
                }
                Err(error) => last = Some(error),
            }
        }
        let target = self.tunnels.get(&token).map_or("", |tunnel| &tunnel.target).to_owned();
        let (code, why) = match last {
            Some(error) => {
                (targets::reply_to(&error), format!("{target} cannot be reached: {error}"))
            }
            None => (replies::HOST_UNREACHABLE, format!("{target} has no address")),
        };
        self.refuse(token, code, &why);
    }

    /// A connection that was being made is there, or is not.
    fn connected(&mut self, token: u64) {
        let Some(tunnel) = self.tunnels.get_mut(&token) else { return };
        let direct = tunnel.ingress != Ingress::Offered;
        let socket = if direct { &tunnel.far } else { &tunnel.socket };
        let Some(socket) = socket else { return };
        let failed = match socket.is_connected() {
            Err(error) => error,
            Ok(true) => {
                tunnel.deadline = None;
                return if direct { self.spliced(token) } else { self.accepted(token) };
            }
            // Something happened, but it is not there yet.
            Ok(false) => return,
        };
        let State::Connecting(left) = &mut tunnel.state else { return };
        let left = std::mem::take(left);
        self.try_next(token, left, Some(failed));
    }

    /// The destination of the peer's stream is there.
    fn accepted(&mut self, token: u64) {
        let Some(tunnel) = self.tunnels.get_mut(&token) else { return };
        tunnel.state = State::Open;
        (tunnel.writable, tunnel.readable) = (true, true);
        let accepted = match (&mut self.session, tunnel.stream) {
            (Some(session), Some(stream)) => session.streams.accept(stream),
            _ => false,
        };
        if accepted {
            self.pump(token);
        } else {
            self.end(token, Ending::Reset("the stream was closed meanwhile".to_owned()));
        }
    }

    /// A destination past the session is there.
    fn spliced(&mut self, token: u64) {
        let Some(mut tunnel) = self.tunnels.remove(&token) else { return };
        if tunnel.ingress == Ingress::Socks {
            // A client that has gone away is noticed by what follows.
            let _ = tunnel.say(&socks::reply(replies::SUCCEEDED));
        }
        if let (Some(near), Some(far)) = (tunnel.socket.take(), tunnel.far.take()) {
            self.splices.insert(token, Splice::new(near, far, tunnel.origin, tunnel.target));
            self.carry_on(token, false);
        }
    }

    fn carry_on(&mut self, token: u64, failed: bool) {
        let Some(splice) = self.splices.get_mut(&token) else { return };
        let carried = splice.carry();
        let done = splice.is_done();
        match carried {
            Ok((there, back)) => {
                add(&self.counts.sent_bytes, there);
                add(&self.counts.received_bytes, back);
                if failed {
                    self.end_splice(token, Some("one of its ends was reset"));
                } else if done {
                    self.end_splice(token, None);
                }
            }
            Err(error) => self.end_splice(token, Some(&error.to_string())),
        }
    }

    /// Refuse a connection, in the terms of how it came here.
    pub(super) fn refuse(&mut self, token: u64, code: u8, why: &str) {
        let Some(tunnel) = self.tunnels.get_mut(&token) else { return };
        match (tunnel.ingress, tunnel.stream) {
            (Ingress::Socks, _) => tunnel.send_refusal(code),
            (Ingress::Plain, _) => {}
            (Ingress::Offered, Some(stream)) => self.refuse_stream(stream, code, why),
            (Ingress::Offered, None) => {}
        }
        self.end(token, Ending::Refused(why.to_owned()));
    }

    /// A connection has waited long enough for what it waits for.
    pub(super) fn late(&mut self, token: u64) {
        let Some(tunnel) = self.tunnels.get(&token) else { return };
        match tunnel.state {
            State::Greeting(_) => {
                self.end(token, Ending::Reset("it did not say where to".to_owned()));
            }
            State::Finishing(..) => {
                self.end(token, Ending::Reset("it did not take the last bytes in time".to_owned()));
            }
            State::Waiting => {
                let why = "there is no session with the server";
                self.refuse(token, replies::NETWORK_UNREACHABLE, why);
            }
            _ => {
                let why = format!("{} did not answer in time", tunnel.target);
                self.refuse(token, replies::TTL_EXPIRED, &why);
            }
        }
    }
}
