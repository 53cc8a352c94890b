use std::collections::VecDeque;
use std::io;
use std::net::{IpAddr, Ipv4Addr};

use parking_lot::{Condvar, Mutex, RwLock};
use proptest::prelude::*;
use rustix::event::{eventfd, EventfdFlags};
use rustls::{ClientConnection, ServerConnection};

use super::*;
use crate::control::frames::{Frame, LONGEST_SMALL};
use crate::control::shared::{State, MOST_SMALL, MOST_SMALL_BYTES};
use crate::control_path::{ControlPath, ControlSink};
use crate::identity::Identity;
use crate::message_queue::MessageQueue;
use crate::tls;
use crate::wire::framed;

/// A connection in memory.
struct Memory {
    incoming: VecDeque<u8>,
    outgoing: Vec<u8>,
    /// Bytes that it accepts until it would block.
    room: usize,
}

impl Read for Memory {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.incoming.read(buffer)
    }
}

impl Write for Memory {
    fn write(&mut self, buffer: &[u8]) -> io::Result<usize> {
        let count = buffer.len().min(self.room);
        if count == 0 {
            return Err(ErrorKind::WouldBlock.into());
        }
        self.room -= count;
        self.outgoing.write(&buffer[..count])
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// A client and the pump of its server, after the handshake.
fn connected() -> (Connection, Pump<Memory>) {
    let identity = Identity::ephemeral().unwrap();
    let (config, _) = tls::client(&identity, Some(identity.public.clone()), tls::ALPN).unwrap();
    let name = IpAddr::from(Ipv4Addr::LOCALHOST).into();
    let mut client = Connection::Client(ClientConnection::new(config, name).unwrap());
    let config = tls::server(&identity).unwrap();
    let mut server = Connection::Server(ServerConnection::new(config).unwrap());
    while client.is_handshaking() || server.is_handshaking() {
        feed(&mut server, &written(&mut client));
        feed(&mut client, &written(&mut server));
    }
    let shared = Arc::new(Shared {
        state: Mutex::new(State::default()),
        changed: Condvar::new(),
        wake: eventfd(0, EventfdFlags::NONBLOCK).unwrap(),
        incoming: RwLock::new(Arc::new(MessageQueue::default())),
        frames: Mutex::default(),
        advice: "",
    });
    let stream = Memory { incoming: VecDeque::new(), outgoing: Vec::new(), room: 0 };
    let frames = FrameDecoder::default();
    (client, Pump { shared, tls: server, stream, frames, writing: None })
}

fn feed(tls: &mut Connection, mut bytes: &[u8]) {
    while !bytes.is_empty() {
        tls.read_tls(&mut bytes).unwrap();
        tls.process_new_packets().unwrap();
    }
}

/// What TLS has to send, as bytes on the wire.
fn written(tls: &mut Connection) -> Vec<u8> {
    let mut bytes = Vec::new();
    while tls.wants_write() {
        tls.write_tls(&mut bytes).unwrap();
    }
    bytes
}

fn sealed(client: &mut Connection, plain: &[u8]) -> Vec<u8> {
    client.writer().write_all(plain).unwrap();
    written(client)
}

impl Pump<Memory> {
    /// Read until these bytes are used up, in pieces of at most `piece`.
    fn arrive(&mut self, bytes: &[u8], piece: usize) -> Result<(), String> {
        for piece in bytes.chunks(piece) {
            self.stream.incoming.extend(piece);
            while !self.stream.incoming.is_empty() {
                self.read().map_err(|ended| ended.why)?;
            }
        }
        Ok(())
    }

    fn small(&self) -> Vec<Frame> {
        self.shared.lock().small.drain(..).collect()
    }

    fn bulk(&self) -> Vec<Vec<u8>> {
        let incoming = self.shared.incoming();
        std::iter::from_fn(|| incoming.take(Duration::ZERO)).map(|one| one.to_vec()).collect()
    }
}

#[test]
fn a_record_damaged_on_the_way_ends_the_connection_and_delivers_nothing() {
    let (mut client, mut pump) = connected();
    let mut bytes = sealed(&mut client, &framed(1, b"hello"));
    *bytes.last_mut().unwrap() ^= 1;
    let why = pump.arrive(&bytes, usize::MAX).unwrap_err();
    assert!(why.starts_with("the connection was disturbed"), "{why}");
    assert!(pump.small().is_empty());
}

#[test]
fn a_peer_that_floods_with_small_messages_is_cut_off() {
    let (mut client, mut pump) = connected();
    let one = framed(1, b"");
    pump.arrive(&sealed(&mut client, &one.repeat(MOST_SMALL)), usize::MAX).unwrap();
    let why = pump.arrive(&sealed(&mut client, &one), usize::MAX).unwrap_err();
    assert_eq!(why, "the peer broke the protocol: it says too much");
    assert_eq!(pump.small().len(), MOST_SMALL);
}

#[test]
fn unread_small_messages_take_bounded_memory() {
    let (_, pump) = connected();
    let sent = (0..)
        .take_while(|_| pump.shared.deliver((1, vec![0; LONGEST_SMALL]), By::Tls).is_ok())
        .count();
    assert_eq!(sent, MOST_SMALL_BYTES / LONGEST_SMALL + 1);
}

#[test]
fn a_message_that_announces_too_many_bytes_ends_the_connection() {
    let (mut client, mut pump) = connected();
    let why = pump.arrive(&sealed(&mut client, &[0xff; 5]), usize::MAX).unwrap_err();
    assert_eq!(why, "the peer broke the protocol: a message was too long");
}

#[test]
fn messages_before_a_close_are_delivered_and_a_cut_is_no_close() {
    let (mut client, mut pump) = connected();
    client.writer().write_all(&framed(1, b"last")).unwrap();
    client.send_close_notify();
    assert_eq!(
        pump.arrive(&written(&mut client), usize::MAX).unwrap_err(),
        "the peer has closed the connection"
    );
    assert_eq!(pump.small(), [(1, b"last".to_vec())]);
    let (_, mut pump) = connected();
    let ended = pump.read().unwrap_err();
    assert_eq!((ended.why.as_str(), ended.cause), ("the peer has gone away", Cause::Gone));
}

/// A control stream that goes to another end.
struct Carried {
    to: Arc<Shared>,
    asked: Mutex<bool>,
}

impl ControlPath for Carried {
    fn send(&self, bytes: &[u8]) {
        bytes.chunks(7).for_each(|bytes| self.to.control_bytes(bytes));
    }

    fn expect_answer(&self) {
        *self.asked.lock() = true;
    }
}

fn carried_to(to: &Arc<Shared>) -> Arc<Carried> {
    Arc::new(Carried { to: Arc::clone(to), asked: Mutex::new(false) })
}

#[test]
fn the_control_stream_brings_what_tcp_lost_and_nothing_twice() {
    let ((mut client, mut pump), (_, sender)) = (connected(), connected());
    let said = [(1, &b"hello"[..]), (BULK, b"offer"), (2, b"way")];
    let mut state = sender.shared.lock();
    said[..2].iter().for_each(|(kind, body)| state.send(framed(*kind, body)));
    // Of what TCP has the first message arrives.
    pump.arrive(&sealed(&mut client, &framed(1, b"hello")), usize::MAX).unwrap();
    state.version = 4;
    state.rely_on_udp(carried_to(&pump.shared));
    state.send(framed(2, b"way"));
    assert_eq!(pump.small(), [(1, b"hello".to_vec()), (2, b"way".to_vec())]);
    assert_eq!(pump.bulk(), [b"offer"]);
    // The rest comes late.
    for (kind, body) in &said[1..] {
        pump.arrive(&sealed(&mut client, &framed(*kind, body)), usize::MAX).unwrap();
    }
    assert!(pump.small().is_empty() && pump.bulk().is_empty());
}

#[test]
fn a_peer_of_version_3_gets_no_control_stream() {
    let ((_, pump), (_, sender)) = (connected(), connected());
    let mut state = sender.shared.lock();
    state.version = 3;
    state.send(framed(1, b"hello"));
    state.rely_on_udp(carried_to(&pump.shared));
    state.send(framed(1, b"more"));
    assert!(state.path.is_none() && pump.small().is_empty());
}

#[test]
fn a_silent_peer_ends_the_connection_though_tcp_stands() {
    let ((_, pump), (_, peer)) = (connected(), connected());
    let path = carried_to(&peer.shared);
    let mut state = pump.shared.lock();
    state.version = 4;
    state.rely_on_udp(path);
    drop(state);
    pump.shared.udp_ended("nothing has been heard", true);
    assert_eq!(pump.shared.lock().ended.as_deref(), Some("nothing has been heard"));
}

#[test]
fn a_full_socket_keeps_messages_in_order_and_counts_the_bulk_that_waits() {
    let (mut client, mut pump) = connected();
    let frames = [framed(1, b"first"), framed(BULK, &[7; 100_000]), framed(2, b"last")];
    {
        let mut state = pump.shared.lock();
        state.waiting_bytes = frames[1].len();
        state.outgoing.extend(frames.clone());
    }
    assert_eq!(pump.write(), Ok(false));
    assert_eq!(pump.shared.lock().waiting_bytes, frames[1].len(), "still behind the first");
    let mut turns = 0;
    loop {
        pump.stream.room = 1000;
        turns += 1;
        if pump.write().unwrap() {
            break;
        }
    }
    assert!(turns > 100, "{turns}: it never waited");
    assert_eq!(pump.shared.lock().waiting_bytes, 0);
    let (mut wire, mut plain) = (&pump.stream.outgoing[..], Vec::new());
    while !wire.is_empty() {
        client.read_tls(&mut wire).unwrap();
        let opened = client.process_new_packets().unwrap().plaintext_bytes_to_read();
        let at = plain.len();
        plain.resize(at + opened, 0);
        client.reader().read_exact(&mut plain[at..]).unwrap();
    }
    assert!(plain == frames.concat(), "the client read something else");
}

proptest! {
    #[test]
    fn messages_of_both_sorts_arrive_in_order_however_the_wire_cuts_them(
        frames in prop::collection::vec((0_u8..3, prop::collection::vec(any::<u8>(), 0..300)), 0..12),
        piece in 1_usize..700,
    ) {
        let (mut client, mut pump) = connected();
        let plain: Vec<u8> = frames.iter().flat_map(|(kind, body)| framed(*kind, body)).collect();
        pump.arrive(&sealed(&mut client, &plain), piece).unwrap();
        let (bulk, small): (Vec<Frame>, Vec<Frame>) =
            frames.into_iter().partition(|(kind, _)| *kind == BULK);
        prop_assert_eq!(pump.small(), small);
        prop_assert_eq!(pump.bulk(), bulk.into_iter().map(|(_, body)| body).collect::<Vec<_>>());
    }
}
