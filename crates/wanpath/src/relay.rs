//! The path for UDP datagrams, in user space and without root.
//!
//! Arrives: the address for clients, the target. Leaves: datagrams at the target, from one socket per client, and the
//! answers. Must not know: the contents of a datagram.
//!
//! Every client has its own socket towards the target, so that answers find their way back. The kernel joins and splits
//! datagrams of equal size (UDP GRO and GSO); each has its own fate. A damaged datagram gets a valid checksum from the
//! kernel: the program receives the damage. Code points of ECN end at a socket: no datagram counts as capable.

use std::collections::HashMap;
use std::io::{self, IoSlice, IoSliceMut};
use std::net::SocketAddr;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::Arc;

use nix::errno::Errno;
use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags, EpollTimeout};
use nix::sys::socket::{
    recvmsg, sendmsg, setsockopt, sockopt, ControlMessage, ControlMessageOwned, MsgFlags,
    SockaddrIn, SockaddrIn6, SockaddrLike, SockaddrStorage,
};
use parking_lot::Mutex;
use socket2::{Domain, Protocol, Socket, Type};

use crate::endpoint::{Change, PacketSink, PacketSource};
use crate::error::PathError;
use crate::forwarder::{Forwarder, ForwarderConfig};
use crate::frame::{Cuts, Frame};
use crate::model::Spec;
use crate::path::seeds;

/// The largest datagram, or joined datagrams.
const MAX_BYTES: usize = 65_536;
/// Room while a forwarder waits for a processor: 60 ms at 1 Gbit/s. Without root the system's limit applies.
const BUFFER_BYTES: usize = 8 << 20;
/// The client that was silent longest is replaced by a new one.
const MAX_CLIENTS: usize = 256;
/// Headers of IPv4 and UDP, and of IPv6 and UDP: the rate counts complete packets.
const UNSEEN: [usize; 2] = [28, 48];

/// A sender to the relay.
#[derive(Debug)]
pub struct Client {
    number: u64,
    address: SocketAddr,
    /// Connected to the target.
    socket: Socket,
    /// When it last sent, as a number of datagrams of all clients.
    last_seen: AtomicU64,
}

#[derive(Debug)]
struct Clients {
    by_address: HashMap<SocketAddr, Arc<Client>>,
    by_number: HashMap<u64, Arc<Client>>,
    next: u64,
    /// Drops of sockets that are closed.
    dropped: u64,
}

#[derive(Debug)]
struct Table {
    target: SocketAddr,
    listening: Socket,
    upstream: Epoll,
    clients: Mutex<Clients>,
}

/// Starts a relay. Returns the forwarders from the clients to the target and back, and the address for clients.
///
/// # Errors
/// The properties are invalid, or the address is not available.
pub fn relay(
    listen: SocketAddr,
    target: SocketAddr,
    specs: [Spec; 2],
    seed: u64,
    config: ForwarderConfig,
) -> Result<([Forwarder; 2], SocketAddr), PathError> {
    for spec in &specs {
        spec.check()?;
    }
    let named = |address: SocketAddr| {
        move |error: io::Error| PathError::Socket(format!("{address}: {error}"))
    };
    let listening = socket(listen).map_err(named(listen))?;
    listening.bind(&listen.into()).map_err(named(listen))?;
    // An unreachable target is reported now, and not at the first datagram.
    connected(target).map_err(named(target))?;
    let at = listening.local_addr().map_err(named(listen))?.as_socket().unwrap_or(listen);
    let upstream = Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC)
        .map_err(|errno| PathError::Thread(errno.into()))?;
    let clients = Mutex::new(Clients {
        by_address: HashMap::new(),
        by_number: HashMap::new(),
        next: 0,
        dropped: 0,
    });
    let table = Arc::new(Table { target, listening, upstream, clients });
    let [forward, back] = seeds(seed);
    let last_seen = 0;
    let forwarders = [
        Forwarder::start(
            FromClients { table: Arc::clone(&table), last_seen },
            ToTarget,
            specs[0],
            forward,
            config,
        ),
        Forwarder::start(
            FromTarget { table: Arc::clone(&table), ready: Vec::new() },
            ToClients { table },
            specs[1],
            back,
            config,
        ),
    ];
    let [forward, back] = forwarders;
    Ok(([forward.map_err(PathError::Thread)?, back.map_err(PathError::Thread)?], at))
}

fn socket(near: SocketAddr) -> io::Result<Socket> {
    let socket = Socket::new(Domain::for_address(near), Type::DGRAM, Some(Protocol::UDP))?;
    socket.set_nonblocking(true)?;
    if setsockopt(&socket, sockopt::RcvBufForce, &BUFFER_BYTES).is_err() {
        socket.set_recv_buffer_size(BUFFER_BYTES)?;
    }
    socket.set_send_buffer_size(BUFFER_BYTES)?;
    // Kernels before 5.0 do not join datagrams: they arrive one by one.
    let _ = setsockopt(&socket, sockopt::UdpGroSegment, &true);
    Ok(socket)
}

fn connected(target: SocketAddr) -> io::Result<Socket> {
    let socket = socket(target)?;
    socket.connect(&target.into())?;
    Ok(socket)
}

impl Table {
    /// The client at an address, created on its first datagram.
    fn client(&self, address: SocketAddr, now: u64) -> io::Result<Arc<Client>> {
        let mut clients = self.clients.lock();
        if let Some(client) = clients.by_address.get(&address) {
            client.last_seen.store(now, Ordering::Relaxed);
            return Ok(Arc::clone(client));
        }
        if clients.by_address.len() >= MAX_CLIENTS {
            let silent =
                clients.by_address.values().min_by_key(|c| c.last_seen.load(Ordering::Relaxed));
            if let Some(silent) = silent.map(Arc::clone) {
                clients.dropped += waystage_lab::overflowed(&silent.socket).unwrap_or(0);
                clients.by_address.remove(&silent.address);
                clients.by_number.remove(&silent.number);
                let _ = self.upstream.delete(&silent.socket);
            }
        }
        let number = clients.next;
        let socket = connected(self.target)?;
        self.upstream.add(&socket, EpollEvent::new(EpollFlags::EPOLLIN, number))?;
        let client = Arc::new(Client { number, address, socket, last_seen: AtomicU64::new(now) });
        clients.next += 1;
        clients.by_address.insert(address, Arc::clone(&client));
        clients.by_number.insert(number, Arc::clone(&client));
        Ok(client)
    }
}

/// Reads datagrams that the kernel joined: their layout and sender.
fn receive(
    socket: &Socket,
    room: &mut [u8],
    unseen: usize,
) -> Result<(Cuts, Option<SocketAddr>), Errno> {
    let mut space = nix::cmsg_space!(i32);
    let mut parts = [IoSliceMut::new(room)];
    let found = recvmsg::<SockaddrStorage>(
        socket.as_raw_fd(),
        &mut parts,
        Some(&mut space),
        MsgFlags::empty(),
    )?;
    let mut cuts = Cuts::single(found.bytes, unseen);
    for message in found.cmsgs()? {
        if let ControlMessageOwned::UdpGroSegments(size) = message {
            cuts.segment = usize::try_from(size).unwrap_or(0).max(1);
        }
    }
    let from = found.address.as_ref().and_then(|address| {
        let v4 = address.as_sockaddr_in().map(|a| SocketAddr::V4((*a).into()));
        v4.or_else(|| address.as_sockaddr_in6().map(|a| SocketAddr::V6((*a).into())))
    });
    Ok((cuts, from))
}

/// Send datagrams of a frame: together where the kernel cuts them, else one by one.
fn send<A: SockaddrLike>(
    socket: &Socket,
    to: Option<&A>,
    (cuts, bytes): (&Cuts, &[u8]),
    (first, count): (usize, usize),
    flip: Option<u64>,
) -> io::Result<()> {
    let one = |payload: &[u8], messages: &[ControlMessage<'_>]| {
        let parts = [IoSlice::new(payload)];
        sendmsg(socket.as_raw_fd(), &parts, messages, MsgFlags::empty(), to).map(drop)
    };
    let payload = &bytes[cuts.payload(first, count)];
    if let Some(flip) = flip {
        let mut copy = payload.to_vec();
        let bit = flip % (copy.len() as u64 * 8).max(1);
        if let Some(byte) = copy.get_mut((bit / 8) as usize) {
            *byte ^= 1 << (bit % 8);
        }
        return Ok(one(&copy, &[])?);
    }
    if count > 1 {
        let size = cuts.segment as u16;
        match one(payload, &[ControlMessage::UdpGsoSegments(&size)]) {
            // A route or device that cannot: then by ourselves.
            Err(Errno::EINVAL | Errno::EIO | Errno::EMSGSIZE | Errno::EOPNOTSUPP) => {}
            other => return Ok(other?),
        }
    }
    for packet in first..first + count {
        match one(&bytes[cuts.payload(packet, 1)], &[]) {
            // An earlier datagram met a closed port; this one has not been sent yet.
            Err(Errno::ECONNREFUSED) => one(&bytes[cuts.payload(packet, 1)], &[])?,
            other => other?,
        }
    }
    Ok(())
}

struct FromClients {
    table: Arc<Table>,
    last_seen: u64,
}

impl PacketSource for FromClients {
    type Shape = Arc<Client>;
    const MAX_FRAME: usize = MAX_BYTES;

    fn descriptor(&self) -> BorrowedFd<'_> {
        self.table.listening.as_fd()
    }

    fn read(&mut self, room: &mut [u8]) -> io::Result<Option<(Cuts, Arc<Client>)>> {
        let unseen = UNSEEN[usize::from(self.table.target.is_ipv6())];
        let (cuts, from) = match receive(&self.table.listening, room, unseen) {
            Ok(found) => found,
            Err(Errno::EAGAIN) => return Ok(None),
            Err(errno) => return Err(io::Error::new(io::ErrorKind::InvalidData, errno)),
        };
        self.last_seen += 1;
        let client = from.map(|from| self.table.client(from, self.last_seen));
        match client {
            Some(Ok(client)) => Ok(Some((cuts, client))),
            // No socket for a new client: its datagrams are lost here, and counted.
            _ => Err(io::Error::new(io::ErrorKind::InvalidData, "a client without a socket")),
        }
    }

    fn overflowed(&mut self) -> u64 {
        waystage_lab::overflowed(&self.table.listening).unwrap_or(0)
    }
}

struct ToTarget;

impl PacketSink for ToTarget {
    type Shape = Arc<Client>;

    fn write(
        &mut self,
        frame: &Frame<Arc<Client>>,
        bytes: &[u8],
        packets: (usize, usize),
        change: Change,
    ) -> io::Result<()> {
        let to = None::<&SockaddrStorage>;
        send(&frame.shape.socket, to, (&frame.cuts, bytes), packets, change.flip)
    }
}

struct FromTarget {
    table: Arc<Table>,
    ready: Vec<Arc<Client>>,
}

impl FromTarget {
    fn poll(&mut self) {
        let mut events = [EpollEvent::empty(); 64];
        let found = self.table.upstream.wait(&mut events, EpollTimeout::ZERO).unwrap_or(0);
        let clients = self.table.clients.lock();
        let numbers = events[..found].iter().map(EpollEvent::data);
        self.ready.extend(numbers.filter_map(|number| clients.by_number.get(&number).cloned()));
    }
}

impl PacketSource for FromTarget {
    type Shape = Arc<Client>;
    const MAX_FRAME: usize = MAX_BYTES;

    fn descriptor(&self) -> BorrowedFd<'_> {
        self.table.upstream.0.as_fd()
    }

    fn read(&mut self, room: &mut [u8]) -> io::Result<Option<(Cuts, Arc<Client>)>> {
        let unseen = UNSEEN[usize::from(self.table.target.is_ipv6())];
        if self.ready.is_empty() {
            self.poll();
        }
        while let Some(client) = self.ready.last() {
            match receive(&client.socket, room, unseen) {
                Ok((cuts, _)) => return Ok(Some((cuts, Arc::clone(client)))),
                // Nothing more, or the target's port is closed: no datagram of the path.
                Err(_) => drop(self.ready.pop()),
            }
        }
        Ok(None)
    }

    fn overflowed(&mut self) -> u64 {
        let clients = self.table.clients.lock();
        let now =
            clients.by_number.values().map(|c| waystage_lab::overflowed(&c.socket).unwrap_or(0));
        clients.dropped + now.sum::<u64>()
    }
}

struct ToClients {
    table: Arc<Table>,
}

impl PacketSink for ToClients {
    type Shape = Arc<Client>;

    fn write(
        &mut self,
        frame: &Frame<Arc<Client>>,
        bytes: &[u8],
        packets: (usize, usize),
        change: Change,
    ) -> io::Result<()> {
        let content = (&frame.cuts, bytes);
        match frame.shape.address {
            SocketAddr::V4(to) => send(
                &self.table.listening,
                Some(&SockaddrIn::from(to)),
                content,
                packets,
                change.flip,
            ),
            SocketAddr::V6(to) => send(
                &self.table.listening,
                Some(&SockaddrIn6::from(to)),
                content,
                packets,
                change.flip,
            ),
        }
    }
}
