//! The client: one transfer in its own thread, which can be watched, waited for and cancelled.

use std::io;
use std::net::{SocketAddrV4, TcpStream};
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};
use rustix::event::{poll, PollFd, PollFlags, Timespec};
use rustix::fs::{openat, Mode, OFlags, CWD};
use rustix::io::Errno;
use socket2::{Domain, Protocol, SockRef, Socket, Type};
use waystage_catalog::Root;
use waystage_copy::{Counts, Names, Problem};
use waystage_netns::within;
use waystage_pacing::Pace;
use waystage_remote_copy::{receive_files, send_files, CopyState, Verdict};

use crate::channel::{Kind, Stop, TcpChannel};
use crate::error::{shown, StagingError};
use crate::request::StagingRequest;
use crate::sources::{check_sources, last_names, room};

/// A connection is given up where it could not be made for this long.
const CONNECT_TIME: Duration = Duration::from_secs(60);

/// Which way files go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// From the server to the client.
    Get,
    /// From the client to the server.
    Put,
}

/// Files to be copied into one directory under their last names, once or more often.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Step {
    /// The files: of a put paths here, of a get names there: module, `/`, and the path below it.
    pub sources: Vec<Vec<u8>>,
    /// The directory: of a get a path here, of a put a name there.
    pub directory: Vec<u8>,
    /// How often; None for until it is cancelled.
    pub times: Option<u64>,
}

/// What to copy, and between which hosts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Request {
    /// The client's namespace in `/run/netns`; None for the caller's own.
    pub namespace: Option<String>,
    /// Where the server listens.
    pub server: SocketAddrV4,
    /// Which way all files go.
    pub direction: Direction,
    /// What to copy, one after the other, over one connection.
    pub steps: Vec<Step>,
}

/// A finished transfer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Staged {
    /// Bytes of files, verified.
    pub bytes: u64,
    /// From before the connection was opened until the last file had its name.
    pub took: Duration,
}

/// A transfer in progress, or its outcome. Dropped, it is cancelled.
pub struct Transfer {
    shared: Arc<Shared>,
    worker: Mutex<Option<JoinHandle<()>>>,
}

#[derive(Default)]
struct Shared {
    stop: Arc<Stop>,
    pace: Arc<Pace>,
    bytes: AtomicU64,
    outcome: Mutex<Option<Result<Staged, StagingError>>>,
    ended: Condvar,
}

/// A step as it is carried out.
struct Prepared {
    names: Names,
    directory: Vec<u8>,
    times: Option<u64>,
}

impl Transfer {
    /// Check the request and begin.
    ///
    /// # Errors
    /// Where a name leads out of its module, or no thread can be had.
    pub fn start(request: Request) -> Result<Self, StagingError> {
        let prepare = |step: &Step| Prepared::of(step, request.direction);
        let steps = request.steps.iter().map(prepare).collect::<Result<Vec<_>, _>>()?;
        let shared = Arc::new(Shared::default());
        let running = Arc::clone(&shared);
        let worker = thread::Builder::new()
            .name("ws-transfer".into())
            .spawn(move || {
                let ending = Ending(&running);
                let outcome = run(&request, &steps, &running);
                ending.with(outcome);
            })
            .map_err(|error| StagingError::socket("no thread for a transfer", &error))?;
        Ok(Self { shared, worker: Mutex::new(Some(worker)) })
    }

    /// The outcome, once there is one, or None where it still runs after `timeout`; without, wait.
    pub fn wait(&self, timeout: Option<Duration>) -> Option<Result<Staged, StagingError>> {
        let mut outcome = self.shared.outcome.lock();
        let is_running = |outcome: &mut Option<_>| outcome.is_none();
        match timeout {
            None => self.shared.ended.wait_while(&mut outcome, is_running),
            Some(timeout) => {
                self.shared.ended.wait_while_for(&mut outcome, is_running, timeout);
            }
        }
        outcome.clone()
    }

    /// Bytes of files that have been copied and verified so far.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.shared.bytes.load(Ordering::Relaxed)
    }

    /// Where the rate is limited, and the transfer paused and counted: bytes of messages, also of files that are not
    /// complete yet.
    #[must_use]
    pub fn pace(&self) -> &Pace {
        &self.shared.pace
    }

    /// End it now. When this returns it has ended.
    pub fn cancel(&self) {
        self.shared.stop.wish();
        self.shared.pace.gate.set_stopped(true);
        let worker = self.worker.lock().take();
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

/// Callers that wait learn of the end, however the thread ends.
struct Ending<'a>(&'a Shared);

impl Ending<'_> {
    fn with(self, outcome: Result<Staged, StagingError>) {
        *self.0.outcome.lock() = Some(outcome);
    }
}

impl Drop for Ending<'_> {
    fn drop(&mut self) {
        let mut outcome = self.0.outcome.lock();
        outcome.get_or_insert_with(|| {
            Err(StagingError::File("the transfer's thread panicked".to_owned()))
        });
        self.0.ended.notify_all();
    }
}

impl Prepared {
    fn of(step: &Step, direction: Direction) -> Result<Self, StagingError> {
        let refused = |error: String| StagingError::Refused(error);
        let mut list = Vec::new();
        for source in &step.sources {
            list.extend_from_slice(match direction {
                Direction::Get => source,
                Direction::Put => source.strip_prefix(b"/").unwrap_or(source),
            });
            list.push(0);
        }
        let names = Names::parse(&list, true).map_err(|error| refused(error.to_string()))?;
        if names.is_empty() {
            return Err(refused("there are no files to copy".to_owned()));
        }
        last_names(&names)?;
        let request = match direction {
            Direction::Get => StagingRequest::Get { names: names.clone(), room: 0 },
            Direction::Put => StagingRequest::Put { directory: step.directory.clone(), largest: 0 },
        };
        // What a server would refuse to read is refused here.
        if StagingRequest::read(&request.encode()).is_err() {
            let text = format!("{} does not lead down from a module", shown(&step.directory));
            return Err(refused(text));
        }
        Ok(Self { names, directory: step.directory.clone(), times: step.times })
    }
}

fn run(request: &Request, steps: &[Prepared], shared: &Shared) -> Result<Staged, StagingError> {
    let began = Instant::now();
    let stream = connect(request, &shared.stop)?;
    let peer = request.server.to_string();
    let channel = TcpChannel::new(stream, Arc::clone(&shared.stop), peer)?;
    let channel = channel.paced(Arc::clone(&shared.pace));
    for step in steps {
        let mut round = 0;
        while step.times.is_none_or(|times| round < times) {
            shared.stop.check()?;
            let bytes = match request.direction {
                Direction::Get => get(&channel, step)?,
                Direction::Put => put(&channel, step)?,
            };
            shared.bytes.fetch_add(bytes, Ordering::Relaxed);
            round += 1;
        }
    }
    Ok(Staged { bytes: shared.bytes.load(Ordering::Relaxed), took: began.elapsed() })
}

fn get(channel: &TcpChannel, step: &Prepared) -> Result<u64, StagingError> {
    let state = CopyState::default();
    let path = PathBuf::from(String::from_utf8_lossy(&step.directory).into_owned());
    let how = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let directory = openat(CWD, &step.directory[..], how, Mode::empty())
        .map_err(|errno| StagingError::file(&step.directory, errno))?;
    let room = room(&directory).map_err(|errno| StagingError::file(&step.directory, errno))?;
    let request = StagingRequest::Get { names: step.names.clone(), room };
    let asked = last_names(&step.names)?;
    let copied = channel
        .send_control(Kind::Request, &request.encode())
        .and_then(|()| receive_files(directory, &path, Some(&asked), channel, &state));
    copied.map_err(|error| channel.why(error))?;
    let verdict = channel.next_verdict()?;
    complete(&state, &verdict, |name| verdict.count(name))
}

fn put(channel: &TcpChannel, step: &Prepared) -> Result<u64, StagingError> {
    let state = CopyState::default();
    let top = |errno: Errno| StagingError::file(b"/", errno);
    let root = Root::open(std::path::Path::new("/"))
        .map_err(|error| top(error.raw_os_error().map_or(Errno::IO, Errno::from_raw_os_error)))?;
    let largest = check_sources(&root, &step.names)?;
    let request = StagingRequest::Put { directory: step.directory.clone(), largest };
    let root = root.directory(b"").map_err(top)?;
    let copied = channel
        .send_control(Kind::Request, &request.encode())
        .and_then(|()| send_files(root, &step.names, channel, &state));
    copied.map_err(|error| channel.why(error))?;
    let verdict = channel.next_verdict()?;
    let counts = state.report.tally.read();
    complete(&state, &verdict, |_| counts.found_bytes)
}

/// The bytes of a copy, if neither side met a problem.
fn complete(
    state: &CopyState,
    verdict: &Verdict,
    found_bytes: impl Fn(&str) -> u64,
) -> Result<u64, StagingError> {
    let problems: Vec<Problem> = state.report.problems();
    if let Some(problem) = problems.iter().chain(&verdict.problems).next() {
        return Err(StagingError::problem(problem));
    }
    let counts: Counts = state.report.tally.read();
    if !counts.complete() {
        return Err(StagingError::File("not all files could be copied".to_owned()));
    }
    Ok(found_bytes("found_bytes"))
}

/// Connect; a cancellation shuts the socket down, which ends the wait for it.
fn connect(request: &Request, stop: &Stop) -> Result<TcpStream, StagingError> {
    let server = request.server;
    let failed = |error: io::Error| StagingError::socket(server, &error);
    let socket = within(request.namespace.as_deref(), || {
        Socket::new(Domain::IPV4, Type::STREAM, Some(Protocol::TCP)).map_err(failed)
    })?;
    socket.set_nonblocking(true).map_err(failed)?;
    let stream = TcpStream::from(socket);
    stop.watch(&stream).map_err(failed)?;
    stop.check()?;
    let deadline = Instant::now() + CONNECT_TIME;
    let socket = SockRef::from(&stream);
    match socket.connect(&server.into()) {
        Err(error) if error.raw_os_error() == Some(Errno::INPROGRESS.raw_os_error()) => loop {
            let left = deadline.saturating_duration_since(Instant::now());
            let polled = poll(
                &mut [PollFd::new(&stream, PollFlags::OUT)],
                Timespec::try_from(left).ok().as_ref(),
            );
            stop.check()?;
            match polled {
                Ok(0) if left.is_zero() => return Err(failed(Errno::TIMEDOUT.into())),
                Ok(0) | Err(Errno::INTR) => {}
                Ok(_) => break,
                Err(errno) => return Err(failed(errno.into())),
            }
        },
        connected => connected.map_err(failed)?,
    }
    if let Some(error) = socket.take_error().map_err(failed)? {
        return Err(failed(error));
    }
    Ok(stream)
}
