//! A connection of the protocol on a socket, with its messages, owned by one thread.
//!
//! Arrives: datagrams, messages to send. Leaves: datagrams in as few calls as the kernel allows, messages that are
//! whole. Must not know: who waits for what, and how.

mod store;
#[cfg(test)]
mod tests;

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use waystage_protocol::congestion::coupled::Group;
use waystage_protocol::congestion::Mode;
use waystage_protocol::connection::{codes, CloseReason, Config, Connection, Event};
use waystage_protocol::protect::Sealed;

use crate::clock::now_ns;
use crate::datagram_receiver::DatagramReceiver;
use crate::message::{Message, MOST_BYTES};
use crate::parameters::{spare_buffers, TransportParameters};
use crate::socket::{Arrived, Socket, BATCH_BYTES};
use crate::stats::Status;
use store::{Coming, Store};

/// Datagrams made before it is looked again what has arrived.
const TURN: usize = 128;

/// Packets made between two readings of the clock: they take a few microseconds, and leave together anyway.
const CLOCK_EVERY: usize = 8;

/// Datagrams of one size to one address, to be sent in one call.
#[derive(Default)]
struct Batch {
    bytes: Vec<u8>,
    segment: usize,
    count: usize,
    ended: bool,
    to: Option<SocketAddr>,
}

/// What a call of [`Link::receive_from`] found.
#[derive(Default)]
pub struct Received {
    /// The peer was heard for the first time.
    pub heard: bool,
    /// There may be more datagrams.
    pub more: bool,
}

/// What has happened.
pub enum MessageEvent {
    /// The peer holds this message.
    Delivered(Vec<u8>),
    /// A message has come.
    Received(Message),
    /// The next bytes of the control stream.
    Control(Vec<u8>),
    /// The connection has ended: why, and whether because the peer is silent.
    Closed(String, bool),
}

/// The code of a close by an end that does not wait until everything is delivered.
pub const GAVE_UP: u64 = 2;

/// A connection of the protocol on a socket.
pub struct Link {
    /// None at a server that has not heard its client.
    connection: Option<Connection>,
    socket: Arc<Socket>,
    store: Store,
    /// Which of this host's addresses the peer writes to.
    from: Option<IpAddr>,
    /// Where the peer is, since it was heard.
    peer: Option<SocketAddr>,
    parameters: TransportParameters,
    limit_bps: f64,
    /// Where another one was chosen than what was agreed on.
    mode: Option<Mode>,
    most_in_flight: usize,
    batch: Batch,
    datagram: Vec<u8>,
}

impl Link {
    /// Neither end sends more than `most_in_flight` messages at a time.
    pub fn new(
        socket: Arc<Socket>,
        parameters: TransportParameters,
        most_in_flight: usize,
    ) -> Self {
        let store = Store {
            // Senders stay below the memory agreed on, but for the last message.
            most_coming_bytes: parameters.memory_bytes + 2 * MOST_BYTES as u64,
            most_spare: spare_buffers(parameters.memory_bytes),
            ..Store::default()
        };
        Self {
            connection: None,
            socket,
            store,
            from: None,
            peer: None,
            parameters,
            limit_bps: f64::INFINITY,
            mode: None,
            most_in_flight,
            batch: Batch::default(),
            datagram: Vec::new(),
        }
    }

    /// Say the first word: a ping, repeated until it is answered.
    pub fn call(&mut self, peer: SocketAddr) {
        let mut connection = self.begin(peer);
        connection.local_address_changed(now_ns());
        self.connection = Some(connection);
    }

    /// The protocol's state; None at a server that has not heard its client.
    pub fn connection(&self) -> Option<&Connection> {
        self.connection.as_ref()
    }

    #[cfg(test)]
    pub(crate) fn send_by(&mut self, socket: Arc<Socket>) {
        self.socket = socket;
    }

    /// Send no faster than this from now on; None for what was agreed on.
    pub fn limit(&mut self, bytes_per_s: Option<u64>) {
        self.limit_bps = bytes_per_s.map_or(f64::INFINITY, |rate| rate as f64 * 8.0);
        if let Some(connection) = &mut self.connection {
            connection.limit_rate(self.limit_bps);
        }
    }

    /// Go on with another congestion controller, also where the peer's answer comes later.
    pub fn set_mode(&mut self, mode: Mode) {
        self.mode = Some(mode);
        self.parameters.mode = mode;
        let Self { connection: Some(connection), parameters, .. } = self else { return };
        let rtt_ns = connection.rtt().smoothed_ns();
        connection.change_controller(now_ns(), || parameters.mode(rtt_ns));
    }

    /// The rate limit in bits a second; the connections of a group share what was agreed on.
    pub fn cap_bps(&self) -> f64 {
        let members = self.parameters.group.as_ref().map_or(1, Group::members);
        (self.parameters.rate_bps / members as f64).min(self.limit_bps)
    }

    /// What both ends agreed on.
    pub fn parameters(&self) -> &TransportParameters {
        &self.parameters
    }

    /// Messages that the peer does not hold yet.
    pub fn in_flight(&self) -> usize {
        self.store.outgoing.len()
    }

    /// Send a message.
    pub fn send(&mut self, message: Vec<u8>) {
        if let Some(connection) = &mut self.connection {
            let extent = connection.send(message.len() as u64);
            self.store.outgoing.insert(extent, message);
        }
    }

    /// Send bytes of the control stream.
    pub fn send_control(&mut self, bytes: &[u8]) {
        if let Some(connection) = self.connection.as_mut().filter(|_| !bytes.is_empty()) {
            connection.send_control(bytes);
        }
    }

    /// The peer may be dead: end unless it answers soon.
    pub fn expect_answer(&mut self) {
        if let Some(connection) = &mut self.connection {
            connection.expect_answer(now_ns());
        }
    }

    /// The consumer has finished with `bytes` of messages.
    pub fn consumed(&mut self, bytes: u64) {
        if let Some(connection) = self.connection.as_mut().filter(|_| bytes > 0) {
            connection.consumed(now_ns(), bytes);
        }
    }

    /// Buffers for messages to come.
    pub fn spare(&mut self, buffers: impl IntoIterator<Item = Vec<u8>>) {
        let room = self.store.most_spare.saturating_sub(self.store.spare.len());
        self.store.spare.extend(buffers.into_iter().take(room));
    }

    /// The rule of messages that the peer broke, if any; the connection is closed with it.
    pub fn broken(&mut self) -> Option<&'static str> {
        let how = self.store.broken.take()?;
        self.close(codes::PROTOCOL_VIOLATION, how);
        Some(how)
    }

    /// Close, with a code and a reason for the peer.
    pub fn close(&mut self, code: u64, reason: &str) {
        if let Some(connection) = &mut self.connection {
            connection.close(now_ns(), code, reason);
        }
    }

    /// What the peer told after the first word: how fast to send, and its memory.
    pub fn update_parameters(&mut self, parameters: TransportParameters) {
        let mode = self.mode.unwrap_or(parameters.mode);
        self.parameters = TransportParameters { mode, ..parameters };
        if let Some(connection) = &mut self.connection {
            let mode = self.parameters.mode(connection.rtt().smoothed_ns());
            connection.set_peer_parameters(mode, self.parameters.memory_bytes);
        }
    }

    fn begin(&self, peer: SocketAddr) -> Connection {
        let parameters = &self.parameters;
        let mut config = Config::new(peer, parameters.rtt_ns.max(10_000));
        config.peer_is_validated = parameters
            .proved
            .is_none_or(|proved| proved.to_canonical() == peer.ip().to_canonical());
        config.local_connection = parameters.local_connection;
        config.peer_connection = parameters.peer_connection;
        config.largest_datagram = parameters.largest_datagram;
        config.limits.unconsumed_bytes = parameters.memory_bytes;
        config.limits.open_extents = self.most_in_flight + 64;
        config.secret = crate::tls::random();
        let protect = Box::new(Sealed::new(&parameters.secret, parameters.side, parameters.suite));
        let mode = parameters.mode(parameters.rtt_ns);
        let mut connection = Connection::new(config, now_ns(), protect, mode);
        connection.limit_rate(self.limit_bps);
        connection
    }

    /// Take in the datagrams of the receiver, which follows the peer from then on.
    pub fn receive_from(&mut self, receiver: &mut DatagramReceiver) -> Received {
        let mut found = Received::default();
        found.more = receiver.receive(|arrived| found.heard |= self.arrived(arrived));
        if let Some(peer) = self.peer {
            if let Some(socket) = receiver.follow(peer, self.from) {
                self.socket = Arc::clone(socket);
            }
        }
        found
    }

    /// Take datagrams in. Whether the peer was heard for the first time.
    fn arrived(&mut self, arrived: Arrived<&mut [u8]>) -> bool {
        let now = now_ns();
        let opened = |connection: &Option<Connection>| {
            connection.as_ref().map_or(0, |connection| connection.counters().received_packets)
        };
        let before = opened(&self.connection);
        for datagram in arrived.bytes.chunks_mut(arrived.stride) {
            let (from, marked) = (arrived.from, arrived.marked);
            match &mut self.connection {
                Some(connection) => {
                    connection.receive(now, from, marked, datagram, &mut self.store);
                }
                None => {
                    // Only who has the keys may say what the client's address is.
                    let mut candidate = self.begin(from);
                    candidate.receive(now, from, marked, datagram, &mut self.store);
                    if candidate.counters().received_packets > 0 {
                        self.connection = Some(candidate);
                    }
                }
            }
        }
        let heard = opened(&self.connection) > before;
        if heard {
            self.from = arrived.at;
            self.peer.get_or_insert(arrived.from);
        }
        heard && before == 0
    }

    /// The next of what has happened.
    pub fn next_event(&mut self) -> Option<MessageEvent> {
        let connection = self.connection.as_mut()?;
        while let Some(event) = connection.next_event() {
            match event {
                Event::Delivered(extent) => {
                    if let Some(message) = self.store.outgoing.remove(&extent) {
                        return Some(MessageEvent::Delivered(message));
                    }
                }
                Event::Complete { extent, length } => {
                    let Coming { buffer, end } =
                        self.store.incoming.remove(&extent).unwrap_or_default();
                    self.store.coming_bytes -= end as u64;
                    let length = usize::try_from(length).unwrap_or(0).min(buffer.len());
                    return Some(MessageEvent::Received(Message { buffer, length, by: None }));
                }
                Event::Control(bytes) => return Some(MessageEvent::Control(bytes)),
                Event::PeerMigrated(peer) => self.peer = Some(peer),
                Event::Closed(ending) => {
                    let silent = matches!(ending, CloseReason::IdleTimeout | CloseReason::NoAnswer);
                    return Some(MessageEvent::Closed(describe(&ending), silent));
                }
            }
        }
        None
    }

    /// Send what may be sent now, up to a turn.
    pub fn transmit(&mut self) {
        let Some(connection) = &mut self.connection else { return };
        let datagram = &mut self.datagram;
        let mut now = now_ns();
        for number in 1..=TURN {
            let Some(to) = connection.transmit(now, &mut self.store, datagram) else { break };
            if number % CLOCK_EVERY == 0 {
                now = now_ns();
            }
            let batch = &mut self.batch;
            let fits = batch.to == Some(to)
                && !batch.ended
                && datagram.len() <= batch.segment
                && batch.count < self.socket.most_segments()
                && batch.bytes.len() + datagram.len() < BATCH_BYTES - 256;
            if !fits {
                batch.flush(&self.socket, self.from);
                batch.segment = datagram.len();
                batch.to = Some(to);
            }
            batch.bytes.extend_from_slice(datagram);
            batch.count += 1;
            // A shorter one is the last of its batch.
            batch.ended = datagram.len() < batch.segment;
        }
        self.batch.flush(&self.socket, self.from);
    }
}

impl Batch {
    fn flush(&mut self, socket: &Socket, from: Option<IpAddr>) {
        if let Some(to) = self.to.take() {
            socket.send(to, from, self.segment, &self.bytes);
        }
        self.bytes.clear();
        (self.count, self.ended) = (0, false);
    }
}

/// How a connection is doing.
pub fn status_of(connection: &Connection) -> Status {
    let counters = connection.counters();
    Status {
        udp: true,
        rtt_ns: connection.rtt().smoothed_ns(),
        rate_bps: connection.controller().control().rate_bps,
        datagram_bytes: connection.datagram_size() as u64,
        sent_packets: counters.sent_packets,
        lost_packets: counters.lost_packets.saturating_sub(counters.late_packets),
        repaired_bytes: counters.retransmitted_bytes,
        duplicate_bytes: counters.duplicate_bytes,
        refused_packets: counters.discarded_packets,
        ..Status::default()
    }
}

fn describe(ending: &CloseReason) -> String {
    match ending {
        CloseReason::Local(_) | CloseReason::Peer(codes::CLEAN, _) => {
            "the connection was closed".to_owned()
        }
        CloseReason::Peer(_, reason) if !reason.is_empty() => {
            format!("the peer closed the connection: {reason}")
        }
        CloseReason::Peer(..) => "the peer gave up".to_owned(),
        CloseReason::ProtocolViolation(how) => format!("the peer broke the protocol: {how}"),
        CloseReason::IdleTimeout => {
            "nothing has been heard of the peer for half a minute".to_owned()
        }
        CloseReason::NoAnswer => "the peer has gone away".to_owned(),
    }
}
