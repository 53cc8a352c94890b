//! One TCP connection: the messages of a copy and of its request and verdict, each behind its length and kind.
//!
//! Arrives: messages to send, bytes of the peer. Leaves: bytes, messages; or why the connection ended. Must not know:
//! what messages say, files.

use std::collections::VecDeque;
use std::io::{self, ErrorKind as Io, IoSlice, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use rustix::event::{eventfd, poll, EventfdFlags, PollFd, PollFlags, Timespec};
use waystage_pacing::{Pace, Stopped};
use waystage_remote_copy::{Channel, CopyState, Verdict, WanError};
use waystage_transport::message::{Message, MOST_BYTES};

use crate::error::StagingError;

/// A transfer is given up where nothing has moved for this long.
const STALL: Duration = Duration::from_secs(60);

/// In a pause the peer hears this often that it lasts: three times before it would take it for a stall.
const ALIVE_INTERVAL: Duration = Duration::from_secs(20);

/// How long the rest of a put is read and dropped after a refusal. Closing with unread bytes would reset the
/// connection, and the client might never read why.
const DRAIN: Duration = Duration::from_secs(5);

/// Memory for received messages, in bytes: they are read one at a time.
const MEMORY_BYTES: u64 = 64 << 20;

/// No request or verdict is longer.
const MOST_CONTROL_BYTES: usize = 4 << 20;

/// Length of what follows (4 bytes, little-endian), kind.
const HEADER_BYTES: usize = 5;

/// Buffers that are kept for the next message.
const MOST_BUFFERS: usize = 2;

/// What a message is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    /// A message of the copy engine.
    Copy = 0,
    /// What the client asks for.
    Request = 1,
    /// How the server's side of a copy ended.
    Verdict = 2,
    /// In a pause: the client is still there. One byte, which says nothing.
    Alive = 3,
}

impl Kind {
    fn of(byte: u8) -> Option<Self> {
        [Self::Copy, Self::Request, Self::Verdict, Self::Alive]
            .into_iter()
            .find(|kind| *kind as u8 == byte)
    }
}

/// Ends a connection from any thread, at any moment.
#[derive(Default)]
pub(crate) struct Stop {
    wished: AtomicBool,
    socket: Mutex<Option<TcpStream>>,
}

impl Stop {
    pub(crate) fn wish(&self) {
        self.wished.store(true, Ordering::SeqCst);
        if let Some(socket) = &*self.socket.lock() {
            // It may be closed already; either way no thread waits for it any longer.
            let _ = socket.shutdown(Shutdown::Both);
        }
    }

    /// The socket to shut down from now on.
    pub(crate) fn watch(&self, socket: &TcpStream) -> io::Result<()> {
        *self.socket.lock() = Some(socket.try_clone()?);
        Ok(())
    }

    pub(crate) fn check(&self) -> Result<(), StagingError> {
        if self.wished.load(Ordering::SeqCst) {
            return Err(StagingError::Cancelled("was stopped".to_owned()));
        }
        Ok(())
    }
}

#[derive(Default)]
struct Reading {
    header: Vec<u8>,
    /// Kind, buffer, length, and how much has come.
    body: Option<(Kind, Vec<u8>, usize, usize)>,
    /// Requests and verdicts that were received while the engine waited for its messages.
    control: VecDeque<(Kind, Vec<u8>)>,
}

/// A connection to `peer`.
pub(crate) struct TcpChannel {
    stream: TcpStream,
    stop: Arc<Stop>,
    peer: String,
    wake: OwnedFd,
    reading: Mutex<Reading>,
    writing: Mutex<()>,
    buffers: Mutex<Vec<Vec<u8>>>,
    began: Instant,
    /// When bytes last moved, in milliseconds since it began.
    moved_ms: AtomicU64,
    failure: Mutex<Option<StagingError>>,
    /// When the engine's messages may move.
    pace: Arc<Pace>,
}

impl TcpChannel {
    /// Over an open connection, until `stop` is wished.
    pub(crate) fn new(
        stream: TcpStream,
        stop: Arc<Stop>,
        peer: String,
    ) -> Result<Self, StagingError> {
        let set_up = || -> io::Result<OwnedFd> {
            // A message must not wait for the acknowledgement of the one before.
            stream.set_nodelay(true)?;
            stream.set_nonblocking(true)?;
            stop.watch(&stream)?;
            Ok(eventfd(0, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC)?)
        };
        let wake = set_up().map_err(|error| StagingError::socket(&peer, &error))?;
        stop.check()?;
        Ok(Self {
            stream,
            stop,
            peer,
            wake,
            reading: Mutex::default(),
            writing: Mutex::default(),
            buffers: Mutex::default(),
            began: Instant::now(),
            moved_ms: AtomicU64::new(0),
            failure: Mutex::default(),
            pace: Arc::default(),
        })
    }

    /// The same, paced by its owner.
    pub(crate) fn paced(mut self, pace: Arc<Pace>) -> Self {
        self.pace = pace;
        self
    }

    /// Wait for the turn of `bytes`, and let the peer know meanwhile that nothing is stalled.
    fn pass(&self, bytes: usize) -> Result<(), WanError> {
        loop {
            match self.pace.gate.pass_within(bytes as u64, ALIVE_INTERVAL) {
                Ok(Some(held)) => {
                    if !held.is_zero() {
                        // The time in which nothing was to move is no stall.
                        self.moved();
                    }
                    return Ok(());
                }
                Ok(None) => self.send_control(Kind::Alive, &[0])?,
                Err(Stopped) => return Err(self.ended()),
            }
        }
    }

    /// Why the connection ended, where it did, or else why the copy did.
    pub(crate) fn why(&self, error: WanError) -> StagingError {
        self.failure.lock().clone().unwrap_or_else(|| error.into())
    }

    /// The first reason stays.
    fn fail(&self, error: StagingError) -> WanError {
        let error = self.stop.check().err().unwrap_or(error);
        let error = self.failure.lock().get_or_insert(error).clone();
        WanError::lost(error.to_string())
    }

    fn ended(&self) -> WanError {
        let text = format!("{} closed the connection before all had been moved", self.peer);
        self.fail(StagingError::Ended(text))
    }

    fn broken(&self, error: &io::Error) -> WanError {
        match error.kind() {
            Io::UnexpectedEof
            | Io::ConnectionReset
            | Io::ConnectionAborted
            | Io::BrokenPipe
            | Io::NotConnected => self.ended(),
            _ => self.fail(StagingError::Unreachable(format!("{}: {error}", self.peer))),
        }
    }

    fn moved(&self) {
        let now = u64::try_from(self.began.elapsed().as_millis()).unwrap_or(u64::MAX);
        self.moved_ms.store(now, Ordering::Relaxed);
    }

    /// How long nothing may move from now on.
    fn stalls_in(&self) -> Duration {
        let moved = Duration::from_millis(self.moved_ms.load(Ordering::Relaxed));
        (moved + STALL).saturating_sub(self.began.elapsed())
    }

    fn is_stalled(&self) -> bool {
        self.stalls_in().is_zero()
    }

    /// Send a message that is not the copy engine's.
    pub(crate) fn send_control(&self, kind: Kind, body: &[u8]) -> Result<(), WanError> {
        self.moved();
        self.write(kind, body)
    }

    fn write(&self, kind: Kind, body: &[u8]) -> Result<(), WanError> {
        let length = u32::try_from(body.len()).unwrap_or(u32::MAX).to_le_bytes();
        let header = [length[0], length[1], length[2], length[3], kind as u8];
        let _turn = self.writing.lock();
        let mut at = 0;
        while at < HEADER_BYTES + body.len() {
            let rest = &body[at.saturating_sub(HEADER_BYTES)..];
            let written = if at < HEADER_BYTES {
                (&self.stream).write_vectored(&[IoSlice::new(&header[at..]), IoSlice::new(rest)])
            } else {
                (&self.stream).write(rest)
            };
            match written {
                Ok(count) => {
                    at += count;
                    self.moved();
                }
                Err(error) if error.kind() == Io::WouldBlock => {
                    self.wait(PollFlags::OUT, STALL)?;
                    if self.is_stalled() {
                        return Err(self.stalled());
                    }
                }
                Err(error) if error.kind() == Io::Interrupted => {}
                Err(error) => return Err(self.broken(&error)),
            }
        }
        Ok(())
    }

    fn stalled(&self) -> WanError {
        let text = format!("nothing moved from or to {} for {STALL:?}", self.peer);
        self.fail(StagingError::Stalled(text))
    }

    /// Wait for the socket, or for a wake-up where bytes are waited for; whether the latter came.
    fn wait(&self, flags: PollFlags, timeout: Duration) -> Result<bool, WanError> {
        let timeout = Timespec::try_from(timeout).ok();
        let waking = if flags == PollFlags::IN { PollFlags::IN } else { PollFlags::empty() };
        let mut fds = [PollFd::new(&self.stream, flags), PollFd::new(&self.wake, waking)];
        match poll(&mut fds, timeout.as_ref()) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(errno) => return Err(self.broken(&errno.into())),
        }
        if fds[1].revents().contains(PollFlags::IN) {
            let _ = rustix::io::read(&self.wake, &mut [0_u8; 8]);
            return Ok(true);
        }
        Ok(false)
    }

    /// The next message of any kind. None after the timeout or a wake-up; an error at the end of the connection.
    fn read(
        &self,
        reading: &mut Reading,
        timeout: Duration,
    ) -> Result<Option<(Kind, Vec<u8>, usize)>, WanError> {
        let deadline = Instant::now() + timeout;
        loop {
            let read = match &mut reading.body {
                Some((_, buffer, length, at)) => (&self.stream).read(&mut buffer[*at..*length]),
                None => {
                    let mut more = [0; HEADER_BYTES];
                    let wanted = HEADER_BYTES - reading.header.len();
                    let read = (&self.stream).read(&mut more[..wanted]);
                    reading.header.extend_from_slice(&more[..*read.as_ref().unwrap_or(&0)]);
                    read
                }
            };
            match read {
                Ok(0) => {
                    // A sending thread has to end, too: a window that the peer left closed may stay so for a minute.
                    let _ = self.stream.shutdown(Shutdown::Write);
                    return Err(self.ended());
                }
                Ok(count) => {
                    self.moved();
                    if let Some((_, _, _, at)) = &mut reading.body {
                        *at += count;
                    }
                }
                Err(error) if error.kind() == Io::Interrupted => continue,
                Err(error) if error.kind() == Io::WouldBlock => {
                    let left = deadline.saturating_duration_since(Instant::now());
                    if left.is_zero() || self.wait(PollFlags::IN, left)? {
                        return Ok(None);
                    }
                    continue;
                }
                Err(error) => return Err(self.broken(&error)),
            }
            if reading.header.len() == HEADER_BYTES {
                reading.body = Some(self.body(&reading.header)?);
                reading.header.clear();
            }
            if let Some((kind, buffer, length, at)) = reading.body.take() {
                if at == length {
                    return Ok(Some((kind, buffer, length)));
                }
                reading.body = Some((kind, buffer, length, at));
            }
        }
    }

    /// Room for the message that a header announces.
    fn body(&self, header: &[u8]) -> Result<(Kind, Vec<u8>, usize, usize), WanError> {
        let length = u32::from_le_bytes([header[0], header[1], header[2], header[3]]) as usize;
        let kind = Kind::of(header[4]);
        let most = if kind == Some(Kind::Copy) { MOST_BYTES } else { MOST_CONTROL_BYTES };
        let Some(kind) = kind.filter(|_| length > 0 && length <= most) else {
            return Err(self.fail(self.protocol_violation()));
        };
        let mut buffer = self.buffer();
        if buffer.len() < length {
            buffer.resize(length, 0);
        }
        Ok((kind, buffer, length, 0))
    }

    /// The next request, waiting for it without limit. None where the peer closed the connection before it.
    pub(crate) fn next_request(&self) -> Result<Option<Vec<u8>>, StagingError> {
        match self.next_control(false)? {
            Some((Kind::Request, body)) => Ok(Some(body)),
            Some(_) => Err(self.protocol_violation()),
            None => Ok(None),
        }
    }

    /// The next request or verdict. None where the peer closed the connection before it.
    fn next_control(&self, has_limit: bool) -> Result<Option<(Kind, Vec<u8>)>, StagingError> {
        let mut reading = self.reading.lock();
        loop {
            if let Some(next) = reading.control.pop_front() {
                return Ok(Some(next));
            }
            let is_between = reading.header.is_empty() && reading.body.is_none();
            match self.read(&mut reading, STALL) {
                Ok(Some((Kind::Copy | Kind::Alive, buffer, _))) => self.recycle(buffer),
                Ok(Some((kind, mut buffer, length))) => {
                    buffer.truncate(length);
                    return Ok(Some((kind, buffer)));
                }
                Ok(None) if has_limit && self.is_stalled() => return Err(self.why(self.stalled())),
                Ok(None) => {}
                Err(_) if is_between && self.has_only_ended(&reading) => return Ok(None),
                Err(error) => return Err(self.why(error)),
            }
        }
    }

    fn has_only_ended(&self, reading: &Reading) -> bool {
        let failure = self.failure.lock();
        reading.header.is_empty() && matches!(&*failure, Some(StagingError::Ended(_)))
    }

    /// The next message has to be a verdict; that of a failure is an error.
    pub(crate) fn next_verdict(&self) -> Result<Verdict, StagingError> {
        match self.next_control(true)? {
            Some((Kind::Verdict, body)) => match Verdict::read(&body) {
                Ok(Verdict { failed: Some(error), .. }) => Err(error.into()),
                Ok(verdict) => Ok(verdict),
                Err(_) => Err(self.protocol_violation()),
            },
            Some(_) => Err(self.protocol_violation()),
            None => Err(self.why(self.ended())),
        }
    }

    pub(crate) fn protocol_violation(&self) -> StagingError {
        StagingError::Ended(format!("{} broke the protocol", self.peer))
    }

    /// After a refusal: give the peer the time to read it.
    pub(crate) fn drain(&self) {
        let deadline = Instant::now() + DRAIN;
        if self.stream.shutdown(Shutdown::Write).is_err() {
            return;
        }
        let mut dropped = vec![0; 64 << 10];
        while Instant::now() < deadline {
            match (&self.stream).read(&mut dropped) {
                Ok(1..) => {}
                Err(error) if error.kind() == Io::WouldBlock => {
                    let left = deadline.saturating_duration_since(Instant::now());
                    if self.wait(PollFlags::IN, left).is_err() {
                        return;
                    }
                }
                _ => return,
            }
        }
    }

    fn recycle(&self, buffer: Vec<u8>) {
        let mut buffers = self.buffers.lock();
        if buffers.len() < MOST_BUFFERS {
            buffers.push(buffer);
        }
    }
}

impl Drop for TcpChannel {
    fn drop(&mut self) {
        // The peer must see the connection's end even while the stop lives on.
        self.stop.socket.lock().take();
    }
}

impl Channel for TcpChannel {
    fn send(&self, message: Vec<u8>) -> Result<(), WanError> {
        self.pass(message.len())?;
        self.write(Kind::Copy, &message)?;
        self.pace.moved(message.len() as u64);
        self.recycle(message);
        Ok(())
    }

    fn send_urgent(&self, message: Vec<u8>) -> Result<(), WanError> {
        self.send(message)
    }

    fn receive(&self, copy_state: &CopyState) -> Result<Option<Message>, WanError> {
        let mut reading = self.reading.lock();
        while !copy_state.is_stopped() {
            if !reading.control.is_empty() {
                // Nothing of this copy comes after its verdict: until it is over, only a wake-up does.
                let _ = poll(&mut [PollFd::new(&self.wake, PollFlags::IN)], None);
                let _ = rustix::io::read(&self.wake, &mut [0_u8; 8]);
                continue;
            }
            match self.read(&mut reading, self.stalls_in())? {
                Some((Kind::Alive, buffer, _)) => self.recycle(buffer),
                Some((Kind::Copy, buffer, length)) => {
                    self.pass(length)?;
                    self.pace.moved(length as u64);
                    return Ok(Some(Message { buffer, length, by: None }));
                }
                Some((kind, mut buffer, length)) => {
                    buffer.truncate(length);
                    if let (Kind::Verdict, Ok(Verdict { failed: Some(error), .. })) =
                        (kind, Verdict::read(&buffer))
                    {
                        self.failure.lock().get_or_insert_with(|| error.clone().into());
                        // A thread that is sending has to end, too.
                        let _ = self.stream.shutdown(Shutdown::Both);
                        return Err(error);
                    }
                    reading.control.push_back((kind, buffer));
                }
                None if self.is_stalled() => return Err(self.stalled()),
                None => {}
            }
        }
        Ok(None)
    }

    fn interrupt(&self) {
        let _ = rustix::io::write(&self.wake, &1_u64.to_ne_bytes());
    }

    fn done(&self, message: Message) {
        self.recycle(message.buffer);
    }

    fn delivered(&self) -> bool {
        // TCP has them; the peer's verdict says what became of them.
        true
    }

    fn memory_bytes(&self) -> u64 {
        MEMORY_BYTES
    }

    fn buffer(&self) -> Vec<u8> {
        self.buffers.lock().pop().unwrap_or_default()
    }
}
