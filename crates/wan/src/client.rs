//! The client: reaches a server, proves who it is, and copies to it or from it.
//!
//! Arrives: an address, keys, two paths, options. Leaves: a copy under way, that can be waited for, asked, and stopped.
//! Must not know: Python, where keys are kept.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use waystage_copy::Problem;
use waystage_protocol::modes::ModeName;
use waystage_protocol::protect::Side;

use crate::book::{Book, Verdict};
use crate::control::Control;
use crate::endpoint::Endpoint;
use crate::error::{WanError, WanErrorKind};
use crate::identity::{Identity, PublicKey};
use crate::lane::{Inbox, Lane, MEMORY_BYTES};
use crate::place;
use crate::reach::{reach, Server};
use crate::receive::receive;
use crate::reception::Target;
use crate::send::send;
use crate::session::{
    exchange, expect, kinds, nonsense, random, single_name, Ask, CopyOptions, Hello, Welcome,
};
use crate::tls;
use crate::udp::{Agreed, UdpLane, LARGEST_DATAGRAM};
use crate::wire::{Reader, Writer};

/// Where a copy is from and to.
#[derive(Debug, Clone)]
pub enum Ends {
    /// From this machine to the server.
    Push {
        /// Here.
        local: PathBuf,
        /// There.
        remote: Vec<u8>,
    },
    /// From the server to this machine.
    Pull {
        /// There.
        remote: Vec<u8>,
        /// Here.
        local: PathBuf,
    },
}

/// What to copy with whom.
#[derive(Debug, Clone)]
pub struct Request {
    /// A name or an address.
    pub host: String,
    /// TCP and UDP.
    pub port: u16,
    /// As whom.
    pub user: String,
    /// What the other end is called in a journal, where host and port are others the next time.
    pub known_as: Option<String>,
    /// With which key.
    pub identity: Identity,
    /// The server's key, where it is known.
    pub trusted: Option<PublicKey>,
    /// How fast to send, if the server grants it.
    pub mode: ModeName,
    /// Bytes a second at most; None for no limit.
    pub rate_bytes_per_s: Option<u64>,
    /// How long to wait for an answer over UDP; None to do without UDP.
    pub udp_wait: Option<Duration>,
    /// Threads that read or write files.
    pub workers: usize,
    /// From where to where.
    pub ends: Ends,
    /// How.
    pub options: CopyOptions,
}

#[derive(Default)]
struct Progress {
    notes: Vec<String>,
    verdict: Option<Verdict>,
    limit: String,
    result: Option<Result<(), WanError>>,
    lane: Option<Arc<Lane>>,
    control: Option<Arc<Control>>,
}

struct Shared {
    request: Request,
    book: Book,
    progress: Mutex<Progress>,
    ended: Condvar,
}

impl Shared {
    fn lock(&self) -> std::sync::MutexGuard<'_, Progress> {
        self.progress.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn note(&self, text: impl Into<String>) {
        self.lock().notes.push(text.into());
    }
}

/// A copy under way. Dropping it stops it; what it has done stays, and the same copy goes on from there.
pub struct Client {
    shared: Arc<Shared>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

impl Client {
    /// Start.
    pub fn start(request: Request) -> Result<Self, WanError> {
        let shared = Arc::new(Shared {
            request,
            book: Book::default(),
            progress: Mutex::default(),
            ended: Condvar::new(),
        });
        let running = Arc::clone(&shared);
        let thread = std::thread::Builder::new()
            .name("wan-copy".to_owned())
            .spawn(move || {
                let result = run(&running);
                if result.is_err() {
                    // Nobody is kept waiting, and nothing is said any more.
                    let control = running.lock().control.clone();
                    control.iter().for_each(|control| control.abort());
                }
                running.lock().result = Some(result);
                running.ended.notify_all();
            })
            .map_err(|error| WanError::io("start a thread", &error))?;
        Ok(Self { shared, thread: Mutex::new(Some(thread)) })
    }

    /// How it ended; None where it has not within `timeout`.
    pub fn wait(&self, timeout: Duration) -> Option<Result<(), WanError>> {
        let held = self.shared.lock();
        let held = self.shared.ended.wait_timeout_while(held, timeout, |p| p.result.is_none());
        held.unwrap_or_else(PoisonError::into_inner).0.result.clone()
    }

    /// How far it is, by name; both ends' counts once it has ended.
    pub fn counts(&self) -> Vec<(&'static str, u64)> {
        let book = &self.shared.book;
        let ours = book.report.tally.read();
        if let Some(verdict) = &self.shared.lock().verdict {
            return verdict.joined(ours);
        }
        let order = std::sync::atomic::Ordering::Relaxed;
        let (files, bytes) = (book.moved_files.load(order), book.moved_bytes.load(order));
        let sent = |name: &str, count: u64| match name {
            "files" => count.max(files),
            "bytes" => count.max(bytes),
            _ => count,
        };
        ours.by_name().into_iter().map(|(name, count)| (name, sent(name, count))).collect()
    }

    /// What could not be copied and why, at both ends.
    pub fn problems(&self) -> Vec<Problem> {
        let mut problems = self.shared.book.report.problems();
        if let Some(verdict) = &self.shared.lock().verdict {
            problems.extend(verdict.problems.iter().cloned());
        }
        problems
    }

    /// What the user should know: a mode that was not granted, UDP that is blocked.
    pub fn notes(&self) -> Vec<String> {
        self.shared.lock().notes.clone()
    }

    /// What both ends added up of all contents that were copied.
    pub fn digest(&self) -> u128 {
        self.shared.book.sum()
    }

    /// How the connection is doing, and what limits it: names and numbers.
    pub fn connection(&self) -> (Vec<(&'static str, f64)>, String) {
        let progress = self.shared.lock();
        let Some(lane) = &progress.lane else { return (Vec::new(), String::new()) };
        let status = lane.status();
        let numbers = vec![
            ("udp", f64::from(u8::from(status.udp))),
            ("round_trip_ms", status.rtt_ns as f64 / 1e6),
            ("rate_bytes_per_s", status.rate_bps / 8.0),
            ("datagram_bytes", status.datagram_bytes as f64),
            ("sent_packets", status.sent_packets as f64),
            ("lost_packets", status.lost_packets as f64),
            ("repaired_bytes", status.repaired_bytes as f64),
            ("duplicate_bytes", status.duplicate_bytes as f64),
            ("refused_packets", status.refused_packets as f64),
        ];
        let limit = if progress.limit.is_empty() {
            status.limit().map_or("", crate::lane::Holder::name).to_owned()
        } else {
            progress.limit.clone()
        };
        (numbers, limit)
    }

    /// End it; its threads are gone when this returns.
    pub fn stop(&self) {
        self.shared.book.cancel();
        let (lane, control) = {
            let progress = self.shared.lock();
            (progress.lane.clone(), progress.control.clone())
        };
        // Whoever waits to send is woken; the other end is still told in words.
        if let Some(lane) = lane {
            lane.end("the copy was stopped");
        }
        if self.wait(Duration::from_secs(3)).is_none() {
            if let Some(control) = control {
                control.abort();
            }
        }
        let thread = self.thread.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(thread) = thread {
            // A panicked thread has told the process's stderr; there is nobody to tell here.
            let _ = thread.join();
        }
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        self.stop();
    }
}

fn run(shared: &Shared) -> Result<(), WanError> {
    let request = &shared.request;
    let (tls, stream, address) = reach(&Server {
        host: &request.host,
        port: request.port,
        identity: &request.identity,
        trusted: request.trusted.as_ref(),
        alpn: tls::ALPN,
    })?;
    let (secret, suite) = tls::packet_keys(&tls)
        .ok_or_else(|| WanError::lost("the server's TLS gives no keys for packets"))?;
    let inbox = Arc::new(Inbox::default());
    let control = Arc::new(Control::start(tls, stream, Arc::clone(&inbox))?);
    shared.lock().control = Some(Arc::clone(&control));
    let connection = u32::from_be_bytes(random());
    let hello = Hello {
        user: request.user.clone(),
        mode: request.mode,
        rate: request.rate_bytes_per_s.unwrap_or(0),
        memory: MEMORY_BYTES,
        connection,
        udp: request.udp_wait.is_some(),
    };
    let asked = Instant::now();
    control.send(kinds::HELLO, &hello.encode());
    let welcome = Welcome::read(&expect(&control, kinds::WELCOME)?)?;
    let rtt_ns = u64::try_from(asked.elapsed().as_nanos()).unwrap_or(u64::MAX);
    if !welcome.note.is_empty() {
        shared.note(welcome.note.clone());
    }
    let rate = request.rate_bytes_per_s.unwrap_or(u64::MAX).min(welcome.rate);
    let agreed = Agreed {
        secret,
        suite,
        side: Side::Client,
        local_connection: connection,
        peer_connection: welcome.connection,
        mode: welcome.mode,
        rate_bps: rate as f64 * 8.0,
        memory_bytes: MEMORY_BYTES.min(welcome.memory),
        rtt_ns,
        largest_datagram: LARGEST_DATAGRAM,
    };
    let lane = Arc::new(way(shared, &control, &inbox, agreed, address, &welcome, rate)?);
    shared.lock().lane = Some(Arc::clone(&lane));
    let (result, verdict) = copy(shared, &control, &lane)?;
    {
        let mut progress = shared.lock();
        progress.limit = match (&request.ends, &verdict) {
            (Ends::Pull { .. }, Some(verdict)) => verdict.limit.clone(),
            _ => lane.status().limit().map_or("", crate::lane::Holder::name).to_owned(),
        };
        progress.verdict = verdict;
    }
    if result.is_ok() {
        lane.close();
        control.close();
    } else {
        lane.end("the copy was given up");
        control.close();
    }
    result
}

/// UDP, or TCP where nothing comes back over UDP.
fn way(
    shared: &Shared,
    control: &Arc<Control>,
    inbox: &Arc<Inbox>,
    agreed: Agreed,
    server: SocketAddr,
    welcome: &Welcome,
    rate: u64,
) -> Result<Lane, WanError> {
    let request = &shared.request;
    let mut out = Writer::default();
    out.u64(agreed.rtt_ns);
    control.send(kinds::OPEN, &out.0);
    let say = |udp: bool| control.send(kinds::WAY, &[u8::from(udp)]);
    let over_tcp = || {
        say(false);
        control.limit((rate < u64::MAX / 8).then_some(rate));
        Lane::tcp(Arc::clone(inbox), Arc::clone(control))
    };
    let Some(wait) = request.udp_wait.filter(|_| welcome.udp) else {
        if request.udp_wait.is_some() {
            shared.note("the server does not use UDP: the data goes over TCP, which long and lossy paths slow down");
        }
        return Ok(over_tcp());
    };
    let any: SocketAddr = if server.is_ipv4() {
        (std::net::Ipv4Addr::UNSPECIFIED, 0).into()
    } else {
        (std::net::Ipv6Addr::UNSPECIFIED, 0).into()
    };
    let endpoint =
        Endpoint::bind(any).map_err(|error| WanError::io("open a UDP socket", &error))?;
    // What goes wrong before UDP was heard is no end of the connection.
    let trial = Arc::new(Inbox::default());
    let lane = UdpLane::start(Arc::new(endpoint), agreed, Some(server), Arc::clone(&trial))
        .ok_or_else(|| WanError::lost("no thread can be started for the connection"))?;
    if lane.heard(wait) {
        say(true);
        // The end of the one is the end of the other.
        return Ok(Lane::udp(trial, lane));
    }
    drop(lane);
    shared.note(format!(
        "nothing came back over UDP from {server} within {:.0} s, so something on the way blocks it: the data goes over \
         TCP, which long and lossy paths slow down; have UDP port {} let through",
        wait.as_secs_f64(),
        request.port
    ));
    Ok(over_tcp())
}

fn copy(
    shared: &Shared,
    control: &Control,
    lane: &Lane,
) -> Result<(Result<(), WanError>, Option<Verdict>), WanError> {
    let request = &shared.request;
    let (book, options) = (&shared.book, &request.options);
    let name = request.known_as.as_ref().map_or_else(
        || format!("wan:{}@{}:{}", request.user, request.host, request.port),
        |name| format!("wan:{name}"),
    );
    match &request.ends {
        Ends::Push { local, remote } => {
            let real = local.canonicalize().map_err(|error| unreadable(local, &error))?;
            let path = bytes(&real);
            let origin = place::origin(&place::of_this_machine, path, local)?;
            let mut from = format!("wan:{}:", this_host()).into_bytes();
            from.extend_from_slice(path);
            let single = origin.single.as_ref().map(|item| item.name.clone());
            let ask =
                Ask { push: true, path: remote.clone(), single, from, options: options.clone() };
            control.send(kinds::ASK, &ask.encode());
            expect(control, kinds::ACCEPTED)?;
            Ok(exchange(control, lane, book, || {
                send(&origin, options, lane, book, request.workers)
            }))
        }
        Ends::Pull { remote, local } => {
            let ask = Ask {
                push: false,
                path: remote.clone(),
                single: None,
                from: Vec::new(),
                options: options.clone(),
            };
            control.send(kinds::ASK, &ask.encode());
            let accepted = expect(control, kinds::ACCEPTED)?;
            let mut reader = Reader(&accepted);
            let single = match reader.bytes().map_err(|_| nonsense())? {
                b"" => None,
                name => Some(single_name(name).map_err(|_| nonsense())?),
            };
            let held =
                place::target(&place::of_this_machine, bytes(local), single.as_deref(), local)?;
            let mut from = format!("{name}:").into_bytes();
            from.extend_from_slice(remote);
            let target = Target {
                root: held.root,
                _held: held.held,
                rename: held.rename,
                shown: local.clone(),
                from,
                privileged: true,
            };
            Ok(exchange(control, lane, book, || {
                receive(&target, options, lane, book, request.workers)
            }))
        }
    }
}

fn bytes(path: &Path) -> &[u8] {
    std::os::unix::ffi::OsStrExt::as_bytes(path.as_os_str())
}

fn unreadable(path: &Path, error: &std::io::Error) -> WanError {
    WanError::new(
        WanErrorKind::Files(waystage_copy::CopyErrorKind::Ends),
        format!("{} cannot be read: {error}", path.display()),
    )
}

fn this_host() -> String {
    rustix::system::uname().nodename().to_string_lossy().into_owned()
}
