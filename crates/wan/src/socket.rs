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

/// One call of the kernel takes so much.
pub(crate) const BATCH_BYTES: usize = 64 << 10;

/// Received in one call.
const BATCHES: usize = 16;

/// What the kernel may hold for us. It gives less where its administrator has not allowed more.
const KERNEL_BYTES: usize = 8 << 20;

/// Batches that fill less than this of a buffer are copied out of it, so that memory is held by data and not by room.
const WORTH_KEEPING: usize = BATCH_BYTES / 4;

/// Datagrams of one size, but for the last, from one address.
pub(crate) struct Arrived {
    pub(crate) from: SocketAddr,
    /// At which of this host's addresses.
    pub(crate) at: Option<IpAddr>,
    /// Whether the network marked them for congestion.
    pub(crate) marked: bool,
    pub(crate) stride: usize,
    pub(crate) bytes: Vec<u8>,
}

pub(crate) struct Socket {
    socket: UdpSocket,
    state: UdpSocketState,
    /// Readable once whoever waits for datagrams is to look around.
    wake: OwnedFd,
}

/// Buffers to receive into.
pub(crate) struct Buffers(Vec<Vec<u8>>);

impl Default for Buffers {
    fn default() -> Self {
        Self((0..BATCHES).map(|_| vec![0; BATCH_BYTES]).collect())
    }
}

impl AsFd for Socket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

impl Socket {
    /// At an address; `shared` where lines of probes are to have the same port.
    pub(crate) fn bind(address: SocketAddr, shared: bool) -> io::Result<Self> {
        let domain = socket2::Domain::for_address(address);
        let socket = socket2::Socket::new(domain, socket2::Type::DGRAM, None)?;
        socket.set_reuse_port(shared)?;
        socket.bind(&address.into())?;
        Self::of(socket.into())
    }

    /// Take over a socket.
    pub(crate) fn of(socket: UdpSocket) -> io::Result<Self> {
        let state = UdpSocketState::new((&socket).into())?;
        let options = socket2::SockRef::from(&socket);
        // Without the larger buffers it works, only slower.
        let _ = options.set_recv_buffer_size(KERNEL_BYTES);
        let _ = options.set_send_buffer_size(KERNEL_BYTES);
        let wake = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        Ok(Self { socket, state, wake })
    }

    pub(crate) fn address(&self) -> io::Result<SocketAddr> {
        self.socket.local_addr()
    }

    /// How many datagrams one call sends.
    pub(crate) fn most_segments(&self) -> usize {
        self.state.max_gso_segments()
    }

    /// Send datagrams of `segment` bytes, the last of at most as many. What cannot be sent counts as lost on the way; whether it could.
    pub(crate) fn send(
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
        while let Err(error) = self.state.send((&self.socket).into(), &transmit) {
            if error.kind() != io::ErrorKind::WouldBlock || !self.wait(PollFlags::OUT) {
                return false;
            }
        }
        true
    }

    pub(crate) fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    /// Let whoever waits for datagrams return, now and from now on.
    pub(crate) fn wake(&self) {
        // Only a counter that is full fails, and then it is readable anyway.
        let _ = rustix::io::write(&self.wake, &1_u64.to_ne_bytes());
    }

    /// Whether there is something to read within a moment.
    pub(crate) fn readable(&self) -> bool {
        self.wait(PollFlags::IN)
    }

    /// Whether it became ready within a moment.
    fn wait(&self, flags: PollFlags) -> bool {
        let mut fds = [
            PollFd::from_borrowed_fd(self.socket.as_fd(), flags),
            PollFd::from_borrowed_fd(self.wake.as_fd(), PollFlags::IN),
        ];
        let timeout = Timespec { tv_sec: 0, tv_nsec: 250_000_000 };
        poll(&mut fds, Some(&timeout)).is_ok() && !fds[0].revents().is_empty()
    }

    /// Wait for datagrams for a moment and hand each batch to `take`.
    pub(crate) fn receive(&self, buffers: &mut Buffers, take: impl FnMut(Arrived)) {
        if self.wait(PollFlags::IN) {
            self.receive_waiting(buffers, take);
        }
    }

    /// Hand those datagrams to `take` that are there.
    pub(crate) fn receive_waiting(&self, buffers: &mut Buffers, mut take: impl FnMut(Arrived)) {
        let mut metas = [RecvMeta::default(); BATCHES];
        loop {
            let mut slices: Vec<IoSliceMut<'_>> =
                buffers.0.iter_mut().map(|buffer| IoSliceMut::new(buffer)).collect();
            let received = self.state.recv((&self.socket).into(), &mut slices, &mut metas);
            let count = match received {
                Ok(count) => count,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
                // Such as a port that is unreachable: no end of the socket, but no reason for haste.
                Err(_) => return std::thread::sleep(Duration::from_millis(1)),
            };
            for (buffer, meta) in buffers.0.iter_mut().zip(&metas).take(count) {
                let bytes = if meta.len < WORTH_KEEPING {
                    buffer[..meta.len].to_vec()
                } else {
                    let mut whole = std::mem::replace(buffer, vec![0; BATCH_BYTES]);
                    whole.truncate(meta.len);
                    whole
                };
                take(Arrived {
                    from: meta.addr,
                    at: meta.dst_ip,
                    marked: meta.ecn == Some(EcnCodepoint::Ce),
                    stride: meta.stride.max(1),
                    bytes,
                });
            }
            if count < BATCHES {
                return;
            }
        }
    }
}
