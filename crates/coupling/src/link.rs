//! A connection that carries frames, and descriptors where it is a unix socket.
//!
//! Arrives: messages to send, deadlines. Leaves: messages, descriptors. Must not know: what messages mean.
//!
//! Signals never arrive from a send (`MSG_NOSIGNAL`). A TCP peer whose host died is noticed within the lease, by the
//! kernel's keepalive (tcp(7)): neither end needs a thread or a clock for it.

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::net::{SocketAddr, TcpStream};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use rustix::event::{poll, PollFd, PollFlags, Timespec};
use rustix::net::{
    recv, recvmsg, send, sendmsg, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags,
    SendAncillaryBuffer, SendAncillaryMessage, SendFlags,
};
use socket2::{SockRef, TcpKeepalive};

use crate::wire::{Message, Token, FRAME_MOST, VERSION};

/// Most bytes of a frame before the peer has proved that it knows a token.
const STRANGER_FRAME_MOST: usize = 8192;

/// Until when to wait; None for ever.
pub type Deadline = Option<Instant>;

/// A connected socket.
#[derive(Debug)]
pub struct Link {
    socket: OwnedFd,
    unix: bool,
    /// One message is sent at a time.
    sending: Mutex<()>,
}

impl Link {
    /// Connects to a unix socket.
    ///
    /// # Errors
    /// The kernel's.
    pub fn to_path(path: &Path) -> io::Result<Self> {
        UnixStream::connect(path).map(Self::unix)
    }

    /// Connects by TCP; a peer that does not answer within `lease` is dead.
    ///
    /// # Errors
    /// The kernel's.
    pub fn to_address(address: SocketAddr, lease: Duration) -> io::Result<Self> {
        Self::tcp(TcpStream::connect_timeout(&address, lease)?, lease)
    }

    /// An accepted unix connection.
    #[must_use]
    pub fn unix(stream: UnixStream) -> Self {
        Self { socket: stream.into(), unix: true, sending: Mutex::new(()) }
    }

    /// A TCP connection, with the lease as the longest silence of the peer's kernel.
    ///
    /// # Errors
    /// The kernel's.
    pub fn tcp(stream: TcpStream, lease: Duration) -> io::Result<Self> {
        stream.set_nodelay(true)?;
        let socket = SockRef::from(&stream);
        // Probes after a third of the lease, then three in the rest: tcp(7) counts in whole seconds.
        let third = Duration::from_secs((lease.as_secs() / 3).max(1));
        let probe = Duration::from_secs((lease.as_secs() / 6).max(1));
        let alive = TcpKeepalive::new().with_time(third).with_interval(probe).with_retries(3);
        socket.set_tcp_keepalive(&alive)?;
        socket.set_tcp_user_timeout(Some(lease))?;
        Ok(Self { socket: stream.into(), unix: false, sending: Mutex::new(()) })
    }

    /// Whether it can carry descriptors.
    #[must_use]
    pub fn is_unix(&self) -> bool {
        self.unix
    }

    /// User of the peer, by SO_PEERCRED; None for TCP.
    #[must_use]
    pub fn user(&self) -> Option<u32> {
        let peer = self.unix.then(|| rustix::net::sockopt::socket_peercred(&self.socket))?;
        peer.ok().map(|peer| peer.uid.as_raw())
    }

    /// Wakes all that wait for it: it is closed.
    pub fn shut(&self) {
        // The peer may have done it first.
        let _ = rustix::net::shutdown(&self.socket, rustix::net::Shutdown::Both);
    }

    /// The descriptor, to be polled.
    #[must_use]
    pub fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    /// Sends a message, with a descriptor.
    ///
    /// # Errors
    /// The kernel's, and `TimedOut`.
    pub fn send(
        &self,
        message: &Message,
        descriptor: Option<BorrowedFd<'_>>,
        deadline: Deadline,
    ) -> io::Result<()> {
        let frame = message.frame();
        if frame.len() - 4 > FRAME_MOST {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "too many pieces at once"));
        }
        self.send_frame(&frame, descriptor, deadline)
    }

    /// Sends bytes that are a frame, with a descriptor.
    ///
    /// # Errors
    /// The kernel's, and `TimedOut`.
    pub fn send_frame(
        &self,
        frame: &[u8],
        descriptor: Option<BorrowedFd<'_>>,
        deadline: Deadline,
    ) -> io::Result<()> {
        let _one = self.sending.lock();
        let mut sent = 0;
        if let Some(descriptor) = descriptor {
            sent = self.again(PollFlags::OUT, deadline, || {
                let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
                let mut control = SendAncillaryBuffer::new(&mut space);
                let descriptors = [descriptor];
                control.push(SendAncillaryMessage::ScmRights(&descriptors));
                let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
                sendmsg(&self.socket, &[IoSlice::new(frame)], &mut control, flags)
            })?;
        }
        self.push(&frame[sent..], deadline)
    }

    /// Sends a message and the bytes that follow it; `data` calls its argument with each part of them.
    ///
    /// # Errors
    /// The kernel's, and `TimedOut`.
    pub fn send_data(
        &self,
        message: &Message,
        deadline: Deadline,
        data: impl FnOnce(&mut dyn FnMut(&[u8])),
    ) -> io::Result<()> {
        let _one = self.sending.lock();
        let mut result = self.push(&message.frame(), deadline);
        data(&mut |part| {
            if result.is_ok() {
                result = self.push(part, deadline);
            }
        });
        result
    }

    fn push(&self, mut bytes: &[u8], deadline: Deadline) -> io::Result<()> {
        while !bytes.is_empty() {
            let sent = self.again(PollFlags::OUT, deadline, || {
                send(&self.socket, bytes, SendFlags::NOSIGNAL | SendFlags::DONTWAIT)
            })?;
            bytes = &bytes[sent..];
        }
        Ok(())
    }

    /// The next message, and the descriptor that came with it.
    ///
    /// # Errors
    /// The kernel's; `UnexpectedEof` where the peer closed; `InvalidData` for what is no message; `TimedOut` where
    /// none has begun by the deadline.
    pub fn receive(&self, deadline: Deadline) -> io::Result<(Message, Option<OwnedFd>)> {
        self.receive_at_most(FRAME_MOST, deadline)
    }

    fn receive_at_most(
        &self,
        most: usize,
        deadline: Deadline,
    ) -> io::Result<(Message, Option<OwnedFd>)> {
        let (body, descriptor) = self.receive_frame(most, deadline)?;
        let message = Message::parse(&body)
            .map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))?;
        Ok((message, descriptor))
    }

    /// The body of the next frame, of at most `most` bytes, and the descriptor that came with it.
    ///
    /// # Errors
    /// As [`Self::receive`].
    pub fn receive_frame(
        &self,
        most: usize,
        deadline: Deadline,
    ) -> io::Result<(Vec<u8>, Option<OwnedFd>)> {
        let mut header = [0; 4];
        let mut descriptor = None;
        let mut got = self.again(PollFlags::IN, deadline, || {
            let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
            let mut control = RecvAncillaryBuffer::new(&mut space);
            let flags = RecvFlags::DONTWAIT | RecvFlags::CMSG_CLOEXEC;
            let mut parts = [IoSliceMut::new(&mut header)];
            let received = recvmsg(&self.socket, &mut parts, &mut control, flags)?;
            for message in control.drain() {
                if let RecvAncillaryMessage::ScmRights(descriptors) = message {
                    descriptor = descriptors.last();
                }
            }
            Ok(received.bytes)
        })?;
        if got == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        while got < header.len() {
            got += self.fill_some(&mut header[got..], deadline)?;
        }
        let bytes = u32::from_le_bytes(header) as usize;
        if bytes > most {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "a message that is too long"));
        }
        let mut body = vec![0; bytes];
        self.fill(&mut body, deadline)?;
        Ok((body, descriptor))
    }

    /// Receives bytes that follow a frame.
    ///
    /// # Errors
    /// The kernel's, `UnexpectedEof`, `TimedOut`.
    pub fn fill(&self, bytes: &mut [u8], deadline: Deadline) -> io::Result<()> {
        let mut got = 0;
        while got < bytes.len() {
            got += self.fill_some(&mut bytes[got..], deadline)?;
        }
        Ok(())
    }

    fn fill_some(&self, bytes: &mut [u8], deadline: Deadline) -> io::Result<usize> {
        let got = self.again(PollFlags::IN, deadline, || {
            recv(&self.socket, &mut *bytes, RecvFlags::DONTWAIT).map(|(got, _)| got)
        })?;
        if got == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        Ok(got)
    }

    /// Calls `act` until it need not wait.
    fn again<T>(
        &self,
        events: PollFlags,
        deadline: Deadline,
        mut act: impl FnMut() -> rustix::io::Result<T>,
    ) -> io::Result<T> {
        loop {
            match act() {
                Ok(result) => return Ok(result),
                Err(rustix::io::Errno::INTR) => {}
                Err(rustix::io::Errno::AGAIN) => wait(self.socket.as_fd(), events, deadline)?,
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// Proves to the process that this client knows `token`; the process's address.
    ///
    /// # Errors
    /// The kernel's; `PermissionDenied` where the token is wrong, `Unsupported` for another version.
    pub fn introduce(&self, name: &str, token: &Token, deadline: Deadline) -> io::Result<String> {
        let (message, _) = self.receive_at_most(STRANGER_FRAME_MOST, deadline)?;
        let Message::Challenge { version, nonce } = message else { return Err(protocol()) };
        if version != VERSION {
            return Err(io::ErrorKind::Unsupported.into());
        }
        let proof = proof(token, &nonce);
        self.send(&Message::Hello { version, name: name.to_owned(), proof }, None, deadline)?;
        match self.receive_at_most(STRANGER_FRAME_MOST, deadline)?.0 {
            Message::Welcome { address } => Ok(address),
            Message::Refused { text, .. } => {
                Err(io::Error::new(io::ErrorKind::PermissionDenied, text))
            }
            _ => Err(protocol()),
        }
    }

    /// The first message of a client, to which `nonce` was sent.
    ///
    /// # Errors
    /// As [`Self::receive`]; `InvalidData` where it is another message.
    pub fn greet(&self, nonce: &Token, deadline: Deadline) -> io::Result<(u32, String, Token)> {
        self.send(&Message::Challenge { version: VERSION, nonce: *nonce }, None, deadline)?;
        match self.receive_at_most(STRANGER_FRAME_MOST, deadline)?.0 {
            Message::Hello { version, name, proof } => Ok((version, name, proof)),
            _ => Err(protocol()),
        }
    }
}

/// A message that does not belong here.
#[must_use]
pub fn protocol() -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, "a message that does not belong here")
}

/// What shows that a client knows `token`, without sending it.
#[must_use]
pub fn proof(token: &Token, nonce: &Token) -> Token {
    *blake3::keyed_hash(token, nonce).as_bytes()
}

/// Random bytes of the kernel.
///
/// # Errors
/// The kernel's.
pub fn random() -> io::Result<Token> {
    let mut bytes = [0; 32];
    let mut got = 0;
    while got < bytes.len() {
        let flags = rustix::rand::GetRandomFlags::empty();
        got += rustix::rand::getrandom(&mut bytes[got..], flags)?;
    }
    Ok(bytes)
}

/// Waits for events of a descriptor.
///
/// # Errors
/// `TimedOut` at the deadline.
pub fn wait(fd: BorrowedFd<'_>, events: PollFlags, deadline: Deadline) -> io::Result<()> {
    loop {
        let left = deadline.map(|at| at.saturating_duration_since(Instant::now()));
        let left = match left {
            Some(left) => Some(Timespec::try_from(left).map_err(|_| io::ErrorKind::InvalidInput)?),
            None => None,
        };
        match poll(&mut [PollFd::from_borrowed_fd(fd, events)], left.as_ref()) {
            Ok(0) => return Err(io::ErrorKind::TimedOut.into()),
            Ok(_) => return Ok(()),
            Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
}
