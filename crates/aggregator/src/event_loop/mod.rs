//! The event loop: sockets and threads around [`Node`]. It only translates.
//!
//! Arrives: connections, messages, raw bytes, outcomes of storage requests, commands. Leaves: the effects carried out.
//! Must not know: why an effect is wanted.

use std::collections::{BTreeSet, HashMap};
use std::io;
use std::net::TcpStream;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::Arc;
use std::time::Duration;

use rustix::net::sockopt::socket_peercred;
use waystage_collective_wire::frame::MOST_BODY_BYTES;
use waystage_collective_wire::peer::Peer;
use waystage_collective_wire::FileId;

use crate::auth::{self, Secret, GREETING_BYTES};
use crate::clock::now_ns;
use crate::connection::Connection;
use crate::coverage::Coverage;
use crate::effect::LinkId;
use crate::listeners::{bind, Listeners};
use crate::memory::Pool;
use crate::node::Node;
use crate::options::{delay_of, Options};
use crate::patience::Patience;
use crate::poller::{Poller, Waker};
use crate::shared::{Command, Shared};
use crate::status::Status;
use crate::storage::{Done, Storage};

mod arrivals;
mod traffic;

const UNIX: u64 = 1;
const TCP: u64 = 2;
const FIRST: u64 = 16;

/// Bytes read from one connection before the others have their turn.
const BUDGET: usize = 8 << 20;

/// The loop checks its timers at least so often.
const TICK: Duration = Duration::from_millis(250);

/// Greetings of other nodes in progress. Each has a thread, for [`auth::GREETING`] at most.
const MOST_GREETINGS: usize = 64;

/// Connections of ranks, also of those that have not said who they are.
const MOST_RANKS: usize = 4096;

/// Operations wait this long for a node that is not connected.
const ABSENCE_NS: u64 = 5_000_000_000;

/// A rank that does not answer a request to pack or unpack within this number of leases is cut off.
const ANSWER_LEASES: u32 = 6;

/// A rank that has not said who it is after this long is cut off.
const SILENCE_NS: u64 = 10_000_000_000;

/// What was sent.
enum Sent {
    Data(Arc<str>, u64),
    Read(LinkId, u64),
    Copy,
}

/// What raw bytes belong to.
enum Raw {
    Data { pull: u64, coverage: Coverage, next: u64 },
    Read { pull: u64 },
    Copy { file: FileId, copy: u64 },
    Nothing,
}

#[derive(Clone)]
enum Kind {
    Rank { admitted: bool },
    Node,
    Aggregator(Arc<str>),
}

struct Open {
    connection: Connection<Sent, Raw>,
    kind: Kind,
    heard_ns: u64,
    sent_ns: u64,
    writing: bool,
}

/// The way to an aggregator.
enum Way {
    /// It is being made; messages wait.
    Making(Vec<Vec<u8>>),
    Made(u64),
}

pub(crate) struct EventLoop {
    options: Options,
    secret: Secret,
    shared: Arc<Shared>,
    listeners: Listeners,
    poller: Poller,
    pool: Arc<Pool>,
    storage: Storage,
    node: Node,
    open: HashMap<u64, Open>,
    ways: HashMap<Arc<str>, Way>,
    next: u64,
    greetings: Arc<AtomicUsize>,
    dirty: BTreeSet<u64>,
    turned_ns: u64,
    ticked_ns: u64,
    had_rank_ns: Option<u64>,
    began_ns: u64,
    stopping: bool,
    parent: Option<OwnedFd>,
}

impl EventLoop {
    pub(crate) fn new(options: Options, shared: Arc<Shared>) -> io::Result<Self> {
        let poller = Poller::new()?;
        let pool = Arc::new(Pool::new(options.memory)?);
        let listeners = bind(&options)?;
        poller.add(&listeners.unix, UNIX, false)?;
        poller.add(&listeners.tcp, TCP, false)?;
        let waker = poller.waker();
        let (lease, timeout) = (options.lease, options.storage_timeout);
        let storage = Storage::start(Arc::clone(&pool), lease, timeout, move || waker.wake())?;
        let node = Node::new(listeners.address.as_str().into(), options.memory);
        let parent = options.parent.and_then(rustix_pid).map(open_pid).transpose()?;
        let now = now_ns();
        let secret = Secret::new(&options.token);
        let mut found = Self {
            options,
            secret,
            shared,
            listeners,
            poller,
            pool,
            storage,
            node,
            open: HashMap::new(),
            ways: HashMap::new(),
            next: FIRST,
            greetings: Arc::default(),
            dirty: BTreeSet::new(),
            turned_ns: now,
            ticked_ns: now,
            had_rank_ns: None,
            began_ns: now,
            stopping: false,
            parent,
        };
        found.set_delay();
        found.publish();
        Ok(found)
    }

    pub(crate) fn waker(&self) -> Waker {
        self.poller.waker()
    }

    pub(crate) fn address(&self) -> &str {
        &self.listeners.address
    }

    pub(crate) fn run(&mut self) -> io::Result<()> {
        // What was acknowledged is written first, for the storage's timeout at most.
        while !self.stopping || self.node.aggregator.is_writing_behind() {
            self.turn()?;
        }
        let _ = std::fs::remove_file(&self.options.socket);
        let _ = std::fs::remove_file(format!("{}.port", self.options.socket.display()));
        Ok(())
    }

    fn turn(&mut self) -> io::Result<()> {
        let ready = self.poller.wait(TICK);
        let now = now_ns();
        let lease = u64::try_from(self.options.lease.as_nanos()).unwrap_or(u64::MAX);
        if now - self.turned_ns > lease / 4 * 3 {
            // Others have begun an epoch without it: first of all, leave the old one.
            self.leave_all(now);
        }
        self.turned_ns = now;
        self.storage.alive();
        for done in self.storage.done() {
            let effects = match done {
                Done::Transferred(job, outcome, eof) => {
                    self.node.transferred(job, outcome, eof, now)
                }
                Done::Opened(file, outcome) => self.node.opened(file, outcome, now),
                Done::Created(rank, file, outcome, stripe) => {
                    self.node.created(rank, file, outcome, stripe, now)
                }
                Done::Synced(job, outcome) => self.node.synced(job, outcome, now),
                Done::Late(job, outcome) => self.node.late(job, outcome, now),
            };
            self.carry_out(effects);
        }
        for (number, read, write) in ready {
            match number {
                UNIX => self.accept_ranks(now),
                TCP => self.accept_nodes(),
                number => self.serve(number, read, write, now),
            }
        }
        let commands = std::mem::take(&mut *self.shared.commands.lock());
        for command in commands {
            self.command(command, now);
        }
        if now - self.ticked_ns >= u64::try_from(TICK.as_nanos()).unwrap_or(0) {
            self.ticked_ns = now;
            self.tick(now, lease);
        }
        self.flush(now);
        Ok(())
    }

    /// Timers: leases, greetings, the end of the process.
    fn tick(&mut self, now: u64, lease: u64) {
        self.set_delay();
        self.storage.check();
        let mut lost = Vec::new();
        for (number, open) in &mut self.open {
            match open.kind {
                Kind::Rank { admitted } => {
                    if !admitted && now.saturating_sub(open.heard_ns) > SILENCE_NS {
                        lost.push(*number);
                    }
                }
                Kind::Node | Kind::Aggregator(_) => {
                    // An aggregator that was cut off leaves its nodes, and writes nothing more, before they go on
                    // without it.
                    let patience =
                        if matches!(open.kind, Kind::Node) { lease / 8 * 5 } else { lease };
                    if now.saturating_sub(open.heard_ns) > patience {
                        lost.push(*number);
                    } else if now.saturating_sub(open.sent_ns) > lease / 8 {
                        open.connection.message(&Peer::Ping {}.encode());
                        self.dirty.insert(*number);
                    }
                }
            }
        }
        for number in lost {
            self.end(number, true, now);
        }
        let effects = self.node.tick(now, self.patience());
        self.carry_out(effects);
        if self.node.gatherer.rank_count() > 0 {
            self.had_rank_ns = Some(now);
        } else if let Some(linger) = self.options.linger {
            let linger = u64::try_from(linger.as_nanos()).unwrap_or(u64::MAX);
            let (since, most) = match self.had_rank_ns {
                Some(since) => (since, linger),
                None => (self.began_ns, linger.saturating_mul(10)),
            };
            // Other nodes may still need this aggregator.
            let (_, operations) = self.node.aggregator.counts();
            self.stopping |= now.saturating_sub(since) > most && operations == 0;
        }
        if let Some(parent) = &self.parent {
            let mut fds = [rustix::event::PollFd::new(parent, rustix::event::PollFlags::IN)];
            let none = rustix::event::Timespec { tv_sec: 0, tv_nsec: 0 };
            self.stopping |=
                rustix::event::poll(&mut fds, Some(&none)).is_ok_and(|ready| ready > 0);
        }
        self.publish();
    }

    fn set_delay(&self) {
        let delay = self.options.delay_file.as_deref().map(delay_of);
        self.storage.set_delay(self.options.delay + delay.unwrap_or_default());
    }

    fn patience(&self) -> Patience {
        let ticks = |time: Duration| {
            u32::try_from(time.as_nanos() / TICK.as_nanos().max(1)).unwrap_or(u32::MAX)
        };
        Patience {
            absence_ns: ABSENCE_NS,
            answer_ticks: ticks(self.options.lease * ANSWER_LEASES),
            // By then an aggregator has reported what hangs in its storage.
            fence_ticks: ticks(self.options.storage_timeout + self.options.lease),
        }
    }

    fn publish(&mut self) {
        let (files, operations) = self.node.aggregator.counts();
        let control = &self.node.gatherer.control;
        let found = Status {
            address: self.listeners.address.clone(),
            ranks: self.node.gatherer.rank_count(),
            pool_bytes: self.pool.bytes(),
            image_bytes: self.node.aggregator.image_bytes(),
            files,
            operations,
            apps: control.apps.iter().map(|(name, app)| (name.to_string(), app.clone())).collect(),
            served: self
                .storage
                .served()
                .into_iter()
                .map(|(name, served)| (name.to_string(), served))
                .collect(),
            lost: control.dead().iter().map(ToString::to_string).collect(),
        };
        *self.shared.status.lock() = found;
    }

    fn command(&mut self, command: Command, now: u64) {
        match command {
            Command::Accepted(stream) => {
                if stream.set_nonblocking(true).is_ok() {
                    self.add(stream.into(), Kind::Node, MOST_BODY_BYTES, now);
                }
            }
            Command::Connected(address, stream) => self.connected(&address, stream, now),
            Command::SetServerMap(app, aggregators) => {
                self.node.gatherer.control.set_server_map(&app, aggregators);
            }
            Command::Grant(app, weight, until_ns) => {
                self.node.gatherer.control.grant(&app, weight, until_ns, now);
                self.storage.set_weight(&app.as_str().into(), weight);
                let effects = self.node.tick(now, self.patience());
                self.carry_out(effects);
            }
            Command::SetScheduled(app, scheduled) => {
                self.node.gatherer.control.set_scheduled(&app, scheduled, now);
                let effects = self.node.tick(now, self.patience());
                self.carry_out(effects);
            }
            Command::Stop => self.stopping = true,
        }
    }

    fn accept_ranks(&mut self, now: u64) {
        while let Ok((stream, _)) = self.listeners.unix.accept() {
            let own = rustix::process::geteuid();
            let allowed = socket_peercred(&stream).is_ok_and(|peer| peer.uid == own);
            let ranks =
                self.open.values().filter(|open| matches!(open.kind, Kind::Rank { .. })).count();
            if allowed && ranks < MOST_RANKS && stream.set_nonblocking(true).is_ok() {
                self.add(stream.into(), Kind::Rank { admitted: false }, GREETING_BYTES, now);
            }
        }
    }

    fn accept_nodes(&mut self) {
        while let Ok((mut stream, _)) = self.listeners.tcp.accept() {
            if self.greetings.fetch_add(1, Ordering::AcqRel) >= MOST_GREETINGS {
                self.greetings.fetch_sub(1, Ordering::AcqRel);
                continue;
            }
            let (secret, greetings) = (self.secret.clone(), Arc::clone(&self.greetings));
            let (shared, waker) = (Arc::clone(&self.shared), self.poller.waker());
            let greet = move || {
                let blocking = stream.set_nonblocking(false);
                if let Ok(_address) = blocking.and_then(|()| auth::accept(&mut stream, &secret)) {
                    shared.commands.lock().push(Command::Accepted(stream));
                    waker.wake();
                }
                greetings.fetch_sub(1, Ordering::AcqRel);
            };
            if std::thread::Builder::new().name("ws-greeting".into()).spawn(greet).is_err() {
                self.greetings.fetch_sub(1, Ordering::AcqRel);
            }
        }
    }

    fn add(&mut self, socket: OwnedFd, kind: Kind, most_body: usize, now: u64) -> Option<u64> {
        let number = self.next;
        self.next += 1;
        self.poller.add(&socket, number, false).ok()?;
        let connection = Connection::new(socket, most_body);
        self.open
            .insert(number, Open { connection, kind, heard_ns: now, sent_ns: now, writing: false });
        Some(number)
    }

    fn make_way(&mut self, address: &Arc<str>) {
        if self.ways.contains_key(address) {
            return;
        }
        self.ways.insert(Arc::clone(address), Way::Making(Vec::new()));
        let (to, own, secret) =
            (Arc::clone(address), self.listeners.address.clone(), self.secret.clone());
        let (shared, waker) = (Arc::clone(&self.shared), self.poller.waker());
        let connect = move || {
            let stream = auth::connect(&to, &own, &secret).ok();
            shared.commands.lock().push(Command::Connected(to, stream));
            waker.wake();
        };
        if std::thread::Builder::new().name("ws-connect".into()).spawn(connect).is_err() {
            self.shared.commands.lock().push(Command::Connected(Arc::clone(address), None));
            self.poller.waker().wake();
        }
    }

    fn connected(&mut self, address: &Arc<str>, stream: Option<TcpStream>, now: u64) {
        let made =
            stream.filter(|stream| stream.set_nonblocking(true).is_ok()).and_then(|stream| {
                self.add(stream.into(), Kind::Aggregator(Arc::clone(address)), MOST_BODY_BYTES, now)
            });
        let before = match made {
            Some(number) => self.ways.insert(Arc::clone(address), Way::Made(number)),
            None => self.ways.remove(address),
        };
        let effects = match (made, before) {
            (Some(number), before) => {
                if let (Some(open), Some(Way::Making(bodies))) =
                    (self.open.get_mut(&number), before)
                {
                    bodies.iter().for_each(|body| {
                        open.connection.message(body);
                    });
                    self.dirty.insert(number);
                }
                self.node.reached(address, now)
            }
            (None, _) => self.node.aggregator_lost(address, now),
        };
        self.carry_out(effects);
    }

    /// A connection has ended. `silent`: nothing was heard, for the lease.
    fn end(&mut self, number: u64, silent: bool, now: u64) {
        let Some(open) = self.open.remove(&number) else {
            return;
        };
        let kind = open.kind;
        drop(open.connection.unsent());
        let effects = match kind {
            Kind::Rank { admitted: false } => Vec::new(),
            Kind::Rank { admitted: true } => self.node.rank_left(number, now),
            Kind::Node => self.node.node_lost(number, silent, now),
            Kind::Aggregator(address) => {
                self.ways.remove(&address);
                self.node.aggregator_lost(&address, now)
            }
        };
        self.carry_out(effects);
    }

    /// Leave all peers, as they have left this process.
    fn leave_all(&mut self, now: u64) {
        let peers: Vec<u64> = self
            .open
            .iter()
            .filter(|(_, open)| !matches!(open.kind, Kind::Rank { .. }))
            .map(|(number, _)| *number)
            .collect();
        for number in peers {
            self.end(number, true, now);
        }
    }
}

fn rustix_pid(pid: u32) -> Option<rustix::process::Pid> {
    i32::try_from(pid).ok().and_then(rustix::process::Pid::from_raw)
}

fn open_pid(pid: rustix::process::Pid) -> io::Result<OwnedFd> {
    Ok(rustix::process::pidfd_open(pid, rustix::process::PidfdFlags::empty())?)
}
