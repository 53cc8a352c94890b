//! The service of a node: it gives programs memory for their tags, and tells the kernel which connections are theirs.
//!
//! Arrives: packets on a unix socket, whose sender's user the kernel names. Leaves: replies with descriptors.
//! Must not know: what a tag says, but for the job's number, which it alone writes.
//!
//! A program proves a connection to be its own by sending the socket; the service asks the kernel for its number.
//! Its tags hold for these connections alone and have the job's number of its ticket. So no job forges another's.

use std::collections::{HashMap, HashSet};
use std::io;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::Arc;
use std::thread;
use std::time::{SystemTime, UNIX_EPOCH};

use parking_lot::Mutex;

use crate::attach::{attach, Attached};
use crate::kernel;
use crate::program::{program, Known, Layout, ENTRIES, KNOWN_BYTES, PLACES, RING_BYTES, TRIES};
use crate::ticket::Ticket;
use crate::wire::{self, listen, peer, readable, receive, send, Message, MAGIC};

/// Processes of a node that can have tags at a time.
const PROCESSES: u32 = 1024;
/// Connections of a process that can have tags.
const SLOTS: u32 = 256;
const JOB: u32 = 1;
const JOIN: u32 = 2;
const SOCKET: u32 = 3;

const OK: u32 = 0;
const REFUSED: u32 = 1;
const FULL: u32 = 2;

/// Why the service cannot start.
#[derive(Debug, thiserror::Error)]
pub enum TagError {
    /// The layout is none.
    #[error("a layout's widths must be 1 to 32 bits and together 40")]
    Layout,
    /// No permission, or a kernel without what is needed.
    #[error("the kernel does not take the program that stamps tags ({0}): it needs root (CAP_BPF and CAP_NET_ADMIN)")]
    Kernel(io::Error),
    /// Nothing to attach to.
    #[error("interface {0}: {1}")]
    Interface(String, io::Error),
    /// The socket cannot be made.
    #[error("socket {0}: {1}")]
    Listen(String, io::Error),
}

/// What a service needs.
#[derive(Clone, Debug)]
pub struct Setup {
    /// Interfaces whose packets get tags: INTERFACE of the starting thread's namespace, or NAMESPACE/INTERFACE.
    pub interfaces: Vec<String>,
    /// The unix socket that programs ask at.
    pub socket: PathBuf,
    /// Where a tag's fields are.
    pub layout: Layout,
    /// The key that all services of the cluster have, and no program.
    pub key: [u8; 32],
    /// The first of the numbers that this service gives to jobs, and how many.
    pub numbers: (u64, u64),
}

/// A running service; dropping it ends it, and no packet gets a tag after that.
#[derive(Debug)]
pub struct Service {
    ends: Arc<AtomicBool>,
    listener: Option<thread::JoinHandle<()>>,
    shared: Arc<Shared>,
    _links: Vec<Attached>,
    /// Open, so that /proc/PID/fdinfo has the kernel's count of its runs.
    _program: OwnedFd,
}

#[derive(Debug)]
struct Shared {
    setup: Setup,
    sockets: OwnedFd,
    processes: OwnedFd,
    held: Mutex<Held>,
    connections: AtomicU64,
}

impl Shared {
    /// Puts a connection into one of its places. None if all are taken, or the kernel refuses.
    fn remember(&self, known: Known) -> Option<u32> {
        let mut held = self.held.lock();
        #[allow(clippy::cast_possible_truncation)]
        let first = known.cookie as u32;
        let place = (0..TRIES)
            .map(|step| first.wrapping_add(step) % PLACES)
            .find(|place| !held.places.contains(place))?;
        // The cookie last: a packet finds all of the entry, or none.
        for cookie in [0, known.cookie] {
            kernel::update(&self.sockets, &place, &Known { cookie, ..known }).ok()?;
        }
        held.places.insert(place);
        Some(place)
    }

    fn forget(&self, (place, known): (u32, Known)) {
        let mut held = self.held.lock();
        let _ = kernel::update(&self.sockets, &place, &Known { cookie: 0, ..known });
        held.places.remove(&place);
    }
}

#[derive(Debug, Default)]
struct Held {
    /// Numbers of running jobs that this service gave.
    jobs: HashMap<u64, u64>,
    /// The last number given.
    last: u64,
    /// The newest serial seen of every number: an ended job's ticket is worth nothing once its number is another's.
    newest: HashMap<u64, u64>,
    free: Vec<u32>,
    /// Of the places for connections, those that are taken.
    places: HashSet<u32>,
}

impl Service {
    /// Starts it.
    ///
    /// # Errors
    /// [`TagError`].
    pub fn start(setup: Setup) -> Result<Self, TagError> {
        if !setup.layout.is_valid() {
            return Err(TagError::Layout);
        }
        let template = kernel::shared_array(RING_BYTES, SLOTS).map_err(TagError::Kernel)?;
        let sockets = kernel::array(KNOWN_BYTES, PLACES).map_err(TagError::Kernel)?;
        let processes = kernel::array_of_maps(&template, PROCESSES).map_err(TagError::Kernel)?;
        let made = program(sockets.as_raw_fd(), processes.as_raw_fd(), setup.layout);
        let loaded = kernel::load(&made).map_err(TagError::Kernel)?;
        let mut links = Vec::new();
        for name in &setup.interfaces {
            let link = attach_named(&loaded, name)
                .map_err(|Unattached(error)| TagError::Interface(name.clone(), error))?;
            links.push(link);
        }
        let listening = listen(&setup.socket)
            .map_err(|error| TagError::Listen(setup.socket.display().to_string(), error))?;
        let held = Held { free: (0..PROCESSES).rev().collect(), ..Held::default() };
        let connections = AtomicU64::new(0);
        let shared =
            Arc::new(Shared { setup, sockets, processes, held: Mutex::new(held), connections });
        let ends = Arc::new(AtomicBool::new(false));
        let listener = {
            let (shared, ends) = (Arc::clone(&shared), Arc::clone(&ends));
            thread::spawn(move || accept(&listening, &shared, &ends))
        };
        Ok(Self { ends, listener: Some(listener), shared, _links: links, _program: loaded })
    }

    /// Programs connected now.
    pub fn connections(&self) -> u64 {
        self.shared.connections.load(Ordering::Relaxed)
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        self.ends.store(true, Ordering::Relaxed);
        if let Some(listener) = self.listener.take() {
            let _ = listener.join();
        }
        let _ = std::fs::remove_file(&self.shared.setup.socket);
    }
}

struct Unattached(io::Error);

impl From<waystage_netns::NamespaceError> for Unattached {
    fn from(error: waystage_netns::NamespaceError) -> Self {
        Self(io::Error::other(error))
    }
}

/// Attaches to INTERFACE or NAMESPACE/INTERFACE.
fn attach_named(loaded: &OwnedFd, name: &str) -> Result<Attached, Unattached> {
    let (namespace, interface) =
        name.split_once('/').map_or((None, name), |(namespace, name)| (Some(namespace), name));
    waystage_netns::within(namespace, || {
        let number = kernel::interface(interface).map_err(Unattached)?;
        attach(loaded, number).map_err(Unattached)
    })
}

fn accept(listening: &OwnedFd, shared: &Arc<Shared>, ends: &Arc<AtomicBool>) {
    let mut running: Vec<thread::JoinHandle<()>> = Vec::new();
    while !ends.load(Ordering::Relaxed) {
        running.retain(|thread| !thread.is_finished());
        if !readable(listening.as_raw_fd()) {
            continue;
        }
        let Some(connection) = wire::accept(listening) else { continue };
        // Two for each process, and room for launchers.
        if running.len() >= 3 * PROCESSES as usize {
            continue;
        }
        let (shared, ends) = (Arc::clone(shared), Arc::clone(ends));
        let spawned = thread::Builder::new()
            .name("tags".into())
            .stack_size(128 << 10)
            .spawn(move || Client::new(&shared, connection).serve(&ends));
        running.extend(spawned);
    }
    for thread in running {
        let _ = thread.join();
    }
}

/// One program.
struct Client<'a> {
    shared: &'a Shared,
    connection: OwnedFd,
    /// The job's number, if it was given by this service to this launcher.
    job: Option<u64>,
    joined: Option<Joined>,
}

struct Joined {
    process: u32,
    number: u64,
    serial: u64,
    /// Its connections, by slot.
    connections: HashMap<u32, (u32, Known)>,
    rings: OwnedFd,
}

impl<'a> Client<'a> {
    fn new(shared: &'a Shared, connection: OwnedFd) -> Self {
        shared.connections.fetch_add(1, Ordering::Relaxed);
        Self { shared, connection, job: None, joined: None }
    }

    fn serve(mut self, ends: &AtomicBool) {
        let Some(uid) = peer(self.connection.as_raw_fd()) else { return };
        while !ends.load(Ordering::Relaxed) {
            if !readable(self.connection.as_raw_fd()) {
                continue;
            }
            let Some((request, sent)) = receive(self.connection.as_raw_fd()) else { return };
            if request.magic != MAGIC {
                return;
            }
            let (reply, descriptor) = match request.word {
                JOB => (self.give_number(uid), None),
                JOIN => self.join(uid, &request),
                SOCKET => (self.add_socket(&request, sent), None),
                _ => (refusal(REFUSED), None),
            };
            if !send(self.connection.as_raw_fd(), &reply, descriptor) {
                return;
            }
        }
    }

    fn give_number(&mut self, uid: u32) -> Message {
        if self.job.is_some() {
            return refusal(REFUSED);
        }
        let (first, count) = self.shared.setup.numbers;
        let mut held = self.shared.held.lock();
        // One after the other, so that a number rests as long as it can before another job has it.
        let next = (1..=count)
            .map(|step| first + (held.last + step) % count)
            .find(|number| !held.jobs.contains_key(number));
        let Some(number) = next else { return refusal(FULL) };
        let serial = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |t| t.as_nanos());
        let serial = u64::try_from(serial).unwrap_or(u64::MAX);
        held.last = number - first;
        held.jobs.insert(number, serial);
        held.newest.insert(number, serial);
        self.job = Some(number);
        let ticket = Ticket::new(&self.shared.setup.key, number, u64::from(uid), serial);
        Message { magic: MAGIC, word: OK, number, uid: ticket.uid, serial, code: ticket.code }
    }

    fn join(&mut self, uid: u32, request: &Message) -> (Message, Option<RawFd>) {
        let ticket = Ticket {
            number: request.number,
            uid: request.uid,
            serial: request.serial,
            code: request.code,
        };
        let genuine = ticket.is_genuine(&self.shared.setup.key) && ticket.uid == u64::from(uid);
        if !genuine || self.joined.is_some() {
            return (refusal(REFUSED), None);
        }
        let mut held = self.shared.held.lock();
        let newest = held.newest.entry(ticket.number).or_insert(ticket.serial);
        if ticket.serial < *newest {
            return (refusal(REFUSED), None);
        }
        *newest = ticket.serial;
        let Some(process) = held.free.pop() else { return (refusal(FULL), None) };
        let Ok(rings) = kernel::shared_array(RING_BYTES, SLOTS) else {
            held.free.push(process);
            return (refusal(FULL), None);
        };
        let descriptor = rings.as_raw_fd();
        if kernel::update(&self.shared.processes, &process, &descriptor).is_err() {
            held.free.push(process);
            return (refusal(FULL), None);
        }
        drop(held);
        let mut reply = Message { magic: MAGIC, word: OK, ..Message::default() };
        reply.number = u64::from(SLOTS) | u64::from(ENTRIES) << 32;
        reply.uid = u64::from(RING_BYTES);
        for (at, (shift, width)) in self.shared.setup.layout.ranks().into_iter().enumerate() {
            reply.code[2 * at] = shift;
            reply.code[2 * at + 1] = width;
        }
        self.joined = Some(Joined {
            process,
            number: ticket.number,
            serial: ticket.serial,
            connections: HashMap::new(),
            rings,
        });
        (reply, self.joined.as_ref().map(|joined| joined.rings.as_raw_fd()))
    }

    fn add_socket(&mut self, request: &Message, sent: Option<OwnedFd>) -> Message {
        let (Some(joined), Some(socket)) = (self.joined.as_mut(), sent) else {
            return refusal(REFUSED);
        };
        if request.number >= u64::from(SLOTS) {
            return refusal(REFUSED);
        }
        let Ok(cookie) = kernel::tcp_cookie(&socket) else { return refusal(REFUSED) };
        // A later job has the number: what is left of this one stays without tags.
        let newest = self.shared.held.lock().newest.get(&joined.number).copied();
        if newest != Some(joined.serial) {
            return refusal(REFUSED);
        }
        // A slot belongs to one connection: a closed one's is used again.
        let slot = u32::try_from(request.number).unwrap_or(0);
        if let Some(old) = joined.connections.remove(&slot) {
            self.shared.forget(old);
        }
        let width = self.shared.setup.layout.job;
        let job = joined.number.min((1 << width) - 1) << self.shared.setup.layout.job_shift();
        let known = Known { cookie, process: joined.process, slot, job, base: 0 };
        let Some(place) = self.shared.remember(known) else { return refusal(FULL) };
        joined.connections.insert(slot, (place, known));
        Message { magic: MAGIC, word: OK, ..Message::default() }
    }
}

impl Drop for Client<'_> {
    fn drop(&mut self) {
        self.shared.connections.fetch_sub(1, Ordering::Relaxed);
        if let Some(joined) = self.joined.take() {
            for connection in joined.connections.into_values() {
                self.shared.forget(connection);
            }
            kernel::delete(&self.shared.processes, &joined.process);
            self.shared.held.lock().free.push(joined.process);
        }
        if let Some(number) = self.job.take() {
            self.shared.held.lock().jobs.remove(&number);
        }
    }
}

fn refusal(word: u32) -> Message {
    Message { magic: MAGIC, word, ..Message::default() }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn known(cookie: u64) -> Known {
        Known { cookie, process: 3, slot: 2, job: 1 << 30, base: 0 }
    }

    #[test]
    fn connections_whose_cookies_meet_have_four_places_and_leave_them_to_others() {
        let Ok(template) = kernel::shared_array(RING_BYTES, 1) else {
            eprintln!("skipped: no maps of BPF here");
            return;
        };
        let layout = Layout {
            edge: 2,
            position: 2,
            job: 6,
            communicator: 6,
            source: 10,
            destination: 10,
            host_key: 4,
        };
        let shared = Shared {
            setup: Setup {
                interfaces: Vec::new(),
                socket: PathBuf::new(),
                layout,
                key: [0; 32],
                numbers: (1, 1),
            },
            sockets: kernel::array(KNOWN_BYTES, PLACES).expect("a map"),
            processes: kernel::array_of_maps(&template, 1).expect("a map of maps"),
            held: Mutex::default(),
            connections: AtomicU64::new(0),
        };
        let last = u64::from(PLACES) - 1;
        let places: Vec<_> = (0..4)
            .map(|lap| shared.remember(known(last + lap * u64::from(PLACES))).expect("room"))
            .collect();
        assert_eq!(places, [PLACES - 1, 0, 1, 2]);
        assert_eq!(shared.remember(known(last + 4 * u64::from(PLACES))), None);
        assert_eq!(shared.remember(known(5)), Some(5), "others have theirs");
        shared.forget((1, known(last + 2 * u64::from(PLACES))));
        assert_eq!(shared.remember(known(last + 4 * u64::from(PLACES))), Some(1));
    }
}
