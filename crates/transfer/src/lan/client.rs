//! The client: one transfer in a thread of its own, which can be watched, waited for and cancelled.

use std::fs::File;
use std::io;
use std::net::{SocketAddrV4, TcpStream};
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::poll::{poll, PollFd, PollFlags};
use socket2::{Domain, Protocol, Socket, Type};
use waystage_netns::within;

use super::channel::{Channel, STALL};
use super::contents;
use super::error::{shown, ErrorKind, TransferError};
use super::stop::Stop;
use super::wire::{parts, Frame, Way, MAX_FILES};

/// How often connecting looks whether it is still wanted.
const LOOK_ROUND_MS: u8 = 100;

/// A file at both ends.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FilePair {
    /// Its path here. Where the file is to arrive, its folder must exist.
    pub local: PathBuf,
    /// Its name there: module, `/`, and the way from the module's root.
    pub remote: Vec<u8>,
}

/// A set of files to be moved, once or more often.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Step {
    /// The files, at least one.
    pub files: Vec<FilePair>,
    /// How often; None for until it is cancelled.
    pub times: Option<u64>,
}

/// What to move, and between which ends.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Request {
    /// The client's namespace in `/run/netns`; `None` for the caller's own.
    pub namespace: Option<String>,
    /// Where the server listens.
    pub server: SocketAddrV4,
    /// Which way all files go.
    pub way: Way,
    /// What to move, one after the other, over one connection.
    pub steps: Vec<Step>,
}

/// A finished transfer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Moved {
    /// Bytes of files, verified.
    pub bytes: u64,
    /// From before the connection was opened to after the last file had its name.
    pub took: Duration,
}

/// A transfer under way, or its outcome. Dropped, it is cancelled.
pub struct Transfer {
    shared: Arc<Shared>,
    worker: Mutex<Option<JoinHandle<()>>>,
}

#[derive(Default)]
struct Shared {
    stop: Arc<Stop>,
    bytes: AtomicU64,
    outcome: Mutex<Option<Result<Moved, TransferError>>>,
    ended: Condvar,
}

impl Transfer {
    /// Check the request and begin.
    pub fn start(request: Request) -> Result<Self, TransferError> {
        check(&request)?;
        let shared = Arc::new(Shared::default());
        let worker = {
            let shared = Arc::clone(&shared);
            thread::Builder::new()
                .name("ws-transfer".into())
                .spawn(move || {
                    let ending = Ending(&shared);
                    let outcome = run(&request, &shared);
                    ending.with(outcome);
                })
                .map_err(|error| {
                    let text = format!("no thread for a transfer: {error}");
                    TransferError::new(ErrorKind::Unreachable, text)
                })?
        };
        Ok(Self { shared, worker: Mutex::new(Some(worker)) })
    }

    /// The outcome, once there is one, or None where it still runs after `timeout`; without, wait.
    pub fn wait(&self, timeout: Option<Duration>) -> Option<Result<Moved, TransferError>> {
        let outcome = self.shared.outcome.lock().unwrap_or_else(PoisonError::into_inner);
        let running = |outcome: &mut Option<_>| outcome.is_none();
        match timeout {
            None => self
                .shared
                .ended
                .wait_while(outcome, running)
                .unwrap_or_else(PoisonError::into_inner)
                .clone(),
            Some(timeout) => self
                .shared
                .ended
                .wait_timeout_while(outcome, timeout, running)
                .unwrap_or_else(PoisonError::into_inner)
                .0
                .clone(),
        }
    }

    /// Bytes of files that have arrived whole so far.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.shared.bytes.load(Ordering::Relaxed)
    }

    /// End it now. When this returns it has ended, and what arrived here in part is gone.
    pub fn cancel(&self) {
        self.shared.stop.wish();
        let worker = self.worker.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(worker) = worker {
            let _ = worker.join();
        }
    }
}

impl Drop for Transfer {
    fn drop(&mut self) {
        self.cancel();
    }
}

/// Whoever waits learns of the end, however the thread ends.
struct Ending<'a>(&'a Shared);

impl Ending<'_> {
    fn with(self, outcome: Result<Moved, TransferError>) {
        *self.0.outcome.lock().unwrap_or_else(PoisonError::into_inner) = Some(outcome);
    }
}

impl Drop for Ending<'_> {
    fn drop(&mut self) {
        let mut outcome = self.0.outcome.lock().unwrap_or_else(PoisonError::into_inner);
        outcome.get_or_insert_with(|| {
            Err(TransferError::new(ErrorKind::File, "the transfer's thread panicked"))
        });
        self.0.ended.notify_all();
    }
}

fn check(request: &Request) -> Result<(), TransferError> {
    let refused = |text: String| Err(TransferError::new(ErrorKind::Refused, text));
    for step in &request.steps {
        if step.files.is_empty() || step.files.len() > MAX_FILES as usize {
            let count = step.files.len();
            return refused(format!("{count} files to move are not between 1 and {MAX_FILES}"));
        }
        for FilePair { remote, .. } in &step.files {
            if let Err(why) = parts(remote) {
                return refused(format!("{}: {why}", shown(remote)));
            }
        }
    }
    Ok(())
}

fn run(request: &Request, shared: &Shared) -> Result<Moved, TransferError> {
    let began = Instant::now();
    let stream = connect(request, &shared.stop)?;
    let mut channel = Channel::new(stream, Arc::clone(&shared.stop), request.server.to_string())?;
    for step in &request.steps {
        let mut round = 0;
        while step.times.is_none_or(|times| round < times) {
            shared.stop.check()?;
            match request.way {
                Way::Get => get(&mut channel, step, &shared.bytes)?,
                Way::Put => put(&mut channel, step, &shared.bytes)?,
            }
            round += 1;
        }
    }
    Ok(Moved { bytes: shared.bytes.load(Ordering::Relaxed), took: began.elapsed() })
}

fn get(channel: &mut Channel, step: &Step, moved: &AtomicU64) -> Result<(), TransferError> {
    let mut frames = vec![hello(Way::Get, step)];
    frames.extend(step.files.iter().map(|pair| Frame::Ask { name: pair.remote.clone() }));
    channel.send(&frames)?;
    for FilePair { local, remote } in &step.files {
        match channel.receive()? {
            Frame::File { name, size } if name == *remote => {
                let shown_as = local.as_os_str().as_bytes();
                let failed = |error: io::Error| TransferError::file(shown_as, &error);
                let last = local.file_name().ok_or_else(|| failed(Errno::EISDIR.into()))?;
                let folder = local.parent().filter(|folder| !folder.as_os_str().is_empty());
                let folder = File::open(folder.unwrap_or(Path::new("."))).map_err(failed)?;
                contents::receive(channel, folder.into(), last, shown_as, size)?;
                moved.fetch_add(size, Ordering::Relaxed);
            }
            other => return Err(channel.unexpected(&other)),
        }
    }
    Ok(())
}

fn put(channel: &mut Channel, step: &Step, moved: &AtomicU64) -> Result<(), TransferError> {
    match put_all(channel, step) {
        Ok(bytes) => {
            moved.fetch_add(bytes, Ordering::Relaxed);
            Ok(())
        }
        // A server that refuses closes the connection; why it did is still there to be read.
        Err(error) if error.kind == ErrorKind::Ended => {
            let told = channel.receive().err().filter(|told| told.kind != ErrorKind::Protocol);
            Err(told.unwrap_or(error))
        }
        Err(error) => Err(error),
    }
}

fn put_all(channel: &mut Channel, step: &Step) -> Result<u64, TransferError> {
    channel.send(&[hello(Way::Put, step)])?;
    let mut bytes = 0;
    for FilePair { local, remote } in &step.files {
        let file = File::open(local)
            .map_err(|error| TransferError::file(local.as_os_str().as_bytes(), &error))?;
        bytes += contents::send(channel, &file, remote, Channel::look_for_refusal)?;
    }
    match channel.receive()? {
        Frame::Done => Ok(bytes),
        other => Err(channel.unexpected(&other)),
    }
}

fn hello(way: Way, step: &Step) -> Frame {
    let files = u32::try_from(step.files.len()).unwrap_or(MAX_FILES);
    Frame::Hello { way, files }
}

/// Connect without ever being out of reach of a cancellation.
fn connect(request: &Request, stop: &Stop) -> Result<TcpStream, TransferError> {
    let server = request.server;
    let failed = |error: io::Error| {
        let kind = match error.kind() {
            io::ErrorKind::TimedOut => ErrorKind::Stalled,
            _ => ErrorKind::Unreachable,
        };
        TransferError::new(kind, format!("{server}: {error}"))
    };
    let socket = within(request.namespace.as_deref(), || {
        Socket::new(Domain::IPV4, Type::STREAM, Some(Protocol::TCP)).map_err(failed)
    })?;
    socket.set_nonblocking(true).map_err(failed)?;
    let deadline = Instant::now() + STALL;
    match socket.connect(&server.into()) {
        Err(error) if error.raw_os_error() == Some(Errno::EINPROGRESS as i32) => loop {
            stop.check()?;
            let mut descriptors = [PollFd::new(socket.as_fd(), PollFlags::POLLOUT)];
            match poll(&mut descriptors, LOOK_ROUND_MS) {
                Ok(0) if Instant::now() > deadline => return Err(failed(Errno::ETIMEDOUT.into())),
                Ok(0) | Err(Errno::EINTR) => {}
                Ok(_) => break,
                Err(errno) => return Err(failed(errno.into())),
            }
        },
        connected => connected.map_err(failed)?,
    }
    if let Some(error) = socket.take_error().map_err(failed)? {
        return Err(failed(error));
    }
    socket.set_nonblocking(false).map_err(failed)?;
    Ok(socket.into())
}
