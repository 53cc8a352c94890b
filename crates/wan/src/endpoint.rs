//! One UDP socket and the connections on it, told apart by their numbers.
//!
//! Arrives: datagrams. Leaves: each to the thread of its connection, others to nobody. Must not know: what is in them.

use std::collections::HashMap;
use std::io;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;

use waystage_protocol::packet::{HEADER_SIZE, VERSION};

use crate::probe::FIRST;
use crate::socket::{Arrived, Buffers, Socket};

/// The first byte of a packet of the wide-area protocol.
const PACKET: u8 = 0x10 | VERSION;

/// Where the datagrams of a connection go.
pub(crate) trait Post: Send + Sync {
    fn datagrams(&self, arrived: Arrived);
}

/// A socket, and a thread that sorts what it receives. Dropped, it ends.
pub(crate) struct Endpoint {
    shared: Arc<Shared>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

struct Shared {
    socket: Arc<Socket>,
    posts: Mutex<HashMap<u32, Arc<dyn Post>>>,
    stop: AtomicBool,
    /// Datagrams of no connection.
    strangers: AtomicU64,
}

impl Endpoint {
    /// At an address; `shared` where lines of probes are to have the same port.
    pub(crate) fn bind(address: SocketAddr, shared: bool) -> io::Result<Self> {
        let shared = Arc::new(Shared {
            socket: Arc::new(Socket::bind(address, shared)?),
            posts: Mutex::default(),
            stop: AtomicBool::new(false),
            strangers: AtomicU64::new(0),
        });
        let sorting = Arc::clone(&shared);
        let thread = std::thread::Builder::new().name("wan-udp".to_owned()).spawn(move || {
            let mut buffers = Buffers::default();
            while !sorting.stop.load(Ordering::Relaxed) {
                sorting.socket.receive(&mut buffers, |arrived| sorting.deliver(arrived));
            }
        })?;
        Ok(Self { shared, thread: Mutex::new(Some(thread)) })
    }

    pub(crate) fn socket(&self) -> &Arc<Socket> {
        &self.shared.socket
    }

    /// From now on datagrams with this number go there. False where it is taken.
    pub(crate) fn add(&self, connection: u32, post: Arc<dyn Post>) -> bool {
        let mut posts = self.shared.lock();
        if posts.contains_key(&connection) {
            return false;
        }
        posts.insert(connection, post);
        true
    }

    pub(crate) fn remove(&self, connection: u32) {
        self.shared.lock().remove(&connection);
    }

    /// Datagrams that were nobody's.
    pub(crate) fn strangers(&self) -> u64 {
        self.shared.strangers.load(Ordering::Relaxed)
    }
}

impl Shared {
    fn lock(&self) -> std::sync::MutexGuard<'_, HashMap<u32, Arc<dyn Post>>> {
        self.posts.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The kernel joins datagrams of one sender, which may be on several connections: each goes by its own number.
    fn deliver(&self, arrived: Arrived) {
        let numbers: Vec<Option<u32>> =
            arrived.bytes.chunks(arrived.stride).map(connection_of).collect();
        let Some(first) = numbers.first().copied() else { return };
        if numbers.iter().all(|number| *number == first) {
            return self.hand(first, numbers.len(), arrived);
        }
        for (number, datagram) in numbers.into_iter().zip(arrived.bytes.chunks(arrived.stride)) {
            let alone = Arrived { bytes: datagram.to_vec(), ..arrived };
            self.hand(number, 1, alone);
        }
    }

    fn hand(&self, connection: Option<u32>, datagrams: usize, arrived: Arrived) {
        let post = connection.and_then(|number| self.lock().get(&number).cloned());
        match post {
            Some(post) => post.datagrams(arrived),
            None => {
                self.strangers.fetch_add(datagrams as u64, Ordering::Relaxed);
            }
        }
    }
}

/// The connection's number in a datagram of ours: see `docs/reference/wide-area-protocol.md`, "Packets"; those of probes have it at the
/// same place.
fn connection_of(datagram: &[u8]) -> Option<u32> {
    let header = datagram.get(..HEADER_SIZE)?;
    matches!(header[0], PACKET | FIRST)
        .then(|| u32::from_be_bytes([header[1], header[2], header[3], header[4]]))
}

impl Drop for Endpoint {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::Relaxed);
        self.shared.socket.wake();
        let thread = self.thread.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(thread) = thread {
            // A panicked thread has told the process's stderr; there is nobody to tell here.
            let _ = thread.join();
        }
    }
}
