//! The TLS connection: small messages in order, and all messages where UDP is blocked.
//!
//! Arrives: messages, what the socket has. Leaves: messages of both sorts, the end of the connection.
//! Must not know: what messages say, keys.
//!
//! One thread owns the TLS state, which reads and writes through one another, and waits for the socket and for others of this process at once.

mod frames;

use std::collections::VecDeque;
use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex, MutexGuard, RwLock};
use rustix::event::{eventfd, poll, EventfdFlags, PollFd, PollFlags, Timespec};
use rustls::Connection;
use waystage_copy::TokenBucket;

use crate::error::Error;
use crate::message::Message;
use crate::message_queue::MessageQueue;
use crate::stats::{Bottleneck, Status};
use crate::wire::framed;
use frames::{Frame, FrameDecoder, FrameError, BULK, LONGEST_SMALL};

/// Bulk that may wait to be written.
const WAITING_BYTES: usize = 16 << 20;

/// Messages of other kinds that may wait to be read, and their bytes.
const MOST_SMALL: usize = 1024;
const MOST_SMALL_BYTES: usize = 4 * LONGEST_SMALL;

/// What TLS may hold of what was written to it.
const TLS_BYTES: usize = 256 << 10;

/// What to do when a copy's connection is lost.
pub const RESUME_ADVICE: &str = "the same command goes on where it stopped";

/// A sleeper looks this often whether it is to end.
const LOOK_ROUND: Duration = Duration::from_millis(50);

/// How long the other end may take to read our last words.
const LINGER: Duration = Duration::from_secs(2);

/// The TLS connection with its thread. Dropped, it ends at once.
pub struct Control {
    shared: Arc<Shared>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

struct Shared {
    state: Mutex<State>,
    /// Wakes those who wait for a message, or for room.
    changed: Condvar,
    wake: OwnedFd,
    incoming: RwLock<Arc<MessageQueue>>,
    /// What to do when it is lost.
    advice: &'static str,
}

#[derive(Default)]
struct State {
    outgoing: VecDeque<Vec<u8>>,
    waiting_bytes: usize,
    small: VecDeque<(u8, Vec<u8>)>,
    close: bool,
    abort: bool,
    ended: Option<String>,
    /// Whether the other end has said anything, or cannot turn this one away.
    heard: bool,
    /// Bytes a second of bulk that were parameters, and that hold for now; None for no limit.
    rates: [Option<u64>; 2],
    debt: TokenBucket,
    held_ns: [u64; Bottleneck::ALL.len()],
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }

    fn incoming(&self) -> Arc<MessageQueue> {
        Arc::clone(&self.incoming.read())
    }

    fn end(&self, why: &str) {
        self.lock().ended.get_or_insert_with(|| why.to_owned());
        self.incoming().end(why);
        self.changed.notify_all();
    }

    fn look(&self) {
        // Only a counter that is full fails, and then it is to be looked anyway.
        let _ = rustix::io::write(&self.wake, &1_u64.to_ne_bytes());
    }
}

impl Control {
    /// Take over a connection whose handshake is done; `advice` is what to do when it is lost.
    pub fn start(
        mut tls: Connection,
        stream: TcpStream,
        incoming: Arc<MessageQueue>,
        advice: &'static str,
    ) -> Result<Self, Error> {
        let failed = |error: std::io::Error| Error::io("set up the connection", &error);
        tls.set_buffer_limit(Some(TLS_BYTES));
        let is_server = matches!(tls, Connection::Server(_));
        stream.set_nonblocking(true).map_err(failed)?;
        stream.set_nodelay(true).map_err(failed)?;
        // A peer whose machine vanished is noticed where nothing is to be sent.
        let keep = socket2::TcpKeepalive::new()
            .with_time(Duration::from_secs(10))
            .with_interval(Duration::from_secs(5))
            .with_retries(4);
        socket2::SockRef::from(&stream).set_tcp_keepalive(&keep).map_err(failed)?;
        let wake = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)
            .map_err(|errno| failed(errno.into()))?;
        let shared = Arc::new(Shared {
            state: Mutex::new(State { heard: is_server, ..State::default() }),
            changed: Condvar::new(),
            wake,
            incoming: RwLock::new(incoming),
            advice,
        });
        let mut pump = Pump {
            shared: Arc::clone(&shared),
            tls,
            stream,
            frames: FrameDecoder::default(),
            writing: None,
        };
        let thread = std::thread::Builder::new()
            .name("wan-control".to_owned())
            .spawn(move || pump.run())
            .map_err(failed)?;
        Ok(Self { shared, thread: Mutex::new(Some(thread)) })
    }

    /// From now on messages of a channel go there, those that have come already first, and so does the connection's end.
    pub fn deliver_to(&self, incoming: &Arc<MessageQueue>) {
        let mut held = self.shared.incoming.write();
        let before = std::mem::replace(&mut *held, Arc::clone(incoming));
        before.pass_on(incoming);
        drop(held);
        // There may be room again.
        self.shared.look();
        if let Some(why) = &self.shared.lock().ended {
            incoming.end(why);
        }
    }

    /// Send a small message.
    pub fn send(&self, kind: u8, body: &[u8]) {
        self.shared.lock().outgoing.push_back(framed(kind, body));
        self.shared.look();
    }

    /// How much of what may wait to be written does.
    pub fn load(&self) -> f64 {
        self.waiting_bytes() as f64 / WAITING_BYTES as f64
    }

    /// Send a message of a channel; waits while others wait. It comes back where the connection has ended.
    pub fn send_bulk(&self, message: Vec<u8>) -> Option<Vec<u8>> {
        let began = Instant::now();
        loop {
            let mut state = self.shared.lock();
            let rate = state.rates.iter().flatten().min().copied();
            let left = state.debt.take(Instant::now(), rate, message.len());
            if left.is_zero() || state.ended.is_some() {
                break;
            }
            drop(state);
            std::thread::sleep(left.min(LOOK_ROUND));
        }
        let capped = Instant::now();
        let frame = framed(BULK, &message);
        let mut state = self.shared.lock();
        while state.ended.is_none() && state.waiting_bytes >= WAITING_BYTES {
            self.shared.changed.wait(&mut state);
        }
        for (bottleneck, held) in
            [(Bottleneck::Cap, capped - began), (Bottleneck::Path, capped.elapsed())]
        {
            state.held_ns[bottleneck as usize] +=
                u64::try_from(held.as_nanos()).unwrap_or(u64::MAX);
        }
        if state.ended.is_some() {
            return Some(message);
        }
        state.waiting_bytes += frame.len();
        state.outgoing.push_back(frame);
        drop(state);
        self.shared.look();
        None
    }

    /// The same without waiting, for one who looks at [`Self::waiting_bytes`] before and paces itself.
    pub fn offer_bulk(&self, message: &[u8]) {
        let frame = framed(BULK, message);
        let mut state = self.shared.lock();
        state.waiting_bytes += frame.len();
        state.outgoing.push_back(frame);
        drop(state);
        self.shared.look();
    }

    /// Bulk that waits to be written; the incoming's waker is rung when it becomes less.
    pub fn waiting_bytes(&self) -> usize {
        self.shared.lock().waiting_bytes
    }

    /// Bulk takes no more than this.
    pub fn limit(&self, bytes_per_s: Option<u64>) {
        self.shared.lock().rates[0] = bytes_per_s;
    }

    /// Bulk takes no more than this for now, nor than [`Self::limit`] says.
    pub fn hold(&self, bytes_per_s: Option<u64>) {
        self.shared.lock().rates[1] = bytes_per_s;
    }

    /// The next small message, waiting for at most `timeout`; None where none came, an error where none will.
    pub fn receive(&self, timeout: Duration) -> Result<Option<(u8, Vec<u8>)>, Error> {
        let mut state = self.shared.lock();
        let waiting = |state: &mut State| state.small.is_empty() && state.ended.is_none();
        self.shared.changed.wait_while_for(&mut state, waiting, timeout);
        match (state.small.pop_front(), &state.ended) {
            (Some(message), _) => Ok(Some(message)),
            (None, Some(why)) if !state.heard => Err(Error::TurnedAway(format!(
                "{why} before the other end said anything: try again in a minute"
            ))),
            (None, Some(why)) => Err(Error::lost(format!("{why}: {}", self.shared.advice))),
            (None, None) => Ok(None),
        }
    }

    /// Something that the thread waits for has changed.
    pub fn look(&self) {
        self.shared.look();
    }

    /// Whether the connection has ended.
    pub fn ended(&self) -> bool {
        self.shared.lock().ended.is_some()
    }

    /// For how long bulk messages waited, by bottleneck.
    pub fn status(&self) -> Status {
        Status { held_ns: self.shared.lock().held_ns, ..Status::default() }
    }

    /// Close once everything was written and the other end has had time to read it.
    pub fn close(&self) {
        self.begin_close();
        self.finish();
    }

    /// The same without waiting.
    pub fn begin_close(&self) {
        self.shared.lock().close = true;
        self.shared.look();
    }

    /// Close at once.
    pub fn abort(&self) {
        self.shared.lock().abort = true;
        self.finish();
    }

    fn finish(&self) {
        self.shared.look();
        let thread = self.thread.lock().take();
        if let Some(thread) = thread {
            // A panicked thread has told the process's stderr; there is nobody to tell here.
            let _ = thread.join();
        }
    }
}

impl Drop for Control {
    fn drop(&mut self) {
        self.abort();
    }
}

struct Pump {
    shared: Arc<Shared>,
    tls: Connection,
    stream: TcpStream,
    frames: FrameDecoder,
    /// A message on its way into TLS, and how far.
    writing: Option<(Vec<u8>, usize)>,
}

impl Pump {
    fn run(&mut self) {
        let why = match self.turn() {
            Ok(()) => "the connection was closed".to_owned(),
            Err(why) => why,
        };
        self.shared.end(&why);
        let _ = self.stream.shutdown(Shutdown::Both);
    }

    /// Until it was closed here (Ok) or there.
    fn turn(&mut self) -> Result<(), String> {
        // The peer's first words may have come with the end of its handshake, and nothing more may follow.
        self.opened()?;
        loop {
            let idle = self.write()?;
            let (close, abort) = {
                let state = self.shared.lock();
                (state.close, state.abort)
            };
            if abort {
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
            let mut fds = [
                PollFd::from_borrowed_fd(self.stream.as_fd(), flags),
                PollFd::from_borrowed_fd(self.shared.wake.as_fd(), PollFlags::IN),
            ];
            match poll(&mut fds, Some(&Timespec { tv_sec: 1, tv_nsec: 0 })) {
                Ok(_) | Err(rustix::io::Errno::INTR) => {}
                Err(errno) => return Err(format!("the connection cannot be waited for: {errno}")),
            }
            let ready = fds[0].revents();
            if fds[1].revents().contains(PollFlags::IN) {
                let _ = rustix::io::read(&self.shared.wake, &mut [0_u8; 8]);
            }
            if may_read && ready.intersects(PollFlags::IN | PollFlags::HUP | PollFlags::ERR) {
                self.read()?;
            } else if !may_read && ready.intersects(PollFlags::HUP | PollFlags::ERR) {
                // It is over, but what came before is still being written: no haste.
                std::thread::sleep(LOOK_ROUND);
            }
        }
    }

    /// Write what there is; whether there is nothing left.
    fn write(&mut self) -> Result<bool, String> {
        loop {
            if self.writing.is_none() {
                let mut state = self.shared.lock();
                if let Some(frame) = state.outgoing.pop_front() {
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
            if self.writing.is_none() && self.shared.lock().outgoing.is_empty() {
                return Ok(true);
            }
        }
    }

    fn read(&mut self) -> Result<(), String> {
        match self.tls.read_tls(&mut self.stream) {
            Ok(0) => return Err("the other end has gone away".to_owned()),
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
    fn opened(&mut self) -> Result<(), String> {
        let opened = self.tls.process_new_packets();
        self.shared.lock().heard |=
            opened.as_ref().map_or(true, |o| o.plaintext_bytes_to_read() > 0);
        let state = opened.map_err(|error| match error {
            rustls::Error::AlertReceived(alert) => {
                format!("the other end refused the connection ({alert:?})")
            }
            error => format!("the connection was disturbed: {error}"),
        })?;
        let mut left = state.plaintext_bytes_to_read();
        while left > 0 {
            let mut reader = self.tls.reader();
            let (count, frame) =
                self.frames.fill(left, |into| reader.read(into)).map_err(|error| match error {
                    FrameError::Read(error) => lost(&error),
                    FrameError::TooLong => {
                        "the other end broke the protocol: a message was too long".to_owned()
                    }
                })?;
            left -= count;
            if let Some(frame) = frame {
                self.deliver(frame)?;
            }
        }
        if state.peer_has_closed() {
            return Err("the other end has closed the connection".to_owned());
        }
        Ok(())
    }

    /// Hand a frame to the channel or to [`Control::receive`].
    fn deliver(&self, (kind, body): Frame) -> Result<(), String> {
        if kind == BULK {
            let length = body.len();
            // Held, so that none goes to a queue that was just left.
            self.shared.incoming.read().put(Message { buffer: body, length, by: None });
            return Ok(());
        }
        let mut state = self.shared.lock();
        let waiting: usize = state.small.iter().map(|(_, body)| body.len()).sum();
        if state.small.len() >= MOST_SMALL || waiting > MOST_SMALL_BYTES {
            return Err("the other end broke the protocol: it says too much".to_owned());
        }
        state.small.push_back((kind, body));
        self.shared.changed.notify_all();
        self.shared.incoming().wake();
        Ok(())
    }

    /// Say goodbye, and wait until it was heard: a socket closed earlier would take our last words back.
    fn linger(&mut self) {
        self.tls.send_close_notify();
        let _ = self.write();
        let _ = self.stream.shutdown(Shutdown::Write);
        let deadline = Instant::now() + LINGER;
        let mut rest = [0; 4096];
        while Instant::now() < deadline && !self.shared.lock().abort {
            match self.stream.read(&mut rest) {
                Ok(0) => return,
                Ok(_) => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => {
                    std::thread::sleep(Duration::from_millis(5));
                }
                Err(_) => return,
            }
        }
    }
}

fn lost(error: &std::io::Error) -> String {
    format!("the connection was lost ({error})")
}
