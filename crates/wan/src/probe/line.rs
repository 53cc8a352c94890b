//! The UDP socket that a probe has for itself, to one address.
//!
//! Arrives: datagrams to send. Leaves: those that came; what the kernel dropped because nobody read it.
//! Must not know: what is in them.
//!
//! A server's line shares the port with the server's other socket (`SO_REUSEPORT`). It is connected, so the kernel gives it
//! what comes from its client and nothing else; its buffer, its losses and its checksums are its own.

use std::io;
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::os::fd::AsRawFd;

use socket2::{Domain, Protocol, Type};

use crate::socket::{Arrived, Buffers, Socket};

pub(crate) struct Line {
    socket: Socket,
    peer: SocketAddr,
}

impl Line {
    /// From a port that is free.
    pub(crate) fn to(peer: SocketAddr) -> io::Result<Self> {
        let any: IpAddr = match peer {
            SocketAddr::V4(_) => std::net::Ipv4Addr::UNSPECIFIED.into(),
            SocketAddr::V6(_) => std::net::Ipv6Addr::UNSPECIFIED.into(),
        };
        Self::open((any, 0).into(), peer, false)
    }

    /// From a port that another socket of this user has, which shares it.
    pub(crate) fn beside(local: SocketAddr, peer: SocketAddr) -> io::Result<Self> {
        let plain =
            |address: SocketAddr| SocketAddr::new(address.ip().to_canonical(), address.port());
        Self::open(plain(local), plain(peer), true)
    }

    fn open(local: SocketAddr, peer: SocketAddr, shared: bool) -> io::Result<Self> {
        let socket =
            socket2::Socket::new(Domain::for_address(local), Type::DGRAM, Some(Protocol::UDP))?;
        socket.set_reuse_port(shared)?;
        socket.bind(&local.into())?;
        socket.connect(&peer.into())?;
        Ok(Self { socket: Socket::of(UdpSocket::from(socket))?, peer })
    }

    pub(crate) fn address(&self) -> io::Result<SocketAddr> {
        self.socket.address()
    }

    pub(crate) fn peer(&self) -> SocketAddr {
        self.peer
    }

    pub(crate) fn most_segments(&self) -> usize {
        self.socket.most_segments()
    }

    /// Send with UDP's checksum or without; whether it is now without. IPv6 forbids that (RFC 8200, section 8.1).
    pub(crate) fn set_checksums(&self, on: bool) -> bool {
        if self.peer.is_ipv6() {
            return false;
        }
        let off = libc::c_int::from(!on);
        let size = std::mem::size_of_val(&off) as libc::socklen_t;
        #[allow(unsafe_code)]
        // SAFETY: `off` is valid for reads of `size` bytes for the length of the call.
        let status = unsafe {
            libc::setsockopt(
                self.socket.as_fd().as_raw_fd(),
                libc::SOL_SOCKET,
                libc::SO_NO_CHECK,
                (&raw const off).cast(),
                size,
            )
        };
        !on && status == 0
    }

    /// Send one datagram.
    pub(crate) fn send(&self, datagram: &[u8]) -> bool {
        self.socket.send(self.peer, None, datagram.len(), datagram)
    }

    /// Send datagrams of one size; how many the kernel took. It cuts no batch without checksums.
    pub(crate) fn send_batch(&self, bytes: usize, batch: &[u8], bare: bool) -> u64 {
        if bare {
            return batch.chunks(bytes).map(|datagram| u64::from(self.send(datagram))).sum();
        }
        let taken = self.socket.send(self.peer, None, bytes, batch);
        if taken {
            (batch.len() / bytes) as u64
        } else {
            0
        }
    }

    /// Wait for datagrams for a moment and hand them on.
    pub(crate) fn receive(&self, buffers: &mut Buffers, take: impl FnMut(Arrived)) {
        self.socket.receive(buffers, take);
    }

    /// Let who waits for datagrams look round.
    pub(crate) fn wake(&self) {
        self.socket.wake();
    }

    /// Datagrams that the kernel dropped so far because they were not read in time.
    pub(crate) fn dropped(&self) -> u64 {
        waystage_lab::overflowed(&self.socket.as_fd()).unwrap_or(0)
    }
}
