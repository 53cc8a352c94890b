//! The server: gives and takes files of its modules, a thread for each connection.

use std::collections::HashMap;
use std::io;
use std::net::{Shutdown, SocketAddrV4, TcpListener, TcpStream};
use std::os::fd::AsFd;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use nix::errno::Errno;
use socket2::SockRef;
use waystage_netns::within;

use super::channel::Channel;
use super::contents;
use super::error::{ErrorKind, TransferError};
use super::modules::{Module, Modules};
use super::stop::Stop;
use super::wire::{Frame, Way};

/// How many connections are served at once; further ones wait to be accepted.
const MAX_CONNECTIONS: usize = 256;

/// Connections' threads call nothing deep.
const STACK_BYTES: usize = 256 << 10;

/// Where the system has no descriptors or memory left, accepting is tried again after this.
const PAUSE: Duration = Duration::from_millis(50);

/// A listening server. Dropped, it stops.
pub struct Server {
    shared: Arc<Shared>,
    listener: TcpListener,
    address: SocketAddrV4,
    acceptor: Option<JoinHandle<()>>,
}

struct Shared {
    modules: Modules,
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    stopping: bool,
    failure: Option<String>,
    next: u64,
    connections: HashMap<u64, Arc<Stop>>,
}

impl Server {
    /// Listen on `address` in the network namespace of that name; port 0 takes any that is free.
    pub fn start(
        namespace: Option<&str>,
        address: SocketAddrV4,
        modules: Vec<Module>,
    ) -> Result<Self, TransferError> {
        let shared = Arc::new(Shared {
            modules: Modules::open(modules)?,
            state: Mutex::default(),
            changed: Condvar::new(),
        });
        let listener = within(namespace, || {
            TcpListener::bind(address).map_err(|error| unbound(address, &error))
        })?;
        let bound = match listener.local_addr() {
            Ok(std::net::SocketAddr::V4(bound)) => bound,
            _ => address,
        };
        let acceptor = {
            let (shared, listener) = (Arc::clone(&shared), listener.try_clone());
            let listener = listener.map_err(|error| unbound(address, &error))?;
            thread::Builder::new()
                .name("ws-file-server".into())
                .stack_size(STACK_BYTES)
                .spawn(move || accept_all(&shared, &listener))
                .map_err(|error| unbound(address, &error))?
        };
        Ok(Self { shared, listener, address: bound, acceptor: Some(acceptor) })
    }

    /// Where it listens.
    #[must_use]
    pub fn address(&self) -> SocketAddrV4 {
        self.address
    }

    /// Why it no longer serves; None while it does.
    #[must_use]
    pub fn failure(&self) -> Option<String> {
        if self.acceptor.as_ref().is_some_and(|thread| !thread.is_finished()) {
            return None;
        }
        let failure = self.shared.lock().failure.clone();
        Some(failure.unwrap_or_else(|| "it was stopped".into()))
    }

    /// End it and every transfer with it; what arrived in part is gone when this returns.
    pub fn stop(&mut self) {
        {
            let mut state = self.shared.lock();
            state.stopping = true;
            state.connections.values().for_each(|stop| stop.wish());
            self.shared.changed.notify_all();
        }
        // On Linux this wakes the thread that accepts. It may have ended before.
        let _ = SockRef::from(&self.listener.as_fd()).shutdown(Shutdown::Both);
        if let Some(acceptor) = self.acceptor.take() {
            let _ = acceptor.join();
        }
        let mut state = self.shared.lock();
        while !state.connections.is_empty() {
            state = self.shared.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.stop();
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Wait for room for one more connection; false where the server stops.
    fn wait_for_room(&self) -> bool {
        let mut state = self.lock();
        while !state.stopping && state.connections.len() >= MAX_CONNECTIONS {
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
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
        self.shared.lock().connections.remove(&self.number);
        self.shared.changed.notify_all();
    }
}

fn accept_all(shared: &Arc<Shared>, listener: &TcpListener) {
    while shared.wait_for_room() {
        match listener.accept() {
            Ok((stream, peer)) => begin(shared, stream, peer.to_string()),
            Err(_) if shared.lock().stopping => return,
            Err(error) => match error.raw_os_error().map(Errno::from_raw) {
                Some(Errno::EINTR | Errno::ECONNABORTED | Errno::EPROTO) => {}
                Some(Errno::EMFILE | Errno::ENFILE | Errno::ENOMEM | Errno::ENOBUFS) => {
                    thread::sleep(PAUSE);
                }
                _ => {
                    shared.lock().failure = Some(format!("accepting connections: {error}"));
                    return;
                }
            },
        }
    }
}

fn begin(shared: &Arc<Shared>, stream: TcpStream, peer: String) {
    let stop = Arc::new(Stop::default());
    let entry = {
        let mut state = shared.lock();
        if state.stopping {
            return;
        }
        let number = state.next;
        state.next += 1;
        state.connections.insert(number, Arc::clone(&stop));
        Entry { shared: Arc::clone(shared), number }
    };
    // Where no thread can be had, the client sees its connection closed.
    let _ = thread::Builder::new().name("ws-file-giver".into()).stack_size(STACK_BYTES).spawn(
        move || {
            let entry = entry;
            if let Ok(mut channel) = Channel::new(stream, stop, peer) {
                serve(&entry.shared.modules, &mut channel);
            }
        },
    );
}

fn serve(modules: &Modules, channel: &mut Channel) {
    loop {
        let served = match channel.receive_or_end() {
            Ok(None) => return,
            Ok(Some(Frame::Hello { way: Way::Get, files })) => give(modules, channel, files),
            Ok(Some(Frame::Hello { way: Way::Put, files })) => take(modules, channel, files),
            Ok(Some(other)) => Err(channel.unexpected(&other)),
            Err(error) => Err(error),
        };
        if let Err(error) = served {
            use ErrorKind::{Cancelled, Ended, Stalled, Unreachable};
            if !matches!(error.kind, Cancelled | Ended | Stalled | Unreachable) {
                channel.refuse(&error);
            }
            return;
        }
    }
}

fn give(modules: &Modules, channel: &mut Channel, files: u32) -> Result<(), TransferError> {
    let mut names = Vec::new();
    for _ in 0..files {
        match channel.receive()? {
            Frame::Ask { name } => names.push(name),
            other => return Err(channel.unexpected(&other)),
        }
    }
    for name in names {
        let file = modules.file(&name)?;
        contents::send(channel, &file, &name, |_| Ok(()))?;
    }
    Ok(())
}

fn take(modules: &Modules, channel: &mut Channel, files: u32) -> Result<(), TransferError> {
    for _ in 0..files {
        match channel.receive()? {
            Frame::File { name, size } => {
                let (folder, last) = modules.folder(&name)?;
                contents::receive(channel, folder, last, &name, size)?;
            }
            other => return Err(channel.unexpected(&other)),
        }
    }
    channel.send(&[Frame::Done])
}

fn unbound(address: SocketAddrV4, error: &io::Error) -> TransferError {
    let kind = match error.kind() {
        io::ErrorKind::AddrInUse => ErrorKind::PortInUse,
        _ => ErrorKind::Unreachable,
    };
    TransferError::new(kind, format!("{address}: {error}"))
}
