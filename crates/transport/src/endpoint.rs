//! UDP sockets at one port and the connections on them, told apart by their numbers.
//!
//! Arrives: datagrams. Leaves: each datagram at its connection's sink; others are dropped. Must not know: what is in
//! them.

use std::collections::{HashMap, VecDeque};
use std::io;
use std::net::{IpAddr, SocketAddr, SocketAddrV6};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use waystage_protocol::packet::{HEADER_SIZE, VERSION};

use crate::socket::{Arrived, Buffers, Socket};

/// The first byte of a probe's packets, which share a server's port.
pub const PROBE_PACKET: u8 = 0x21;

/// The first byte of a packet of the wide-area protocol.
const PACKET: u8 = 0x10 | VERSION;

/// Datagrams of no connection that are kept, since a client's first may come before its TLS handshake is done here: in
/// all, from one address, how large and for how long. Nothing is answered to them, so there is nothing to amplify.
const MOST_EARLY: usize = 64;
const MOST_EARLY_EACH: usize = 4;
const EARLY_BYTES: usize = 1500;
const EARLY_TIME: Duration = Duration::from_secs(2);

/// Where the datagrams of a connection go.
pub trait DatagramSink: Send + Sync {
    /// Take datagrams of one sender.
    fn datagrams(&self, arrived: Arrived);
}

/// Sockets, each with a thread that sorts what it receives. Dropped, they end.
pub struct Endpoint {
    shared: Arc<Shared>,
    threads: Mutex<Vec<JoinHandle<()>>>,
}

struct Shared {
    sockets: Vec<Arc<Socket>>,
    sinks: Mutex<HashMap<u32, Arc<dyn DatagramSink>>>,
    /// Those of no connection that may have come too early. Locked after `posts`.
    early: Mutex<Early>,
    stop: AtomicBool,
    /// Datagrams of no connection.
    unmatched: AtomicU64,
}

impl Endpoint {
    /// `count` sockets at an address, among which the kernel spreads senders by their addresses and ports.
    pub fn bind(mut address: SocketAddr, count: usize) -> io::Result<Self> {
        let mut sockets = Vec::new();
        for _ in 0..count.max(1) {
            // Connections and lines of probes have their own sockets at the same port.
            let socket = Socket::bind(address, true)?;
            // Where any port would do, all have the first one's.
            address = socket.address()?;
            sockets.push(Arc::new(socket));
        }
        let endpoint = Self {
            shared: Arc::new(Shared {
                sockets,
                sinks: Mutex::default(),
                early: Mutex::default(),
                stop: AtomicBool::new(false),
                unmatched: AtomicU64::new(0),
            }),
            threads: Mutex::default(),
        };
        for socket in &endpoint.shared.sockets {
            let (sorting, socket) = (Arc::clone(&endpoint.shared), Arc::clone(socket));
            let thread =
                std::thread::Builder::new().name("wan-udp".to_owned()).spawn(move || {
                    let mut buffers = Buffers::default();
                    while !sorting.stop.load(Ordering::Relaxed) {
                        socket.receive(&mut buffers, |arrived| sorting.deliver(arrived));
                    }
                })?;
            endpoint.threads().push(thread);
        }
        Ok(endpoint)
    }

    fn threads(&self) -> parking_lot::MutexGuard<'_, Vec<JoinHandle<()>>> {
        self.threads.lock()
    }

    /// The socket of a connection that has no separate one.
    pub fn socket(&self, connection: u32) -> &Arc<Socket> {
        &self.shared.sockets[connection as usize % self.shared.sockets.len()]
    }

    /// Where it is bound to.
    pub fn address(&self) -> io::Result<SocketAddr> {
        self.shared.sockets[0].address()
    }

    /// Another socket at the same port, for what comes from `peer` to `at`.
    pub fn beside(&self, at: IpAddr, peer: SocketAddr) -> io::Result<Socket> {
        Socket::connected(beside(self.address()?, at, peer), true, peer)
    }

    /// Hand on datagrams that came another way.
    pub fn deliver(&self, arrived: Arrived) {
        self.shared.deliver(arrived);
    }

    /// From now on datagrams with this number go there. False where it is taken.
    pub fn add(&self, connection: u32, sink: Arc<dyn DatagramSink>) -> bool {
        let mut sinks = self.shared.lock();
        if sinks.contains_key(&connection) {
            return false;
        }
        let early = self.shared.early().take(connection, Instant::now());
        sinks.insert(connection, Arc::clone(&sink));
        drop(sinks);
        for arrived in early {
            sink.datagrams(arrived);
        }
        true
    }

    /// Datagrams with this number belong to no connection from now on.
    pub fn remove(&self, connection: u32) {
        self.shared.lock().remove(&connection);
    }

    /// Datagrams of no connection.
    pub fn unmatched(&self) -> u64 {
        self.shared.unmatched.load(Ordering::Relaxed)
    }
}

impl Shared {
    fn lock(&self) -> parking_lot::MutexGuard<'_, HashMap<u32, Arc<dyn DatagramSink>>> {
        self.sinks.lock()
    }

    fn early(&self) -> parking_lot::MutexGuard<'_, Early> {
        self.early.lock()
    }

    /// The kernel joins datagrams of one sender, which may be on several connections: each goes by its own number.
    fn deliver(&self, arrived: Arrived) {
        let numbers: Vec<Option<u32>> = connections_of(&arrived.bytes, arrived.stride).collect();
        let Some(first) = numbers.first().copied() else { return };
        if numbers.iter().all(|number| *number == first) {
            return self.hand(first, numbers.len(), arrived);
        }
        for (number, datagram) in numbers.into_iter().zip(arrived.bytes.chunks(arrived.stride)) {
            self.hand(number, 1, arrived.with(datagram.to_vec()));
        }
    }

    fn hand(&self, connection: Option<u32>, datagrams: usize, arrived: Arrived) {
        let Some(number) = connection else { return self.count_unmatched(datagrams) };
        let sinks = self.lock();
        if let Some(sink) = sinks.get(&number).cloned() {
            drop(sinks);
            return sink.datagrams(arrived);
        }
        self.count_unmatched(datagrams);
        self.early().keep(number, arrived, Instant::now());
    }

    fn count_unmatched(&self, datagrams: usize) {
        self.unmatched.fetch_add(datagrams as u64, Ordering::Relaxed);
    }
}

/// Datagrams of connections that are not there yet, if they ever will be.
#[derive(Default)]
struct Early {
    /// The oldest first.
    kept: VecDeque<(Instant, u32, Arrived)>,
    from: HashMap<IpAddr, usize>,
}

impl Early {
    fn keep(&mut self, connection: u32, arrived: Arrived, now: Instant) {
        let from = arrived.from.ip();
        let held = self.from.get(&from).copied().unwrap_or(0);
        if arrived.bytes.len() > EARLY_BYTES || held >= MOST_EARLY_EACH {
            return;
        }
        self.forget_old(now);
        if self.kept.len() >= MOST_EARLY {
            self.forget_first();
        }
        *self.from.entry(from).or_default() += 1;
        self.kept.push_back((now, connection, arrived));
    }

    /// Those of a connection that is there now.
    fn take(&mut self, connection: u32, now: Instant) -> Vec<Arrived> {
        self.forget_old(now);
        let mut taken = Vec::new();
        for (at, number, arrived) in std::mem::take(&mut self.kept) {
            if number == connection {
                self.less(arrived.from.ip());
                taken.push(arrived);
            } else {
                self.kept.push_back((at, number, arrived));
            }
        }
        taken
    }

    fn forget_old(&mut self, now: Instant) {
        while self.kept.front().is_some_and(|(at, ..)| now.duration_since(*at) > EARLY_TIME) {
            self.forget_first();
        }
    }

    fn forget_first(&mut self) {
        if let Some((_, _, arrived)) = self.kept.pop_front() {
            self.less(arrived.from.ip());
        }
    }

    fn less(&mut self, from: IpAddr) {
        if let Some(count) = self.from.get_mut(&from) {
            *count -= 1;
            if *count == 0 {
                self.from.remove(&from);
            }
        }
    }
}

/// The connection's number in each datagram of `stride` bytes, if it is one of ours: see
/// `docs/reference/wide-area-protocol.md`, "Packets". Those of probes have it at the same place.
pub(crate) fn connections_of(
    bytes: &[u8],
    stride: usize,
) -> impl Iterator<Item = Option<u32>> + '_ {
    bytes.chunks(stride).map(|datagram| {
        let header = datagram.get(..HEADER_SIZE)?;
        matches!(header[0], PACKET | PROBE_PACKET)
            .then(|| u32::from_be_bytes([header[1], header[2], header[3], header[4]]))
    })
}

/// Where a socket beside one of `bound` is to be bound to: the address that `peer` writes to, in the port's family,
/// with its interface.
fn beside(bound: SocketAddr, at: IpAddr, peer: SocketAddr) -> SocketAddr {
    match (bound, at.to_canonical()) {
        (SocketAddr::V6(_), IpAddr::V4(at)) => (at.to_ipv6_mapped(), bound.port()).into(),
        (SocketAddr::V6(_), IpAddr::V6(at)) => {
            let interface = match peer {
                SocketAddr::V6(peer) => peer.scope_id(),
                SocketAddr::V4(_) => 0,
            };
            SocketAddrV6::new(at, bound.port(), 0, interface).into()
        }
        (SocketAddr::V4(_), at) => (at, bound.port()).into(),
    }
}

impl Drop for Endpoint {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::Relaxed);
        for socket in &self.shared.sockets {
            socket.wake();
        }
        for thread in std::mem::take(&mut *self.threads()) {
            // A panic was printed on stderr already.
            let _ = thread.join();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn arrived(from: u8, length: usize) -> Arrived {
        let from = SocketAddr::from(([127, 0, 0, from], 9));
        Arrived { from, at: None, marked: false, stride: 1, bytes: vec![0; length] }
    }

    #[derive(Default)]
    struct Kept(Mutex<Vec<Vec<u8>>>);

    impl DatagramSink for Kept {
        fn datagrams(&self, arrived: Arrived) {
            self.0.lock().extend(arrived.bytes.chunks(arrived.stride).map(<[u8]>::to_vec));
        }
    }

    #[test]
    fn datagrams_that_the_kernel_joined_go_each_to_its_connection() {
        let shared = Shared {
            sockets: Vec::new(),
            sinks: Mutex::default(),
            early: Mutex::default(),
            stop: AtomicBool::new(false),
            unmatched: AtomicU64::new(0),
        };
        let sinks = [7, 8].map(|number| {
            let sink = Arc::new(Kept::default());
            shared.lock().insert(number, Arc::clone(&sink) as Arc<dyn DatagramSink>);
            sink
        });
        let datagram = |first: u8, connection: u8| {
            let mut datagram = vec![0; HEADER_SIZE];
            datagram[0] = first;
            datagram[4] = connection;
            datagram
        };
        let mine = [datagram(PACKET, 7), datagram(PROBE_PACKET, 7)];
        let (other, strange) = (datagram(PACKET, 8), datagram(0x7f, 8));
        let joined = [&mine[0], &other, &strange, &mine[1], &other[..HEADER_SIZE - 1].to_vec()];
        let joined = joined.map(Vec::as_slice).concat();
        shared.deliver(Arrived { stride: HEADER_SIZE, bytes: joined, ..arrived(1, 0) });
        assert_eq!(*sinks[0].0.lock(), mine);
        assert_eq!(*sinks[1].0.lock(), [other]);
        assert_eq!(shared.unmatched.load(Ordering::Relaxed), 2, "a strange one and a short one");
    }

    #[test]
    fn what_came_early_is_handed_to_the_connection_that_it_is_for() {
        let (mut early, now) = (Early::default(), Instant::now());
        early.keep(7, arrived(1, 29), now);
        early.keep(8, arrived(1, 30), now);
        early.keep(7, arrived(2, 31), now);
        let lengths: Vec<usize> = early.take(7, now).iter().map(|one| one.bytes.len()).collect();
        assert_eq!((lengths, early.take(7, now).len()), (vec![29, 31], 0));
        assert!(early.take(8, now + 2 * EARLY_TIME).is_empty(), "too late");
        assert!(early.from.is_empty());
    }

    #[test]
    fn a_socket_beside_the_port_s_is_where_the_client_writes_to() {
        let placed = |bound: &str, at: &str, peer: &str| {
            beside(bound.parse().unwrap(), at.parse().unwrap(), peer.parse().unwrap()).to_string()
        };
        assert_eq!(placed("0.0.0.0:7", "10.0.0.1", "10.0.0.2:9"), "10.0.0.1:7");
        assert_eq!(placed("[::]:7", "10.0.0.1", "[::ffff:10.0.0.2]:9"), "[::ffff:10.0.0.1]:7");
        assert_eq!(placed("[::]:7", "2001:db8::1", "[2001:db8::2]:9"), "[2001:db8::1]:7");
        assert_eq!(placed("[::]:7", "fe80::1", "[fe80::2%3]:9"), "[fe80::1%3]:7");
    }

    proptest! {
        #[test]
        fn whatever_comes_early_takes_bounded_memory(
            datagrams in prop::collection::vec((any::<u8>(), 0_u32..5, 0_usize..3000, any::<bool>()), 0..300),
        ) {
            let (mut early, mut now) = (Early::default(), Instant::now());
            for (from, connection, length, taken) in datagrams {
                early.keep(connection, arrived(from % 40, length), now);
                now += EARLY_TIME / 50;
                if taken {
                    early.take(connection, now);
                }
                prop_assert!(early.kept.len() <= MOST_EARLY);
                prop_assert!(early.kept.iter().all(|(_, _, one)| one.bytes.len() <= EARLY_BYTES));
                prop_assert!(early.from.values().all(|count| *count <= MOST_EARLY_EACH));
                prop_assert_eq!(early.from.values().sum::<usize>(), early.kept.len());
            }
        }
    }
}
