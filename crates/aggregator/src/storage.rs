//! Storage requests: threads that open, read, write and sync files.
//!
//! Arrives: requests. Leaves: outcomes, in any order, and measured service times. Must not know: nodes, ranks.
//!
//! A window is cut into pieces of some MiB, and several are in flight at a time. Before each piece the thread checks
//! that the event loop is alive: a process that was stopped for longer than its lease must not write, since others have
//! begun a new epoch without it.

use std::collections::HashMap;
use std::fs::File;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use parking_lot::{Condvar, Mutex};
use rustix::fs::{fadvise, fstat, openat, Advice, FileType, Mode, OFlags, CWD};
use waystage_collective_wire::{FileId, Status};

use crate::clock::now_ns;
use crate::coverage::Coverage;
use crate::effect::{Outcome, RankId, Transfer};
use crate::fair::Fair;
use crate::gatherer::{CREATE, EXCL};
use crate::memory::Pool;

/// Bytes of a piece, at most.
const PIECE: u64 = 4 << 20;

/// Runs of a piece, at most.
const PIECE_RUNS: usize = 512;

/// Pieces in flight.
const THREADS: usize = 4;

/// What a thread does.
enum Work {
    Transfer(Arc<Running>),
    Open { file: FileId, path: Vec<u8>, flags: u32 },
    Create { rank: RankId, file: FileId, path: Vec<u8>, flags: u32 },
    Fsync { job: u64, file: FileId },
    Unlink { path: Vec<u8> },
    Prefetch { file: FileId, lo: u64, hi: u64 },
}

/// What became of a request.
pub enum Done {
    /// Of `Effect::Transfer`.
    Transferred(u64, Outcome, u64),
    /// Of `Effect::Open`.
    Opened(FileId, Outcome),
    /// Of `Effect::Create`, with bytes of a stripe and number of targets.
    Created(RankId, FileId, Outcome, Option<(u64, u32)>),
    /// Of `Effect::Fsync`.
    Synced(u64, Outcome),
}

struct Running {
    transfer: Transfer,
    file: Option<Arc<OpenFile>>,
    state: Mutex<Progress>,
    eof: AtomicU64,
}

/// Of the pieces of a transfer.
struct Progress {
    coverage: Coverage,
    /// Positions before this one have been taken.
    at: u64,
    /// Pieces in progress.
    active: usize,
    /// Whether the transfer waits for a thread that takes the next piece.
    queued: bool,
    outcome: Outcome,
}

/// Runs of a piece, as (position, file offset, bytes).
type Piece = Vec<(u64, u64, u64)>;

impl Progress {
    /// The next piece, and whether there are more.
    fn take(&mut self, transfer: &Transfer) -> (Piece, bool) {
        let (mut piece, mut sum) = (Vec::new(), 0);
        while self.outcome.status == Status::Ok && sum < PIECE && piece.len() < PIECE_RUNS {
            let Some((from, to)) = self.coverage.next(self.at) else {
                break;
            };
            // The first range of the run: a run goes on over blocks, whose offsets jump.
            let Some((offset, bytes)) = transfer.window.ranges(from, to).next() else {
                break;
            };
            let bytes = bytes.min(PIECE - sum);
            piece.push((from, offset, bytes));
            sum += bytes;
            self.at = from + bytes;
        }
        let more = self.outcome.status == Status::Ok && self.coverage.next(self.at).is_some();
        self.active += 1;
        self.queued = more;
        (piece, more)
    }
}

struct OpenFile {
    fd: OwnedFd,
    path: PathBuf,
}

/// What an application's requests took.
#[derive(Clone, Copy, Debug, Default)]
pub struct Served {
    /// Bytes moved.
    pub bytes: u64,
    /// Time in which at least one request was in a system call, counted for each window.
    pub busy_ns: u64,
    /// Windows.
    pub windows: u64,
    /// Bytes whose requests have not ended.
    pub queue_bytes: u64,
}

#[derive(Default)]
struct State {
    work: Fair<Work>,
    files: HashMap<FileId, Arc<OpenFile>>,
    done: Vec<Done>,
    served: HashMap<Arc<str>, Served>,
    ending: bool,
}

struct Shared {
    pool: Arc<Pool>,
    state: Mutex<State>,
    more: Condvar,
    wake: Box<dyn Fn() + Send + Sync>,
    /// When the event loop was last alive.
    alive_ns: AtomicU64,
    lease_ns: u64,
    delay_ns: AtomicU64,
    delayed: Mutex<()>,
}

/// The threads.
pub struct Storage {
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
}

/// The queue of requests that are no data.
const NO_APP: &str = "";

impl Storage {
    /// Start the threads. `wake` is called when something has ended.
    pub fn start(
        pool: Arc<Pool>,
        lease: Duration,
        wake: impl Fn() + Send + Sync + 'static,
    ) -> std::io::Result<Self> {
        let lease_ns = u64::try_from(lease.as_nanos()).unwrap_or(u64::MAX);
        let shared = Arc::new(Shared {
            pool,
            state: Mutex::default(),
            more: Condvar::new(),
            wake: Box::new(wake),
            alive_ns: AtomicU64::new(now_ns()),
            lease_ns,
            delay_ns: AtomicU64::new(0),
            delayed: Mutex::new(()),
        });
        let thread = |number: usize| {
            let shared = Arc::clone(&shared);
            std::thread::Builder::new()
                .name(format!("ws-storage-{number}"))
                .spawn(move || shared.run())
        };
        let threads = (0..THREADS).map(thread).collect::<Result<_, _>>()?;
        Ok(Self { shared, threads })
    }

    /// The event loop is alive.
    pub fn alive(&self) {
        self.shared.alive_ns.store(now_ns(), Ordering::Release);
    }

    /// Sleep before each window (tests and benchmarks).
    pub fn set_delay(&self, delay: Duration) {
        self.shared
            .delay_ns
            .store(u64::try_from(delay.as_nanos()).unwrap_or(u64::MAX), Ordering::Relaxed);
    }

    /// The share of an application.
    pub fn set_weight(&self, app: &Arc<str>, weight: u32) {
        self.shared.state.lock().work.set_weight(app, weight);
    }

    /// What has ended since the last call.
    pub fn done(&self) -> Vec<Done> {
        std::mem::take(&mut self.shared.state.lock().done)
    }

    /// Totals by application.
    pub fn served(&self) -> HashMap<Arc<str>, Served> {
        self.shared.state.lock().served.clone()
    }

    fn push(&self, app: &Arc<str>, bytes: u64, work: Work) {
        self.shared.state.lock().work.push(app, bytes, work);
        self.shared.more.notify_one();
    }

    /// Move the data of a window.
    pub fn transfer(&self, mut transfer: Transfer) {
        let (app, bytes) = (Arc::clone(&transfer.app), transfer.bytes);
        let coverage = std::mem::take(&mut transfer.coverage);
        let progress =
            Progress { coverage, at: 0, active: 0, queued: true, outcome: Outcome::ok() };
        let mut state = self.shared.state.lock();
        let file = state.files.get(&transfer.file).cloned();
        state.served.entry(Arc::clone(&app)).or_default().queue_bytes += bytes;
        let of =
            Running { transfer, file, state: Mutex::new(progress), eof: AtomicU64::new(u64::MAX) };
        state.work.push(&app, bytes.min(PIECE), Work::Transfer(Arc::new(of)));
        drop(state);
        self.shared.more.notify_one();
    }

    /// Open a file for its transfers.
    pub fn open(&self, file: FileId, path: Vec<u8>, flags: u32) {
        self.push(&NO_APP.into(), 0, Work::Open { file, path, flags });
    }

    /// Create a file for a rank, or see whether it can be opened.
    pub fn create(&self, rank: RankId, file: FileId, path: Vec<u8>, flags: u32) {
        self.push(&NO_APP.into(), 0, Work::Create { rank, file, path, flags });
    }

    /// fsync.
    pub fn fsync(&self, job: u64, file: FileId) {
        self.push(&NO_APP.into(), 0, Work::Fsync { job, file });
    }

    /// Delete a file.
    pub fn unlink(&self, path: Vec<u8>) {
        self.push(&NO_APP.into(), 0, Work::Unlink { path });
    }

    /// Read ahead.
    pub fn prefetch(&self, file: FileId, lo: u64, hi: u64) {
        self.push(&NO_APP.into(), 0, Work::Prefetch { file, lo, hi });
    }

    /// Close a file.
    pub fn forget(&self, file: FileId) {
        self.shared.state.lock().files.remove(&file);
    }
}

impl Drop for Storage {
    /// Ends after the requests that are in a system call.
    fn drop(&mut self) {
        self.shared.state.lock().ending = true;
        self.shared.more.notify_all();
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}

impl Shared {
    fn run(&self) {
        loop {
            let mut state = self.state.lock();
            let work = loop {
                if state.ending {
                    return;
                }
                if let Some(work) = state.work.pop() {
                    break work;
                }
                self.more.wait(&mut state);
            };
            drop(state);
            if let Some(done) = self.act(work) {
                self.state.lock().done.push(done);
                (self.wake)();
            }
        }
    }

    fn act(&self, work: Work) -> Option<Done> {
        match work {
            Work::Transfer(of) => self.piece(of),
            Work::Open { file, path, flags } => {
                let outcome = match open(&path, flags & !(CREATE | EXCL)) {
                    Ok(fd) => {
                        let path = PathBuf::from(std::ffi::OsStr::from_bytes(&path));
                        self.state.lock().files.insert(file, Arc::new(OpenFile { fd, path }));
                        Outcome::ok()
                    }
                    Err(failed) => failed,
                };
                Some(Done::Opened(file, outcome))
            }
            Work::Create { rank, file, path, flags } => {
                let opened = open(&path, flags);
                let outcome = opened.map_or_else(|failed| failed, |_| Outcome::ok());
                Some(Done::Created(rank, file, outcome, None))
            }
            Work::Fsync { job, file } => {
                let known = self.state.lock().files.get(&file).cloned();
                let outcome = match known {
                    None => {
                        Outcome::failed(Status::Lost, "the file is not open at this aggregator")
                    }
                    Some(known) => match rustix::fs::fsync(&known.fd) {
                        Ok(()) => Outcome::ok(),
                        Err(error) => failed(&known.path, "synced", error.raw_os_error()),
                    },
                };
                Some(Done::Synced(job, outcome))
            }
            Work::Unlink { path } => {
                let _ = std::fs::remove_file(std::ffi::OsStr::from_bytes(&path));
                None
            }
            Work::Prefetch { file, lo, hi } => {
                let known = self.state.lock().files.get(&file).cloned();
                if let (Some(known), Some(bytes)) = (known, std::num::NonZeroU64::new(hi - lo)) {
                    let _ = fadvise(&known.fd, lo, Some(bytes), Advice::WillNeed);
                }
                None
            }
        }
    }

    fn piece(&self, of: Arc<Running>) -> Option<Done> {
        let (piece, more, first) = {
            let mut state = of.state.lock();
            let first = state.at == 0;
            let (piece, more) = state.take(&of.transfer);
            (piece, more, first)
        };
        let app = &of.transfer.app;
        if more {
            self.state.lock().work.push(app, PIECE, Work::Transfer(Arc::clone(&of)));
            self.more.notify_one();
        }
        let began = now_ns();
        let delay = self.delay_ns.load(Ordering::Relaxed);
        if delay > 0 && first {
            // One window at a time, as with a processor that others use.
            let _one = self.delayed.lock();
            std::thread::sleep(Duration::from_nanos(delay));
        }
        let outcome = self.move_runs(&of, &piece);
        let took = now_ns() - began;
        let ended = {
            let mut state = of.state.lock();
            state.outcome.combine(outcome);
            state.active -= 1;
            (state.active == 0 && !state.queued).then(|| state.outcome.clone())
        };
        let mut state = self.state.lock();
        let served = state.served.entry(Arc::clone(app)).or_default();
        served.bytes += piece.iter().map(|(_, _, bytes)| bytes).sum::<u64>();
        served.busy_ns += took;
        let outcome = ended?;
        served.windows += 1;
        served.queue_bytes = served.queue_bytes.saturating_sub(of.transfer.bytes);
        Some(Done::Transferred(of.transfer.job, outcome, of.eof.load(Ordering::Acquire)))
    }

    fn move_runs(&self, of: &Running, runs: &[(u64, u64, u64)]) -> Outcome {
        let Some(file) = &of.file else {
            return Outcome::failed(Status::Io, "the file is not open at this aggregator");
        };
        for (position, offset, bytes) in runs {
            let at = of.transfer.image + position;
            if of.transfer.write {
                let silent = now_ns().saturating_sub(self.alive_ns.load(Ordering::Acquire));
                if silent > self.lease_ns / 4 * 3 {
                    return Outcome::failed(
                        Status::Again,
                        "this aggregator was stopped for longer than its lease",
                    );
                }
                if let Err(error) = self.pool.write_file(file.fd.as_fd(), at, *bytes, *offset) {
                    return failed(
                        &file.path,
                        "written",
                        error.raw_os_error().unwrap_or(libc::EIO),
                    );
                }
            } else {
                match self.pool.read_file(file.fd.as_fd(), at, *bytes, *offset) {
                    Ok(there) if there < *bytes => {
                        self.pool.zero(at + there, bytes - there);
                        of.eof.fetch_min(offset + there, Ordering::AcqRel);
                    }
                    Ok(_) => {}
                    Err(error) => {
                        return failed(
                            &file.path,
                            "read",
                            error.raw_os_error().unwrap_or(libc::EIO),
                        )
                    }
                }
            }
        }
        Outcome::ok()
    }
}

fn open(path: &[u8], flags: u32) -> Result<OwnedFd, Outcome> {
    let path = Path::new(std::ffi::OsStr::from_bytes(path));
    let mut how = match flags & 7 {
        1 => OFlags::RDONLY,
        2 => OFlags::WRONLY,
        _ => OFlags::RDWR,
    };
    if flags & CREATE != 0 {
        how |= OFlags::CREATE;
    }
    if flags & EXCL != 0 {
        how |= OFlags::EXCL;
    }
    // A FIFO must not block.
    how |= OFlags::CLOEXEC | OFlags::NONBLOCK | OFlags::NOCTTY;
    let fail = |error: rustix::io::Errno| failed(path, "opened", error.raw_os_error());
    let fd = openat(CWD, path, how, Mode::from_raw_mode(0o666)).map_err(fail)?;
    let kind = FileType::from_raw_mode(fstat(&fd).map_err(fail)?.st_mode);
    if kind != FileType::RegularFile {
        let text = format!("{} is no regular file: collective I/O needs one", path.display());
        return Err(Outcome::failed(Status::BadFile, text));
    }
    Ok(fd)
}

fn failed(path: &Path, what: &str, number: i32) -> Outcome {
    let (status, error) = (Status::from_errno(number), std::io::Error::from_raw_os_error(number));
    Outcome::failed(status, format!("{} cannot be {what}: {error}", path.display()))
}

/// Microseconds in a file, for `set_delay`; 0 where there is none.
pub fn delay_of(path: &Path) -> Duration {
    let text = File::open(path).and_then(std::io::read_to_string).unwrap_or_default();
    Duration::from_micros(text.trim().parse().unwrap_or(0))
}
