//! The TLS connection: small messages in order, and all messages where UDP is blocked.
//!
//! Arrives: messages, what the socket has. Leaves: messages of both sorts, the end of the connection.
//! Must not know: what messages say, keys.
//!
//! One thread owns the TLS state, which reads and writes through one another, and waits for the socket and for others
//! of this process at once.

mod frames;
mod keepalive;
mod pump;
mod shared;

use std::net::TcpStream;
use std::sync::{Arc, Weak};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex, RwLock};
use rustix::event::{eventfd, EventfdFlags};
use rustls::Connection;
use waystage_pacing::{Limiter, Turn};

use crate::control_path::{ControlPath, ControlSink};
use crate::error::Error;
use crate::message_queue::MessageQueue;
use crate::stats::{Bottleneck, Status};
use crate::wire::framed;
use frames::{FrameDecoder, BULK};
use keepalive::{set_keepalive, KEEPALIVE_RETRIES};
use pump::Pump;
use shared::{Shared, State};

/// Bulk that may wait to be written.
const WAITING_BYTES: usize = 16 << 20;

/// What TLS may hold of what was written to it.
const TLS_BYTES: usize = 256 << 10;

/// What to do when a copy's connection is lost.
pub const RESUME_ADVICE: &str = "the same command goes on where it stopped";

/// The TLS connection with its thread. Dropped, it ends at once.
pub struct Control {
    shared: Arc<Shared>,
    thread: Mutex<Option<JoinHandle<()>>>,
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
        set_keepalive(&stream, KEEPALIVE_RETRIES).map_err(failed)?;
        let wake = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)
            .map_err(|errno| failed(errno.into()))?;
        let shared = Arc::new(Shared {
            state: Mutex::new(State { heard: is_server, ..State::default() }),
            changed: Condvar::new(),
            wake,
            incoming: RwLock::new(incoming),
            frames: Mutex::default(),
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

    /// From now on messages of a channel go there, those that have come already first, and so does the connection's
    /// end.
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
        self.shared.lock().send(framed(kind, body));
        self.shared.look();
    }

    /// UDP tells from now on whether the peer is there.
    pub fn be_patient(&self) {
        self.shared.lock().be_patient();
        self.shared.look();
    }

    /// The version of the protocol that both ends speak.
    pub fn set_version(&self, version: u32) {
        self.shared.lock().version = version;
    }

    /// Where the peer's control stream goes.
    pub fn sink(&self) -> Weak<dyn ControlSink> {
        let sink: Arc<dyn ControlSink> = Arc::clone(&self.shared) as Arc<dyn ControlSink>;
        Arc::downgrade(&sink)
    }

    /// UDP tells from now on whether the peer is there, and its control stream carries every message as well, if the
    /// peer knows it: the end of TCP is no end of this connection.
    pub fn rely_on_udp(&self, path: Arc<dyn ControlPath>) {
        self.shared.lock().rely_on_udp(path);
        self.shared.look();
    }

    /// All goes over TCP.
    pub fn rely_on_tcp(&self) {
        self.shared.lock().said = None;
    }

    /// How much of what may wait to be written does.
    pub fn load(&self) -> f64 {
        self.waiting_bytes() as f64 / WAITING_BYTES as f64
    }

    /// The same for one that counts against the limits of bulk; waits for its turn.
    pub fn send_paced(&self, kind: u8, body: &[u8]) {
        self.wait_for_turn(body.len());
        self.send(kind, body);
    }

    /// Until the limits let `bytes` go, or no more are taken.
    fn wait_for_turn(&self, bytes: usize) {
        let mut state = self.shared.lock();
        while !state.takes_no_bulk() {
            let left = match state.limiter.take(Instant::now(), bytes as u64) {
                Turn::Go => break,
                Turn::Wait(left) => left,
                Turn::Paused => Duration::MAX,
            };
            let limits = state.limits;
            let unchanged = |state: &mut State| !state.takes_no_bulk() && state.limits == limits;
            self.shared.changed.wait_while_for(&mut state, unchanged, left);
        }
    }

    /// Send a message of a channel; waits while others wait. It comes back where the connection has ended, or
    /// [`Self::stop_bulk`] was called.
    pub fn send_bulk(&self, message: Vec<u8>) -> Option<Vec<u8>> {
        let began = Instant::now();
        self.wait_for_turn(message.len());
        let capped = Instant::now();
        let frame = framed(BULK, &message);
        let mut state = self.shared.lock();
        while !state.takes_no_bulk() && state.waiting_bytes >= WAITING_BYTES {
            self.shared.changed.wait(&mut state);
        }
        for (bottleneck, held) in
            [(Bottleneck::Cap, capped - began), (Bottleneck::Path, capped.elapsed())]
        {
            state.held_ns[bottleneck as usize] +=
                u64::try_from(held.as_nanos()).unwrap_or(u64::MAX);
        }
        if state.takes_no_bulk() {
            return Some(message);
        }
        state.waiting_bytes += frame.len();
        state.outgoing.push_back(frame);
        drop(state);
        self.shared.look();
        None
    }

    /// Take no more messages of a channel; small ones go on. Threads that wait in [`Self::send_bulk`] return.
    pub fn stop_bulk(&self) {
        self.shared.lock().bulk_stopped = true;
        self.shared.changed.notify_all();
    }

    /// The same as [`Self::send_bulk`] without waiting, for a caller that checks [`Self::waiting_bytes`] first and
    /// paces itself.
    pub fn offer_bulk(&self, message: &[u8]) {
        let frame = framed(BULK, message);
        let mut state = self.shared.lock();
        state.waiting_bytes += frame.len();
        state.send(frame);
        drop(state);
        self.shared.look();
    }

    /// Bulk that waits to be written; the incoming's waker is rung when it becomes less.
    pub fn waiting_bytes(&self) -> usize {
        self.shared.lock().waiting_bytes
    }

    /// Bulk takes no more than this.
    pub fn limit(&self, bytes_per_s: Option<u64>) {
        self.change_limits(|limiter| limiter.set_limit(Instant::now(), bytes_per_s));
    }

    /// Bulk takes no more than this for now, nor than [`Self::limit`] says; 0 for a pause.
    pub fn hold(&self, bytes_per_s: Option<u64>) {
        self.change_limits(|limiter| {
            let now = Instant::now();
            limiter.set_paused(now, bytes_per_s == Some(0));
            limiter.set_rate(now, bytes_per_s.filter(|rate| *rate > 0));
        });
    }

    fn change_limits(&self, change: impl FnOnce(&mut Limiter)) {
        let mut state = self.shared.lock();
        change(&mut state.limiter);
        state.limits += 1;
        drop(state);
        self.shared.changed.notify_all();
        // After a pause there is something to write again.
        self.shared.look();
    }

    /// The next small message, waiting for at most `timeout`; None where none came in time or [`Self::interrupt`] was
    /// called, an error where none will.
    pub fn receive(&self, timeout: Duration) -> Result<Option<(u8, Vec<u8>)>, Error> {
        let mut state = self.shared.lock();
        let waiting = |state: &mut State| {
            state.small.is_empty() && state.ended.is_none() && !state.interrupted
        };
        self.shared.changed.wait_while_for(&mut state, waiting, timeout);
        state.interrupted = false;
        state.received(self.shared.advice)
    }

    /// Wait for [`Self::interrupt`] or the end of the connection, at most for `timeout`.
    pub fn wait(&self, timeout: Duration) {
        let mut state = self.shared.lock();
        let waiting = |state: &mut State| state.ended.is_none() && !state.interrupted;
        self.shared.changed.wait_while_for(&mut state, waiting, timeout);
        state.interrupted = false;
    }

    /// Let the thread that waits in [`Self::receive`] or [`Self::wait`] return once, now or when it next waits.
    pub fn interrupt(&self) {
        self.shared.lock().interrupted = true;
        self.shared.changed.notify_all();
        self.shared.incoming().wake();
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

    /// Close once everything was written and the peer has had time to read it.
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
            // A panic was printed on stderr already.
            let _ = thread.join();
        }
    }
}

impl Drop for Control {
    fn drop(&mut self) {
        self.abort();
    }
}
