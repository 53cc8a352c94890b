//! Listens, accepts connections, and starts and stops sessions.
//!
//! Arrives: who may do what where. Leaves: copies made or sent, lines of a log. Must not know: Python, files of
//! configuration.
//!
//! A client is let in by its key; what it may do follows from the user that the key belongs to. Nothing is sent over
//! UDP to an address that has not shown that it has the keys, so there is nothing to amplify.

use std::collections::{HashMap, VecDeque};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};
use rustix::event::{poll, PollFd, PollFlags, Timespec};
use waystage_catalog::Root;
use waystage_probe::Probes;
use waystage_remote_copy::CopyState;
use waystage_transport::endpoint::Endpoint;
use waystage_transport::error::Error;
use waystage_transport::tls;
use waystage_transport::waker::Waker;

use crate::admission::{Admission, Counts};
use crate::copies::Copies;
use crate::options::ServerOptions;
use crate::session::SessionHandler;
use crate::shared::{Entrance, Session, Shared};

/// A server. Dropping it ends every connection.
pub struct Server {
    pub(crate) shared: Arc<Shared>,
    address: SocketAddr,
    thread: Mutex<Option<JoinHandle<()>>>,
}

impl Server {
    /// Listen.
    pub fn start(options: ServerOptions) -> Result<Self, Error> {
        for root in &options.roots {
            Root::open(&root.path).map_err(|error| {
                Error::input(format!("root {} cannot be used: {error}", root.path.display()))
            })?;
        }
        let tls = tls::server(&options.identity)?;
        let taken = |error: std::io::Error| {
            Error::Unreachable(format!(
                "cannot listen at {}: {error}: choose another address or port",
                options.listen
            ))
        };
        let (listener, endpoint) = bind(&options).map_err(taken)?;
        let waker = Waker::new().map_err(taken)?;
        let address = listener.local_addr().map_err(taken)?;
        listener.set_nonblocking(true).map_err(taken)?;
        let shared = Arc::new(Shared {
            tls,
            endpoint,
            options,
            sessions: Mutex::default(),
            entrance: Mutex::new(Entrance {
                admission: Admission::new(Instant::now()),
                said: Counts::default(),
                said_at: Instant::now(),
            }),
            copies: Copies::default(),
            ended: Condvar::new(),
            lines: Mutex::default(),
            changed: Condvar::new(),
            next: AtomicU64::new(0),
            probes: Probes::default(),
            limits: Mutex::default(),
            granted: Mutex::default(),
            past_bytes: AtomicU64::new(0),
            draining: AtomicBool::new(false),
            waker,
        });
        let accepting = Arc::clone(&shared);
        let thread = std::thread::Builder::new()
            .name("wan-accept".to_owned())
            .spawn(move || accept(&accepting, &listener))
            .map_err(|error| Error::io("start a thread", &error))?;
        Ok(Self { shared, address, thread: Mutex::new(Some(thread)) })
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Wait for at most `timeout`: true once it was drained and its last connection has ended, false where there are
    /// lines for the log, None otherwise.
    pub fn wait(&self, timeout: Duration) -> Option<bool> {
        let ended = || self.shared.draining.load(Ordering::SeqCst) && self.shared.lock().is_empty();
        let mut lines = self.shared.lines.lock();
        let serves = |lines: &mut VecDeque<String>| lines.is_empty() && !ended();
        self.shared.changed.wait_while_for(&mut lines, serves, timeout);
        if ended() {
            return Some(true);
        }
        (!lines.is_empty()).then_some(false)
    }

    /// By name: open connections, handshakes begun and failed, connections refused, datagrams of no connection.
    pub fn counts(&self) -> Vec<(&'static str, u64)> {
        let counts = self.shared.entrance().admission.counts();
        let unmatched = self.shared.endpoint.as_ref().map_or(0, |endpoint| endpoint.unmatched());
        vec![
            ("connections", self.shared.lock().len() as u64),
            ("handshakes_begun", counts.begun),
            ("handshakes_failed", counts.failed),
            ("evicted", counts.evicted),
            ("turned_away_crowded", counts.crowded),
            ("turned_away_penalty", counts.penalty),
            ("turned_away_haste", counts.rate_limited),
            ("turned_away_full", counts.full),
            ("strange_datagrams", unmatched),
        ]
    }

    /// Limit each connection to `bytes_per_s` from now on, and those of some users by name to less; where
    /// there is no number, what [`ServerOptions`] say holds. Copies and proxies' sessions follow at once.
    pub fn limit(&self, bytes_per_s: Option<u64>, users: HashMap<String, u64>) {
        *self.shared.limits.lock() = (bytes_per_s, users);
        for session in self.shared.lock().values() {
            if let Some(user) = &session.user {
                session.copy_state.limits.set_own(self.shared.limit(user));
            }
        }
        self.shared.interrupt();
    }

    /// Lines for the log since the last call.
    pub fn log(&self) -> Vec<String> {
        self.shared.say_turned_away(false);
        let mut lines = self.shared.lines.lock();
        lines.drain(..).collect()
    }

    /// Stop accepting connections; active sessions may finish.
    pub fn drain(&self) {
        self.shared.draining.store(true, Ordering::SeqCst);
        self.shared.waker.wake();
        self.shared.interrupt();
        let thread = self.thread.lock().take();
        if let Some(thread) = thread {
            // A panic was printed on stderr already.
            let _ = thread.join();
        }
        self.shared.say_turned_away(true);
        self.shared.wake();
    }

    /// End every connection; all threads are gone when this returns.
    pub fn stop(&self) {
        self.drain();
        let mut sessions = self.shared.lock();
        loop {
            for session in sessions.values() {
                session.copy_state.cancel();
                if let Some(control) = &session.control {
                    control.interrupt();
                }
            }
            if sessions.is_empty() {
                return;
            }
            let waited = self.shared.ended.wait_for(&mut sessions, Duration::from_secs(3));
            if waited.timed_out() {
                let controls: Vec<_> =
                    sessions.values().filter_map(|session| session.control.clone()).collect();
                drop(sessions);
                controls.iter().for_each(|control| control.abort());
                sessions = self.shared.lock();
            }
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.stop();
    }
}

/// TCP and UDP at the same port.
fn bind(options: &ServerOptions) -> std::io::Result<(TcpListener, Option<Arc<Endpoint>>)> {
    let listen = options.listen;
    let mut last = None;
    // A port that is free for TCP may be taken for UDP.
    for _ in 0..if listen.port() == 0 { 32 } else { 1 } {
        let listener = TcpListener::bind(listen)?;
        if !options.udp {
            return Ok((listener, None));
        }
        match Endpoint::bind(listener.local_addr()?, options.sockets) {
            Ok(endpoint) => return Ok((listener, Some(Arc::new(endpoint)))),
            Err(error) => last = Some(error),
        }
    }
    Err(last.unwrap_or_else(|| std::io::ErrorKind::AddrInUse.into()))
}

fn accept(shared: &Arc<Shared>, listener: &TcpListener) {
    while !shared.draining.load(Ordering::SeqCst) {
        let pause = match listener.accept() {
            Ok((stream, from)) => {
                begin(shared, stream, from);
                continue;
            }
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => None,
            // For example without a free descriptor: sessions that end will free some.
            Err(_) => Some(Timespec { tv_sec: 0, tv_nsec: 50_000_000 }),
        };
        let mut fds =
            [PollFd::new(&shared.waker, PollFlags::IN), PollFd::new(listener, PollFlags::IN)];
        let polled = if pause.is_some() { 1 } else { 2 };
        let _ = poll(&mut fds[..polled], pause.as_ref());
    }
}

/// Serve a connection in a thread, if it is admitted.
fn begin(shared: &Arc<Shared>, stream: TcpStream, from: SocketAddr) {
    let id = shared.next.fetch_add(1, Ordering::Relaxed);
    let admitted = shared.entrance().admission.request(id, from.ip(), Instant::now());
    let Ok(evicted) = admitted else {
        // Without lingering, so that a rejected connection leaves nothing in the kernel.
        let _ = socket2::SockRef::from(&stream).set_linger(Some(Duration::ZERO));
        return;
    };
    let copy_state = Arc::new(CopyState::default());
    {
        let mut sessions = shared.lock();
        if let Some(stream) = evicted.and_then(|id| sessions.get(&id)?.stream.as_ref()) {
            let _ = stream.shutdown(Shutdown::Both);
        }
        let (copy_state, stream) = (Arc::clone(&copy_state), stream.try_clone().ok());
        let session = Session {
            user: None,
            copy_state,
            control: None,
            stream,
            from: Some(from),
            work: None,
            asked: (None, false),
        };
        sessions.insert(id, session);
    }
    let running = Arc::clone(shared);
    let spawned = std::thread::Builder::new().name("wan-session".to_owned()).spawn(move || {
        let mut handler = SessionHandler {
            shared: &running,
            id,
            from,
            copy_state: &copy_state,
            who: from.to_string(),
            is_in: false,
        };
        let served = handler.serve(stream);
        let line = match &served {
            Ok(done) => format!("{} {done}", handler.who),
            Err(error) => format!("{} ended: {error}", handler.who),
        };
        if handler.is_in {
            running.say(line);
        } else {
            running.failed(id, line);
        }
        running.left(id);
        running.ended.notify_all();
        running.wake();
    });
    if spawned.is_err() {
        shared.entrance().admission.failed(id, Instant::now());
        shared.lock().remove(&id);
    }
}
