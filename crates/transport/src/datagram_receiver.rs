//! Receives a connection's datagrams: from its own socket, and from the queue of a server's port.
//!
//! Arrives: datagrams, the waker, the time. Leaves: the datagrams to the link. Must not know: what is in them, who
//! waits for what.
//!
//! A separate socket spares the wake-up of the thread that demultiplexes, and a copy of each datagram. A server's
//! connection has one beside the port's sockets (`SO_REUSEPORT`), connected to its client, since the client was heard;
//! what comes from elsewhere, as from a client that has moved, comes through the port's. See
//! `docs/decisions/0033-sockets-of-connections.md`.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::{Mutex, MutexGuard};
use rustix::event::{poll, PollFd, PollFlags, Timespec};

use crate::endpoint::{connections_of, DatagramSink, Endpoint};
use crate::socket::{Arrived, Buffers, Socket};
use crate::waker::Waker;

/// Datagrams that may wait for their thread. More are dropped, as a full queue on the way would.
const WAITING_BYTES: usize = 16 << 20;

/// A connection's place at a client, or at a server's port.
pub struct DatagramReceiver {
    /// By which the connection sends.
    socket: Arc<Socket>,
    /// None at a server that has not heard its client, or where no socket could be had.
    own: Option<Own>,
    port: Option<Port>,
    waker: Arc<Waker>,
}

/// The socket is for this connection alone.
struct Own {
    buffers: Buffers,
    /// The peer it is connected to; a client's is not connected, so that its host may move.
    peer: Option<SocketAddr>,
}

/// A number at a server's port, given back in the end.
struct Port {
    endpoint: Arc<Endpoint>,
    number: u32,
    queue: Arc<ReceiveQueue>,
    /// Whether its own socket was asked for.
    asked: bool,
}

impl DatagramReceiver {
    /// A client's. Others ring the waker, too.
    pub fn dedicated(socket: Socket, waker: Arc<Waker>) -> Self {
        let own = Own { buffers: Buffers::default(), peer: None };
        Self { socket: Arc::new(socket), own: Some(own), port: None, waker }
    }

    /// A server's; fails where the number is taken.
    pub fn registered(endpoint: Arc<Endpoint>, number: u32, waker: Arc<Waker>) -> io::Result<Self> {
        let queue = Arc::new(ReceiveQueue { waiting: Mutex::default(), waker: Arc::clone(&waker) });
        if !endpoint.add(number, Arc::clone(&queue) as Arc<dyn DatagramSink>) {
            return Err(io::ErrorKind::AddrInUse.into());
        }
        let socket = Arc::clone(endpoint.socket(number));
        let port = Port { endpoint, number, queue, asked: false };
        Ok(Self { socket, own: None, port: Some(port), waker })
    }

    /// The peer that its own socket is connected to.
    #[cfg(test)]
    pub(crate) fn connected_to(&self) -> Option<SocketAddr> {
        self.own.as_ref()?.peer
    }

    /// Receive by another socket, as a host that has moved.
    #[cfg(test)]
    pub(crate) fn move_to(&mut self, socket: Arc<Socket>) {
        self.socket = socket;
    }

    /// By which the connection sends, until [`Self::receive`] tells the link otherwise.
    pub fn socket(&self) -> &Arc<Socket> {
        &self.socket
    }

    /// Has datagrams when it can be read, beside those for which the waker rings.
    pub fn watched(&self) -> Option<&Socket> {
        self.own.is_some().then_some(&*self.socket)
    }

    /// What wakes the thread of this connection.
    pub fn waker(&self) -> &Arc<Waker> {
        &self.waker
    }

    /// Whether the port has received something for it.
    pub fn has_queued(&self) -> bool {
        self.port.as_ref().is_some_and(|port| !port.queue.lock().0.is_empty())
    }

    /// Wait for the waker or datagrams, at most for `timeout`.
    pub fn wait(&self, timeout: Duration) {
        let timeout = Timespec::try_from(timeout).ok();
        let waker = PollFd::new(&*self.waker, PollFlags::IN);
        // A signal is a spurious wake-up.
        let _ = match self.watched() {
            Some(socket) => {
                poll(&mut [waker, PollFd::new(socket, PollFlags::IN)], timeout.as_ref())
            }
            None => poll(&mut [waker], timeout.as_ref()),
        };
    }

    /// Hand over the datagrams that are here now. Whether there may be more.
    pub fn receive(&mut self, mut datagrams: impl FnMut(Arrived<&mut [u8]>)) -> bool {
        for mut arrived in self.port.iter().flat_map(|port| port.queue.take()) {
            let mut bytes = std::mem::take(&mut arrived.bytes);
            datagrams(arrived.with(&mut bytes));
        }
        let Some(own) = &mut self.own else { return false };
        let port = self.port.as_ref();
        self.socket.receive_some(&mut own.buffers, |arrived| match port {
            Some(port) if !port.owns(&arrived) => {
                port.endpoint.deliver(arrived.with(arrived.bytes.to_vec()));
            }
            _ => datagrams(arrived),
        })
    }

    /// Connect a server's socket to its client: `peer`, which writes to `at`. The socket to send by from now on, where
    /// it is another one. Where no socket can be connected, the port's sockets go on.
    pub fn follow(&mut self, peer: SocketAddr, at: Option<IpAddr>) -> Option<&Arc<Socket>> {
        let (port, at) = (self.port.as_mut()?, at?);
        match &mut self.own {
            Some(own) if own.peer == Some(peer) => return None,
            Some(own) if self.socket.connect(peer).is_ok() => {
                own.peer = Some(peer);
                return None;
            }
            None if std::mem::replace(&mut port.asked, true) => return None,
            None => {
                self.socket = Arc::new(port.endpoint.beside(at, peer).ok()?);
                self.own = Some(Own { buffers: Buffers::default(), peer: Some(peer) });
            }
            Some(_) => {
                self.socket = Arc::clone(port.endpoint.socket(port.number));
                self.own = None;
            }
        }
        Some(&self.socket)
    }
}

impl Port {
    /// Whether all of them are for this connection: before its socket was connected it may have got others', too.
    fn owns(&self, arrived: &Arrived<&mut [u8]>) -> bool {
        connections_of(arrived.bytes, arrived.stride).all(|number| number == Some(self.number))
    }
}

impl Drop for Port {
    fn drop(&mut self) {
        self.endpoint.remove(self.number);
    }
}

/// Datagrams for a connection, and the waker that says so.
struct ReceiveQueue {
    waiting: Mutex<(Vec<Arrived>, usize)>,
    waker: Arc<Waker>,
}

impl ReceiveQueue {
    fn lock(&self) -> MutexGuard<'_, (Vec<Arrived>, usize)> {
        self.waiting.lock()
    }

    fn take(&self) -> Vec<Arrived> {
        std::mem::take(&mut *self.lock()).0
    }
}

impl DatagramSink for ReceiveQueue {
    fn datagrams(&self, arrived: Arrived) {
        let mut waiting = self.lock();
        if waiting.1 + arrived.bytes.len() > WAITING_BYTES {
            return;
        }
        waiting.1 += arrived.bytes.len();
        waiting.0.push(arrived);
        drop(waiting);
        self.waker.wake();
    }
}
