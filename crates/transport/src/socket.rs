//! A UDP socket: many datagrams in one call of the kernel, with ECN.
//!
//! Arrives: datagrams of one size to one address. Leaves: batches of datagrams of one size from one address.
//! Must not know: connections.

use std::io::{self, IoSliceMut};
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use quinn_udp::{EcnCodepoint, RecvMeta, Transmit, UdpSocketState};
use rustix::event::{eventfd, poll, EventfdFlags, PollFd, PollFlags, Timespec};

/// The most bytes of one call of the kernel.
pub const BATCH_BYTES: usize = 64 << 10;

/// Received in one call.
const BATCHES: usize = 16;

/// What the kernel may hold for us. It gives less where its administrator has not allowed more.
const KERNEL_BYTES: usize = 8 << 20;

/// Batches that fill less than this of a buffer are copied out of it, so that memory is held by data and not by room.
const WORTH_KEEPING: usize = BATCH_BYTES / 4;

/// What the kernel has not taken within this time counts as lost on the way.
const SEND_TIME: Timespec = Timespec { tv_sec: 0, tv_nsec: 250_000_000 };

/// Datagrams of one size, but for the last, from one address; their bytes kept, or where they were received.
pub struct Arrived<Bytes = Vec<u8>> {
    /// The sender.
    pub from: SocketAddr,
    /// At which of this host's addresses.
    pub at: Option<IpAddr>,
    /// Whether the network marked them for congestion.
    pub marked: bool,
    /// Bytes of each datagram.
    pub stride: usize,
    /// The datagrams, one after the other.
    pub bytes: Bytes,
}

impl<Bytes> Arrived<Bytes> {
    fn of(meta: &RecvMeta, bytes: Bytes) -> Self {
        Self {
            from: meta.addr,
            at: meta.dst_ip,
            marked: meta.ecn == Some(EcnCodepoint::Ce),
            stride: meta.stride.max(1),
            bytes,
        }
    }

    /// The same with other bytes.
    pub fn with<Others>(&self, bytes: Others) -> Arrived<Others> {
        let Self { from, at, marked, stride, .. } = *self;
        Arrived { from, at, marked, stride, bytes }
    }
}

/// A UDP socket.
pub struct Socket {
    socket: UdpSocket,
    state: UdpSocketState,
    /// Readable once the thread that waits for datagrams is to return.
    wake: OwnedFd,
}

/// Buffers to receive into.
pub struct Buffers([Vec<u8>; BATCHES]);

impl Default for Buffers {
    fn default() -> Self {
        Self(std::array::from_fn(|_| vec![0; BATCH_BYTES]))
    }
}

impl AsFd for Socket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

impl Socket {
    /// At an address; `shared` where other sockets of this user are to have the same port.
    pub fn bind(address: SocketAddr, shared: bool) -> io::Result<Self> {
        Self::of(Self::bound(address, shared)?.into())
    }

    /// The same for one that the kernel gives what comes from `peer` and nothing else. What came between its beginning
    /// and that may be from others.
    pub fn connected(address: SocketAddr, shared: bool, peer: SocketAddr) -> io::Result<Self> {
        let socket = Self::bound(address, shared)?;
        socket.connect(&peer.into())?;
        Self::of(socket.into())
    }

    fn bound(address: SocketAddr, shared: bool) -> io::Result<socket2::Socket> {
        let domain = socket2::Domain::for_address(address);
        let socket = socket2::Socket::new(domain, socket2::Type::DGRAM, None)?;
        socket.set_reuse_port(shared)?;
        socket.bind(&address.into())?;
        Ok(socket)
    }

    /// From now on it is given what comes from there and nothing else.
    pub fn connect(&self, peer: SocketAddr) -> io::Result<()> {
        self.socket.connect(peer)
    }

    /// Take over a socket.
    pub fn of(socket: UdpSocket) -> io::Result<Self> {
        let state = UdpSocketState::new((&socket).into())?;
        let options = socket2::SockRef::from(&socket);
        // Without the larger buffers it works, only slower.
        let _ = options.set_recv_buffer_size(KERNEL_BYTES);
        let _ = options.set_send_buffer_size(KERNEL_BYTES);
        let wake = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        Ok(Self { socket, state, wake })
    }

    /// The local address.
    pub fn address(&self) -> io::Result<SocketAddr> {
        self.socket.local_addr()
    }

    /// How many datagrams one call sends.
    pub fn most_segments(&self) -> usize {
        self.state.max_gso_segments()
    }

    /// Send datagrams of `segment` bytes, the last of at most as many. What cannot be sent counts as lost on the way;
    /// whether it could.
    pub fn send(
        &self,
        to: SocketAddr,
        from: Option<IpAddr>,
        segment: usize,
        contents: &[u8],
    ) -> bool {
        let transmit = Transmit {
            destination: to,
            ecn: Some(EcnCodepoint::Ect0),
            contents,
            segment_size: (segment < contents.len()).then_some(segment),
            src_ip: from,
        };
        let mut again = true;
        while let Err(error) = self.state.try_send((&self.socket).into(), &transmit) {
            let goes_on = if error.kind() == io::ErrorKind::WouldBlock {
                self.wait(PollFlags::OUT, Some(SEND_TIME))
            } else {
                // A connected socket says here once what the network answered to an earlier datagram.
                std::mem::take(&mut again)
            };
            if !goes_on {
                return false;
            }
        }
        true
    }

    /// Its descriptor.
    pub fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    /// Let the thread that waits for datagrams return, now and from now on.
    pub fn wake(&self) {
        // Only a counter that is full fails, and then it is readable anyway.
        let _ = rustix::io::write(&self.wake, &1_u64.to_ne_bytes());
    }

    /// Wait until there is something to read, or [`Self::wake`] was called; whether there is.
    pub fn readable(&self) -> bool {
        self.wait(PollFlags::IN, None)
    }

    /// Wait until it is ready, it was woken, or this time is over; whether it is ready.
    fn wait(&self, flags: PollFlags, time: Option<Timespec>) -> bool {
        let mut fds = [
            PollFd::from_borrowed_fd(self.socket.as_fd(), flags),
            PollFd::from_borrowed_fd(self.wake.as_fd(), PollFlags::IN),
        ];
        poll(&mut fds, time.as_ref()).is_ok() && !fds[0].revents().is_empty()
    }

    /// Wait for datagrams and hand each batch to `take`; none after [`Self::wake`].
    pub fn receive(&self, buffers: &mut Buffers, take: impl FnMut(Arrived)) {
        if self.readable() {
            self.receive_waiting(buffers, take);
        }
    }

    /// Hand those datagrams to `take` that are there.
    fn receive_waiting(&self, buffers: &mut Buffers, mut take: impl FnMut(Arrived)) {
        let mut metas = [RecvMeta::default(); BATCHES];
        loop {
            let count = self.read(buffers, &mut metas);
            for (buffer, meta) in buffers.0.iter_mut().zip(&metas).take(count) {
                let bytes = if meta.len < WORTH_KEEPING {
                    buffer[..meta.len].to_vec()
                } else {
                    let mut all = std::mem::replace(buffer, vec![0; BATCH_BYTES]);
                    all.truncate(meta.len);
                    all
                };
                take(Arrived::of(meta, bytes));
            }
            if count < BATCHES {
                return;
            }
        }
    }

    /// Hand those datagrams to `take` that one call of the kernel gives now. Whether there may be more.
    pub fn receive_some(
        &self,
        buffers: &mut Buffers,
        mut take: impl FnMut(Arrived<&mut [u8]>),
    ) -> bool {
        let mut metas = [RecvMeta::default(); BATCHES];
        let count = self.read(buffers, &mut metas);
        for (buffer, meta) in buffers.0.iter_mut().zip(&metas).take(count) {
            take(Arrived::of(meta, &mut buffer[..meta.len]));
        }
        count == BATCHES
    }

    /// Batches that one call of the kernel gives now.
    fn read(&self, buffers: &mut Buffers, metas: &mut [RecvMeta; BATCHES]) -> usize {
        let mut slices = buffers.0.each_mut().map(|buffer| IoSliceMut::new(buffer));
        match self.state.recv((&self.socket).into(), &mut slices, metas) {
            Ok(count) => count,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => 0,
            Err(_) => {
                // For example an unreachable port: the socket goes on, but must not spin.
                std::thread::sleep(Duration::from_millis(1));
                0
            }
        }
    }
}
