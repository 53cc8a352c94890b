//! The receiving thread: one epoll over every socket, one tracker for every stream.

use std::io::{self, Read};
use std::os::fd::{AsFd, AsRawFd};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Instant;

use nix::errno::Errno;
use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags, EpollTimeout};
use socket2::Socket;

use crate::sender::since;
use crate::wire::{Header, Kind};
use crate::{LatencyHistogram, SequenceTracker};

/// What arrived of one stream.
#[derive(Clone, Debug, Default)]
pub(crate) struct Arrived {
    pub(crate) sequences: SequenceTracker,
    pub(crate) latency: LatencyHistogram,
}

/// What the receiving thread leaves.
#[derive(Debug, Default)]
pub(crate) struct Harvest {
    pub(crate) streams: Vec<Arrived>,
    /// Packets that were no probe of this run.
    pub(crate) foreign: u64,
}

pub(crate) struct Intake<'a> {
    pub(crate) run: u32,
    pub(crate) streams: usize,
    pub(crate) epoch: Instant,
    pub(crate) stop: &'a AtomicBool,
    /// Sum over all streams, for a look while it runs.
    pub(crate) total: &'a AtomicU64,
    /// Set for each stream of which a warm-up packet has arrived.
    pub(crate) reached: &'a [AtomicBool],
}

/// Receive on `sockets` until told to stop.
pub(crate) fn receive_all(sockets: &[Socket], intake: &Intake<'_>) -> io::Result<Harvest> {
    let epoll = Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC)?;
    for (index, socket) in sockets.iter().enumerate() {
        epoll.add(socket.as_fd(), EpollEvent::new(EpollFlags::EPOLLIN, index as u64))?;
    }
    let mut harvest = Harvest { streams: vec![Arrived::default(); intake.streams], foreign: 0 };
    let mut events = [EpollEvent::empty(); 64];
    while !intake.stop.load(Ordering::Relaxed) {
        // A stop is seen within 20 ms.
        let ready = match epoll.wait(&mut events, EpollTimeout::from(20u8)) {
            Ok(ready) => ready,
            Err(Errno::EINTR) => continue,
            Err(errno) => return Err(errno.into()),
        };
        for event in &events[..ready] {
            drain(&sockets[event.data() as usize], intake, &mut harvest);
        }
    }
    Ok(harvest)
}

fn drain(mut socket: &Socket, intake: &Intake<'_>, harvest: &mut Harvest) {
    let mut packet = [0; 2048];
    // An error ends the round: a full round is over when the socket would block, and any other
    // error of a bound UDP socket is about a packet and not about the socket.
    while let Ok(size) = socket.read(&mut packet) {
        count(&packet[..size], since(intake.epoch), intake, harvest);
    }
}

fn count(packet: &[u8], now_ns: u64, intake: &Intake<'_>, harvest: &mut Harvest) {
    let header = Header::read(packet).filter(|header| header.run == intake.run);
    let Some((header, stream)) =
        header.and_then(|h| Some((h, harvest.streams.get_mut(h.stream as usize)?)))
    else {
        harvest.foreign += 1;
        return;
    };
    match header.kind {
        Kind::WarmUp => intake.reached[header.stream as usize].store(true, Ordering::Relaxed),
        Kind::Counted => {
            stream.sequences.arrived(header.sequence);
            stream.latency.record(now_ns.saturating_sub(header.sent_ns));
            intake.total.fetch_add(1, Ordering::Release);
        }
    }
}

/// How many packets the kernel threw away because `socket`'s buffer was full. They are lost in the
/// receiver and say nothing of the network.
///
/// # Errors
/// Where the kernel does not say.
pub fn overflowed(socket: &impl AsRawFd) -> io::Result<u64> {
    // linux/sock_diag.h: SO_MEMINFO answers SK_MEMINFO_VARS words, the drops being the last.
    const SK_MEMINFO_DROPS: usize = 8;
    let mut words = [0u32; SK_MEMINFO_DROPS + 1];
    let mut size = std::mem::size_of_val(&words) as libc::socklen_t;
    #[allow(unsafe_code)]
    // SAFETY: `words` is valid for writes of `size` bytes for the length of the call.
    let status = unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_MEMINFO,
            words.as_mut_ptr().cast(),
            &raw mut size,
        )
    };
    if status != 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(u64::from(words[SK_MEMINFO_DROPS]))
}
