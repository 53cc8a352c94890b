//! The process of a node that holds pieces of arrays, and the directories of names that began there.
//!
//! Arrives: connections of this launch's ranks and of readers; segments of shared memory.
//! Leaves: answers, memory, cells of pieces. Must not know: which library its clients use.
//!
//! A thread a connection: it waits for its peer and nothing else. The directory of a name is a lock and a pure state
//! machine; its answers are sent after the lock is given back.

mod connection;
mod pieces;
mod shared;

use std::collections::HashMap;
use std::io;
use std::net::TcpListener;
use std::os::fd::AsFd;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{self, Receiver};
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use crate::address::Address;
use crate::link::Link;
use crate::reach::connect;
use crate::wire::Message;
pub use shared::Options;
use shared::{Free, Shared};

/// Most connections: beyond, a new one is closed.
const CONNECTIONS_MOST: usize = 16_384;

/// Stack of a connection's thread: it recurses nowhere.
const STACK_BYTES: usize = 256 << 10;

/// A running service; dropping it ends it.
pub struct Service {
    shared: Arc<Shared>,
    threads: Mutex<Vec<JoinHandle<()>>>,
}

impl Service {
    /// Listens, and serves from then on.
    ///
    /// # Errors
    /// The kernel's: the socket's path or the address cannot be used.
    pub fn start(options: Options) -> io::Result<Self> {
        // A process that was killed left its socket behind.
        if options.socket.exists() && UnixStream::connect(&options.socket).is_err() {
            std::fs::remove_file(&options.socket)?;
        }
        let local = UnixListener::bind(&options.socket)?;
        std::fs::set_permissions(&options.socket, std::fs::Permissions::from_mode(0o600))?;
        let remote = options.listen.map(TcpListener::bind).transpose()?;
        let tcp = remote.as_ref().map(TcpListener::local_addr).transpose()?;
        let address = Address {
            host: options.host.clone(),
            path: std::path::absolute(&options.socket)?,
            tcp,
        };
        let (frees, freed) = mpsc::channel();
        let shared = Arc::new(Shared {
            address: address.to_string(),
            options,
            names: Mutex::default(),
            pieces: Mutex::default(),
            links: Mutex::default(),
            next: AtomicU64::new(1),
            stopping: AtomicBool::new(false),
            frees,
        });
        let service = Self { shared, threads: Mutex::default() };
        service.spawn("coupling-local", move |shared| {
            accept(shared, local.as_fd(), || local.accept().map(|(stream, _)| Link::unix(stream)));
        })?;
        if let Some(remote) = remote {
            service.spawn("coupling-remote", move |shared| {
                let lease = shared.options.lease;
                let next = || remote.accept().and_then(|(stream, _)| Link::tcp(stream, lease));
                accept(shared, remote.as_fd(), next);
            })?;
        }
        service.spawn("coupling-free", move |shared| free_elsewhere(shared, &freed))?;
        Ok(service)
    }

    fn spawn(&self, name: &str, run: impl FnOnce(&Arc<Shared>) + Send + 'static) -> io::Result<()> {
        let shared = Arc::clone(&self.shared);
        let thread = thread::Builder::new().name(name.to_owned()).spawn(move || run(&shared))?;
        self.threads.lock().push(thread);
        Ok(())
    }

    /// Where other processes reach it.
    #[must_use]
    pub fn address(&self) -> &str {
        &self.shared.address
    }

    /// Names whose directory is here, each with the versions that have appeared and not left; bytes of all pieces.
    #[must_use]
    pub fn status(&self) -> (Vec<(String, Vec<u64>)>, u64) {
        let names = self.shared.names.lock();
        let mut held: Vec<_> = names
            .iter()
            .filter_map(|(name, known)| Some((name.clone(), known.directory.as_ref()?.held())))
            .collect();
        held.sort();
        drop(names);
        (held, self.shared.pieces.lock().bytes())
    }

    /// Clients that are connected.
    #[must_use]
    pub fn clients(&self) -> usize {
        self.shared.links.lock().len()
    }

    /// Ends it: connections are closed, and pieces are given up.
    pub fn stop(&self) {
        self.shared.stopping.store(true, Ordering::Release);
        for link in self.shared.links.lock().values() {
            link.shut();
        }
        // The accepting threads see the flag within their round.
        for thread in self.threads.lock().drain(..) {
            // It has panicked: there is nothing more to end.
            let _ = thread.join();
        }
        // Another process may have removed it.
        let _ = std::fs::remove_file(&self.shared.options.socket);
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        self.stop();
    }
}

/// How often an accepting thread sees whether it shall end.
const ROUND: Duration = Duration::from_millis(100);

fn accept(
    shared: &Arc<Shared>,
    listener: std::os::fd::BorrowedFd<'_>,
    next: impl Fn() -> io::Result<Link>,
) {
    while !shared.stopping.load(Ordering::Acquire) {
        let deadline = Some(Instant::now() + ROUND);
        if crate::link::wait(listener, rustix::event::PollFlags::IN, deadline).is_err() {
            continue;
        }
        let Ok(link) = next() else {
            // Out of descriptors: others must close first.
            thread::sleep(ROUND);
            continue;
        };
        let number = shared.next.fetch_add(1, Ordering::Relaxed);
        let link = Arc::new(link);
        let mut links = shared.links.lock();
        if links.len() >= CONNECTIONS_MOST {
            continue;
        }
        links.insert(number, Arc::clone(&link));
        drop(links);
        let own = Arc::clone(shared);
        let spawned = thread::Builder::new()
            .name("coupling-client".to_owned())
            .stack_size(STACK_BYTES)
            .spawn(move || {
                connection::serve(&own, number, &link);
                own.links.lock().remove(&number);
            });
        if spawned.is_err() {
            shared.links.lock().remove(&number);
        }
    }
}

/// Tells other processes which of their pieces are no longer needed.
fn free_elsewhere(shared: &Arc<Shared>, freed: &Receiver<Free>) {
    let mut peers: HashMap<(String, String), Link> = HashMap::new();
    while !shared.stopping.load(Ordering::Acquire) {
        let Ok(Free { name, token, owner, keys }) = freed.recv_timeout(ROUND) else { continue };
        let key = (name.clone(), owner.clone());
        let message = Message::Free { keys };
        let sent = peers
            .get(&key)
            .is_some_and(|peer| peer.send(&message, None, shared.patience()).is_ok());
        if sent {
            continue;
        }
        peers.remove(&key);
        let Some(address) = Address::parse(&owner) else { continue };
        // A process that cannot be reached has ended, and its pieces with it.
        if let Ok((peer, _)) = connect(&address, &name, &token, shared.options.lease) {
            let _ = peer.send(&message, None, shared.patience());
            peers.insert(key, peer);
        }
    }
}
