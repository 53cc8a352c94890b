use std::net::Ipv4Addr;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use waystage_protocol::congestion::Mode;
use waystage_protocol::packet::HEADER_SIZE;
use waystage_protocol::protect::{Side, Suite};

use super::*;
use crate::endpoint::{DatagramSink, Endpoint};
use crate::waker::Waker;

const ANY: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 0);
const PATIENCE: Duration = Duration::from_secs(60);

struct End {
    receiver: DatagramReceiver,
    link: Link,
    came: Vec<Vec<u8>>,
}

fn parameters(side: Side) -> TransportParameters {
    TransportParameters {
        secret: [7; 32],
        suite: Suite::Aes256Gcm,
        side,
        local_connection: 40 + u32::from(side == Side::Client),
        peer_connection: 40 + u32::from(side == Side::Server),
        mode: Mode::Fair,
        rate_bps: 1e9,
        memory_bytes: 1 << 24,
        rtt_ns: 100_000,
        largest_datagram: 1472,
        proved: None,
        group: None,
    }
}

impl End {
    fn new(receiver: DatagramReceiver, side: Side) -> Self {
        let link = Link::new(Arc::clone(receiver.socket()), parameters(side), 64);
        Self { receiver, link, came: Vec::new() }
    }

    fn turn(&mut self) {
        self.receiver.waker().clear();
        self.link.receive_from(&mut self.receiver);
        while let Some(happened) = self.link.next_event() {
            if let MessageEvent::Received(mut message) = happened {
                message.buffer.truncate(message.length);
                self.came.push(message.buffer);
            }
        }
        self.link.transmit();
    }
}

fn waker() -> Arc<Waker> {
    Arc::new(Waker::new().unwrap())
}

fn pair() -> (Arc<Endpoint>, End, End) {
    let endpoint = Arc::new(Endpoint::bind(ANY, 1).unwrap());
    let receiver = DatagramReceiver::registered(Arc::clone(&endpoint), 40, waker()).unwrap();
    let server = End::new(receiver, Side::Server);
    let receiver = DatagramReceiver::dedicated(Socket::bind(ANY, false).unwrap(), waker());
    let mut client = End::new(receiver, Side::Client);
    client.link.call(endpoint.address().unwrap());
    (endpoint, server, client)
}

fn until(ends: &mut [&mut End; 2], done: impl Fn(&[&mut End; 2]) -> bool) {
    let began = Instant::now();
    while !done(ends) {
        assert!(began.elapsed() < PATIENCE, "it does not come");
        ends.iter_mut().for_each(|end| end.turn());
        ends[0].receiver.wait(Duration::from_millis(1));
    }
}

/// Another connection on the same port.
#[derive(Default)]
struct Other(Mutex<Vec<Vec<u8>>>);

impl DatagramSink for Other {
    fn datagrams(&self, arrived: Arrived) {
        self.0.lock().push(arrived.bytes);
    }
}

fn datagram_of(connection: u8) -> Vec<u8> {
    let mut datagram = vec![0x10 | waystage_protocol::packet::VERSION, 0, 0, 0, connection];
    datagram.resize(HEADER_SIZE + 20, 9);
    datagram
}

/// Until the thread of the port has handed on all that came before: it takes datagrams in their order.
fn settle(endpoint: &Endpoint) {
    let (last, datagram) = (Arc::new(Other::default()), datagram_of(60));
    assert!(endpoint.add(60, Arc::<Other>::clone(&last)));
    let socket = Socket::bind(ANY, false).unwrap();
    assert!(socket.send(endpoint.address().unwrap(), None, datagram.len(), &datagram));
    let began = Instant::now();
    while last.0.lock().is_empty() {
        assert!(began.elapsed() < PATIENCE, "the port hands on nothing");
        std::thread::sleep(Duration::from_millis(1));
    }
    endpoint.remove(60);
}

fn is_connected_to(end: &End, client: &Socket) -> bool {
    end.receiver.connected_to() == client.address().ok()
}

#[test]
fn a_server_has_a_socket_for_a_client_that_it_heard() {
    let (endpoint, mut server, mut client) = pair();
    assert!(server.receiver.watched().is_none());
    until(&mut [&mut server, &mut client], |[server, client]| {
        is_connected_to(server, client.receiver.socket())
    });
    assert_eq!(server.receiver.socket().address().unwrap(), endpoint.address().unwrap());
    settle(&endpoint);
    server.turn();
    client.link.send(vec![5; 100_000]);
    server.link.send(vec![6; 100_000]);
    until(&mut [&mut server, &mut client], |ends| {
        assert!(!ends[0].receiver.has_queued(), "the port's thread was woken");
        ends.iter().all(|end| !end.came.is_empty())
    });
    assert_eq!(server.came, [vec![5; 100_000]]);
    assert_eq!(client.came, [vec![6; 100_000]]);
}

#[test]
fn a_client_that_has_moved_is_followed() {
    let (_endpoint, mut server, mut client) = pair();
    let elsewhere = Arc::new(Socket::bind(ANY, false).unwrap());
    until(&mut [&mut server, &mut client], |[server, client]| {
        is_connected_to(server, client.receiver.socket())
    });
    client.receiver.move_to(Arc::clone(&elsewhere));
    client.link.send_by(Arc::clone(&elsewhere));
    client.link.send(vec![5; 100_000]);
    until(&mut [&mut server, &mut client], |[server, client]| {
        is_connected_to(server, client.receiver.socket()) && !server.came.is_empty()
    });
    server.link.send(vec![6; 100_000]);
    until(&mut [&mut server, &mut client], |[_, client]| !client.came.is_empty());
    assert_eq!(server.came, [vec![5; 100_000]]);
}

#[test]
fn what_is_for_another_connection_of_the_same_client_is_handed_on() {
    let (endpoint, mut server, mut client) = pair();
    let other = Arc::new(Other::default());
    assert!(endpoint.add(50, Arc::<Other>::clone(&other)));
    until(&mut [&mut server, &mut client], |[server, client]| {
        is_connected_to(server, client.receiver.socket())
    });
    let datagram = datagram_of(50);
    let to = endpoint.address().unwrap();
    assert!(client.receiver.socket().send(to, None, datagram.len(), &datagram));
    let refused = |end: &End| end.link.connection().unwrap().counters().discarded_packets;
    until(&mut [&mut server, &mut client], |_| !other.0.lock().is_empty());
    assert_eq!(*other.0.lock(), [datagram]);
    assert_eq!(refused(&server), 0);
}

#[test]
fn a_number_is_free_again_when_its_connection_is_gone() {
    let (endpoint, server, _client) = pair();
    assert!(DatagramReceiver::registered(Arc::clone(&endpoint), 40, waker()).is_err());
    drop(server);
    assert!(DatagramReceiver::registered(endpoint, 40, waker()).is_ok());
}
