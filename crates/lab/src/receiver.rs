//! The receiving thread: one epoll over every socket, one tracker for every stream.
//!
//! Arrives: packets. Leaves: counts. Must not know: the sender's counts.

use std::io::{self, Read};
use std::os::fd::{AsFd, AsRawFd};
use std::time::Instant;

use nix::errno::Errno;
use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags, EpollTimeout};
use socket2::Socket;

use crate::control::Control;
use crate::sender::since;
use crate::wire::{Header, Kind};
use crate::{LatencyHistogram, SequenceTracker};

/// The counts of a stream.
#[derive(Clone, Debug, Default)]
pub(crate) struct StreamCounts {
    pub(crate) sequences: SequenceTracker,
    pub(crate) latency: LatencyHistogram,
}

/// The counts of all streams.
#[derive(Debug, Default)]
pub(crate) struct Received {
    pub(crate) streams: Vec<StreamCounts>,
    /// Packets of another run or program.
    pub(crate) foreign: u64,
}

pub(crate) struct Receiver<'a> {
    pub(crate) run: u32,
    pub(crate) streams: usize,
    pub(crate) epoch: Instant,
    pub(crate) control: &'a Control,
}

/// Receives on `sockets` until the control stops it.
pub(crate) fn receive_all(sockets: &[Socket], receiver: &Receiver<'_>) -> io::Result<Received> {
    let epoll = Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC)?;
    for (index, socket) in sockets.iter().enumerate() {
        epoll.add(socket.as_fd(), EpollEvent::new(EpollFlags::EPOLLIN, index as u64))?;
    }
    let stop = sockets.len() as u64;
    epoll.add(receiver.control.receiver_stop(), EpollEvent::new(EpollFlags::EPOLLIN, stop))?;
    let streams = vec![StreamCounts::default(); receiver.streams];
    let mut received = Received { streams, foreign: 0 };
    let mut events = [EpollEvent::empty(); 64];
    loop {
        let ready = match epoll.wait(&mut events, EpollTimeout::NONE) {
            Ok(ready) => &events[..ready],
            Err(Errno::EINTR) => continue,
            Err(errno) => return Err(errno.into()),
        };
        if ready.iter().any(|event| event.data() == stop) {
            // What is in a buffer by now has arrived, however late this thread reads it.
            sockets.iter().for_each(|socket| drain(socket, receiver, &mut received));
            return Ok(received);
        }
        for event in ready {
            drain(&sockets[event.data() as usize], receiver, &mut received);
        }
        receiver.control.on_batch();
    }
}

fn drain(mut socket: &Socket, receiver: &Receiver<'_>, received: &mut Received) {
    let mut packet = [0; 2048];
    // An error ends the batch: the socket would block, or the error concerns a packet and not the bound socket.
    while let Ok(size) = socket.read(&mut packet) {
        count(&packet[..size], since(receiver.epoch), receiver, received);
    }
}

fn count(packet: &[u8], now_ns: u64, receiver: &Receiver<'_>, received: &mut Received) {
    let header = Header::read(packet).filter(|header| header.run == receiver.run);
    let Some((header, stream)) =
        header.and_then(|h| Some((h, received.streams.get_mut(h.stream as usize)?)))
    else {
        received.foreign += 1;
        return;
    };
    match header.kind {
        Kind::WarmUp => receiver.control.set_reached(header.stream as usize),
        Kind::Counted => {
            stream.sequences.on_arrival(header.sequence);
            stream.latency.record(now_ns.saturating_sub(header.sent_ns));
            receiver.control.on_received();
        }
    }
}

/// Packets that the kernel has dropped because the buffer of `socket` was full. They are losses of the receiver, not
/// of the network.
///
/// # Errors
/// The kernel does not report it.
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
