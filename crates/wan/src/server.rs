//! The server: lets clients in, and serves each within its roots.
//!
//! Arrives: who may do what where. Leaves: copies made or sent, lines of a log. Must not know: Python, files of configuration.
//!
//! A client is let in by its key; what it may do follows from the user that the key belongs to. Nothing is sent over UDP to an
//! address that has not shown that it has the keys, so there is nothing to amplify.

mod visit;

use std::collections::{HashMap, VecDeque};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use rustls::ServerConfig;
use waystage_catalog::Root;
use waystage_protocol::modes::ModeName;

use crate::book::Book;
use crate::control::Control;
use crate::endpoint::Endpoint;
use crate::error::{WanError, WanErrorKind};
use crate::identity::{Identity, PublicKey};
use crate::probe::{Probes, Probing};
use crate::proxy::Rule;
use crate::tls;
use visit::Visit;

/// Clients in their handshake at most, beside those let in: what a flood of connections may cost.
const MOST_STRANGERS: usize = 64;

/// Lines of the log that wait to be taken.
const MOST_LINES: usize = 10_000;

/// Nobody asks a server to bound its rate above this.
const NO_CAP_BYTES_PER_S: u64 = 100_000_000_000;

/// A directory that clients may use.
#[derive(Debug, Clone)]
pub struct SharedRoot {
    /// Where it is.
    pub path: PathBuf,
    /// Whether clients may write in it.
    pub write: bool,
    /// Who may use it; empty for every user.
    pub users: Vec<String>,
    /// Whether owners, set-user-id bits, devices and attributes of the system are taken over as clients give them.
    pub privileged: bool,
}

/// Somebody who may come in.
#[derive(Debug, Clone)]
pub struct User {
    /// How it is called.
    pub name: String,
    /// By which keys it is known.
    pub keys: Vec<PublicKey>,
    /// Modes granted beside `fair` and `modest`.
    pub modes: Vec<ModeName>,
    /// From where these modes are granted, as an address and how many bits count; empty for anywhere.
    pub networks: Vec<(IpAddr, u8)>,
    /// Bytes a second at most; None for the server's own cap.
    pub rate_bytes_per_s: Option<u64>,
    /// Connections at a time; None for the server's own cap.
    pub connections: Option<usize>,
    /// Destinations that it may reach from here; others are denied.
    pub reach: Vec<Rule>,
    /// Where it may have this server listen for it; nowhere else.
    pub listen: Vec<Rule>,
}

/// What a server is.
#[derive(Debug, Clone)]
pub struct ServerOptions {
    /// TCP and UDP; port 0 for one that is free.
    pub listen: SocketAddr,
    /// Who it is.
    pub identity: Identity,
    /// Who may come in.
    pub users: Vec<User>,
    /// What they may use, the first for paths that are not absolute.
    pub roots: Vec<SharedRoot>,
    /// Bytes a second of one connection at most.
    pub rate_bytes_per_s: Option<u64>,
    /// Connections at a time.
    pub connections: usize,
    /// Memory in front of the disk, for each connection.
    pub memory_bytes: u64,
    /// Whether data goes over UDP.
    pub udp: bool,
    /// Threads that read or write files, for each connection.
    pub workers: usize,
    /// Who may measure the path to this server.
    pub probing: Probing,
}

struct Session {
    user: Option<String>,
    book: Arc<Book>,
    control: Option<Arc<Control>>,
}

struct Shared {
    options: ServerOptions,
    tls: Arc<ServerConfig>,
    endpoint: Option<Arc<Endpoint>>,
    sessions: Mutex<HashMap<u64, Session>>,
    ended: Condvar,
    lines: Mutex<VecDeque<String>>,
    next: AtomicU64,
    probes: Probes,
    draining: AtomicBool,
}

/// A server. Dropping it ends every connection.
pub struct Server {
    shared: Arc<Shared>,
    address: SocketAddr,
    thread: Mutex<Option<JoinHandle<()>>>,
}

impl Server {
    /// Listen.
    pub fn start(options: ServerOptions) -> Result<Self, WanError> {
        for root in &options.roots {
            Root::open(&root.path).map_err(|error| {
                WanError::input(format!("root {} cannot be used: {error}", root.path.display()))
            })?;
        }
        let tls = tls::server(&options.identity)?;
        let taken = |error: std::io::Error| {
            WanError::new(
                WanErrorKind::Unreachable,
                format!(
                    "cannot listen at {}: {error}: choose another address or port",
                    options.listen
                ),
            )
        };
        let (listener, endpoint) = bind(&options).map_err(taken)?;
        let address = listener.local_addr().map_err(taken)?;
        listener.set_nonblocking(true).map_err(taken)?;
        let shared = Arc::new(Shared {
            tls,
            endpoint,
            options,
            sessions: Mutex::default(),
            ended: Condvar::new(),
            lines: Mutex::default(),
            next: AtomicU64::new(0),
            probes: Probes::default(),
            draining: AtomicBool::new(false),
        });
        let accepting = Arc::clone(&shared);
        let thread = std::thread::Builder::new()
            .name("wan-accept".to_owned())
            .spawn(move || accept(&accepting, &listener))
            .map_err(|error| WanError::io("start a thread", &error))?;
        Ok(Self { shared, address, thread: Mutex::new(Some(thread)) })
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Connections there are.
    pub fn connections(&self) -> usize {
        self.shared.lock().len()
    }

    /// Datagrams that belonged to no connection.
    pub fn strange_datagrams(&self) -> u64 {
        self.shared.endpoint.as_ref().map_or(0, |endpoint| endpoint.strangers())
    }

    /// Lines for the log since the last call.
    pub fn log(&self) -> Vec<String> {
        let mut lines = self.shared.lines.lock().unwrap_or_else(PoisonError::into_inner);
        lines.drain(..).collect()
    }

    /// Let nobody in any more; who is there may finish.
    pub fn drain(&self) {
        self.shared.draining.store(true, Ordering::SeqCst);
        let thread = self.thread.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(thread) = thread {
            // A panicked thread has told the process's stderr; there is nobody to tell here.
            let _ = thread.join();
        }
    }

    /// End every connection; all threads are gone when this returns.
    pub fn stop(&self) {
        self.drain();
        let mut sessions = self.shared.lock();
        loop {
            for session in sessions.values() {
                session.book.cancel();
            }
            if sessions.is_empty() {
                return;
            }
            let waited = self.shared.ended.wait_timeout(sessions, Duration::from_secs(3));
            let (held, late) = waited.unwrap_or_else(PoisonError::into_inner);
            sessions = held;
            if late.timed_out() {
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
    let (listen, probed) = (options.listen, !options.probing.users.is_empty());
    let mut last = None;
    // A port that is free for TCP may be taken for UDP.
    for _ in 0..if listen.port() == 0 { 32 } else { 1 } {
        let listener = TcpListener::bind(listen)?;
        if !options.udp {
            return Ok((listener, None));
        }
        match Endpoint::bind(listener.local_addr()?, probed) {
            Ok(endpoint) => return Ok((listener, Some(Arc::new(endpoint)))),
            Err(error) => last = Some(error),
        }
    }
    Err(last.unwrap_or_else(|| std::io::ErrorKind::AddrInUse.into()))
}

fn accept(shared: &Arc<Shared>, listener: &TcpListener) {
    while !shared.draining.load(Ordering::SeqCst) {
        match listener.accept() {
            Ok((stream, from)) => shared.begin(stream, from),
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {
                use std::os::fd::AsFd;
                let mut fds = [rustix::event::PollFd::from_borrowed_fd(
                    listener.as_fd(),
                    rustix::event::PollFlags::IN,
                )];
                let timeout = rustix::event::Timespec { tv_sec: 0, tv_nsec: 50_000_000 };
                let _ = rustix::event::poll(&mut fds, Some(&timeout));
            }
            // Such as no descriptor left: those who leave will free some.
            Err(_) => std::thread::sleep(Duration::from_millis(50)),
        }
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, HashMap<u64, Session>> {
        self.sessions.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn say(&self, line: String) {
        let mut lines = self.lines.lock().unwrap_or_else(PoisonError::into_inner);
        if lines.len() < MOST_LINES {
            lines.push_back(line);
        }
    }

    fn begin(self: &Arc<Self>, stream: TcpStream, from: SocketAddr) {
        let id = self.next.fetch_add(1, Ordering::Relaxed);
        let book = Arc::new(Book::default());
        {
            let mut sessions = self.lock();
            let strangers = sessions.values().filter(|session| session.user.is_none()).count();
            if strangers >= MOST_STRANGERS {
                drop(sessions);
                return self.say(format!("{from} turned away: too many are in their handshake"));
            }
            sessions.insert(id, Session { user: None, book: Arc::clone(&book), control: None });
        }
        let shared = Arc::clone(self);
        let spawned = std::thread::Builder::new().name("wan-session".to_owned()).spawn(move || {
            let mut visit = Visit { shared: &shared, id, from, book: &book, who: from.to_string() };
            match visit.serve(stream) {
                Ok(done) => shared.say(format!("{} {done}", visit.who)),
                Err(error) => shared.say(format!("{} ended: {error}", visit.who)),
            }
            shared.lock().remove(&id);
            shared.ended.notify_all();
        });
        if spawned.is_err() {
            self.lock().remove(&id);
        }
    }
}
