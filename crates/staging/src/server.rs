//! The server: gives and takes files of its modules, a thread for each connection.

use std::collections::HashMap;
use std::io;
use std::net::{Shutdown, SocketAddrV4, TcpListener, TcpStream};
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::Duration;

use parking_lot::{Condvar, Mutex};
use rustix::io::Errno;
use socket2::SockRef;
use waystage_catalog::Root;
use waystage_netns::within;
use waystage_remote_copy::WanError;
use waystage_remote_copy::{receive_files, send_files, CopyState, Verdict};

use crate::channel::{Kind, Stop, TcpChannel};
use crate::error::{shown, StagingError};
use crate::request::StagingRequest;
use crate::sources::{check_sources, fits, room};

/// Connections that are served at once; further ones wait to be accepted.
const MAX_CONNECTIONS: usize = 256;

/// Where the system has no descriptors or memory left, accepting is tried again after this.
const PAUSE: Duration = Duration::from_millis(50);

/// A directory that a server shows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Module {
    /// Its name below the server's root.
    pub name: String,
    /// Whether files may be put there.
    pub writable: bool,
}

/// A listening server. Dropped, it stops.
pub struct Server {
    shared: Arc<Shared>,
    listener: TcpListener,
    address: SocketAddrV4,
    acceptor: Mutex<Option<JoinHandle<()>>>,
}

/// The directories of a server, its root open: what is mounted or moved over its path later does not change what is
/// shown.
struct Share {
    root: Root,
    modules: Vec<Module>,
}

struct Shared {
    share: Share,
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    stopping: bool,
    failure: Option<StagingError>,
    next: u64,
    connections: HashMap<u64, Arc<Stop>>,
}

impl Server {
    /// Listen on `address` in the network namespace of that name; port 0 takes any that is free.
    ///
    /// # Errors
    /// Where a module does not exist, the port is in use, or the namespace cannot be entered.
    pub fn start(
        namespace: Option<&str>,
        address: SocketAddrV4,
        root: &Path,
        modules: Vec<Module>,
    ) -> Result<Self, StagingError> {
        let share = Share::open(root, modules)?;
        let shared = Arc::new(Shared { share, state: Mutex::default(), changed: Condvar::new() });
        let unbound = |error: io::Error| StagingError::socket(address, &error);
        let listener = within(namespace, || TcpListener::bind(address).map_err(unbound))?;
        let bound = match listener.local_addr() {
            Ok(std::net::SocketAddr::V4(bound)) => bound,
            _ => address,
        };
        let (accepting, copy) = (Arc::clone(&shared), listener.try_clone().map_err(unbound)?);
        let acceptor = thread::Builder::new()
            .name("ws-file-server".into())
            .spawn(move || accept_all(&accepting, &copy))
            .map_err(unbound)?;
        Ok(Self { shared, listener, address: bound, acceptor: Mutex::new(Some(acceptor)) })
    }

    /// Where it listens.
    #[must_use]
    pub fn address(&self) -> SocketAddrV4 {
        self.address
    }

    /// Why it no longer serves; None where it still does after `timeout`.
    #[must_use]
    pub fn wait(&self, timeout: Duration) -> Option<StagingError> {
        let mut state = self.shared.state.lock();
        let serves = |state: &mut State| !state.stopping && state.failure.is_none();
        self.shared.changed.wait_while_for(&mut state, serves, timeout);
        // A thread that panicked has left no failure.
        let is_alive = self.acceptor.lock().as_ref().is_some_and(|thread| !thread.is_finished());
        if is_alive && serves(&mut state) {
            return None;
        }
        let stopped = || StagingError::Cancelled("it was stopped".to_owned());
        Some(state.failure.clone().unwrap_or_else(stopped))
    }

    /// End it and every transfer with it.
    pub fn stop(&self) {
        {
            let mut state = self.shared.state.lock();
            state.stopping = true;
            state.connections.values().for_each(|stop| stop.wish());
            self.shared.changed.notify_all();
        }
        // On Linux this wakes the thread that accepts. It may have ended before.
        let _ = SockRef::from(&self.listener.as_fd()).shutdown(Shutdown::Both);
        let acceptor = self.acceptor.lock().take();
        if let Some(acceptor) = acceptor {
            let _ = acceptor.join();
        }
        let mut state = self.shared.state.lock();
        self.shared.changed.wait_while(&mut state, |state| !state.connections.is_empty());
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.stop();
    }
}

impl Shared {
    /// Wait until a connection has ended, which frees descriptors, or the server stops; others free some, too, so at
    /// most for [`PAUSE`].
    fn wait_for_descriptors(&self) {
        let mut state = self.state.lock();
        let before = state.connections.len();
        let as_before = |state: &mut State| !state.stopping && state.connections.len() >= before;
        self.changed.wait_while_for(&mut state, as_before, PAUSE);
    }

    /// Wait for room for one more connection; false where the server stops.
    fn wait_for_room(&self) -> bool {
        let mut state = self.state.lock();
        let is_full =
            |state: &mut State| !state.stopping && state.connections.len() >= MAX_CONNECTIONS;
        self.changed.wait_while(&mut state, is_full);
        !state.stopping
    }
}

/// Takes a connection off the list however its thread ends.
struct Entry {
    shared: Arc<Shared>,
    number: u64,
}

impl Drop for Entry {
    fn drop(&mut self) {
        self.shared.state.lock().connections.remove(&self.number);
        self.shared.changed.notify_all();
    }
}

fn accept_all(shared: &Arc<Shared>, listener: &TcpListener) {
    while shared.wait_for_room() {
        match listener.accept() {
            Ok((stream, peer)) => begin(shared, stream, peer.to_string()),
            Err(_) if shared.state.lock().stopping => return,
            Err(error) => match error.raw_os_error().map(Errno::from_raw_os_error) {
                Some(Errno::INTR | Errno::CONNABORTED | Errno::PROTO) => {}
                Some(Errno::MFILE | Errno::NFILE | Errno::NOMEM | Errno::NOBUFS) => {
                    shared.wait_for_descriptors();
                }
                _ => {
                    shared.state.lock().failure =
                        Some(StagingError::socket("accepting connections", &error));
                    shared.changed.notify_all();
                    return;
                }
            },
        }
    }
}

fn begin(shared: &Arc<Shared>, stream: TcpStream, peer: String) {
    let stop = Arc::new(Stop::default());
    let entry = {
        let mut state = shared.state.lock();
        if state.stopping {
            return;
        }
        let number = state.next;
        state.next += 1;
        state.connections.insert(number, Arc::clone(&stop));
        Entry { shared: Arc::clone(shared), number }
    };
    // Where no thread can be had, the client sees its connection closed.
    let _ = thread::Builder::new().name("ws-file-session".into()).spawn(move || {
        let entry = entry;
        if let Ok(channel) = TcpChannel::new(stream, stop, peer) {
            serve(&entry.shared.share, &channel);
        }
    });
}

/// Serve requests until the client closes the connection.
fn serve(share: &Share, channel: &TcpChannel) {
    loop {
        let state = CopyState::default();
        let served = match channel.next_request() {
            Ok(None) => return,
            Ok(Some(body)) => share.serve(&body, channel, &state),
            Err(error) => Err(error),
        };
        let failed = served.err();
        if matches!(failed, Some(StagingError::Cancelled(_))) {
            return;
        }
        let refused = failed.as_ref().map(StagingError::to_peer);
        let verdict = Verdict::of(&state, refused, "").encode();
        if channel.send_control(Kind::Verdict, &verdict).is_err() {
            return;
        }
        if failed.is_some() {
            return channel.drain();
        }
    }
}

impl Share {
    fn open(path: &Path, modules: Vec<Module>) -> Result<Self, StagingError> {
        let bytes = std::os::unix::ffi::OsStrExt::as_bytes(path.as_os_str());
        let missing = |errno: Errno, name: &[u8]| StagingError::file(name, errno);
        let root = Root::open(path).map_err(|error| {
            missing(error.raw_os_error().map_or(Errno::IO, Errno::from_raw_os_error), bytes)
        })?;
        for module in &modules {
            let name = module.name.as_bytes();
            root.directory(name).map_err(|errno| missing(errno, name))?;
        }
        Ok(Self { root, modules })
    }

    fn serve(
        &self,
        request: &[u8],
        channel: &TcpChannel,
        state: &CopyState,
    ) -> Result<(), StagingError> {
        let request = StagingRequest::read(request).map_err(|_| channel.protocol_violation())?;
        let why = |error: WanError| channel.why(error);
        match request {
            StagingRequest::Put { directory, largest } => {
                if !self.module(&directory)?.writable {
                    let name = &self.module(&directory)?.name;
                    let text = format!("module {name} may only be read");
                    return Err(StagingError::Refused(text));
                }
                let target = self.root.directory(&directory);
                let target = target.map_err(|errno| StagingError::file(&directory, errno))?;
                let free = room(&target).map_err(|errno| StagingError::file(&directory, errno))?;
                fits(largest, free)?;
                let path = PathBuf::from(String::from_utf8_lossy(&directory).into_owned());
                receive_files(target, &path, None, channel, state).map_err(why)
            }
            StagingRequest::Get { names, room } => {
                for name in names.iter() {
                    self.module(name)?;
                }
                fits(check_sources(&self.root, &names)?, room)?;
                let root = self.top()?;
                send_files(root, &names, channel, state).map_err(why)
            }
        }
    }

    fn top(&self) -> Result<OwnedFd, StagingError> {
        self.root.directory(b"").map_err(|errno| StagingError::file(b".", errno))
    }

    /// The module that a name begins with.
    fn module(&self, name: &[u8]) -> Result<&Module, StagingError> {
        let first = name.split(|byte| *byte == b'/').next().unwrap_or_default();
        let found = self.modules.iter().find(|module| module.name.as_bytes() == first);
        found.ok_or_else(|| {
            let known: Vec<&str> = self.modules.iter().map(|m| m.name.as_str()).collect();
            let text = format!("{}: no such module: there are {}", shown(name), known.join(", "));
            StagingError::Refused(text)
        })
    }
}
