//! One relayed connection: a program's socket and its stream.
//!
//! Arrives: what its socket and its stream have. Leaves: bytes from the one to the other, in calls of the kernel that
//! never wait. Must not know: other connections.

use std::collections::VecDeque;
use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use waystage_protocol::streams::Streams;
use waystage_transport::clock::now_ns;

use crate::destination::Destination;
use crate::socks;

/// Bytes of one stream's turn.
pub(super) const CHUNK_BYTES: usize = 32 << 10;

/// A peer whose machine vanished is noticed where nothing is to be sent.
const KEEP_ALIVE: Duration = Duration::from_secs(60);

/// How a connection came here, and so how its result is reported.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Ingress {
    /// It speaks SOCKS.
    Socks,
    /// It was accepted, and knows of no proxy.
    Plain,
    /// The peer offered a stream; the socket leads to its destination.
    Offered,
}

#[derive(Debug)]
pub(super) enum State {
    /// SOCKS: whether the greeting is done.
    Greeting(bool),
    /// A name is looked up.
    Resolving,
    /// There is no session.
    Waiting,
    /// The peer was asked.
    Asked,
    /// A connection is being made; other addresses to try.
    Connecting(VecDeque<SocketAddr>),
    Open,
    /// The session is gone; what is left of the peer's stream, which is complete, and how much of it was written.
    Finishing(Vec<u8>, usize),
}

/// The socket of a program: non-blocking.
pub(super) trait ProgramSocket: Read + Write {
    /// Send the end: nothing more is written.
    fn finish(&self);

    /// Read without taking.
    fn peek(&self, into: &mut [u8]) -> std::io::Result<usize>;

    /// Whether a connection that was being made is there; why it failed.
    fn is_connected(&self) -> std::io::Result<bool>;

    /// The error that the socket reports, once.
    fn take_error(&self) -> Option<std::io::Error>;

    /// Close so that the program sees a connection that was reset.
    fn reset(self);
}

impl ProgramSocket for TcpStream {
    fn finish(&self) {
        // A program that is gone needs no goodbye.
        let _ = self.shutdown(Shutdown::Write);
    }

    fn peek(&self, into: &mut [u8]) -> std::io::Result<usize> {
        TcpStream::peek(self, into)
    }

    fn is_connected(&self) -> std::io::Result<bool> {
        match TcpStream::take_error(self)? {
            Some(error) => Err(error),
            None => Ok(self.peer_addr().is_ok()),
        }
    }

    fn take_error(&self) -> Option<std::io::Error> {
        TcpStream::take_error(self).ok().flatten()
    }

    fn reset(self) {
        let _ = socket2::SockRef::from(&self).set_linger(Some(Duration::ZERO));
    }
}

pub(super) struct Tunnel<S = TcpStream> {
    pub(super) socket: Option<S>,
    pub(super) ingress: Ingress,
    pub(super) state: State,
    pub(super) stream: Option<u64>,
    pub(super) readable: bool,
    pub(super) writable: bool,
    /// The program has sent its end, and the peer knows.
    pub(super) read_ended: bool,
    /// The peer has sent its end, and the program knows.
    pub(super) write_ended: bool,
    /// Into the stream, and out of it.
    pub(super) in_bytes: u64,
    pub(super) out_bytes: u64,
    pub(super) began: Instant,
    pub(super) deadline: Option<Instant>,
    pub(super) origin: String,
    pub(super) target: String,
    /// None for a reverse forward's, which the peer knows by its number.
    pub(super) destination: Option<Destination>,
    pub(super) reverse: u32,
    /// The destination's socket, where the connection goes past the session.
    pub(super) far: Option<S>,
}

/// What reading from a program gave.
pub(super) enum Fed {
    /// A message with a number of the program's bytes; there may be more.
    Message(Vec<u8>, u64),
    Dry,
    Ended,
    Failed(std::io::Error),
}

impl<S: ProgramSocket> Tunnel<S> {
    pub(super) fn new(socket: Option<S>, ingress: Ingress, origin: String) -> Self {
        Self {
            socket,
            ingress,
            state: if ingress == Ingress::Socks {
                State::Greeting(false)
            } else {
                State::Resolving
            },
            stream: None,
            readable: false,
            writable: false,
            read_ended: false,
            write_ended: false,
            in_bytes: 0,
            out_bytes: 0,
            began: Instant::now(),
            deadline: None,
            origin,
            target: String::new(),
            destination: None,
            reverse: 0,
            far: None,
        }
    }

    pub(super) fn is_open(&self) -> bool {
        matches!(self.state, State::Open)
    }

    /// Read what the program says into a message of its stream, of at most `room` bytes.
    pub(super) fn feed(&mut self, streams: &mut Streams, stream: u64, room: u64) -> Fed {
        let Some(socket) = &mut self.socket else { return Fed::Dry };
        let mut message = streams.spare().unwrap_or_default();
        message.clear();
        streams.put_head(stream, &mut message);
        let head = message.len();
        message.resize(head + CHUNK_BYTES.min(usize::try_from(room).unwrap_or(CHUNK_BYTES)), 0);
        match reading(|| socket.read(&mut message[head..])) {
            Ok(Some(0)) => {
                self.readable = false;
                Fed::Ended
            }
            Ok(Some(count)) => {
                message.truncate(head + count);
                self.in_bytes += count as u64;
                if count < CHUNK_BYTES / 4 {
                    // Until it is delivered, memory is held by bytes and not by room for them.
                    let small = message.clone();
                    streams.recycle([message]);
                    message = small;
                }
                Fed::Message(message, count as u64)
            }
            Ok(None) => {
                self.readable = false;
                Fed::Dry
            }
            Err(error) => Fed::Failed(error),
        }
    }

    /// Write what the stream has to the program, as far as it takes it, and the end of the stream.
    pub(super) fn drain(&mut self, streams: &mut Streams, stream: u64) -> std::io::Result<u64> {
        let Some(socket) = &mut self.socket else { return Ok(0) };
        let mut drained = 0;
        loop {
            let count = write_some(socket, &mut self.writable, streams.front(stream))?;
            if count == 0 {
                break;
            }
            streams.taken(now_ns(), stream, count);
            drained += count as u64;
        }
        self.out_bytes += drained;
        if !self.write_ended && streams.is_finished(stream) {
            self.write_ended = true;
            socket.finish();
        }
        Ok(drained)
    }

    /// The same for a stream whose session is gone.
    pub(super) fn drain_rest(&mut self) -> std::io::Result<u64> {
        let (Some(socket), State::Finishing(rest, written)) = (&mut self.socket, &mut self.state)
        else {
            return Ok(0);
        };
        let before = *written;
        loop {
            let count = write_some(socket, &mut self.writable, &rest[*written..])?;
            if count == 0 {
                break;
            }
            *written += count;
        }
        let drained = (*written - before) as u64;
        self.out_bytes += drained;
        if *written == rest.len() {
            self.write_ended = true;
            socket.finish();
        }
        Ok(drained)
    }

    /// Take bytes that were peeked at before.
    pub(super) fn skip(&mut self, bytes: usize) -> std::io::Result<()> {
        let Some(socket) = &mut self.socket else { return Ok(()) };
        socket.read_exact(&mut vec![0; bytes])
    }

    /// A few bytes to a program that has not been sent any: they always fit.
    pub(super) fn say(&mut self, bytes: &[u8]) -> std::io::Result<()> {
        let Some(socket) = &mut self.socket else { return Ok(()) };
        socket.write_all(bytes)
    }

    /// Tell a SOCKS client that it does not get what it asked for.
    pub(super) fn send_refusal(&mut self, code: u8) {
        // Who has gone away needs no answer.
        let _ = self.say(&socks::reply(code));
        if let Some(socket) = &self.socket {
            socket.finish();
        }
    }

    /// What SOCKS clients have said so far, without taking it.
    pub(super) fn peek(&mut self, into: &mut [u8]) -> std::io::Result<Option<usize>> {
        let Some(socket) = &self.socket else { return Ok(None) };
        let seen = reading(|| socket.peek(into))?;
        self.readable = seen.is_some();
        Ok(seen)
    }
}

/// A call that says `WouldBlock` where it would wait: None.
pub(super) fn reading(
    mut call: impl FnMut() -> std::io::Result<usize>,
) -> std::io::Result<Option<usize>> {
    loop {
        return match call() {
            Ok(count) => Ok(Some(count)),
            Err(error) if error.kind() == ErrorKind::WouldBlock => Ok(None),
            Err(error) if error.kind() == ErrorKind::Interrupted => continue,
            Err(error) => Err(error),
        };
    }
}

/// Write some of these bytes to a program; 0 where there are none, or it takes none now, which `writable` then says.
fn write_some(
    socket: &mut impl ProgramSocket,
    writable: &mut bool,
    bytes: &[u8],
) -> std::io::Result<usize> {
    if bytes.is_empty() || !*writable {
        return Ok(0);
    }
    let count = reading(|| socket.write(bytes))?;
    *writable = count.is_some();
    Ok(count.unwrap_or(0))
}

/// How sockets of programs are used: without waiting, and small writes leave at once.
pub(super) fn prepare(socket: &TcpStream) -> std::io::Result<()> {
    socket.set_nonblocking(true)?;
    socket.set_nodelay(true)?;
    let keep = socket2::TcpKeepalive::new().with_time(KEEP_ALIVE).with_interval(KEEP_ALIVE / 6);
    socket2::SockRef::from(socket).set_tcp_keepalive(&keep)
}

/// Begin to connect.
pub(super) fn connecting(address: SocketAddr) -> std::io::Result<TcpStream> {
    let domain = socket2::Domain::for_address(address);
    let socket = socket2::Socket::new(domain, socket2::Type::STREAM, None)?;
    let stream = TcpStream::from(socket);
    prepare(&stream)?;
    match socket2::SockRef::from(&stream).connect(&address.into()) {
        Ok(()) => Ok(stream),
        Err(error)
            if error.raw_os_error() == Some(rustix::io::Errno::INPROGRESS.raw_os_error()) =>
        {
            Ok(stream)
        }
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::cell::Cell;
    use waystage_protocol::protect::Side;
    use waystage_protocol::streams::{Event, Limits};

    /// A program that has bytes to say and takes a few at a time.
    #[derive(Default)]
    struct Program {
        says: VecDeque<u8>,
        heard: Vec<u8>,
        /// Bytes that each call takes or gives; 0 where it would block.
        calls: VecDeque<usize>,
        finished: Cell<bool>,
    }

    impl Program {
        fn call(&mut self) -> std::io::Result<usize> {
            match self.calls.pop_front().unwrap_or(CHUNK_BYTES) {
                0 => Err(ErrorKind::WouldBlock.into()),
                most => Ok(most),
            }
        }
    }

    impl Read for Program {
        fn read(&mut self, into: &mut [u8]) -> std::io::Result<usize> {
            let count = self.call()?.min(into.len()).min(self.says.len());
            self.says.drain(..count).zip(into).for_each(|(byte, place)| *place = byte);
            Ok(count)
        }
    }

    impl Write for Program {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            assert!(!self.finished.get(), "written after the end");
            let count = self.call()?.min(bytes.len());
            self.heard.extend_from_slice(&bytes[..count]);
            Ok(count)
        }

        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }

    impl ProgramSocket for Program {
        fn finish(&self) {
            self.finished.set(true);
        }

        fn peek(&self, _: &mut [u8]) -> std::io::Result<usize> {
            unreachable!("it speaks no SOCKS")
        }

        fn is_connected(&self) -> std::io::Result<bool> {
            Ok(true)
        }

        fn take_error(&self) -> Option<std::io::Error> {
            None
        }

        fn reset(self) {}
    }

    fn exchange(from: &mut Streams, to: &mut Streams) {
        while let Some(message) = from.next_message() {
            let length = message.len();
            to.receive(1, message, length).unwrap();
        }
    }

    fn open(program: Program, ingress: Ingress) -> Tunnel<Program> {
        let mut tunnel = Tunnel::new(Some(program), ingress, String::new());
        (tunnel.state, tunnel.readable, tunnel.writable) = (State::Open, true, true);
        tunnel
    }

    proptest! {
        #[test]
        fn what_a_program_says_arrives_in_order_with_its_end_whatever_each_call_takes(
            length in 0_usize..150_000,
            reads in prop::collection::vec(0_usize..50_000, 0..12),
            writes in prop::collection::vec(0_usize..50_000, 0..12),
        ) {
            let said: Vec<u8> = (0..length).map(|place| (place % 251) as u8).collect();
            let limits = Limits { streams: 4, memory_bytes: 1 << 20 };
            let mut near = Streams::new(Side::Client, limits, 1_000_000);
            let mut far = Streams::new(Side::Server, limits, 1_000_000);
            let stream = near.open(1, b"to");
            exchange(&mut near, &mut far);
            let offered = matches!(far.next_event(), Some(Event::Offered { .. }));
            prop_assert!(offered);
            prop_assert!(far.accept(stream));
            exchange(&mut far, &mut near);
            let says = said.iter().copied().collect();
            let mut source =
                open(Program { says, calls: reads.into(), ..Program::default() }, Ingress::Plain);
            let mut sink =
                open(Program { calls: writes.into(), ..Program::default() }, Ingress::Offered);
            for _ in 0..1000 {
                source.readable = true;
                while let Some((_, room)) = {
                    near.wants_to_send(stream);
                    near.turn()
                } {
                    match source.feed(&mut near, stream, room) {
                        Fed::Message(message, bytes) => {
                            near.sent(stream, bytes);
                            let size = message.len();
                            far.receive(1, message, size).unwrap();
                        }
                        Fed::Ended => {
                            near.end(stream);
                            source.read_ended = true;
                            break;
                        }
                        Fed::Dry => break,
                        Fed::Failed(error) => panic!("{error}"),
                    }
                }
                exchange(&mut near, &mut far);
                sink.writable = true;
                sink.drain(&mut far, stream).unwrap();
                exchange(&mut far, &mut near);
                if sink.write_ended {
                    break;
                }
            }
            prop_assert!(source.read_ended && sink.write_ended);
            let heard = sink.socket.unwrap();
            prop_assert!(heard.finished.get());
            prop_assert!(heard.heard == said, "other bytes");
            prop_assert_eq!((source.in_bytes, sink.out_bytes), (length as u64, length as u64));
        }
    }
}
