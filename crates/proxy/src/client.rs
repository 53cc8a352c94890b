//! The client's end of a proxy: keeps a session with the server, and relays programs' connections over it.
//!
//! Arrives: a server, places to listen, rules. Leaves: a proxy in progress, that can be waited for, asked, drained and
//! stopped. Must not know: Python, where keys are kept.
//!
//! One thread makes sessions, another carries connections. A session that is lost takes its connections with it: their
//! programs see a reset, since bytes that the peer may or may not have received cannot be distinguished. New
//! connections wait for the next one.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex, MutexGuard};
use waystage_pacing::{Cause, FlowCounts};
use waystage_protocol::protect::Side;
use waystage_transport::control::Control;
use waystage_transport::error::Error;
use waystage_transport::flow_limits::FlowLimits;
use waystage_transport::handshake::client::{start_handshake, Peer, SessionRequest};
use waystage_transport::handshake::hello::Purpose;
use waystage_transport::message::MEMORY_BYTES;
use waystage_transport::message_queue::MessageQueue;
use waystage_transport::socket::Socket;
use waystage_transport::stats::{Recent, Status};
use waystage_transport::waker::Waker;

use crate::destination::Destination;
use crate::engine::{Engine, Phase, Settings};
use crate::listener::Place;
use crate::record::{Counts, Notice};
use crate::rules::{Rule, Rules, Verdict};
use crate::server::agree;
use crate::session_transport::SessionTransport;
use crate::sockets::Sockets;

/// Statistics of a session are at most twice this old.
const STATUS_TIME: Duration = Duration::from_millis(500);

/// Between attempts to reach the server again: at first, and at most.
const FIRST_PAUSE: Duration = Duration::from_millis(200);
const LONGEST_PAUSE: Duration = Duration::from_secs(5);

/// Things to tell that wait to be taken.
const MOST_NOTICES: usize = 10_000;

/// What a proxy is.
#[derive(Debug, Clone)]
pub struct ProxyOptions {
    /// With which server, and as whom.
    pub server: Peer,
    /// Where connections are taken here.
    pub places: Vec<Place>,
    /// Where the server takes connections, and what each leads to from here.
    pub reverse: Vec<(SocketAddr, Destination)>,
    /// For destinations; those that fit none go through the session.
    pub rules: Vec<Rule>,
    /// How long a connection waits for a session.
    pub wait: Duration,
}

struct State {
    phase: Phase,
    /// A session that was made and is not taken up.
    made: Option<SessionTransport>,
    /// Whether there is none and one is to be made.
    wanted: bool,
    /// The one that is being made, to end it.
    making: Option<Arc<Control>>,
    notices: VecDeque<Notice>,
    status: Option<Status>,
    recent: Recent,
    failed: Option<Error>,
    result: Option<Result<(), Error>>,
}

struct Shared {
    options: ProxyOptions,
    waker: Arc<Waker>,
    counts: Arc<Counts>,
    limits: FlowLimits,
    state: Mutex<State>,
    changed: Condvar,
}

/// A proxy in progress. Dropping it ends every connection.
pub struct Proxy {
    shared: Arc<Shared>,
    listening: Vec<SocketAddr>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

impl Proxy {
    /// Listen, and begin to reach the server.
    pub fn start(options: ProxyOptions) -> Result<Self, Error> {
        let failed = |error: std::io::Error| Error::io("start a thread", &error);
        let waker = Arc::new(Waker::new().map_err(failed)?);
        let counts = Arc::new(Counts::default());
        let settings = Settings {
            rules: Rules {
                rules: options.rules.clone(),
                otherwise: Verdict::Allow,
                here: Verdict::Direct,
            },
            side: Side::Client,
            reverse: options.reverse.iter().map(|(_, to)| to.clone()).collect(),
            wait: options.wait,
            memory_bytes: MEMORY_BYTES,
        };
        let sockets = Sockets::new(Arc::clone(&waker))?;
        let mut engine = Engine::new(sockets, settings, Arc::clone(&counts));
        let mut listening = Vec::new();
        for place in &options.places {
            listening.push(engine.listen(place).map_err(|error| taken(place, &error))?);
        }
        let state = State {
            phase: Phase::Running,
            made: None,
            wanted: true,
            making: None,
            notices: VecDeque::new(),
            status: None,
            recent: Recent::default(),
            failed: None,
            result: None,
        };
        let (state, changed) = (Mutex::new(state), Condvar::new());
        let shared = Arc::new(Shared {
            options,
            waker,
            counts,
            limits: FlowLimits::default(),
            state,
            changed,
        });
        let (making, carrying) = (Arc::clone(&shared), Arc::clone(&shared));
        // It may wait for a host that does not answer, and ends by itself.
        std::thread::Builder::new()
            .name("wan-dial".to_owned())
            .spawn(move || making.make_sessions())
            .map_err(failed)?;
        let thread = std::thread::Builder::new()
            .name("wan-proxy".to_owned())
            .spawn(move || {
                let result = carrying.carry(&mut engine);
                carrying.lock().result = Some(result);
                carrying.changed.notify_all();
            })
            .map_err(failed)?;
        Ok(Self { shared, listening, thread: Mutex::new(Some(thread)) })
    }

    /// Where it listens, place by place.
    pub fn listening(&self) -> &[SocketAddr] {
        &self.listening
    }

    /// How it ended; None where it has not within `timeout`.
    pub fn wait(&self, timeout: Duration) -> Option<Result<(), Error>> {
        let mut state = self.shared.lock();
        let waiting = |state: &mut State| state.result.is_none() && state.notices.is_empty();
        self.shared.changed.wait_while_for(&mut state, waiting, timeout);
        state.result.clone()
    }

    /// What there is to tell since the last call.
    pub fn notices(&self) -> Vec<Notice> {
        self.shared.lock().notices.drain(..).collect()
    }

    /// Numbers by name.
    pub fn counts(&self) -> Vec<(&'static str, u64)> {
        self.shared.counts.by_name()
    }

    /// How the session is doing, by name; empty where there is none.
    pub fn connection(&self) -> Vec<(&'static str, f64)> {
        self.shared.lock().status.as_ref().map_or_else(Vec::new, Status::numbers)
    }

    /// Limit the rate of each direction, in bytes a second; None for what was agreed on.
    pub fn set_rate(&self, bytes_per_s: Option<u64>) {
        self.shared.limits.set_rate(bytes_per_s);
        self.shared.waker.wake();
    }

    /// Carry no bytes in either direction, or go on. Connections of programs stay open.
    pub fn set_paused(&self, paused: bool) {
        self.shared.limits.set_paused(paused);
        self.shared.waker.wake();
    }

    /// Bytes of programs so far, in both directions.
    pub fn flow(&self) -> FlowCounts {
        let counts = &self.shared.counts;
        let mut state = self.shared.lock();
        let State { status, recent, .. } = &mut *state;
        let measured = status
            .as_ref()
            .and_then(|status| recent.cause(Instant::now(), &status.held_ns, counts.both()));
        let paused = self.shared.limits.is_paused();
        FlowCounts {
            bytes_done: counts.bytes(),
            bytes_total: 0,
            limited_by: if paused { Some(Cause::Paused) } else { measured },
        }
    }

    /// Take no more connections, and end with the last.
    pub fn drain(&self) {
        let mut state = self.shared.lock();
        if state.phase == Phase::Running {
            state.phase = Phase::Draining;
        }
        drop(state);
        self.shared.waker.wake();
    }

    /// End it; open connections are reset.
    pub fn stop(&self) {
        let making = {
            let mut state = self.shared.lock();
            state.phase = Phase::Stopping;
            state.making.take()
        };
        self.shared.waker.wake();
        self.shared.changed.notify_all();
        if let Some(control) = making {
            control.abort();
        }
        let thread = self.thread.lock().take();
        if let Some(thread) = thread {
            // A panic was printed on stderr already.
            let _ = thread.join();
        }
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.stop();
    }
}

fn taken(place: &Place, error: &std::io::Error) -> Error {
    let remedy = match error.kind() {
        std::io::ErrorKind::PermissionDenied => {
            "ports below 1024 and --tproxy need rights of root (CAP_NET_BIND_SERVICE, CAP_NET_ADMIN)"
        }
        _ => "choose another address or port",
    };
    let text = format!("cannot listen at {}: {error}: {remedy}", place.listen);
    Error::Unreachable(text)
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }

    fn tell(&self, notices: Vec<Notice>) {
        if notices.is_empty() {
            return;
        }
        let mut state = self.lock();
        let room = MOST_NOTICES.saturating_sub(state.notices.len());
        state.notices.extend(notices.into_iter().take(room));
        drop(state);
        self.changed.notify_all();
    }

    fn carry(&self, engine: &mut Engine) -> Result<(), Error> {
        // Sleeps are to end when they should: see docs/decisions/0024-wide-area-sockets.md.
        let _ = rustix::thread::set_current_timer_slack(std::num::NonZeroU64::new(1));
        let mut looked = Instant::now();
        loop {
            engine.clear_wakers();
            let (phase, made, failed) = {
                let mut state = self.lock();
                (state.phase, state.made.take(), state.failed.take())
            };
            if let Some(transport) = made {
                let up = engine.attach_session(transport);
                up.map_err(|error| Error::io("take a session up", &error))?;
            }
            let most = match failed {
                Some(_) => Some(Duration::ZERO),
                None => engine.has_session().then_some(STATUS_TIME),
            };
            engine.pace(&self.limits);
            let over = engine.turn(phase, most);
            self.tell(engine.notices());
            if let Some(why) = over {
                self.tell(vec![Notice::Lost(why)]);
                let mut state = self.lock();
                (state.wanted, state.status) = (true, None);
                drop(state);
                self.changed.notify_all();
            }
            if looked.elapsed() > STATUS_TIME {
                looked = Instant::now();
                self.lock().status = engine.status();
            }
            let over = failed.is_some() || phase == Phase::Stopping;
            if over || (phase == Phase::Draining && engine.is_drained()) {
                self.lock().status = engine.status();
                engine.finish("the proxy was stopped");
                self.tell(engine.notices());
                self.lock().phase = Phase::Stopping;
                self.changed.notify_all();
                return failed.map_or(Ok(()), Err);
            }
        }
    }

    fn make_sessions(&self) {
        let (mut first, mut pause) = (true, FIRST_PAUSE);
        loop {
            let mut state = self.lock();
            let idle = |state: &mut State| !state.wanted && state.phase != Phase::Stopping;
            self.changed.wait_while(&mut state, idle);
            if state.phase == Phase::Stopping {
                return;
            }
            drop(state);
            let made = self.make_session();
            let mut state = self.lock();
            state.making = None;
            match made {
                Ok((transport, notice)) => {
                    (state.made, state.wanted) = (Some(transport), false);
                    drop(state);
                    (first, pause) = (false, FIRST_PAUSE);
                    self.tell(vec![notice]);
                    self.waker.wake();
                }
                // Who was reached once is waited for, as long as it is the same.
                Err(error) if first || matches!(error, Error::Untrusted { .. }) => {
                    state.failed = Some(error);
                    drop(state);
                    return self.waker.wake();
                }
                Err(error) => {
                    drop(state);
                    self.tell(vec![Notice::Lost(error.to_string())]);
                    let mut state = self.lock();
                    let stays = |state: &mut State| state.phase != Phase::Stopping;
                    self.changed.wait_while_for(&mut state, stays, pause);
                    pause = (2 * pause).min(LONGEST_PAUSE);
                }
            }
        }
    }

    fn make_session(&self) -> Result<(SessionTransport, Notice), Error> {
        let peer = &self.options.server;
        let failed = |error: std::io::Error| Error::io("begin a session", &error);
        let session_request = SessionRequest {
            purpose: Purpose::Proxy,
            copy: [0; 16],
            connections: 1,
            memory_bytes: MEMORY_BYTES,
            group: None,
        };
        let handshake = start_handshake(
            peer,
            &session_request,
            &[],
            Arc::new(MessageQueue::default()),
            |control| {
                self.lock().making = Some(Arc::clone(control));
            },
        )?;
        let welcomed = handshake.wait_for_welcome(peer)?;
        self.limits.new_peer(welcomed.version);
        let mut notes: Vec<String> = welcomed.note.iter().cloned().collect();
        let (control, incoming) = (Arc::clone(&handshake.control), Arc::clone(&handshake.incoming));
        let transport = match peer.udp_wait.filter(|_| welcomed.udp) {
            Some(wait) => {
                let (parameters, server) = (welcomed.parameters.clone(), handshake.server);
                let socket = Socket::bind(handshake.any(), false);
                let socket = socket.map_err(|error| Error::io("open a UDP socket", &error))?;
                let mut transport =
                    SessionTransport::own(socket, parameters, server, control, incoming)
                        .map_err(failed)?;
                if transport.until(wait, |transport| transport.heard().then_some(())).is_some() {
                    handshake.choose(true);
                    transport
                } else {
                    handshake.choose(false);
                    notes.push(handshake.blocked(peer, wait));
                    transport.over_tcp(welcomed.limit())
                }
            }
            None => {
                handshake.choose(false);
                notes.extend(handshake.without_udp(peer));
                SessionTransport::tcp(
                    control,
                    incoming,
                    welcomed.parameters.rtt_ns,
                    welcomed.limit(),
                )
                .map_err(failed)?
            }
        };
        let places: Vec<SocketAddr> = self.options.reverse.iter().map(|(at, _)| *at).collect();
        let reverse = agree(&handshake, &places)?.iter().map(ToString::to_string).collect();
        let notice = Notice::Session { udp: transport.is_udp(), reverse, notes };
        Ok((transport, notice))
    }
}
