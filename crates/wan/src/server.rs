//! The server: lets clients in, and serves each within its roots.
//!
//! Arrives: who may do what where. Leaves: copies made or sent, lines of a log. Must not know: Python, files of configuration.
//!
//! A client is let in by its key; what it may do follows from the user that the key belongs to. Nothing is sent over UDP to an
//! address that has not shown that it has the keys, so there is nothing to amplify.

mod door;
mod more;
mod places;
mod rules;
mod visit;

use parking_lot::{Condvar, Mutex, MutexGuard};
use std::collections::{HashMap, VecDeque};
use std::net::{IpAddr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustls::ServerConfig;
use waystage_catalog::Root;
use waystage_protocol::congestion::Mode;

use crate::account::Account;
use crate::book::Book;
use crate::control::Control;
use crate::endpoint::Endpoint;
use crate::error::{WanError, WanErrorKind};
use crate::identity::{Identity, PublicKey};
use crate::probe::{Probes, Probing};
use crate::proxy::Rule;
use crate::tls;
use door::{Counts, Door};
use more::Copies;
use visit::Visit;

/// What happens in handshakes is said at most so often; it is counted in between.
const SAY_ROUND: Duration = Duration::from_secs(10);

/// Handshakes that failed and are said one by one, in each such time.
const MOST_SAID: u64 = 20;

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
    pub modes: Vec<Mode>,
    /// From where these modes are granted, as an address and how many bits count; empty for anywhere.
    pub networks: Vec<(IpAddr, u8)>,
    /// Bytes a second at most; None for the server's own cap.
    pub rate_bytes_per_s: Option<u64>,
    /// Connections at a time; None for its share of the server's.
    pub connections: Option<usize>,
    /// As whom the server acts for it; None for as itself.
    pub account: Option<Account>,
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
    /// Connections of one copy at most.
    pub copy_connections: u32,
    /// UDP sockets at the port, each with a thread that receives.
    pub sockets: usize,
    /// Memory in front of the disk, for each connection or copy.
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
    /// While it is in its handshake: to throw it out.
    stream: Option<TcpStream>,
}

/// The places for handshakes, and what of them was said.
struct Entrance {
    door: Door,
    said: Counts,
    said_at: Instant,
}

struct Shared {
    options: ServerOptions,
    tls: Arc<ServerConfig>,
    endpoint: Option<Arc<Endpoint>>,
    sessions: Mutex<HashMap<u64, Session>>,
    entrance: Mutex<Entrance>,
    copies: Copies,
    ended: Condvar,
    lines: Mutex<VecDeque<String>>,
    next: AtomicU64,
    probes: Probes,
    /// What holds for now: for all, and for users by name.
    limits: Mutex<(Option<u64>, HashMap<String, u64>)>,
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
            entrance: Mutex::new(Entrance {
                door: Door::new(Instant::now()),
                said: Counts::default(),
                said_at: Instant::now(),
            }),
            copies: Copies::default(),
            ended: Condvar::new(),
            lines: Mutex::default(),
            next: AtomicU64::new(0),
            probes: Probes::default(),
            limits: Mutex::default(),
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

    /// What became of those who knocked, by name: handshakes begun and failed, connections turned away, datagrams of no connection.
    pub fn counts(&self) -> Vec<(&'static str, u64)> {
        let counts = self.shared.entrance().door.counts();
        vec![
            ("handshakes_begun", counts.begun),
            ("handshakes_failed", counts.failed),
            ("evicted", counts.evicted),
            ("turned_away_crowded", counts.crowded),
            ("turned_away_penalty", counts.penalty),
            ("turned_away_haste", counts.haste),
            ("turned_away_full", counts.full),
            ("strange_datagrams", self.strange_datagrams()),
        ]
    }

    /// Have no connection carry more than so many bytes a second from now on, and those of some users even less; where there is no
    /// number, what [`ServerOptions`] say holds. Copies follow at once; a proxy's session keeps what held when it began.
    pub fn limit(&self, bytes_per_s: Option<u64>, users: HashMap<String, u64>) {
        *self.shared.limits.lock() = (bytes_per_s, users);
        for session in self.shared.lock().values() {
            if let Some(user) = &session.user {
                session.book.limits.set_own(self.shared.limit(user));
            }
        }
    }

    /// Lines for the log since the last call.
    pub fn log(&self) -> Vec<String> {
        self.shared.say_turned_away(false);
        let mut lines = self.shared.lines.lock();
        lines.drain(..).collect()
    }

    /// Let nobody in any more; who is there may finish.
    pub fn drain(&self) {
        self.shared.draining.store(true, Ordering::SeqCst);
        let thread = self.thread.lock().take();
        if let Some(thread) = thread {
            // A panicked thread has told the process's stderr; there is nobody to tell here.
            let _ = thread.join();
        }
        self.shared.say_turned_away(true);
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
        self.sessions.lock()
    }

    /// Bytes a second that a connection of this user may carry for now, where that was said.
    fn limit(&self, user: &str) -> Option<u64> {
        let limits = self.limits.lock();
        limits.0.into_iter().chain(limits.1.get(user).copied()).min()
    }

    fn say(&self, line: String) {
        let mut lines = self.lines.lock();
        if lines.len() < MOST_LINES {
            lines.push_back(line);
        }
    }

    fn entrance(&self) -> MutexGuard<'_, Entrance> {
        self.entrance.lock()
    }

    /// Now and then, or at the end: how many were turned away.
    fn say_turned_away(&self, at_once: bool) {
        let mut entrance = self.entrance();
        let (now, counts) = (entrance.door.counts(), entrance.said);
        let passed = entrance.said_at.elapsed();
        if !at_once && passed < SAY_ROUND {
            return;
        }
        (entrance.said, entrance.said_at) = (now, Instant::now());
        drop(entrance);
        let away = now.turned_away() - counts.turned_away();
        let unsaid = (now.failed - counts.failed).saturating_sub(MOST_SAID);
        if away + unsaid > 0 {
            self.say(format!(
                "in the last {:.0} s {away} connections were turned away before their handshake ({} of an address with many under \
                 way, {} of one whose handshakes had come to nothing, {} in too much haste, {} for want of room), and {unsaid} \
                 failed handshakes are not listed",
                passed.as_secs_f64(),
                now.crowded - counts.crowded,
                now.penalty - counts.penalty,
                now.haste - counts.haste,
                now.full - counts.full,
            ));
        }
    }

    /// The handshake came to nothing: this is said, unless many did.
    fn failed(&self, id: u64, line: String) {
        let mut entrance = self.entrance();
        entrance.door.failed(id, Instant::now());
        let lately = entrance.door.counts().failed - entrance.said.failed;
        drop(entrance);
        if lately <= MOST_SAID {
            self.say(line);
        }
    }

    fn begin(self: &Arc<Self>, stream: TcpStream, from: SocketAddr) {
        let id = self.next.fetch_add(1, Ordering::Relaxed);
        let knocked = self.entrance().door.knock(id, from.ip(), Instant::now());
        let Ok(evicted) = knocked else {
            // Without lingering: whoever is turned away leaves nothing behind in the kernel.
            let _ = socket2::SockRef::from(&stream).set_linger(Some(Duration::ZERO));
            return;
        };
        let book = Arc::new(Book::default());
        {
            let mut sessions = self.lock();
            if let Some(stream) = evicted.and_then(|id| sessions.get(&id)?.stream.as_ref()) {
                let _ = stream.shutdown(Shutdown::Both);
            }
            let (book, stream) = (Arc::clone(&book), stream.try_clone().ok());
            let session = Session { user: None, book, control: None, stream };
            sessions.insert(id, session);
        }
        let shared = Arc::clone(self);
        let spawned = std::thread::Builder::new().name("wan-session".to_owned()).spawn(move || {
            let mut visit = Visit {
                shared: &shared,
                id,
                from,
                book: &book,
                who: from.to_string(),
                is_in: false,
            };
            let served = visit.serve(stream);
            let line = match &served {
                Ok(done) => format!("{} {done}", visit.who),
                Err(error) => format!("{} ended: {error}", visit.who),
            };
            if visit.is_in {
                shared.say(line);
            } else {
                shared.failed(id, line);
            }
            shared.lock().remove(&id);
            shared.ended.notify_all();
        });
        if spawned.is_err() {
            self.entrance().door.failed(id, Instant::now());
            self.lock().remove(&id);
        }
    }
}
