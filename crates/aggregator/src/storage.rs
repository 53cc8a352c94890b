//! Storage requests: threads that open, read, write and sync files.
//!
//! Arrives: requests. Leaves: outcomes, in any order, and measured service times. Must not know: nodes, ranks.
//!
//! A window is cut into pieces of some MiB, and several are in flight at a time. Before each piece the thread checks
//! that the event loop is alive: a process that was stopped for longer than its lease must not write, since others have
//! begun a new epoch without it.
//!
//! A call that the storage does not end within the timeout is reported as late, and another thread replaces its
//! thread: a server that hangs stops neither other files nor the end of this process.

use std::collections::HashMap;
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use parking_lot::{Condvar, Mutex};
use rustix::fs::{fadvise, Advice};
use waystage_catalog::layout::FileSystems;
use waystage_collective_wire::{FileId, Status};

use crate::calls::Calls;
use crate::clock::now_ns;
use crate::effect::{Outcome, RankId, Transfer};
use crate::fair::Fair;
use crate::gatherer::{CREATE, EXCL};
use crate::memory::Pool;
use crate::opening::{failed, hangs, open, stripe};
use crate::pieces::{depth, OpenFile, Progress, Running, LEAST_DEPTH};
use crate::status::Served;

/// Threads at most, with those that hang in the storage.
const MOST_THREADS: usize = 128;

/// Between two checks of the calls in progress, at the end.
const PAUSE: Duration = Duration::from_millis(2);

/// What a thread does.
enum Work {
    Transfer(Arc<Running>),
    Open { file: FileId, path: Vec<u8>, flags: u32 },
    Create { rank: RankId, file: FileId, path: Vec<u8>, flags: u32 },
    Fsync { job: u64, file: FileId },
    Unlink { path: Vec<u8> },
    Prefetch { file: FileId, lo: u64, hi: u64 },
}

impl Work {
    fn about(&self, files: &HashMap<FileId, Arc<OpenFile>>) -> About {
        let path = |bytes: &[u8]| PathBuf::from(std::ffi::OsStr::from_bytes(bytes));
        match self {
            Self::Transfer(of) => About::Transfer(Arc::clone(of)),
            Self::Open { file, path: of, .. } => About::Open(*file, path(of)),
            Self::Create { rank, file, path: of, .. } => About::Create(*rank, *file, path(of)),
            Self::Fsync { job, file } => {
                let known = files.get(file).map(|file| file.path.clone());
                About::Fsync(*job, known.unwrap_or_default())
            }
            Self::Unlink { .. } | Self::Prefetch { .. } => About::Aside,
        }
    }
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
    /// A request of `Effect::Transfer` has not come back within the timeout; `Transferred` follows if ever it does.
    Late(u64, Outcome),
}

/// What a call in progress is about.
enum About {
    Transfer(Arc<Running>),
    Open(FileId, PathBuf),
    Create(RankId, FileId, PathBuf),
    Fsync(u64, PathBuf),
    /// Nothing waits for it.
    Aside,
}

#[derive(Default)]
struct State {
    work: Fair<Work>,
    files: HashMap<FileId, Arc<OpenFile>>,
    done: Vec<Done>,
    served: HashMap<Arc<str>, Served>,
    calls: Calls<About>,
    /// Transfers that have not ended.
    transfers: HashMap<u64, Arc<Running>>,
    /// Threads, and those of them that hang in a late call.
    threads: usize,
    hanging: usize,
    /// Pieces in flight that there may be, as many threads that do not hang.
    depth: usize,
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
    timeout: Duration,
    delay_ns: AtomicU64,
    delayed: Mutex<()>,
    systems: FileSystems,
}

/// The threads.
pub struct Storage {
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
}

/// The queue of requests that are no data.
const NO_APP: &str = "";

impl Storage {
    /// Start the threads. `wake` is called when something has ended; a call is late after `timeout`.
    pub fn start(
        pool: Arc<Pool>,
        lease: Duration,
        timeout: Duration,
        wake: impl Fn() + Send + Sync + 'static,
    ) -> std::io::Result<Self> {
        let lease_ns = u64::try_from(lease.as_nanos()).unwrap_or(u64::MAX);
        let shared = Arc::new(Shared {
            pool,
            state: Mutex::new(State { depth: LEAST_DEPTH, ..State::default() }),
            more: Condvar::new(),
            wake: Box::new(wake),
            alive_ns: AtomicU64::new(now_ns()),
            lease_ns,
            timeout,
            delay_ns: AtomicU64::new(0),
            delayed: Mutex::new(()),
            systems: FileSystems::new(),
        });
        let mut found = Self { shared, threads: Vec::new() };
        for _ in 0..LEAST_DEPTH {
            found.add_thread()?;
        }
        Ok(found)
    }

    fn add_thread(&mut self) -> std::io::Result<()> {
        let shared = Arc::clone(&self.shared);
        let mut state = self.shared.state.lock();
        let name = format!("ws-storage-{}", state.threads);
        let thread = std::thread::Builder::new().name(name).spawn(move || shared.run())?;
        state.threads += 1;
        self.threads.push(thread);
        Ok(())
    }

    /// Find calls that are late: their requests end with an error, and threads replace theirs.
    pub fn check(&mut self) {
        let now = now_ns();
        let limit = u64::try_from(self.shared.timeout.as_nanos()).unwrap_or(u64::MAX);
        {
            let mut state = self.shared.state.lock();
            for about in state.calls.late(now, limit) {
                state.hanging += 1;
                let done = self.shared.late(about);
                state.done.extend(done);
            }
        }
        self.threads.retain(|thread| !thread.is_finished());
        self.fill();
    }

    /// As many threads as there may be pieces in flight.
    fn fill(&mut self) {
        let missing = {
            let state = self.shared.state.lock();
            let able = state.threads - state.hanging;
            state.depth.saturating_sub(able).min(MOST_THREADS.saturating_sub(state.threads))
        };
        for _ in 0..missing {
            if self.add_thread().is_err() {
                break; // tried again at the next check
            }
        }
    }

    /// Begin no further piece of a transfer; it still ends by `Transferred`.
    pub fn cancel(&self, job: u64) {
        if let Some(of) = self.shared.state.lock().transfers.get(&job) {
            of.cancelled.store(true, Ordering::Release);
        }
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
    pub fn transfer(&mut self, mut transfer: Transfer) {
        let (app, bytes) = (Arc::clone(&transfer.app), transfer.bytes);
        let (piece, aggregators) = (transfer.piece, transfer.aggregators);
        let coverage = std::mem::take(&mut transfer.coverage);
        let progress =
            Progress { coverage, at: 0, active: 0, queued: true, outcome: Outcome::ok() };
        let mut state = self.shared.state.lock();
        let file = state.files.get(&transfer.file).cloned();
        let targets = file.as_ref().map_or(1, |file| file.targets);
        state.depth = state.depth.max(depth(targets, aggregators));
        state.served.entry(Arc::clone(&app)).or_default().queue_bytes += bytes;
        let of = Arc::new(Running {
            transfer,
            file,
            state: Mutex::new(progress),
            eof: AtomicU64::new(u64::MAX),
            cancelled: AtomicBool::new(false),
        });
        state.transfers.insert(of.transfer.job, Arc::clone(&of));
        state.work.push(&app, bytes.min(piece), Work::Transfer(of));
        drop(state);
        self.shared.more.notify_one();
        self.fill();
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
    /// Ends after the requests that are in a system call, but for those that are late.
    fn drop(&mut self) {
        self.shared.state.lock().ending = true;
        self.shared.more.notify_all();
        while !self.shared.state.lock().calls.only_late() {
            std::thread::sleep(PAUSE);
            self.check();
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
            let about = work.about(&state.files);
            let number = state.calls.begin(now_ns(), about);
            drop(state);
            let done = self.act(work);
            let mut state = self.state.lock();
            let late = state.calls.end(number);
            // A rank was answered already; whether a file is open at last is good to know.
            let done = done.filter(|done| !(late && matches!(done, Done::Created(..))));
            let any = done.is_some();
            state.done.extend(done);
            if late {
                state.hanging -= 1;
                // Another thread has its place.
                if state.threads - state.hanging > state.depth {
                    state.threads -= 1;
                    drop(state);
                    (self.wake)();
                    return;
                }
            }
            drop(state);
            if any {
                (self.wake)();
            }
        }
    }

    /// What is reported of a call that is late.
    fn late(&self, about: About) -> Option<Done> {
        let hangs = |path: &Path, what: &str| hangs(path, what, self.timeout);
        match about {
            About::Transfer(of) => {
                of.cancelled.store(true, Ordering::Release);
                let path = of.file.as_ref().map_or(Path::new(""), |file| &file.path);
                let what = if of.transfer.write { "written" } else { "read" };
                Some(Done::Late(of.transfer.job, hangs(path, what)))
            }
            About::Open(file, path) => Some(Done::Opened(file, hangs(&path, "opened"))),
            About::Create(rank, file, path) => {
                Some(Done::Created(rank, file, hangs(&path, "opened"), None))
            }
            About::Fsync(job, path) => Some(Done::Synced(job, hangs(&path, "synced"))),
            About::Aside => None,
        }
    }

    fn act(&self, work: Work) -> Option<Done> {
        match work {
            Work::Transfer(of) => self.piece(of),
            Work::Open { file, path, flags } => {
                let outcome = match open(&path, flags & !(CREATE | EXCL)) {
                    Ok(fd) => {
                        let path = PathBuf::from(std::ffi::OsStr::from_bytes(&path));
                        let stripes = stripe(&self.systems, &fd);
                        let targets = stripes.map_or(1, |(_, targets)| targets as usize);
                        let opened = Arc::new(OpenFile { fd, path, targets });
                        self.state.lock().files.insert(file, opened);
                        Outcome::ok()
                    }
                    Err(failed) => failed,
                };
                Some(Done::Opened(file, outcome))
            }
            Work::Create { rank, file, path, flags } => {
                let (outcome, stripes) = match open(&path, flags) {
                    Ok(fd) => (Outcome::ok(), stripe(&self.systems, &fd)),
                    Err(failed) => (failed, None),
                };
                Some(Done::Created(rank, file, outcome, stripes))
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
        let (piece, bytes, more, first) = {
            let mut state = of.state.lock();
            let first = state.at == 0;
            let (piece, bytes, more) = state.take(&of.transfer);
            (piece, bytes, more, first)
        };
        let app = &of.transfer.app;
        if more {
            // The next piece is as large, about.
            self.state.lock().work.push(app, bytes, Work::Transfer(Arc::clone(&of)));
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
        served.bytes += bytes;
        served.busy_ns += took;
        let outcome = ended?;
        served.windows += 1;
        served.queue_bytes = served.queue_bytes.saturating_sub(of.transfer.bytes);
        state.transfers.remove(&of.transfer.job);
        Some(Done::Transferred(of.transfer.job, outcome, of.eof.load(Ordering::Acquire)))
    }

    fn move_runs(&self, of: &Running, runs: &[(u64, u64, u64)]) -> Outcome {
        let Some(file) = &of.file else {
            return Outcome::failed(Status::Io, "the file is not open at this aggregator");
        };
        for (position, offset, bytes) in runs {
            let at = of.transfer.image + position;
            if of.cancelled.load(Ordering::Acquire) {
                return Outcome::failed(Status::Again, "its operation has ended");
            }
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
