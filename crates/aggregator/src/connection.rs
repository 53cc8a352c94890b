//! A stream of frames and raw bytes, without blocking.
//!
//! Arrives: messages and parts of the pool to send; what the socket has. Leaves: bodies of messages; raw bytes, in the
//! pool. Must not know: what messages say.

use std::collections::VecDeque;
use std::io::{self, ErrorKind};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::net::{
    recv, send, sendmsg, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage, SendFlags,
};
use waystage_collective_wire::frame::{framed, Frames};

use crate::coverage::Coverage;
use crate::memory::Pool;

/// Bytes read at a time: a frame's, or short runs'.
const READ: usize = 256 << 10;

/// Runs of fewer bytes on average are copied together before they are sent.
const SHORT: u64 = 512;

/// Ranges of a system call.
const RANGES: usize = 256;

/// Bytes of messages that may wait for a peer that does not read.
const MOST_WAITING: usize = 32 << 20;

/// Parts of an image, in order.
pub struct Parts {
    image: u64,
    coverage: Coverage,
    at: u64,
    left: u64,
}

impl Parts {
    /// The covered bytes of the image at `image`.
    pub fn new(image: u64, mut coverage: Coverage) -> Self {
        let left = coverage.total();
        Self { image, coverage, at: 0, left }
    }

    /// Bytes left.
    pub fn left(&self) -> u64 {
        self.left
    }

    /// The next ranges of the pool, of at most `most` bytes in all.
    fn ranges(&mut self, most: u64) -> Vec<(u64, u64)> {
        let (mut found, mut at, mut sum) = (Vec::new(), self.at, 0);
        while found.len() < RANGES && sum < most {
            let Some((from, to)) = self.coverage.next(at) else {
                break;
            };
            let bytes = (to - from).min(most - sum);
            found.push((self.image + from, bytes));
            sum += bytes;
            at = from + bytes;
        }
        found
    }

    /// These bytes of the ranges are done.
    fn advance(&mut self, ranges: &[(u64, u64)], mut bytes: u64) {
        self.left -= bytes.min(self.left);
        for (begin, length) in ranges {
            let part = bytes.min(*length);
            self.at = begin - self.image + part;
            bytes -= part;
            if bytes == 0 {
                break;
            }
        }
    }

    fn take(&mut self, pool: &Pool, bytes: &[u8]) {
        let mut left = bytes;
        while !left.is_empty() {
            let ranges = self.ranges(left.len() as u64);
            if ranges.is_empty() {
                return;
            }
            let mut done = 0;
            for (begin, length) in &ranges {
                let (head, rest) =
                    left.split_at(usize::try_from(*length).unwrap_or(0).min(left.len()));
                pool.write(*begin, head);
                (left, done) = (rest, done + head.len() as u64);
            }
            self.advance(&ranges, done);
        }
    }
}

/// Something that was sent, for whom it matters.
pub type Mark<T> = T;

enum Out<T> {
    Bytes(Vec<u8>, usize),
    /// The first message to a rank, with the pool's descriptor.
    WithPool(Vec<u8>),
    Parts(Parts),
    Mark(Mark<T>),
}

struct Raw<T> {
    parts: Option<Parts>,
    left: u64,
    then: T,
}

/// What arrived.
pub enum Arrived<T> {
    /// A message.
    Body(Vec<u8>),
    /// All raw bytes of what was expected.
    Raw(T),
}

/// A connection. `S` marks what was sent, `R` raw bytes that are expected.
pub struct Connection<S, R> {
    socket: OwnedFd,
    frames: Frames,
    out: VecDeque<Out<S>>,
    waiting: usize,
    raw: Option<Raw<R>>,
    most_body: usize,
    ended: bool,
}

impl<S, R> Connection<S, R> {
    /// Of a socket that does not block.
    pub fn new(socket: OwnedFd, most_body: usize) -> Self {
        Self {
            socket,
            frames: Frames::default(),
            out: VecDeque::new(),
            waiting: 0,
            raw: None,
            most_body,
            ended: false,
        }
    }

    /// The socket.
    pub fn socket(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    /// Messages of this size are taken from now on.
    pub fn set_most_body(&mut self, most: usize) {
        self.most_body = most;
    }

    /// Whether anything is to be sent.
    pub fn has_output(&self) -> bool {
        !self.out.is_empty()
    }

    /// Send a message. False where the peer does not read.
    pub fn message(&mut self, body: &[u8]) -> bool {
        let frame = framed(body);
        self.waiting += frame.len();
        self.out.push_back(Out::Bytes(frame, 0));
        self.waiting <= MOST_WAITING
    }

    /// Send a message with the pool's descriptor.
    pub fn with_pool(&mut self, body: &[u8]) {
        self.out.push_back(Out::WithPool(framed(body)));
    }

    /// Send parts of the pool, then return the mark from [`Connection::flush`].
    pub fn parts(&mut self, parts: Parts, mark: S) {
        self.out.push_back(Out::Parts(parts));
        self.out.push_back(Out::Mark(mark));
    }

    /// Marks of what was not sent.
    pub fn unsent(self) -> Vec<S> {
        self.out
            .into_iter()
            .filter_map(|out| if let Out::Mark(mark) = out { Some(mark) } else { None })
            .collect()
    }

    /// Send what the socket takes. An error ends the connection.
    pub fn flush(&mut self, pool: &Pool) -> io::Result<Vec<S>> {
        let mut marks = Vec::new();
        while let Some(first) = self.out.front_mut() {
            match first {
                Out::Mark(_) => {
                    if let Some(Out::Mark(mark)) = self.out.pop_front() {
                        marks.push(mark);
                    }
                }
                Out::Bytes(bytes, done) => {
                    match would_block(
                        send(&self.socket, &bytes[*done..], SendFlags::NOSIGNAL)
                            .map_err(io::Error::from),
                    )? {
                        None => break,
                        Some(sent) => *done += sent,
                    }
                    if *done == bytes.len() {
                        self.waiting = self.waiting.saturating_sub(bytes.len());
                        self.out.pop_front();
                    }
                }
                Out::WithPool(bytes) => {
                    let fds = [pool.fd()];
                    let mut room =
                        [std::mem::MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
                    let mut control = SendAncillaryBuffer::new(&mut room);
                    control.push(SendAncillaryMessage::ScmRights(&fds));
                    let data = [io::IoSlice::new(bytes)];
                    let sent = sendmsg(&self.socket, &data, &mut control, SendFlags::NOSIGNAL);
                    match would_block(sent.map_err(io::Error::from))? {
                        None => break,
                        // The descriptor has gone with the first bytes.
                        Some(sent) => *first = Out::Bytes(std::mem::take(bytes), sent),
                    }
                }
                Out::Parts(parts) if parts.left == 0 => {
                    self.out.pop_front();
                }
                Out::Parts(parts) => {
                    let ranges = parts.ranges(8 << 20);
                    let sum: u64 = ranges.iter().map(|(_, bytes)| bytes).sum();
                    if ranges.len() == RANGES && sum / (RANGES as u64) < SHORT {
                        let mut bytes = Vec::with_capacity(usize::try_from(sum).unwrap_or(0));
                        for (begin, length) in &ranges {
                            bytes.extend(pool.read(*begin, usize::try_from(*length).unwrap_or(0)));
                        }
                        parts.advance(&ranges, sum);
                        self.waiting += bytes.len();
                        self.out.push_front(Out::Bytes(bytes, 0));
                        continue;
                    }
                    match would_block(pool.send(self.socket.as_fd(), &ranges))? {
                        None => break,
                        Some(sent) => parts.advance(&ranges, sent as u64),
                    }
                }
            }
        }
        Ok(marks)
    }

    /// The next bytes of the stream are raw: into these parts of the pool, or to be discarded.
    pub fn expect(&mut self, bytes: u64, parts: Option<Parts>, then: R) {
        self.raw = Some(Raw { parts, left: bytes, then });
    }

    /// The next message or end of raw bytes that has arrived; None: no more for the time being. An error ends the
    /// connection, as does the peer's end.
    pub fn next(&mut self, pool: &Pool, budget: &mut usize) -> io::Result<Option<Arrived<R>>> {
        loop {
            if let Some(raw) = &mut self.raw {
                if raw.left > 0 && !self.frames.is_empty() {
                    let rest =
                        self.frames.take_rest(usize::try_from(raw.left).unwrap_or(usize::MAX));
                    raw.left -= rest.len() as u64;
                    if let Some(parts) = &mut raw.parts {
                        parts.take(pool, &rest);
                    }
                }
                if raw.left == 0 {
                    return Ok(self.raw.take().map(|raw| Arrived::Raw(raw.then)));
                }
            } else {
                let wrong = |error| io::Error::new(ErrorKind::InvalidData, error);
                if let Some(body) = self.frames.next_body(self.most_body).map_err(wrong)? {
                    return Ok(Some(Arrived::Body(body)));
                }
            }
            if self.ended {
                return Err(ErrorKind::UnexpectedEof.into());
            }
            if *budget == 0 {
                return Ok(None);
            }
            match self.read(pool)? {
                None => return Ok(None),
                Some(0) => self.ended = true,
                Some(read) => *budget = budget.saturating_sub(read),
            }
        }
    }

    fn read(&mut self, pool: &Pool) -> io::Result<Option<usize>> {
        if let Some(Raw { parts: Some(parts), left, .. }) = &mut self.raw {
            let ranges = parts.ranges(*left);
            let sum: u64 = ranges.iter().map(|(_, bytes)| bytes).sum();
            if sum / (ranges.len() as u64).max(1) >= SHORT {
                let read = would_block(pool.receive(self.socket.as_fd(), &ranges))?;
                if let Some(read) = read {
                    parts.advance(&ranges, read as u64);
                    *left -= read as u64;
                }
                return Ok(read);
            }
        }
        let most = self
            .raw
            .as_ref()
            .map_or(READ, |raw| usize::try_from(raw.left).unwrap_or(READ).min(READ));
        let mut buffer = vec![0; most.max(1)];
        let read = would_block(
            recv(&self.socket, buffer.as_mut_slice(), RecvFlags::empty()).map_err(io::Error::from),
        )?;
        let Some((read, _)) = read else {
            return Ok(None);
        };
        match &mut self.raw {
            Some(raw) => {
                raw.left -= read as u64;
                if let Some(parts) = &mut raw.parts {
                    parts.take(pool, &buffer[..read]);
                }
            }
            None => self.frames.push(&buffer[..read]),
        }
        Ok(Some(read))
    }
}

fn would_block<T>(result: io::Result<T>) -> io::Result<Option<T>> {
    match result {
        Ok(value) => Ok(Some(value)),
        Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => {
            Ok(None)
        }
        Err(error) => Err(error),
    }
}
