//! Where a connection gets its datagrams: a socket of its own, and what a server's port received for it.
//!
//! Arrives: datagrams, the bell, the time. Leaves: the datagrams to the link. Must not know: what is in them, who waits for what.
//!
//! A socket of its own spares the wake-up of a thread that sorts, and a copy of each datagram. A server's connection has one beside the port's
//! sockets (`SO_REUSEPORT`), connected to its client, since the client was heard; what comes from elsewhere, as from a client
//! that has moved, comes through the port's. See `docs/decisions/0033-sockets-of-connections.md`.

use parking_lot::{Mutex, MutexGuard};
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use rustix::event::{poll, PollFd, PollFlags, Timespec};

use crate::bell::Bell;
use crate::endpoint::{connection_of, Endpoint, Post};
use crate::socket::{Arrived, Buffers, Socket};
use crate::udp::link::Link;

/// Datagrams that may wait for their thread. More are dropped, as a full queue on the way would.
const WAITING_BYTES: usize = 16 << 20;

/// A connection's place at a client, or at a server's port.
pub(crate) struct Seat {
    /// By which the connection sends.
    socket: Arc<Socket>,
    /// None at a server that has not heard its client, or where no socket could be had.
    own: Option<Own>,
    port: Option<Port>,
    bell: Arc<Bell>,
}

/// The socket is for this connection alone.
struct Own {
    buffers: Buffers,
    /// To whom it is connected; a client's is to nobody, so that its host may move.
    peer: Option<SocketAddr>,
}

/// A number at a server's port, given back in the end.
struct Port {
    endpoint: Arc<Endpoint>,
    number: u32,
    letters: Arc<Letters>,
    /// Whether a socket of its own was asked for.
    asked: bool,
}

/// What a call of [`Seat::receive`] found.
#[derive(Default)]
pub(crate) struct Received {
    /// The peer was heard for the first time.
    pub(crate) heard: bool,
    /// There may be more.
    pub(crate) more: bool,
}

impl Seat {
    /// A client's. Others ring the bell, too.
    pub(crate) fn own(socket: Socket, bell: Arc<Bell>) -> Self {
        let own = Own { buffers: Buffers::default(), peer: None };
        Self { socket: Arc::new(socket), own: Some(own), port: None, bell }
    }

    /// A server's; fails where the number is taken.
    pub(crate) fn at(endpoint: Arc<Endpoint>, number: u32, bell: Arc<Bell>) -> io::Result<Self> {
        let letters = Arc::new(Letters { waiting: Mutex::default(), bell: Arc::clone(&bell) });
        if !endpoint.add(number, Arc::clone(&letters) as Arc<dyn Post>) {
            return Err(io::ErrorKind::AddrInUse.into());
        }
        let socket = Arc::clone(endpoint.socket(number));
        let port = Port { endpoint, number, letters, asked: false };
        Ok(Self { socket, own: None, port: Some(port), bell })
    }

    /// By which the connection sends, until [`Self::receive`] tells the link otherwise.
    pub(crate) fn socket(&self) -> &Arc<Socket> {
        &self.socket
    }

    /// Has datagrams when it can be read, beside those for which the bell rings.
    pub(crate) fn watched(&self) -> Option<&Socket> {
        self.own.is_some().then_some(&*self.socket)
    }

    pub(crate) fn bell(&self) -> &Arc<Bell> {
        &self.bell
    }

    /// Whether the port has received something for it.
    pub(crate) fn has_letters(&self) -> bool {
        self.port.as_ref().is_some_and(|port| !port.letters.lock().0.is_empty())
    }

    /// Wait until the bell rings or datagrams come, for at most so long.
    pub(crate) fn wait(&self, timeout: Duration) {
        let timeout = Timespec::try_from(timeout).ok();
        let bell = PollFd::new(&*self.bell, PollFlags::IN);
        // A signal only makes it look round.
        let _ = match self.watched() {
            Some(socket) => poll(&mut [bell, PollFd::new(socket, PollFlags::IN)], timeout.as_ref()),
            None => poll(&mut [bell], timeout.as_ref()),
        };
    }

    /// Give the link what is there.
    pub(crate) fn receive(&mut self, link: &mut Link) -> Received {
        let mut found = Received::default();
        for mut arrived in self.port.iter().flat_map(|port| port.letters.take()) {
            let Arrived { from, at, marked, stride, .. } = arrived;
            let bytes = &mut arrived.bytes[..];
            found.heard |= link.arrived(Arrived { from, at, marked, stride, bytes });
        }
        if let Some(own) = &mut self.own {
            let port = self.port.as_ref();
            found.more = self.socket.receive_some(&mut own.buffers, |arrived| match port {
                Some(port) if !port.owns(&arrived) => {
                    port.endpoint.deliver(arrived.with(|bytes| bytes.to_vec()));
                }
                _ => found.heard |= link.arrived(arrived),
            });
        }
        self.follow(link);
        found
    }

    /// A server's socket is connected to where the client is. Where that cannot be, the port's sockets go on.
    fn follow(&mut self, link: &mut Link) {
        let (Some(port), Some((peer, Some(at)))) = (&mut self.port, link.ends()) else { return };
        match &mut self.own {
            Some(own) if own.peer == Some(peer) => return,
            Some(own) if self.socket.connect(peer).is_ok() => {
                own.peer = Some(peer);
                return;
            }
            None if std::mem::replace(&mut port.asked, true) => return,
            None => {
                let Ok(socket) = port.endpoint.beside(at, peer) else { return };
                self.socket = Arc::new(socket);
                self.own = Some(Own { buffers: Buffers::default(), peer: Some(peer) });
            }
            Some(_) => {
                self.socket = Arc::clone(port.endpoint.socket(port.number));
                self.own = None;
            }
        }
        link.send_by(Arc::clone(&self.socket));
    }
}

impl Port {
    /// Whether all of them are for this connection: before its socket was connected it may have got others', too.
    fn owns(&self, arrived: &Arrived<&mut [u8]>) -> bool {
        let mut numbers = arrived.bytes.chunks(arrived.stride).map(connection_of);
        numbers.all(|number| number == Some(self.number))
    }
}

impl Drop for Port {
    fn drop(&mut self) {
        self.endpoint.remove(self.number);
    }
}

/// Datagrams for a connection, and the bell that says so.
struct Letters {
    waiting: Mutex<(Vec<Arrived>, usize)>,
    bell: Arc<Bell>,
}

impl Letters {
    fn lock(&self) -> MutexGuard<'_, (Vec<Arrived>, usize)> {
        self.waiting.lock()
    }

    fn take(&self) -> Vec<Arrived> {
        std::mem::take(&mut *self.lock()).0
    }
}

impl Post for Letters {
    fn datagrams(&self, arrived: Arrived) {
        let mut waiting = self.lock();
        if waiting.1 + arrived.bytes.len() > WAITING_BYTES {
            return;
        }
        waiting.1 += arrived.bytes.len();
        waiting.0.push(arrived);
        drop(waiting);
        self.bell.ring();
    }
}

#[cfg(test)]
mod tests {
    use std::net::{IpAddr, Ipv4Addr};
    use std::time::Instant;

    use waystage_protocol::congestion::Mode;
    use waystage_protocol::packet::HEADER_SIZE;
    use waystage_protocol::protect::{Side, Suite};

    use super::*;
    use crate::udp::link::Happened;
    use crate::udp::Agreed;

    const ANY: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 0);
    const PATIENCE: Duration = Duration::from_secs(20);

    struct End {
        seat: Seat,
        link: Link,
        came: Vec<Vec<u8>>,
    }

    fn agreed(side: Side) -> Agreed {
        Agreed {
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
        fn new(seat: Seat, side: Side) -> Self {
            let link = Link::new(Arc::clone(seat.socket()), agreed(side), 64);
            Self { seat, link, came: Vec::new() }
        }

        fn turn(&mut self) {
            self.seat.bell().silence();
            self.seat.receive(&mut self.link);
            while let Some(happened) = self.link.next() {
                if let Happened::Came(mut message) = happened {
                    message.buffer.truncate(message.length);
                    self.came.push(message.buffer);
                }
            }
            self.link.transmit();
        }
    }

    fn bell() -> Arc<Bell> {
        Arc::new(Bell::new().unwrap())
    }

    fn pair() -> (Arc<Endpoint>, End, End) {
        let endpoint = Arc::new(Endpoint::bind(ANY, 1).unwrap());
        let seat = Seat::at(Arc::clone(&endpoint), 40, bell()).unwrap();
        let server = End::new(seat, Side::Server);
        let seat = Seat::own(Socket::bind(ANY, false).unwrap(), bell());
        let mut client = End::new(seat, Side::Client);
        client.link.call(endpoint.address().unwrap());
        (endpoint, server, client)
    }

    fn until(ends: &mut [&mut End; 2], done: impl Fn(&[&mut End; 2]) -> bool) {
        let began = Instant::now();
        while !done(ends) {
            assert!(began.elapsed() < PATIENCE, "it does not come");
            ends.iter_mut().for_each(|end| end.turn());
            ends[0].seat.wait(Duration::from_millis(1));
        }
    }

    fn is_connected_to(end: &End, client: &Socket) -> bool {
        end.seat.own.as_ref().is_some_and(|own| own.peer == client.address().ok())
    }

    #[test]
    fn a_server_has_a_socket_for_a_client_that_it_heard() {
        let (endpoint, mut server, mut client) = pair();
        assert!(server.seat.watched().is_none());
        until(&mut [&mut server, &mut client], |[server, client]| {
            is_connected_to(server, client.seat.socket())
        });
        assert_eq!(server.seat.socket().address().unwrap(), endpoint.address().unwrap());
        // What the port's thread was given before that is there by now or never.
        server.turn();
        client.link.send(vec![5; 100_000]);
        server.link.send(vec![6; 100_000]);
        until(&mut [&mut server, &mut client], |ends| {
            assert!(!ends[0].seat.has_letters(), "the port's thread was woken");
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
            is_connected_to(server, client.seat.socket())
        });
        client.seat.socket = Arc::clone(&elsewhere);
        client.link.send_by(Arc::clone(&elsewhere));
        client.link.send(vec![5; 100_000]);
        until(&mut [&mut server, &mut client], |[server, client]| {
            is_connected_to(server, client.seat.socket()) && !server.came.is_empty()
        });
        server.link.send(vec![6; 100_000]);
        until(&mut [&mut server, &mut client], |[_, client]| !client.came.is_empty());
        assert_eq!(server.came, [vec![5; 100_000]]);
    }

    #[test]
    fn what_is_for_another_connection_of_the_same_client_is_handed_on() {
        struct Other(Mutex<Vec<Vec<u8>>>);
        impl Post for Other {
            fn datagrams(&self, arrived: Arrived) {
                self.0.lock().push(arrived.bytes);
            }
        }
        let (endpoint, mut server, mut client) = pair();
        let other = Arc::new(Other(Mutex::default()));
        assert!(endpoint.add(50, Arc::<Other>::clone(&other)));
        until(&mut [&mut server, &mut client], |[server, client]| {
            is_connected_to(server, client.seat.socket())
        });
        let mut datagram = vec![0x10 | waystage_protocol::packet::VERSION, 0, 0, 0, 50];
        datagram.resize(HEADER_SIZE + 20, 9);
        let to = endpoint.address().unwrap();
        assert!(client.seat.socket().send(to, None, datagram.len(), &datagram));
        let refused = |end: &End| end.link.connection().unwrap().counters().discarded_packets;
        until(&mut [&mut server, &mut client], |_| !other.0.lock().is_empty());
        assert_eq!(*other.0.lock(), [datagram]);
        assert_eq!(refused(&server), 0);
    }

    #[test]
    fn a_number_is_free_again_when_its_connection_is_gone() {
        let (endpoint, server, _client) = pair();
        assert!(Seat::at(Arc::clone(&endpoint), 40, bell()).is_err());
        drop(server);
        assert!(Seat::at(endpoint, 40, bell()).is_ok());
    }
}
