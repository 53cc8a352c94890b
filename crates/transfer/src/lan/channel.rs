//! One connection: frames and bare bytes over TCP, and what each failure of the system means.

use std::io::{self, ErrorKind as Io, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use nix::poll::{poll, PollFd, PollFlags, PollTimeout};

use super::error::{ErrorKind, TransferError};
use super::stop::Stop;
use super::wire::{Frame, HEADER_BYTES};

/// A transfer is given up where nothing has moved for this long.
pub(crate) const STALL: Duration = Duration::from_secs(60);

/// How long the rest of a put is read and thrown away after a refusal. Closing with unread bytes would
/// reset the connection, and the client might never read why.
const DRAIN: Duration = Duration::from_secs(5);

/// What is read, hashed and written at a time: it stays in a core's second-level cache.
pub(crate) const PIECE_BYTES: usize = 256 << 10;

pub(crate) struct Channel {
    stream: TcpStream,
    stop: Arc<Stop>,
    peer: String,
    pub(crate) buffer: Vec<u8>,
}

impl Channel {
    /// Over an open connection to `peer`, until `stop` is wished.
    pub(crate) fn new(
        stream: TcpStream,
        stop: Arc<Stop>,
        peer: String,
    ) -> Result<Self, TransferError> {
        stop.watch(&stream)?;
        let channel = Self { stream, stop, peer, buffer: vec![0; PIECE_BYTES] };
        channel.set_stall_limit(STALL)?;
        Ok(channel)
    }

    pub(crate) fn set_stall_limit(&self, limit: Duration) -> Result<(), TransferError> {
        self.stream
            .set_nodelay(true) // a digest must not wait for the acknowledgement of the contents
            .and_then(|()| self.stream.set_read_timeout(Some(limit)))
            .and_then(|()| self.stream.set_write_timeout(Some(limit)))
            .map_err(|error| self.failed(&error))
    }

    pub(crate) fn send(&mut self, frames: &[Frame]) -> Result<(), TransferError> {
        let mut bytes = Vec::new();
        frames.iter().for_each(|frame| frame.encode(&mut bytes));
        self.write(&bytes)
    }

    pub(crate) fn write(&mut self, bytes: &[u8]) -> Result<(), TransferError> {
        self.stream.write_all(bytes).map_err(|error| self.failed(&error))
    }

    /// Send the first `count` bytes of the buffer.
    pub(crate) fn write_buffer(&mut self, count: usize) -> Result<(), TransferError> {
        self.stream.write_all(&self.buffer[..count]).map_err(|error| self.failed(&error))
    }

    /// The next frame. A refusal comes as the error that it tells of.
    pub(crate) fn receive(&mut self) -> Result<Frame, TransferError> {
        self.receive_or_end()?.ok_or_else(|| self.ended())
    }

    /// The next frame, or None where the other end closed the connection before it.
    pub(crate) fn receive_or_end(&mut self) -> Result<Option<Frame>, TransferError> {
        let mut header = [0; HEADER_BYTES];
        let first = self.read_some(&mut header)?;
        if first == 0 {
            return Ok(None);
        }
        self.read_exact(&mut header[first..])?;
        let malformed = |why: String| TransferError::new(ErrorKind::Protocol, why);
        let length = Frame::payload_length(header)
            .map_err(|why| malformed(format!("{} sent {why}", self.peer)))?;
        let mut payload = vec![0; length];
        self.read_exact(&mut payload)?;
        match Frame::decode(header[0], &payload) {
            Ok(Frame::Refused { kind, text }) => Err(TransferError { kind, text }),
            Ok(frame) => Ok(Some(frame)),
            Err(why) => Err(malformed(format!("{} sent {why}", self.peer))),
        }
    }

    /// Read up to `most` bytes into the buffer; at least one.
    pub(crate) fn read_buffer(&mut self, most: usize) -> Result<usize, TransferError> {
        let mut buffer = std::mem::take(&mut self.buffer);
        let end = most.min(buffer.len());
        let read = self.read_some(&mut buffer[..end]);
        self.buffer = buffer;
        match read? {
            0 => Err(self.ended()),
            count => Ok(count),
        }
    }

    /// Raise what the other end has to say, if anything, without waiting for it.
    pub(crate) fn look_for_refusal(&mut self) -> Result<(), TransferError> {
        let mut descriptors = [PollFd::new(self.stream.as_fd(), PollFlags::POLLIN)];
        if !matches!(poll(&mut descriptors, PollTimeout::ZERO), Ok(ready) if ready > 0) {
            return Ok(());
        }
        let frame = self.receive()?;
        Err(self.unexpected(&frame))
    }

    /// Say why it cannot go on, and give the other end the time to read it.
    pub(crate) fn refuse(&mut self, error: &TransferError) {
        let frame = Frame::Refused { kind: error.kind, text: error.text.clone() };
        let deadline = Instant::now() + DRAIN;
        // From here on failures do not matter: the connection ends anyway.
        if self.send(&[frame]).is_err() || self.stream.shutdown(Shutdown::Write).is_err() {
            return;
        }
        while let Some(left) = deadline.checked_duration_since(Instant::now()) {
            let limit = left.max(Duration::from_millis(1));
            if self.stream.set_read_timeout(Some(limit)).is_err()
                || !matches!(self.read_buffer(PIECE_BYTES), Ok(1..))
            {
                return;
            }
        }
    }

    pub(crate) fn unexpected(&self, frame: &Frame) -> TransferError {
        let what = match frame {
            Frame::Hello { .. } => "a greeting",
            Frame::Ask { .. } => "a request",
            Frame::File { .. } => "a file",
            Frame::Digest(_) => "a digest",
            Frame::Done => "the end of a set",
            Frame::Refused { .. } => "a refusal",
        };
        let text = format!("{} sent {what} where none belongs", self.peer);
        TransferError::new(ErrorKind::Protocol, text)
    }

    fn ended(&self) -> TransferError {
        if let Err(stopped) = self.stop.check() {
            return stopped;
        }
        let text = format!("{} closed the connection before all had been moved", self.peer);
        TransferError::new(ErrorKind::Ended, text)
    }

    fn failed(&self, error: &io::Error) -> TransferError {
        match error.kind() {
            Io::WouldBlock | Io::TimedOut => {
                if let Err(stopped) = self.stop.check() {
                    return stopped;
                }
                let text = format!("nothing moved from or to {} for {STALL:?}", self.peer);
                TransferError::new(ErrorKind::Stalled, text)
            }
            Io::UnexpectedEof
            | Io::ConnectionReset
            | Io::ConnectionAborted
            | Io::BrokenPipe
            | Io::WriteZero
            | Io::NotConnected => self.ended(),
            _ => TransferError::new(ErrorKind::Unreachable, format!("{}: {error}", self.peer)),
        }
    }

    fn read_some(&mut self, into: &mut [u8]) -> Result<usize, TransferError> {
        loop {
            match self.stream.read(into) {
                Err(error) if error.kind() == Io::Interrupted => {}
                read => return read.map_err(|error| self.failed(&error)),
            }
        }
    }

    fn read_exact(&mut self, into: &mut [u8]) -> Result<(), TransferError> {
        self.stream.read_exact(into).map_err(|error| self.failed(&error))
    }
}

impl Drop for Channel {
    fn drop(&mut self) {
        self.stop.forget();
    }
}

#[cfg(test)]
mod tests {
    use std::net::{Ipv4Addr, TcpListener};

    use super::*;

    fn ends() -> (Channel, TcpStream) {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let far = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (near, _) = listener.accept().unwrap();
        (Channel::new(near, Arc::default(), "the peer".into()).unwrap(), far)
    }

    #[test]
    fn a_peer_that_says_nothing_is_given_up() {
        let (mut channel, _far) = ends();
        channel.set_stall_limit(Duration::from_millis(30)).unwrap();
        let error = channel.receive().unwrap_err();
        assert_eq!(error.kind, ErrorKind::Stalled);
        assert!(error.text.contains("the peer"), "{error}");
    }

    #[test]
    fn a_peer_that_takes_nothing_is_given_up() {
        let (mut channel, _far) = ends();
        channel.set_stall_limit(Duration::from_millis(30)).unwrap();
        let error = loop {
            if let Err(error) = channel.write_buffer(PIECE_BYTES) {
                break error;
            }
        };
        assert_eq!(error.kind, ErrorKind::Stalled);
    }

    #[test]
    fn a_connection_that_ends_between_frames_is_told_from_one_that_ends_within() {
        let (mut channel, far) = ends();
        drop(far);
        assert_eq!(channel.receive_or_end(), Ok(None));
        let (mut channel, mut far) = ends();
        far.write_all(&[2, 0, 0]).unwrap();
        drop(far);
        assert_eq!(channel.receive_or_end().unwrap_err().kind, ErrorKind::Ended);
    }

    #[test]
    fn what_is_no_frame_is_told_as_such() {
        let (mut channel, mut far) = ends();
        far.write_all(b"GET / HTTP/1.1\r\n\r\n").unwrap();
        assert_eq!(channel.receive().unwrap_err().kind, ErrorKind::Protocol);
    }
}
