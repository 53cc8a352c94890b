//! Cuts files into chunks, with many threads: into the totals of a report, or into a part on disk.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use waystage_catalog::check::{Differences, Recorded};
use waystage_catalog::CheckedTree;
use waystage_pacing::{during, Cause, Next, Pace, Stopped, Turns};
use waystage_sync::{Condvar, Mutex};

use crate::digest::Fingerprint;

use super::read::{ChunkReader, ChunkSink, Ended};
use super::tally::{bin_of, type_of, Files, Group};
use super::totals::{Report, Totals};
use super::trace::{Chunk, Parameters, Whole};
use super::writer::Writer;
use crate::error::LoadError;

/// Chunks that a thread holds before it puts them in.
const BATCH: usize = 4096;

/// Unreadable files listed with their error; all are counted.
const LISTED_ERRORS: usize = 1000;

/// A file to read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Task {
    /// Its path below the root.
    pub path: Vec<u8>,
    /// What it is expected to have: bytes.
    pub size: u64,
    /// Last change of its content, ns since 1970.
    pub mtime_ns: i64,
    /// Last change of its attributes, ns since 1970.
    pub ctime_ns: i64,
    /// Its number in its file system.
    pub inode: u64,
    /// Its file system.
    pub device: u64,
    /// How many names it has.
    pub links: u32,
    /// The storage target of its first byte, 0 where it is unknown.
    pub target: u32,
}

impl Task {
    fn recorded(&self) -> Recorded {
        Recorded {
            kind: 0,
            size: i64::try_from(self.size).unwrap_or(i64::MAX),
            mtime: self.mtime_ns,
            ctime: self.ctime_ns,
            inode: self.inode,
            generation: None,
        }
    }
}

/// How a profile is made.
#[derive(Clone, Debug)]
pub struct Options {
    /// What all paths are below.
    pub root: PathBuf,
    /// Method and fingerprint.
    pub parameters: Parameters,
    /// Threads that read and cut.
    pub threads: usize,
    /// The most bytes read in a second; 0 for no limit.
    pub bytes_per_s: u64,
    /// Where a part goes; None for a report in memory.
    pub part: Option<PathBuf>,
}

enum Sink {
    Totals(Box<Totals>),
    Part(Box<Mutex<Writer>>),
}

struct Shared {
    tree: CheckedTree,
    tasks: Vec<Task>,
    turns: Mutex<Turns>,
    /// A target may take another reader.
    turn: Condvar,
    bytes_total: u64,
    sink: Sink,
    options: Options,
    pace: Pace,
    files_done: AtomicU64,
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    running: usize,
    files: Files,
    errors: Vec<(Vec<u8>, String)>,
    failure: Option<LoadError>,
}

/// A profile being made.
pub struct Profile {
    shared: Arc<Shared>,
    threads: Mutex<Vec<JoinHandle<()>>>,
}

/// The progress of a profile.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Progress {
    /// Bytes read.
    pub bytes: u64,
    /// Files that are done with, one way or another.
    pub files: u64,
    /// Files there are.
    pub of: u64,
}

/// A finished profile.
#[derive(Debug)]
pub struct Finished {
    /// The report; for a part only its files.
    pub report: Report,
    /// The first files that could not be read.
    pub errors: Vec<(Vec<u8>, String)>,
}

impl Profile {
    /// Begin. Of several names of a file one is read: the first by byte order.
    pub fn start(options: Options, tasks: Vec<Task>) -> Result<Self, LoadError> {
        let io = |path: &Path| {
            let path = path.to_owned();
            move |error: std::io::Error| LoadError::Io(path, error)
        };
        let tree = CheckedTree::open(&options.root).map_err(io(&options.root))?;
        let sink = match &options.part {
            None => Sink::Totals(Box::new(Totals::new())),
            Some(path) => Sink::Part(Box::new(Mutex::new(
                Writer::create(path, &options.parameters).map_err(io(path))?,
            ))),
        };
        let (tasks, links) = ordered(tasks);
        let threads = options.threads.clamp(1, 1024);
        let turns = Turns::new(tasks.iter().map(|task| task.target));
        let bytes_total = tasks.iter().map(|task| task.size).sum();
        let limit = Some(options.bytes_per_s).filter(|rate| *rate > 0);
        let files = Files { links, ..Files::default() };
        let shared = Arc::new(Shared {
            tree,
            tasks,
            turns: Mutex::new(turns),
            turn: Condvar::new(),
            bytes_total,
            sink,
            options,
            pace: Pace::limited_to(limit),
            files_done: AtomicU64::new(links),
            state: Mutex::new(State { running: threads, files, ..State::default() }),
            changed: Condvar::new(),
        });
        let profile = Self { shared, threads: Mutex::default() };
        for number in 0..threads {
            let shared = Arc::clone(&profile.shared);
            let spawned = std::thread::Builder::new()
                .name(format!("dedup-{number}"))
                .spawn(move || shared.work())
                .map_err(|error| {
                    profile.shared.stop();
                    LoadError::Option(format!("thread {number} of {threads} cannot begin: {error}"))
                })?;
            profile.threads.lock().push(spawned);
        }
        Ok(profile)
    }

    /// How far it is.
    #[must_use]
    pub fn progress(&self) -> Progress {
        Progress {
            bytes: self.shared.pace.bytes(),
            files: self.shared.files_done.load(Ordering::Relaxed),
            of: self.shared.tasks.len() as u64 + self.shared.state.lock().files.links,
        }
    }

    /// Wait for the end, for at most `timeout`; whether it has come.
    #[must_use]
    pub fn wait(&self, timeout: Duration) -> bool {
        let mut state = self.shared.state.lock();
        self.shared.changed.wait_while_for(&mut state, |state| state.running > 0, timeout);
        state.running == 0
    }

    /// Where the rate is limited, and the profile paused and counted.
    #[must_use]
    pub fn pace(&self) -> &Pace {
        &self.shared.pace
    }

    /// Bytes of all files, as they were recorded.
    #[must_use]
    pub fn bytes_total(&self) -> u64 {
        self.shared.bytes_total
    }

    /// Limit the readers of each storage target, from now on; a reader ends its file first.
    pub fn limit_readers(&self, most: u32) {
        self.shared.turns.lock().limit_each(Some(most.max(1)));
        self.shared.turn.notify_all();
    }

    /// Limit the readers of these storage targets, given by number.
    ///
    /// # Errors
    /// The number of which there is no target; then nothing has changed.
    pub fn limit_readers_of(
        &self,
        targets: impl Iterator<Item = (u32, u32)> + Clone,
    ) -> Result<(), u32> {
        let mut turns = self.shared.turns.lock();
        if let Some((unknown, _)) = targets.clone().find(|(number, _)| !turns.has(*number)) {
            return Err(unknown);
        }
        for (number, most) in targets {
            turns.limit(number, Some(most.max(1)));
        }
        drop(turns);
        self.shared.turn.notify_all();
        Ok(())
    }

    /// End it early: [`Profile::finish`] then returns [`LoadError::Stopped`].
    pub fn stop(&self) {
        self.shared.stop();
    }

    /// Wait for the end and take the result. A complete part has its name when this returns; another is removed.
    pub fn finish(self) -> Result<Finished, LoadError> {
        for thread in self.threads.lock().drain(..) {
            if thread.join().is_err() {
                self.stop();
            }
        }
        let stopped = self.shared.pace.gate.is_stopped();
        let shared = Arc::clone(&self.shared);
        drop(self);
        let shared = Arc::into_inner(shared).ok_or(LoadError::Stopped)?;
        let state = shared.state.into_inner();
        if let Some(failure) = state.failure {
            return Err(failure);
        }
        if stopped {
            return Err(LoadError::Stopped);
        }
        let parameters = &shared.options.parameters;
        let report = match shared.sink {
            Sink::Totals(totals) => {
                totals.files(state.files);
                totals.report(parameters.method, parameters.digest)
            }
            Sink::Part(writer) => {
                let writer = (*writer).into_inner();
                let path = shared.options.part.clone().unwrap_or_default();
                writer.finish(state.files).map_err(|error| LoadError::Io(path, error))?;
                Report { files: state.files, ..Report::default() }
            }
        };
        Ok(Finished { report, errors: state.errors })
    }
}

impl Drop for Profile {
    fn drop(&mut self) {
        self.stop();
        for thread in self.threads.lock().drain(..) {
            // A panic has been printed to stderr.
            let _ = thread.join();
        }
    }
}

/// One task a file, in the order to read them in, and how many further names were left out.
///
/// By target in turns, so that threads do not share one; on a target by inode, the order of most disks.
fn ordered(mut tasks: Vec<Task>) -> (Vec<Task>, u64) {
    tasks.sort_unstable_by(|a, b| {
        (a.device, a.inode).cmp(&(b.device, b.inode)).then_with(|| a.path.cmp(&b.path))
    });
    let before = tasks.len();
    tasks.dedup_by(|later, first| {
        first.links > 1 && (later.device, later.inode) == (first.device, first.inode)
    });
    let links = (before - tasks.len()) as u64;
    if tasks.iter().any(|task| task.target != tasks[0].target) {
        let mut turns = std::collections::HashMap::new();
        tasks.sort_by_cached_key(|task| {
            let turn = turns.entry(task.target).or_insert(0_u64);
            *turn += 1;
            (*turn, task.target)
        });
    }
    (tasks, links)
}

impl Shared {
    /// The next file, waiting for a target that takes another reader; None at the end or after a stop.
    fn next(&self) -> Option<&Task> {
        // Files without contents pause as well.
        self.pace.gate.pass(0).ok()?;
        let mut turns = self.turns.lock();
        loop {
            match turns.take() {
                Next::Task(place) => return self.tasks.get(place),
                Next::End => return None,
                Next::Wait if self.pace.gate.is_stopped() => return None,
                Next::Wait => during(Cause::Source, || self.turn.wait(&mut turns)),
            }
        }
    }

    fn work(&self) {
        let _attached = self.pace.meter.attach();
        let mut reader =
            ChunkReader::new(self.options.parameters.method, self.options.parameters.digest);
        let mut files = Files::default();
        let mut errors = Vec::new();
        while let Some(task) = self.next() {
            let done = self.one(task, &mut reader, &mut files, &mut errors);
            self.turns.lock().done(task.target);
            // All of them: after the last task each has to learn that there is none.
            self.turn.notify_all();
            match done {
                Ok(()) => self.files_done.fetch_add(1, Ordering::Relaxed),
                Err(()) => break,
            };
        }
        let mut state = self.state.lock();
        state.files.merge(files);
        let free = LISTED_ERRORS.saturating_sub(state.errors.len());
        state.errors.extend(errors.into_iter().take(free));
        state.running -= 1;
        drop(state);
        self.changed.notify_all();
    }

    /// Read one file; an error where nothing more is to be read at all.
    fn one(
        &self,
        task: &Task,
        reader: &mut ChunkReader,
        files: &mut Files,
        errors: &mut Vec<(Vec<u8>, String)>,
    ) -> Result<(), ()> {
        let mut unreadable = |error: rustix::io::Errno| {
            files.unreadable += 1;
            if errors.len() < LISTED_ERRORS {
                let text = std::io::Error::from(error).to_string();
                errors.push((task.path.clone(), text));
            }
        };
        let opened = during(Cause::Source, || self.tree.open_file(&task.path, &task.recorded()));
        let opened = match opened {
            Ok(opened) => opened,
            Err(failed) if failed.differences.contains(Differences::UNREADABLE) => {
                unreadable(failed.error);
                return Ok(());
            }
            Err(_) => {
                files.vanished += 1;
                return Ok(());
            }
        };
        let kind = type_of(&task.path);
        let bin = bin_of(opened.stat.stx_size);
        let group = Group { kind: self.kind(&kind), bin };
        let mut batch = Batch { shared: self, group, plain: Vec::new(), zeros: Vec::new() };
        let read = reader.file(&opened.file, &opened.stat, &mut batch);
        let put = batch.flush();
        match read {
            Ok(done) => {
                put.map_err(|_| ())?;
                files.read += 1;
                files.changed += u64::from(!opened.differences.is_empty());
                files.bytes += done.bytes;
                files.empty += u64::from(done.bytes == 0);
                files.hole_chunks += done.hole_chunks;
                files.hole_bytes += done.hole_chunks * self.options.parameters.method.most() as u64;
                if done.bytes > 0 {
                    self.whole((done.fingerprint, done.bytes, group))?;
                }
                Ok(())
            }
            Err(Ended::Failed(error)) => {
                unreadable(error);
                put.map_err(|_| ())
            }
            Err(Ended::Stopped) => Err(()),
        }
    }

    fn kind(&self, name: &str) -> u16 {
        match &self.sink {
            Sink::Totals(totals) => totals.types.number(name),
            Sink::Part(writer) => writer.lock().kind(name),
        }
    }

    fn whole(&self, file: Whole) -> Result<(), ()> {
        match &self.sink {
            Sink::Totals(totals) => {
                totals.whole(&file);
                Ok(())
            }
            Sink::Part(writer) => self.written(writer.lock().whole(file)),
        }
    }

    fn chunks(&self, group: Group, zeros: bool, chunks: &[Chunk]) -> Result<(), ()> {
        match &self.sink {
            Sink::Totals(totals) => {
                totals.chunks(group, zeros, chunks);
                Ok(())
            }
            Sink::Part(writer) => self.written(writer.lock().chunks(group, zeros, chunks)),
        }
    }

    /// A part that cannot be written ends everything.
    fn written<T>(&self, result: std::io::Result<T>) -> Result<T, ()> {
        result.map_err(|error| {
            let path = self.options.part.clone().unwrap_or_default();
            self.state.lock().failure.get_or_insert(LoadError::Io(path, error));
            self.stop();
        })
    }

    /// Under the lock, so that a thread that is about to wait is woken.
    fn stop(&self) {
        let state = self.state.lock();
        self.pace.gate.set_stopped(true);
        drop(state);
        self.changed.notify_all();
        drop(self.turns.lock());
        self.turn.notify_all();
    }
}

/// Chunks of one file that are not yet put in.
struct Batch<'a> {
    shared: &'a Shared,
    group: Group,
    plain: Vec<Chunk>,
    zeros: Vec<Chunk>,
}

impl Batch<'_> {
    fn flush(&mut self) -> Result<(), Ended> {
        for (zeros, chunks) in [(false, &mut self.plain), (true, &mut self.zeros)] {
            if !chunks.is_empty() {
                self.shared.chunks(self.group, zeros, chunks).map_err(|()| Ended::Stopped)?;
                chunks.clear();
            }
        }
        Ok(())
    }
}

impl ChunkSink for Batch<'_> {
    fn chunk(&mut self, fingerprint: Fingerprint, bytes: u32, zeros: bool) -> Result<(), Ended> {
        let into = if zeros { &mut self.zeros } else { &mut self.plain };
        into.push((fingerprint, bytes));
        if into.len() < BATCH {
            Ok(())
        } else {
            self.flush()
        }
    }

    fn before(&mut self, bytes: usize) -> Result<(), Ended> {
        self.shared.pace.gate.pass(bytes as u64).map(drop).map_err(|Stopped| Ended::Stopped)
    }

    fn read(&mut self, bytes: usize) {
        self.shared.pace.moved(bytes as u64);
    }
}
