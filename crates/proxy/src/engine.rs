//! The loop of a proxy's end: one thread for all its connections.
//!
//! Arrives: connections of programs, a session, rules. Leaves: bytes from programs to streams and back, records of
//! connections. Must not know: how a session is made, Python.
//!
//! Sockets, names and the session's messages are behind [`Network`], so tests run engines without them. Bytes are
//! read from a program only when they can leave soon, and written to a program as it takes them: a slow reader stops
//! the writer at the peer by the stream's window alone.

mod connect;
mod relay;
mod targets;
#[cfg(test)]
mod tests;

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

use waystage_protocol::protect::Side;
use waystage_protocol::streams::{Limits, Streams, LEAST_WINDOW_BYTES};
use waystage_transport::clock::now_ns;
use waystage_transport::flow_limits::FlowLimits;

use crate::destination::Destination;
use crate::listener::Place;
use crate::network::{Network, Transport, SESSION, WAKER};
use crate::record::{add, Counts, Notice, Record};
use crate::rules::Rules;
use crate::sockets::Sockets;
use crate::splice::Splice;
use crate::stream_codes;
use crate::tunnel::{Ingress, ProgramSocket, State, Tunnel};

/// A listener that could not take a connection, for example without a free descriptor, is tried again after this time.
const RETRY_TIME: Duration = Duration::from_millis(100);

/// A destination is connected to within this time, its name looked up.
const CONNECT_TIME: Duration = Duration::from_secs(20);

/// A SOCKS client says where to within this time.
const GREETING_TIME: Duration = Duration::from_secs(30);

/// A program takes more of a stream whose session is gone within this time.
const REST_TIME: Duration = Duration::from_secs(30);

/// Connections of one session from each side at most.
const MOST_STREAMS: usize = 4096;

/// Batches of datagrams that are sent before it is looked what has arrived.
const SEND_TURNS: usize = 4;

/// What the owner of a proxy wants of its loop.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Phase {
    /// It takes connections.
    Running,
    /// It takes no more connections, and ends with the last.
    Draining,
    /// It ends now.
    Stopping,
}

/// How a loop works.
pub(super) struct Settings {
    /// For destinations of this side's own connections at a client, of the other's at a server.
    pub(super) rules: Rules,
    pub(super) side: Side,
    /// What reverse forwards lead to, at a client.
    pub(super) reverse: Vec<Destination>,
    /// How long a connection waits for a session.
    pub(super) wait: Duration,
    pub(super) memory_bytes: u64,
}

struct Session<T> {
    transport: T,
    streams: Streams,
    /// The peer takes no more.
    draining: bool,
    drained: bool,
}

pub(super) struct Engine<N: Network = Sockets> {
    network: N,
    settings: Settings,
    listeners: HashMap<u64, N::Listener>,
    /// Those that could not take a connection.
    paused: Vec<u64>,
    tunnels: HashMap<u64, Tunnel<N::Socket>>,
    splices: HashMap<u64, Splice<N::Socket>>,
    by_stream: HashMap<u64, u64>,
    session: Option<Session<N::Transport>>,
    /// Connections that wait for one.
    waiting: VecDeque<u64>,
    next: u64,
    /// No connection is late before this.
    next_deadline: Option<Instant>,
    counts: Arc<Counts>,
    notices: Vec<Notice>,
    draining: bool,
}

/// How a connection ends.
enum Ending {
    Closed,
    /// By the program here, or by the peer.
    Reset(String),
    /// The session is gone.
    Lost(String),
    Refused(String),
}

impl<N: Network> Engine<N> {
    pub(super) fn new(network: N, settings: Settings, counts: Arc<Counts>) -> Self {
        Self {
            network,
            settings,
            listeners: HashMap::new(),
            paused: Vec::new(),
            tunnels: HashMap::new(),
            splices: HashMap::new(),
            by_stream: HashMap::new(),
            session: None,
            waiting: VecDeque::new(),
            next: 2,
            next_deadline: None,
            counts,
            notices: Vec::new(),
            draining: false,
        }
    }

    /// Take connections there.
    pub(super) fn listen(&mut self, place: &Place) -> std::io::Result<std::net::SocketAddr> {
        let token = self.token();
        let (listener, address) = self.network.listen(place, token)?;
        self.listeners.insert(token, listener);
        Ok(address)
    }

    fn token(&mut self) -> u64 {
        self.next += 2;
        self.next
    }

    /// A session to carry connections from now on.
    pub(super) fn attach_session(&mut self, transport: N::Transport) -> std::io::Result<()> {
        self.network.attach(&transport)?;
        let memory_bytes = self.settings.memory_bytes;
        let streams = (memory_bytes / LEAST_WINDOW_BYTES / 2).min(MOST_STREAMS as u64) as usize;
        let limits = Limits { streams, memory_bytes };
        let streams = Streams::new(self.settings.side, limits, transport.rtt_ns());
        self.session = Some(Session { transport, streams, draining: false, drained: false });
        add(&self.counts.sessions, 1);
        for token in std::mem::take(&mut self.waiting) {
            self.ask(token);
        }
        Ok(())
    }

    pub(super) fn has_session(&self) -> bool {
        self.session.is_some()
    }

    pub(super) fn status(&self) -> Option<waystage_transport::stats::Status> {
        self.session.as_ref().map(|session| session.transport.status())
    }

    /// Clear wake-ups. To be called before the owner checks what it wants of a turn, so that none in between is lost.
    pub(super) fn clear_wakers(&self) {
        self.network.clear_waker();
        if let Some(session) = &self.session {
            session.transport.clear_waker();
        }
    }

    /// Let limits hold that this end and its peer want now.
    pub(super) fn pace(&mut self, limits: &FlowLimits) {
        if let Some(session) = &mut self.session {
            session.transport.pace(limits);
        }
    }

    /// One turn: receive, send what can leave, wait, at most for `most`. Why the session has ended, if it has.
    pub(super) fn turn(&mut self, phase: Phase, most: Option<Duration>) -> Option<String> {
        if phase != Phase::Running {
            self.drain();
        }
        if let Some(why) = self.receive() {
            self.lose(&why);
            return Some(why);
        }
        for (token, found) in self.network.resolved() {
            self.resolved(token, found);
        }
        self.send();
        self.expire();
        let due = self.next_deadline.map(|at| at.saturating_duration_since(self.network.now()));
        let session = self.session.as_ref().and_then(|session| session.transport.rests_for());
        // The owner ends it at once.
        let ends = phase == Phase::Stopping || (phase == Phase::Draining && self.is_drained());
        let at_once = ends.then_some(Duration::ZERO);
        let rest = [at_once, most, due, session].into_iter().flatten().min();
        for ready in self.network.wait(rest) {
            match ready.token {
                WAKER | SESSION => {}
                token if self.listeners.contains_key(&token) => self.accept(token),
                token => self.ready(&ready, token & !1),
            }
        }
        None
    }

    /// What there is to tell since the last call.
    pub(super) fn notices(&mut self) -> Vec<Notice> {
        std::mem::take(&mut self.notices)
    }

    /// Whether nothing is left to be done before the end: no connection is open, and the peer has all last bytes.
    pub(super) fn is_drained(&self) -> bool {
        let told = |Session { transport, streams, .. }: &Session<N::Transport>| {
            streams.count() == 0 && streams.is_flushed() && transport.is_delivered()
        };
        self.is_empty() && self.session.as_ref().is_none_or(told)
    }

    /// Whether there are no connections.
    pub(super) fn is_empty(&self) -> bool {
        self.tunnels.is_empty() && self.splices.is_empty()
    }

    /// No more connections.
    fn drain(&mut self) {
        if !std::mem::replace(&mut self.draining, true) {
            self.listeners.clear();
        }
        if let Some(session) = &mut self.session {
            if !std::mem::replace(&mut session.drained, true) {
                session.streams.drain();
            }
        }
    }

    /// Ending everything; connections that are there are reset.
    pub(super) fn finish(&mut self, why: &str) {
        self.listeners.clear();
        let tokens: Vec<u64> = self.tunnels.keys().copied().collect();
        for token in tokens {
            self.end(token, Ending::Lost(why.to_owned()));
        }
        let tokens: Vec<u64> = self.splices.keys().copied().collect();
        for token in tokens {
            self.end_splice(token, Some(why));
        }
        self.send();
        if let Some(session) = self.session.take() {
            self.network.detach(&session.transport);
            session.transport.close();
        }
    }

    /// The session is gone, and what it carried with it. Programs still get what was received of streams that are
    /// complete, as from a TCP connection whose peer has closed.
    fn lose(&mut self, why: &str) {
        let Some(mut session) = self.session.take() else { return };
        self.network.detach(&session.transport);
        session.transport.abort();
        for (stream, token) in std::mem::take(&mut self.by_stream) {
            match self.tunnels.get_mut(&token) {
                Some(tunnel) if tunnel.read_ended && session.streams.is_complete(stream) => {
                    tunnel.stream = None;
                    tunnel.state = State::Finishing(session.streams.take_all(stream), 0);
                    self.finish_writing(token);
                }
                // Nothing of it was carried yet: it waits for the next session, at the client that took it.
                Some(tunnel)
                    if matches!(tunnel.state, State::Asked) && !self.settings.wait.is_zero() =>
                {
                    tunnel.stream = None;
                    self.ask(token);
                }
                _ => self.end(token, Ending::Lost(why.to_owned())),
            }
        }
    }

    /// Take in what the session has for us.
    fn receive(&mut self) -> Option<String> {
        let session = self.session.as_mut()?;
        session.streams.set_rtt(session.transport.rtt_ns());
        let (mut came, mut free) = (Vec::new(), Vec::new());
        session.transport.receive(&mut came, &mut free);
        let mut broken = None;
        for message in came {
            let taken = session.streams.receive(now_ns(), message.buffer, message.length);
            if let Err(how) = taken {
                broken.get_or_insert(format!("the peer broke the protocol: {}", how.detail()));
            }
        }
        session.streams.recycle(free);
        self.events();
        let session = self.session.as_mut()?;
        broken.or_else(|| session.transport.ended())
    }

    /// Give the session what it can carry soon.
    fn send(&mut self) {
        // What arrives meanwhile is looked at in between.
        for _ in 0..SEND_TURNS {
            self.fill();
            let Some(session) = &mut self.session else { return };
            if !session.transport.transmit() {
                return;
            }
        }
    }

    /// Some deadline is at `at`.
    fn note_deadline(&mut self, at: Instant) {
        self.next_deadline = Some(self.next_deadline.map_or(at, |next| next.min(at)));
    }

    /// Those whose time is over.
    fn expire(&mut self) {
        let now = self.network.now();
        if self.next_deadline.is_none_or(|deadline| now < deadline) {
            return;
        }
        for token in std::mem::take(&mut self.paused) {
            if let Some(listener) = self.listeners.get(&token) {
                self.network.watch_listener(listener, Some(token));
            }
        }
        self.next_deadline = self.tunnels.values().filter_map(|tunnel| tunnel.deadline).min();
        let late =
            |tunnel: &Tunnel<N::Socket>| tunnel.deadline.is_some_and(|deadline| deadline <= now);
        let late = self.tunnels.iter().filter(|(_, tunnel)| late(tunnel));
        let late: Vec<u64> = late.map(|(token, _)| *token).collect();
        for token in late {
            self.late(token);
        }
    }

    /// End a connection: tell its program and the peer, and record it.
    fn end(&mut self, token: u64, end: Ending) {
        let Some(mut tunnel) = self.tunnels.remove(&token) else { return };
        if let Some(stream) = tunnel.stream {
            self.by_stream.remove(&stream);
            if let Some(session) = &mut self.session {
                session.streams.close(stream, stream_codes::RESET);
            }
        }
        add_gauge(&self.counts, -1);
        let (name, why, count) = match end {
            Ending::Closed => ("closed", String::new(), None),
            Ending::Reset(why) => ("reset", why, Some(&self.counts.reset)),
            Ending::Lost(why) => ("lost", why, Some(&self.counts.lost)),
            Ending::Refused(why) => ("refused", why, Some(&self.counts.refused)),
        };
        count.into_iter().for_each(|count| add(count, 1));
        if let Some(socket) = tunnel.socket.take() {
            let gently =
                name == "closed" || (name == "refused" && tunnel.ingress == Ingress::Socks);
            if gently {
                drop(socket);
            } else {
                socket.reset();
            }
        }
        // At the end that connects, the program that asked is at the other.
        let (sent_bytes, received_bytes) = match tunnel.ingress {
            Ingress::Offered => (tunnel.out_bytes, tunnel.in_bytes),
            _ => (tunnel.in_bytes, tunnel.out_bytes),
        };
        self.notices.push(Notice::Connection(Record {
            origin: tunnel.origin,
            target: tunnel.target,
            way: "session",
            sent_bytes,
            received_bytes,
            seconds: tunnel.began.elapsed().as_secs_f64(),
            end: name,
            why,
        }));
    }

    fn end_splice(&mut self, token: u64, why: Option<&str>) {
        let Some(splice) = self.splices.remove(&token) else { return };
        add_gauge(&self.counts, -1);
        let (sent_bytes, received_bytes) = splice.bytes();
        self.notices.push(Notice::Connection(Record {
            origin: splice.origin.clone(),
            target: splice.target.clone(),
            way: "direct",
            sent_bytes,
            received_bytes,
            seconds: splice.began.elapsed().as_secs_f64(),
            end: if why.is_some() { "reset" } else { "closed" },
            why: why.unwrap_or_default().to_owned(),
        }));
        if why.is_some() {
            add(&self.counts.reset, 1);
            splice.into_sockets().into_iter().for_each(ProgramSocket::reset);
        }
    }
}

fn add_gauge(counts: &Counts, change: i64) {
    counts.open.fetch_add(change as u64, std::sync::atomic::Ordering::Relaxed);
}
