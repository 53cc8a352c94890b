//! The UDP socket of one probe, to one address.
//!
//! Arrives: datagrams to send. Leaves: those that came; what the kernel dropped because it was not read in time.
//! Must not know: what is in them.
//!
//! A server's line shares the port with the server's other socket (`SO_REUSEPORT`). It is connected, so the kernel
//! gives it what comes from its client and nothing else; its buffer, its losses and its checksums are its own.

use std::io::{self, IoSliceMut};
use std::net::{IpAddr, SocketAddr};
use std::os::fd::AsRawFd;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use nix::errno::Errno;
use nix::sys::socket::{recvmsg, setsockopt, sockopt, ControlMessageOwned, MsgFlags};
use waystage_transport::clock::now_ns;
use waystage_transport::socket::{Socket, BATCH_BYTES};

/// Read before it is looked round: a stream that never ends must not keep who listens from ending.
const MOST_READ: usize = 256;

/// Readings of both clocks at most, and how quick one is good enough.
const CLOCK_READINGS: u32 = 5;
const QUICK_READING_NS: u64 = 2_000;

/// A time stamp that is older was made by a clock that has been set since.
const OLDEST_NS: u64 = 1_000_000_000;

pub(crate) struct ProbeSocket {
    socket: Socket,
    peer: SocketAddr,
}

impl ProbeSocket {
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
        let (mut local, peer) = (plain(local), plain(peer));
        if let (SocketAddr::V6(local), SocketAddr::V6(peer)) = (&mut local, &peer) {
            // A link-local address names a host only together with its link (RFC 4007, section 6).
            if local.ip().is_unicast_link_local() && local.scope_id() == 0 {
                local.set_scope_id(peer.scope_id());
            }
        }
        Self::open(local, peer, true)
    }

    fn open(local: SocketAddr, peer: SocketAddr, shared: bool) -> io::Result<Self> {
        let socket = Socket::connected(local, shared, peer)?;
        // Where the kernel does not say when a datagram came, it came when it was read.
        let _ = setsockopt(&socket, sockopt::ReceiveTimestampns, &true);
        Ok(Self { socket, peer })
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

    /// Wait for datagrams or a wake-up and hand them on, joined as the kernel joins them: bytes, how many each has, and
    /// when the first of them came to this machine. How long it took to wake up is no part of the path.
    pub(crate) fn receive(&self, mut take: impl FnMut(&[u8], usize, u64)) {
        if !self.socket.readable() {
            return;
        }
        let mut room = [0; BATCH_BYTES];
        for _ in 0..MOST_READ {
            match self.read(&mut room) {
                Ok((length, stride, heard_ns)) => take(&room[..length], stride, heard_ns),
                Err(Errno::EINTR) => {}
                Err(Errno::EAGAIN) => return,
                // For example an unreachable port: the socket goes on, but must not spin.
                Err(_) => return std::thread::sleep(Duration::from_millis(1)),
            }
        }
    }

    fn read(&self, room: &mut [u8]) -> Result<(usize, usize, u64), Errno> {
        // Beside the time: how datagrams were joined, and what the socket's other options add.
        let mut space = nix::cmsg_space!([u8; 256]);
        let mut parts = [IoSliceMut::new(room)];
        let descriptor = self.socket.as_fd().as_raw_fd();
        let found =
            recvmsg::<()>(descriptor, &mut parts, Some(&mut space), MsgFlags::MSG_DONTWAIT)?;
        let (mut stride, mut heard_ns) = (found.bytes.max(1), now_ns());
        for message in found.cmsgs()? {
            match message {
                ControlMessageOwned::UdpGroSegments(size) => {
                    stride = usize::try_from(size).unwrap_or(0).max(1);
                }
                ControlMessageOwned::ScmTimestampns(time) => {
                    let at = u64::try_from(time.tv_sec()).unwrap_or(0) * 1_000_000_000
                        + u64::try_from(time.tv_nsec()).unwrap_or(0);
                    heard_ns = when(at).unwrap_or(heard_ns);
                }
                _ => {}
            }
        }
        Ok((found.bytes, stride, heard_ns))
    }

    /// Wake the thread that waits for datagrams.
    pub(crate) fn wake(&self) {
        self.socket.wake();
    }

    /// Datagrams that the kernel dropped so far because they were not read in time.
    pub(crate) fn dropped(&self) -> u64 {
        waystage_lab::overflowed(&self.socket.as_fd()).unwrap_or(0)
    }
}

/// The IPv4 address that is inside an IPv6 one; another address with its scope.
fn plain(address: SocketAddr) -> SocketAddr {
    match address.ip().to_canonical() {
        four @ IpAddr::V4(_) => SocketAddr::new(four, address.port()),
        IpAddr::V6(_) => address,
    }
}

/// `at`, in nanoseconds of the system's clock, by [`now_ns`]; None where that makes no sense.
///
/// Two clocks cannot be read at once: of a few attempts the one counts in which least time passed, so that a thread
/// that was not let run between the two does not take that for a part of the path.
fn when(at: u64) -> Option<u64> {
    let mut best = (u64::MAX, None);
    for _ in 0..CLOCK_READINGS {
        let before = now_ns();
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let between = now_ns() - before;
        if between < best.0 {
            let now = u64::try_from(now.as_nanos()).unwrap_or(u64::MAX);
            let waited = now.checked_sub(at).filter(|waited| *waited < OLDEST_NS);
            best = (between, waited.map(|waited| before.saturating_sub(waited)));
        }
        if between < QUICK_READING_NS {
            break;
        }
    }
    best.1
}

#[cfg(test)]
mod tests {
    use std::net::{Ipv6Addr, SocketAddrV6, UdpSocket};

    use super::*;

    /// A link-local address of this machine and its link, from the kernel's list.
    fn link_local() -> Option<(Ipv6Addr, u32)> {
        std::fs::read_to_string("/proc/net/if_inet6").ok()?.lines().find_map(|line| {
            let mut fields = line.split_whitespace();
            let address = u128::from_str_radix(fields.next()?, 16).ok()?;
            let link = u32::from_str_radix(fields.next()?, 16).ok()?;
            let address = Ipv6Addr::from(address);
            address.is_unicast_link_local().then_some((address, link))
        })
    }

    #[test]
    fn a_peer_on_the_same_link_is_answered_at_its_link_local_address() {
        let Some((address, link)) = link_local() else {
            eprintln!("skipped: no interface has a link-local address");
            return;
        };
        let here = UdpSocket::bind(SocketAddrV6::new(address, 0, 0, link)).unwrap();
        here.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
        // The kernel tells the address that a datagram came to without its link.
        let local = SocketAddr::new(address.into(), 0);
        let socket = ProbeSocket::beside(local, here.local_addr().unwrap()).unwrap();
        assert!(socket.send(b"there"));
        let mut room = [0; 8];
        let (length, from) = here.recv_from(&mut room).unwrap();
        assert_eq!((&room[..length], from), (&b"there"[..], socket.address().unwrap()));
    }

    #[test]
    fn an_ipv4_address_inside_an_ipv6_one_is_the_ipv4_address() {
        let mapped: SocketAddr = "[::ffff:192.0.2.1]:7".parse().unwrap();
        assert_eq!(plain(mapped), "192.0.2.1:7".parse().unwrap());
        let scoped = SocketAddr::V6(SocketAddrV6::new("fe80::1".parse().unwrap(), 7, 0, 3));
        assert_eq!(plain(scoped), scoped);
    }
}
