//! One client's stay: let in by its key, told what it gets, served within its roots.

use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustls::{Connection, ServerConnection};
use waystage_catalog::Root;
use waystage_protocol::congestion::coupled::Group;
use waystage_protocol::congestion::grant::grant;
use waystage_protocol::protect::Side;

use super::places;
use super::rules::rules;
use super::{Shared, SharedRoot, User, NO_CAP_BYTES_PER_S};
use crate::asked::Asked;
use crate::book::Book;
use crate::control::Control;
use crate::dial::{coupled, part_of};
use crate::endpoint::Endpoint;
use crate::error::{WanError, WanErrorKind};
use crate::hello::{Hello, Purpose, Welcome};
use crate::identity::PublicKey;
use crate::lane::{memory_of_each, Inbox, Lane, GO_ON};
use crate::list;
use crate::member::{Member, Room};
use crate::place;
use crate::probe::{hello, serve_stream, Guest};
use crate::proxy::{serve, Rights, Wish};
use crate::receive::receive;
use crate::reception::Target;
use crate::send::send;
use crate::session::{exchange, expect, expect_within, kinds, nonsense, refusal, Ask};
use crate::tls::{self, PacketKeys};
use crate::trust::Trust;
use crate::udp::{Agreed, UdpLane, LARGEST_DATAGRAM};
use crate::wire::Writer;

/// A client that is slower in its handshake is turned away.
const HANDSHAKE_TIME: Duration = Duration::from_secs(10);

/// A connection that comes in: what it is told, and what it is to have.
pub(super) struct Coming<'a> {
    pub(super) welcome: Welcome,
    pub(super) agreed: Agreed,
    pub(super) udp: Option<&'a Arc<Endpoint>>,
    /// Bytes a second over TLS.
    pub(super) limit: Option<u64>,
}

/// One client's stay.
pub(super) struct Visit<'a> {
    pub(super) shared: &'a Shared,
    pub(super) id: u64,
    pub(super) from: SocketAddr,
    pub(super) book: &'a Book,
    /// How the log calls it.
    pub(super) who: String,
    /// Whether it is through its handshake and known.
    pub(super) is_in: bool,
}

impl<'a> Visit<'a> {
    pub(super) fn serve(&mut self, stream: TcpStream) -> Result<String, WanError> {
        let (tls, key) = self.handshake(&stream)?;
        let what = tls.alpn_protocol().map(<[u8]>::to_vec).unwrap_or_default();
        if what == tls::PROBE_ALPN {
            return self.probed(tls, stream, &key);
        }
        if what == tls::STREAM_ALPN {
            if self.shared.options.users.iter().any(|user| user.keys.contains(&key)) {
                self.comes_in();
            }
            let stopped = || self.book.is_stopped();
            return serve_stream(&self.shared.probes, tls, &stream, &stopped);
        }
        let keys = tls::packet_keys(&tls).ok_or_else(|| WanError::lost("its TLS gives no keys"))?;
        let inbox = Arc::new(Inbox::default());
        let control = Arc::new(Control::start(tls, stream, Arc::clone(&inbox), GO_ON)?);
        if let Some(session) = self.shared.lock().get_mut(&self.id) {
            session.control = Some(Arc::clone(&control));
        }
        let served = self.welcomed(&control, &inbox, &key, keys);
        if let Err(error) = &served {
            // Where the client still listens, it is told in words.
            control.send(kinds::REFUSED, &refusal(error));
        }
        control.close();
        served
    }

    fn handshake(&self, mut stream: &TcpStream) -> Result<(Connection, PublicKey), WanError> {
        let failed = |error: std::io::Error| WanError::lost(format!("no handshake: {error}"));
        stream.set_nonblocking(false).map_err(failed)?;
        stream.set_read_timeout(Some(HANDSHAKE_TIME)).map_err(failed)?;
        stream.set_write_timeout(Some(HANDSHAKE_TIME)).map_err(failed)?;
        let mut tls = ServerConnection::new(Arc::clone(&self.shared.tls))
            .map_err(|error| WanError::lost(format!("no handshake: {error}")))?;
        let deadline = Instant::now() + HANDSHAKE_TIME;
        while tls.is_handshaking() || tls.wants_write() {
            if tls.wants_write() {
                tls.write_tls(&mut stream).map_err(failed)?;
                continue;
            }
            // One that sends a byte now and then is not waited for either.
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(WanError::lost("no handshake within its time"));
            }
            stream.set_read_timeout(Some(left)).map_err(failed)?;
            if tls.read_tls(&mut stream).map_err(failed)? == 0 {
                return Err(WanError::lost("no handshake: it went away"));
            }
            if let Err(error) = tls.process_new_packets() {
                // It is told why, if it speaks TLS at all.
                let _ = tls.write_tls(&mut stream);
                return Err(WanError::lost(format!("no handshake: {error}")));
            }
        }
        let tls = Connection::Server(tls);
        let key = tls::peer_key(&tls).ok_or_else(|| WanError::lost("it showed no key"))?;
        Ok((tls, key))
    }

    fn welcomed(
        &mut self,
        control: &Arc<Control>,
        inbox: &Arc<Inbox>,
        key: &PublicKey,
        keys: PacketKeys,
    ) -> Result<String, WanError> {
        let options = &self.shared.options;
        let hello = expect_within(control, kinds::HELLO, HANDSHAKE_TIME)?;
        let (hello, version) = Hello::read(&hello)?;
        let user = self.user(&hello.user, key)?;
        self.who = format!("{}@{}", user.name, self.from);
        if hello.purpose != Purpose::More {
            self.admit(user)?;
        }
        let cap = self.cap(user);
        let wanted = if hello.rate == 0 { u64::MAX } else { hello.rate };
        let granted =
            grant(hello.mode, &user.name, self.from.ip(), &rules(&options.users), cap as f64 * 8.0);
        let udp = self.shared.endpoint.as_ref().filter(|_| hello.udp);
        let connections = match hello.purpose {
            Purpose::Proxy => 1,
            _ => hello.connections.clamp(1, options.copy_connections.max(1)),
        };
        let joint = match hello.purpose {
            Purpose::More => Some(self.shared.copies.join(hello.copy, key)?),
            _ => None,
        };
        let group = match &joint {
            Some(joint) => joint.group.clone(),
            None => coupled((connections > 1).then(Group::default), granted.mode),
        };
        let memory = memory_of_each(options.memory_bytes, connections).min(hello.memory);
        inbox.allow(memory.saturating_mul(u64::from(connections)));
        let welcome = Welcome {
            version,
            mode: granted.mode,
            note: granted.downgraded.unwrap_or_default(),
            rate: cap,
            memory,
            udp: udp.is_some(),
            connections,
        };
        let limit = cap.min(wanted);
        let agreed = Agreed {
            secret: keys.secret,
            suite: keys.suite,
            side: Side::Server,
            local_connection: keys.server_connection,
            peer_connection: keys.client_connection,
            mode: granted.mode,
            rate_bps: part_of(limit, connections, &group) as f64 * 8.0,
            memory_bytes: memory,
            rtt_ns: hello.rtt_ns.min(10_000_000_000),
            largest_datagram: LARGEST_DATAGRAM,
            proved: Some(self.from.ip()),
            group: group.clone(),
        };
        let limit = (limit < NO_CAP_BYTES_PER_S).then(|| part_of(limit, connections, &None));
        if let Some(joint) = joint {
            return self.carry(control, &joint, Coming { welcome, agreed, udp, limit });
        }
        if hello.purpose == Purpose::Proxy {
            control.send(kinds::WELCOME, &welcome.encode());
            // Its session keeps what holds now.
            let now = self.shared.limit(&user.name);
            let limit = [limit, now].into_iter().flatten().min();
            let rate_bps = now.map_or(agreed.rate_bps, |now| agreed.rate_bps.min(now as f64 * 8.0));
            let agreed = Agreed { rate_bps, ..agreed };
            return self.proxy((control, inbox), (udp, agreed), limit, user);
        }
        let room = Arc::new(Room::default());
        let lane = udp.and_then(|endpoint| {
            let to = (Arc::clone(inbox), Arc::clone(&room), 0);
            UdpLane::answer(Arc::clone(endpoint), agreed, to).ok()
        });
        let welcome = Welcome { udp: lane.is_some(), ..welcome };
        control.limit(limit);
        let first = Member::new(Arc::clone(control), lane, Arc::clone(&room));
        let lane = Arc::new(Lane::new(Arc::clone(inbox), room, first));
        // From the welcome on the client may bring others.
        let open = self.shared.copies.open(hello.copy, key, &lane, (group, connections));
        let _open = open.ok_or_else(nonsense)?;
        control.send(kinds::WELCOME, &welcome.encode());
        self.copy(control, &lane, user)
    }

    /// Carry the client's connections.
    fn proxy(
        &self,
        way: (&Arc<Control>, &Arc<Inbox>),
        datagrams: (Option<&Arc<Endpoint>>, Agreed),
        limit: Option<u64>,
        user: &User,
    ) -> Result<String, WanError> {
        take_on(user)?;
        let rights = Rights { reach: &user.reach, listen: &user.listen };
        let wish = || {
            if self.book.is_cancelled() {
                Wish::Stop
            } else if self.shared.draining.load(Ordering::SeqCst) {
                Wish::Drain
            } else {
                Wish::Go
            }
        };
        let say = |line: String| self.shared.say(format!("{} {line}", self.who));
        serve(way, datagrams, limit, &rights, wish, say)
    }

    /// A client that wants to measure the path.
    fn probed(
        &mut self,
        tls: Connection,
        stream: TcpStream,
        key: &PublicKey,
    ) -> Result<String, WanError> {
        let tags = tls::probe_tags(&tls).ok_or_else(|| WanError::lost("its TLS gives no tags"))?;
        let local =
            stream.local_addr().map_err(|error| WanError::io("ask for an address", &error))?;
        let inbox = Arc::new(Inbox::default());
        let control = Arc::new(Control::start(tls, stream, inbox, "nothing more is measured")?);
        if let Some(session) = self.shared.lock().get_mut(&self.id) {
            session.control = Some(Arc::clone(&control));
        }
        let served = self.probing(&control, key, local, tags);
        if let Err(error) = &served {
            control.send(kinds::REFUSED, &refusal(error));
        }
        control.close();
        served
    }

    fn probing(
        &mut self,
        control: &Control,
        key: &PublicKey,
        local: SocketAddr,
        tags: [u64; 2],
    ) -> Result<String, WanError> {
        let shared: &'a Shared = self.shared;
        let rules = &shared.options.probing;
        let (name, port) = hello(&expect_within(control, kinds::HELLO, HANDSHAKE_TIME)?)?;
        let user = self.user(&name, key)?;
        self.who = format!("{}@{}", user.name, self.from);
        if !rules.users.contains(&user.name) {
            return Err(WanError::new(
                WanErrorKind::Refused,
                format!(
                    "the server does not let {} probe: ask its administrator for `probe = true` in its configuration",
                    user.name
                ),
            ));
        }
        self.admit(user)?;
        let book = self.book;
        crate::probe::serve(&Guest {
            probes: &shared.probes,
            control,
            endpoint: shared.endpoint.as_deref(),
            local,
            from: self.from,
            tags,
            port,
            rate: self
                .cap(user)
                .min(shared.limit(&user.name).unwrap_or(u64::MAX))
                .min(rules.rate_bytes_per_s.unwrap_or(u64::MAX)),
            longest: rules.longest,
            stopped: &|| book.is_stopped(),
        })
    }

    /// The user who owns the key and is meant. Who is meant and does not own it is told the same as who does not exist.
    fn user(&self, name: &str, key: &PublicKey) -> Result<&'a User, WanError> {
        let shared: &'a Shared = self.shared;
        let users = &shared.options.users;
        let found = users
            .iter()
            .find(|user| (name.is_empty() || user.name == name) && user.keys.contains(key));
        found.ok_or_else(|| {
            let whom = if name.is_empty() { "any user".to_owned() } else { format!("user {name:?}") };
            WanError::new(
                WanErrorKind::Refused,
                format!(
                    "the server does not know this key as {whom}'s: ask its administrator to add `{}` to the user's keys",
                    key.line()
                ),
            )
        })
    }

    /// Bytes a second that a user's connection may carry.
    fn cap(&self, user: &User) -> u64 {
        let all = self.shared.options.rate_bytes_per_s.unwrap_or(NO_CAP_BYTES_PER_S);
        user.rate_bytes_per_s.unwrap_or(all).min(all)
    }

    /// The handshake is over, and has shown a user: others may have its place.
    pub(super) fn comes_in(&mut self) {
        self.is_in = true;
        self.shared.entrance().door.came_in(self.id, Instant::now());
        if let Some(session) = self.shared.lock().get_mut(&self.id) {
            session.stream = None;
        }
    }

    fn admit(&mut self, user: &User) -> Result<(), WanError> {
        self.comes_in();
        let options = &self.shared.options;
        let mut sessions = self.shared.lock();
        let held = sessions.values().filter_map(|session| session.user.as_deref());
        if let Some(why) = places::refuses((options.connections, &options.users), held, user) {
            return Err(WanError::new(
                WanErrorKind::Files(waystage_copy::CopyErrorKind::Busy),
                format!("{why}: try again when one has ended"),
            ));
        }
        if let Some(session) = sessions.get_mut(&self.id) {
            session.user = Some(user.name.clone());
            session.book.limits.set_own(self.shared.limit(&user.name));
        }
        Ok(())
    }

    fn copy(&self, control: &Arc<Control>, lane: &Lane, user: &User) -> Result<String, WanError> {
        take_on(user)?;
        let options = &self.shared.options;
        let ask = Ask::read(&expect(control, kinds::ASK)?)?;
        let shown = PathBuf::from(String::from_utf8_lossy(&ask.path).into_owned());
        let (shared_root, rest) = self.below(&ask.path, user, ask.push)?;
        let root = Root::open(&shared_root.path)
            .map_err(|error| WanError::io("open the server's directory", &error))?;
        let open = |path: &[u8]| root.directory(path);
        let book = self.book;
        // Which way the client has found to be open.
        let hear = |kind: u8, body: &[u8]| match (kind, body) {
            (kinds::WAY, [way @ (0 | 1)]) if lane.first().choose(*way == 1) => Ok(()),
            _ => Err(nonsense()),
        };
        let result = if ask.push {
            let held = place::target(&open, &rest, ask.single.as_deref(), &shown, ask.options.dry)?;
            let mut from = format!("wan:{}@", user.name).into_bytes();
            from.extend_from_slice(&ask.from);
            let target = Target {
                root: held.root,
                _held: held.held,
                rename: held.rename,
                shown: shown.clone(),
                from,
                trust: Trust::in_client(shared_root.privileged),
                asked: Asked::anything(),
            };
            control.send(kinds::ACCEPTED, &[]);
            exchange(control, lane, book, hear, || {
                receive(&target, &ask.options, lane, book, options.workers)
            })
        } else {
            let origin = place::origin(&open, &rest, &shown)?;
            let names = if ask.options.listed {
                Some(list::hear(control, options.memory_bytes)?)
            } else {
                None
            };
            list::suits(&origin, names.as_ref(), &shown)?;
            let mut out = Writer::default();
            out.bytes(origin.single.as_ref().map_or(&b""[..], |item| &item.name));
            control.send(kinds::ACCEPTED, &out.0);
            exchange(control, lane, book, hear, || {
                send(&origin, names.as_ref(), &ask.options, lane, book, options.workers)
            })
        };
        let (result, verdict) = result;
        let what = match (ask.options.dry.is_dry(), ask.push) {
            (false, true) => "wrote",
            (false, false) => "read",
            (true, true) => "tried to write",
            (true, false) => "tried to read",
        };
        match result {
            Ok(()) => {
                control.begin_close();
                lane.close();
                let counts = book.report.tally.read();
                let theirs = verdict.map(|verdict| verdict.joined(counts)).unwrap_or_default();
                let count = |name: &str| {
                    theirs.iter().find(|(other, _)| *other == name).map_or(0, |(_, count)| *count)
                };
                Ok(format!(
                    "{what} {}: {} files, {} bytes over {}, {} problems",
                    shown.display(),
                    count("files"),
                    count("bytes"),
                    lane.way_name(),
                    count("errors") + count("changed") + count("vanished") + count("lost"),
                ))
            }
            Err(error) => {
                lane.end(&error.text);
                Err(error)
            }
        }
    }

    /// The root that a path lies below, and the path below it.
    fn below(
        &self,
        path: &[u8],
        user: &User,
        write: bool,
    ) -> Result<(&SharedRoot, Vec<u8>), WanError> {
        use std::os::unix::ffi::OsStrExt;
        let roots: Vec<&SharedRoot> = (self.shared.options.roots.iter())
            .filter(|root| root.users.is_empty() || root.users.contains(&user.name))
            .collect();
        let denied = |why: &str| {
            let given: Vec<String> = roots
                .iter()
                .map(|root| {
                    let way = if root.write { "read and write" } else { "read" };
                    format!("{} ({way})", root.path.display())
                })
                .collect();
            let given = if given.is_empty() { "nothing".to_owned() } else { given.join(", ") };
            WanError::new(
                WanErrorKind::Refused,
                format!(
                    "{} {why}: the server gives {} {given}",
                    String::from_utf8_lossy(path),
                    user.name
                ),
            )
        };
        let names = |path: &[u8]| -> Option<Vec<Vec<u8>>> {
            let names =
                path.split(|byte| *byte == b'/').filter(|name| !matches!(*name, b"" | b"."));
            let names: Vec<Vec<u8>> = names.map(<[u8]>::to_vec).collect();
            let good = names.is_empty() || crate::entry::path(&names.join(&b'/')).is_ok();
            good.then_some(names)
        };
        let wanted =
            names(path).ok_or_else(|| denied("is no path that can be taken (`..` is not)"))?;
        let below = |root: &Path| -> Option<Vec<u8>> {
            if !path.starts_with(b"/") {
                return Some(wanted.join(&b'/'));
            }
            let top = names(root.as_os_str().as_bytes())?;
            wanted.starts_with(&top).then(|| wanted[top.len()..].join(&b'/'))
        };
        let found = roots.iter().find_map(|root| below(&root.path).map(|rest| (*root, rest)));
        match found {
            None => Err(denied("lies in no directory of yours")),
            Some((root, _)) if write && !root.write => Err(denied("may only be read")),
            Some(found) => Ok(found),
        }
    }
}

/// From here on this thread, and those that it starts, act as the user's account.
fn take_on(user: &User) -> Result<(), WanError> {
    let Some(account) = &user.account else { return Ok(()) };
    account.take_on().map_err(|error| {
        WanError::new(
            WanErrorKind::Files(waystage_copy::CopyErrorKind::Failed),
            format!(
                "the server cannot act as the account {} that it has for {}: {error}",
                account.uid, user.name
            ),
        )
    })
}
