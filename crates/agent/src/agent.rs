//! The agent's thread: reads the rings until the program ends.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use rustix::process::{test_kill_process, Pid};

use crate::abi;
use crate::changed_paths::ChangedPaths;
use crate::changes::{Changes, LookupOptions};
use crate::counts::Counts;
use crate::event::{parse, Event, Kind};
use crate::programs::Programs;
use crate::resolver::PathResolver;
use crate::ring::{Drained, RingReader};
use crate::segment::{Segment, Shape};

/// How long the thread sleeps when all rings are empty: at first, and after an idle second. A ring of half a MiB
/// takes several ms to fill, and there are many.
const SHORT_REST: Duration = Duration::from_millis(1);
const LONG_REST: Duration = Duration::from_millis(20);

/// How often locks are checked for dead holders. A running thread holds one for less than a microsecond.
const SWEEP: Duration = Duration::from_millis(500);

/// How long a process that still runs has to load the library in the program that it just started.
const ARRIVAL: Duration = Duration::from_secs(2);

/// What to watch, and with how much shared memory.
#[derive(Debug, Clone)]
pub struct Setup {
    /// The top of the tree, absolute and without links.
    pub root: PathBuf,
    /// Whether programs send the result of fstat(2) when they close a file.
    pub tell_stat: bool,
    /// Rings, from 1 to 65,536: the number of threads that can write at once.
    pub rings: usize,
    /// Bytes of each, a power of two of 64 KiB at least.
    pub ring_bytes: usize,
}

/// A running agent. Dropping it ends it.
pub struct Agent {
    segment: Arc<Segment>,
    setup: Setup,
    stop: Arc<AtomicBool>,
    records: Arc<AtomicU64>,
    reader: Mutex<Option<JoinHandle<Reader>>>,
    started: Mutex<Vec<(u32, Vec<u8>)>>,
}

impl Agent {
    /// Start reading. Fails where the memory or the thread cannot be had, or the setup is out of bounds.
    pub fn start(setup: Setup) -> io::Result<Self> {
        let sound = (1..=65_536).contains(&setup.rings)
            && setup.ring_bytes.is_power_of_two()
            && (1 << 16..=1 << 30).contains(&setup.ring_bytes);
        if !sound {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "rings are out of bounds"));
        }
        let shape = Shape { rings: setup.rings, ring_bytes: setup.ring_bytes };
        let segment = Arc::new(Segment::create(shape, setup.tell_stat)?);
        let stop = Arc::new(AtomicBool::new(false));
        let records = Arc::new(AtomicU64::new(0));
        let reader =
            Reader::new(Arc::clone(&segment), &setup, Arc::clone(&stop), Arc::clone(&records));
        let thread =
            std::thread::Builder::new().name("catalog-agent".into()).spawn(move || reader.run())?;
        Ok(Self {
            segment,
            setup,
            stop,
            records,
            reader: Mutex::new(Some(thread)),
            started: Mutex::default(),
        })
    }

    /// A process was started with the library, as the program `name`. [`Agent::finish`] reports whether the library
    /// loaded.
    pub fn started(&self, process: u32, name: &[u8]) {
        let mut started = self.started.lock();
        started.push((process, name.to_vec()));
    }

    /// The path by which programs of this user map the memory, while this process lives.
    #[must_use]
    pub fn path(&self) -> String {
        format!("/proc/{}/fd/{}", std::process::id(), self.segment.file().as_raw_fd())
    }

    /// The memory itself.
    #[must_use]
    pub fn memory(&self) -> BorrowedFd<'_> {
        self.segment.file().as_fd()
    }

    /// Records read so far.
    #[must_use]
    pub fn records(&self) -> u64 {
        self.records.load(Ordering::Relaxed)
    }

    /// The program has ended: read the rest, and end. None where this was called before.
    pub fn finish(&self, options: LookupOptions) -> io::Result<Option<Changes>> {
        self.stop.store(true, Ordering::Release);
        let thread = self.reader.lock().take();
        let Some(thread) = thread else { return Ok(None) };
        thread.thread().unpark();
        let mut reader =
            thread.join().map_err(|_| io::Error::other("the agent's thread panicked"))?;
        reader.resolver.end();
        for (process, name) in self.started.lock().drain(..) {
            // Before all of the process's own records.
            reader.programs.take(process, abi::PROGRAM_STARTS, &name, 1);
        }
        let mut counts = reader.counts;
        counts.doubtful = reader.resolver.doubtful;
        counts.paths = reader.paths.len() as u64;
        let words = self.segment.words();
        counts.lost = words.at(abi::LOST).load(Ordering::Relaxed);
        counts.unplaced = words.at(abi::UNPLACED).load(Ordering::Relaxed);
        counts.lost += reader.programs.beyond;
        counts.running = self.running();
        counts.unseen = reader.programs.unseen();
        counts.blind = reader.programs.blind();
        let names = reader.programs.names();
        Changes::new(&self.setup.root, reader.paths, reader.resolver, counts, options)
            .map(|changes| Some(changes.with_unseen(names)))
    }

    /// Processes that have the memory mapped and still run.
    fn running(&self) -> u64 {
        let words = self.segment.words();
        let mut ids = vec![0; 4 * abi::PROCESSES];
        words.copy(abi::PROCESS_IDS, &mut ids);
        let mut alive: Vec<i32> = ids
            .chunks_exact(4)
            .filter_map(|id| i32::try_from(u32::from_ne_bytes(id.try_into().ok()?)).ok())
            .filter(|id| *id > 0 && is_running(*id))
            .collect();
        alive.sort_unstable();
        alive.dedup();
        alive.len() as u64
    }
}

impl Drop for Agent {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Release);
        let thread = self.reader.lock().take();
        if let Some(thread) = thread {
            thread.thread().unpark();
            // A panic has been printed to stderr.
            let _ = thread.join();
        }
    }
}

/// The state of the thread.
struct Reader {
    segment: Arc<Segment>,
    rings: Vec<RingReader>,
    /// Holders of rings at the last sweep.
    held: Vec<Option<(u64, u64)>>,
    paths: ChangedPaths,
    resolver: PathResolver,
    programs: Programs,
    counts: Counts,
    stop: Arc<AtomicBool>,
    records: Arc<AtomicU64>,
}

impl Reader {
    fn new(
        segment: Arc<Segment>,
        setup: &Setup,
        stop: Arc<AtomicBool>,
        records: Arc<AtomicU64>,
    ) -> Self {
        let shape = segment.shape;
        Self {
            segment,
            rings: (0..shape.rings).map(|ring| RingReader::new(shape, ring)).collect(),
            held: vec![None; shape.rings],
            paths: ChangedPaths::default(),
            resolver: PathResolver::new(&setup.root),
            programs: Programs::default(),
            counts: Counts::default(),
            stop,
            records,
        }
    }

    fn run(mut self) -> Self {
        let mut swept = Instant::now();
        let mut busy = Instant::now();
        loop {
            // Read before the round: records from before the program's end are read in the round that follows.
            let last = self.stop.load(Ordering::Acquire);
            let drained = self.round();
            self.records.store(self.counts.records, Ordering::Relaxed);
            if last {
                self.await_arrivals();
                return self;
            }
            let now = Instant::now();
            if now.duration_since(swept) >= SWEEP {
                swept = now;
                self.sweep();
            }
            if drained.bytes > 0 {
                busy = now;
            } else {
                let idle = now.duration_since(busy) > Duration::from_secs(1);
                std::thread::park_timeout(if idle { LONG_REST } else { SHORT_REST });
            }
        }
    }

    /// Read on while a running process is between two programs, so that it does not count as unobservable.
    fn await_arrivals(&mut self) {
        let end = Instant::now() + ARRIVAL;
        while self.programs.starting().any(is_running_process) && Instant::now() < end {
            std::thread::sleep(SHORT_REST);
            self.round();
        }
        self.records.store(self.counts.records, Ordering::Relaxed);
    }

    /// Read every ring once, up to its head.
    fn round(&mut self) -> Drained {
        let Self { segment, rings, paths, resolver, programs, counts, .. } = self;
        let words = segment.words();
        let mut all = Drained::default();
        for ring in rings {
            let drained = ring.drain(&words, |record| {
                let Some(event) = parse(record) else { return false };
                counts.records += 1;
                match event {
                    Event::Program { process, state, name, when_ns } => {
                        programs.take(process, state, name, when_ns)
                    }
                    Event::Closed { token, attributes } => {
                        paths.closed(token, attributes);
                        true
                    }
                    Event::Changed { kind, path, token } => {
                        changed(kind, path, token, paths, resolver, counts);
                        true
                    }
                }
            });
            all.bytes += drained.bytes;
            all.damaged += drained.damaged;
        }
        counts.damaged += all.damaged;
        words.at(abi::CONSUMED).fetch_add(all.bytes, Ordering::Relaxed);
        all
    }

    /// Free rings of threads that ended while they held one.
    fn sweep(&mut self) {
        let words = self.segment.words();
        for (ring, before) in self.rings.iter().zip(&mut self.held) {
            let holder = ring.holder(&words);
            if let (Some((thread, _)), true) = (holder, holder == *before) {
                if !is_running_process(thread) {
                    ring.release(&words, thread);
                }
            }
            *before = holder;
        }
    }
}

fn changed(
    kind: Kind,
    named: &[u8],
    token: u64,
    paths: &mut ChangedPaths,
    resolver: &mut PathResolver,
    counts: &mut Counts,
) {
    match kind {
        Kind::Moved => resolver.moved(named, token),
        Kind::Symlink | Kind::Removed => resolver.link_changed(named, token),
        _ => {}
    }
    match resolver.resolve(named) {
        Some(path) if path.is_empty() => {}
        Some(path) => paths.changed(&path, kind, token),
        None => counts.outside += 1,
    }
}

fn is_running_process(id: impl TryInto<i32>) -> bool {
    id.try_into().is_ok_and(is_running)
}

/// Whether a thread or process runs; a zombie does not.
fn is_running(id: i32) -> bool {
    match std::fs::read(format!("/proc/{id}/stat")) {
        Ok(stat) => {
            let state = stat.iter().rposition(|byte| *byte == b')').and_then(|at| stat.get(at + 2));
            !matches!(state, Some(b'Z' | b'X'))
        }
        // Without /proc only its existence can be tested.
        Err(_) => Pid::from_raw(id).is_some_and(|id| test_kill_process(id).is_ok()),
    }
}
