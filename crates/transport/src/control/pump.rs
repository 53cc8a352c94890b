//! The thread of a TLS connection: moves messages between the socket and those that wait for them.

use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::event::{poll, PollFd, PollFlags, Timespec};
use rustls::Connection;

use super::frames::{FrameDecoder, FrameError, BULK};
use super::keepalive::{set_keepalive, PATIENT_RETRIES};
use super::shared::{By, Patience, Shared, TOO_LONG};

/// How long the peer may take to read our last words.
const LINGER: Duration = Duration::from_secs(2);

pub(super) struct Pump<S = TcpStream> {
    pub(super) shared: Arc<Shared>,
    pub(super) tls: Connection,
    pub(super) stream: S,
    pub(super) frames: FrameDecoder,
    /// A message on its way into TLS, and how far.
    pub(super) writing: Option<(Vec<u8>, usize)>,
}

impl Pump {
    /// Until the connection ends.
    pub(super) fn run(&mut self) {
        let why = match self.turn() {
            Ok(()) => "the connection was closed".to_owned(),
            Err(ended) => self.without_tcp(ended),
        };
        self.shared.end(&why);
        let _ = self.stream.shutdown(Shutdown::Both);
    }

    /// The control stream carries the messages, if there is one and this is no end that the peer told: until all ends.
    fn without_tcp(&mut self, Ended { why, cause }: Ended) -> String {
        let mut state = self.shared.lock();
        let Some(path) = state.path.clone().filter(|_| cause != Cause::Said) else { return why };
        state.tcp_gone = true;
        state.outgoing.clear();
        drop(state);
        if cause == Cause::Gone {
            path.expect_answer();
        }
        loop {
            let state = self.shared.lock();
            if let Some(why) = &state.ended {
                return why.clone();
            }
            if state.abort || state.close {
                return "the connection was closed".to_owned();
            }
            drop(state);
            let mut fds = [PollFd::from_borrowed_fd(self.shared.wake.as_fd(), PollFlags::IN)];
            if poll(&mut fds, None).is_err_and(|errno| errno != rustix::io::Errno::INTR) {
                return why;
            }
            let _ = rustix::io::read(&self.shared.wake, &mut [0_u8; 8]);
        }
    }

    /// Until it was closed here (Ok) or there.
    fn turn(&mut self) -> Result<(), Ended> {
        // The peer's first words may have come with the end of its handshake, and nothing more may follow.
        self.opened()?;
        let mut closing = None;
        loop {
            let idle = self.write()?;
            let (close, abort, carried) = {
                let mut state = self.shared.lock();
                if state.patience == Patience::Wanted {
                    state.patience = Patience::Set;
                    // A failure leaves the ordinary patience.
                    let _ = set_keepalive(&self.stream, PATIENT_RETRIES);
                }
                (state.close, state.abort || state.ended.is_some(), state.path.is_some())
            };
            if abort {
                return Ok(());
            }
            // Where TCP stands still the control stream has brought it all.
            let deadline = *closing.get_or_insert(close.then(|| Instant::now() + LINGER));
            let left = deadline.filter(|_| carried);
            let left = left.map(|at| at.saturating_duration_since(Instant::now()));
            if left.is_some_and(|left| left.is_zero()) {
                return Ok(());
            }
            if close && idle {
                self.linger();
                return Ok(());
            }
            let incoming = self.shared.incoming();
            let may_read = incoming.held_bytes() < incoming.most_bytes();
            let mut flags = PollFlags::empty();
            flags.set(PollFlags::IN, may_read);
            flags.set(PollFlags::OUT, self.tls.wants_write());
            let wake = PollFd::from_borrowed_fd(self.shared.wake.as_fd(), PollFlags::IN);
            let stream = PollFd::from_borrowed_fd(self.stream.as_fd(), flags);
            let mut fds = [wake, stream];
            // A socket that is not to be read must not be polled: it would report a hang-up again and again.
            let polled = if flags.is_empty() { 1 } else { 2 };
            let timeout = left.and_then(|left| Timespec::try_from(left).ok());
            match poll(&mut fds[..polled], timeout.as_ref()) {
                Ok(_) | Err(rustix::io::Errno::INTR) => {}
                Err(errno) => {
                    let why = format!("the connection cannot be waited for: {errno}");
                    return Err(Ended { why, cause: Cause::Lost });
                }
            }
            let ready = fds[1].revents();
            if fds[0].revents().contains(PollFlags::IN) {
                let _ = rustix::io::read(&self.shared.wake, &mut [0_u8; 8]);
            }
            if may_read && ready.intersects(PollFlags::IN | PollFlags::HUP | PollFlags::ERR) {
                self.read()?;
            }
        }
    }

    /// Say goodbye, and wait until it was heard: a socket closed earlier would take our last words back.
    fn linger(&mut self) {
        self.tls.send_close_notify();
        let _ = self.write();
        let _ = self.stream.shutdown(Shutdown::Write);
        let deadline = Instant::now() + LINGER;
        let mut rest = [0; 4096];
        while !self.shared.lock().abort {
            match self.stream.read(&mut rest) {
                Ok(0) => return,
                Ok(_) => continue,
                Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                Err(_) => return,
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return;
            }
            let mut fds = [
                PollFd::from_borrowed_fd(self.shared.wake.as_fd(), PollFlags::IN),
                PollFd::from_borrowed_fd(self.stream.as_fd(), PollFlags::IN),
            ];
            let _ = poll(&mut fds, Timespec::try_from(left).ok().as_ref());
            let _ = rustix::io::read(&self.shared.wake, &mut [0_u8; 8]);
        }
    }
}

impl<S: Read + Write> Pump<S> {
    /// Write what there is; whether there is nothing left.
    fn write(&mut self) -> Result<bool, Ended> {
        loop {
            if self.writing.is_none() {
                let mut state = self.shared.lock();
                if let Some(frame) = state.next_outgoing() {
                    if frame[4] == BULK {
                        state.waiting_bytes -= frame.len();
                        self.shared.changed.notify_all();
                        self.shared.incoming().wake();
                    }
                    self.writing = Some((frame, 0));
                }
            }
            if let Some((frame, at)) = &mut self.writing {
                // TLS takes what its buffer holds.
                *at += self.tls.writer().write(&frame[*at..]).unwrap_or(0);
                if *at == frame.len() {
                    self.writing = None;
                }
            }
            while self.tls.wants_write() {
                match self.tls.write_tls(&mut self.stream) {
                    Ok(_) => {}
                    Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(false),
                    Err(error) if error.kind() == ErrorKind::Interrupted => {}
                    Err(error) => return Err(lost(&error)),
                }
            }
            if self.writing.is_none() && self.shared.lock().has_written_all() {
                return Ok(true);
            }
        }
    }

    fn read(&mut self) -> Result<(), Ended> {
        match self.tls.read_tls(&mut self.stream) {
            Ok(0) => {
                return Err(Ended { why: "the peer has gone away".to_owned(), cause: Cause::Gone })
            }
            Ok(_) => {}
            Err(error)
                if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) =>
            {
                return Ok(())
            }
            Err(error) => return Err(lost(&error)),
        }
        self.opened()
    }

    /// Hand out what TLS has opened.
    fn opened(&mut self) -> Result<(), Ended> {
        let opened = self.tls.process_new_packets();
        self.shared.lock().heard |=
            opened.as_ref().map_or(true, |o| o.plaintext_bytes_to_read() > 0);
        let state = opened.map_err(|error| match error {
            rustls::Error::AlertReceived(alert) => {
                Ended::said(format!("the peer refused the connection ({alert:?})"))
            }
            // Any host on the way can write into TCP.
            error => {
                let why = format!("the connection was disturbed: {error}");
                Ended { why, cause: Cause::Lost }
            }
        })?;
        let mut left = state.plaintext_bytes_to_read();
        while left > 0 {
            let mut reader = self.tls.reader();
            let (count, frame) =
                self.frames.fill(left, |into| reader.read(into)).map_err(|error| match error {
                    FrameError::Read(error) => lost(&error),
                    FrameError::TooLong => Ended::said(TOO_LONG.to_owned()),
                })?;
            left -= count;
            if let Some(frame) = frame {
                self.shared.deliver(frame, By::Tls).map_err(Ended::said)?;
            }
        }
        if state.peer_has_closed() {
            return Err(Ended::said("the peer has closed the connection".to_owned()));
        }
        Ok(())
    }
}

/// What the end of TCP says of the peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Cause {
    /// It ended the connection, or broke a rule, under its keys.
    Said,
    /// Its kernel has ended TCP: it may be dead.
    Gone,
    /// Nothing.
    Lost,
}

/// Why nothing more goes over TCP.
#[derive(Debug, PartialEq, Eq)]
struct Ended {
    why: String,
    cause: Cause,
}

impl Ended {
    fn said(why: String) -> Self {
        Self { why, cause: Cause::Said }
    }
}

fn lost(error: &std::io::Error) -> Ended {
    let gone = matches!(error.kind(), ErrorKind::ConnectionReset | ErrorKind::BrokenPipe);
    let cause = if gone { Cause::Gone } else { Cause::Lost };
    Ended { why: format!("the connection was lost ({error})"), cause }
}

#[cfg(test)]
mod tests;
