//! What all sessions of a server share: options, admission, the sessions, the log.
//!
//! Arrives: sessions that begin and end, lines for the log. Leaves: counts, lines. Must not know: what a session does.

use std::collections::{HashMap, VecDeque};
use std::net::{SocketAddr, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex, MutexGuard};
use waystage_probe::Probes;
use waystage_remote_copy::CopyState;
use waystage_transport::channel::Channel;
use waystage_transport::control::Control;
use waystage_transport::endpoint::Endpoint;
use waystage_transport::error::Error;
use waystage_transport::tls::ServerConfig;
use waystage_transport::waker::Waker;

use crate::admission::{Admission, Counts};
use crate::connection_limits;
use crate::copies::Copies;
use crate::flow::Work;
use crate::options::{ServerOptions, User};

/// What happens in handshakes is said at most so often; it is counted in between.
const SAY_ROUND: Duration = Duration::from_secs(10);

/// Handshakes that failed and are said one by one, in each such time.
const MOST_SAID: u64 = 20;

/// Lines of the log that wait to be taken.
const MOST_LINES: usize = 10_000;

pub(crate) struct Session {
    pub(crate) user: Option<String>,
    pub(crate) copy_state: Arc<CopyState>,
    pub(crate) control: Option<Arc<Control>>,
    /// While it is in its handshake: to throw it out.
    pub(crate) stream: Option<TcpStream>,
    pub(crate) from: Option<SocketAddr>,
    /// What it does, once that is granted.
    pub(crate) work: Option<Work>,
    /// What the control plane grants to this session alone, and whether it pauses it.
    pub(crate) asked: (Option<u64>, bool),
}

/// Make a session one of the user's, if the user gets one more.
pub(crate) fn admit(
    options: &ServerOptions,
    sessions: &mut HashMap<u64, Session>,
    id: u64,
    user: &User,
) -> Result<(), Error> {
    let held = sessions.values().filter_map(|session| session.user.as_deref());
    let limits = (options.connections, &*options.users);
    if let Some(why) = connection_limits::refuses(limits, held, user) {
        return Err(Error::Busy(format!("{why}: try again when one has ended")));
    }
    if let Some(session) = sessions.get_mut(&id) {
        session.user = Some(user.name.clone());
    }
    Ok(())
}

/// The places for handshakes, and what of them was said.
pub(crate) struct Entrance {
    pub(crate) admission: Admission,
    pub(crate) said: Counts,
    pub(crate) said_at: Instant,
}

pub(crate) struct Shared {
    pub(crate) options: ServerOptions,
    pub(crate) tls: Arc<ServerConfig>,
    pub(crate) endpoint: Option<Arc<Endpoint>>,
    pub(crate) sessions: Mutex<HashMap<u64, Session>>,
    pub(crate) entrance: Mutex<Entrance>,
    pub(crate) copies: Copies<Arc<Channel>>,
    pub(crate) ended: Condvar,
    pub(crate) lines: Mutex<VecDeque<String>>,
    /// A line was added, or a session has ended.
    pub(crate) changed: Condvar,
    pub(crate) next: AtomicU64,
    pub(crate) probes: Probes,
    /// What holds for now: for all, and for users by name.
    pub(crate) limits: Mutex<(Option<u64>, HashMap<String, u64>)>,
    /// What the control plane grants to all sessions together, and whether it pauses them.
    pub(crate) granted: Mutex<(Option<u64>, bool)>,
    /// Bytes of sessions that have ended.
    pub(crate) past_bytes: AtomicU64,
    pub(crate) draining: AtomicBool,
    /// Wakes the thread that accepts connections.
    pub(crate) waker: Waker,
}

impl Shared {
    pub(crate) fn lock(&self) -> MutexGuard<'_, HashMap<u64, Session>> {
        self.sessions.lock()
    }

    /// Let each session check whether it is to end.
    pub(crate) fn interrupt(&self) {
        for session in self.lock().values() {
            if let Some(control) = &session.control {
                control.interrupt();
            }
        }
    }

    /// Bytes a second that a connection of this user may carry for now, where that was said.
    pub(crate) fn limit(&self, user: &str) -> Option<u64> {
        let limits = self.limits.lock();
        limits.0.into_iter().chain(limits.1.get(user).copied()).min()
    }

    pub(crate) fn say(&self, line: String) {
        let mut lines = self.lines.lock();
        if lines.len() < MOST_LINES {
            lines.push_back(line);
        }
        self.changed.notify_all();
    }

    /// Wake `Server::wait`: under the lock, so that a thread that is about to wait is woken.
    pub(crate) fn wake(&self) {
        let _lines = self.lines.lock();
        self.changed.notify_all();
    }

    pub(crate) fn entrance(&self) -> MutexGuard<'_, Entrance> {
        self.entrance.lock()
    }

    /// Now and then, or at the end: how many were turned away.
    pub(crate) fn say_turned_away(&self, at_once: bool) {
        let mut entrance = self.entrance();
        let (now, counts) = (entrance.admission.counts(), entrance.said);
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
                 way, {} of one whose handshakes had come to nothing, {} above the rate limit, {} for want of room), and {unsaid} \
                 failed handshakes are not listed",
                passed.as_secs_f64(),
                now.crowded - counts.crowded,
                now.penalty - counts.penalty,
                now.rate_limited - counts.rate_limited,
                now.full - counts.full,
            ));
        }
    }

    /// The handshake came to nothing: this is said, unless many did.
    pub(crate) fn failed(&self, id: u64, line: String) {
        let mut entrance = self.entrance();
        entrance.admission.failed(id, Instant::now());
        let lately = entrance.admission.counts().failed - entrance.said.failed;
        drop(entrance);
        if lately <= MOST_SAID {
            self.say(line);
        }
    }
}
