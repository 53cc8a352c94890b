//! The agent's thread: reads the lanes until the program is over.

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
use crate::changes::{Changes, Looks};
use crate::event::{parse, Event, Kind};
use crate::lane::{Drained, LaneReader};
use crate::ledger::Ledger;
use crate::places::Places;
use crate::programs::Programs;
use crate::segment::{Segment, Shape};

/// How long the thread sleeps when there was nothing: at first, and after nothing has come for a while. A lane of half a MiB
/// takes several ms to fill, and there are many.
const SHORT_REST: Duration = Duration::from_millis(1);
const LONG_REST: Duration = Duration::from_millis(20);

/// How often locks are looked at. A thread holds one for less than a microsecond; one that is not running may for longer.
const SWEEP: Duration = Duration::from_millis(500);

/// How long a process that runs on has for the library to come in the program that it just began.
const ARRIVAL: Duration = Duration::from_secs(2);

/// What to watch, and with how much shared memory.
#[derive(Debug, Clone)]
pub struct Setup {
    /// The top of the tree, absolute and without links.
    pub root: PathBuf,
    /// Whether programs say on closing what fstat says.
    pub tell_stat: bool,
    /// Lanes, from 1 to 65,536; as many threads can write at once.
    pub lanes: usize,
    /// Bytes of each, a power of two of 64 KiB at least.
    pub lane_bytes: usize,
}

/// What became of records.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub struct Counts {
    /// Records read.
    pub records: u64,
    /// Paths below the root that they are of, with the directories that hold these.
    pub paths: u64,
    /// Records of paths elsewhere.
    pub outside: u64,
    /// Changes that programs could not tell of, because there was no room in time.
    pub lost: u64,
    /// Changes whose paths could not be told.
    pub unplaced: u64,
    /// Times that what was in a lane was no record.
    pub damaged: u64,
    /// Symbolic links that were pointed elsewhere after something had gone through them.
    pub doubtful: u64,
    /// Processes of the program that run on.
    pub running: u64,
    /// Programs that processes became and that cannot be seen.
    pub unseen: u64,
    /// Processes that did something that cannot be seen, such as io_uring.
    pub blind: u64,
}

impl Counts {
    /// Whether nothing may be missing.
    #[must_use]
    pub fn whole(&self) -> bool {
        let unread = self.lost + self.unplaced + self.damaged + self.doubtful;
        unread + self.running + self.unseen + self.blind == 0
    }
}

/// An agent at work. Dropping it ends it.
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
        let sound = (1..=65_536).contains(&setup.lanes)
            && setup.lane_bytes.is_power_of_two()
            && (1 << 16..=1 << 30).contains(&setup.lane_bytes);
        if !sound {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "lanes are out of bounds"));
        }
        let shape = Shape { lanes: setup.lanes, lane_bytes: setup.lane_bytes };
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

    /// A process was started with the library, as the program `name`: whether it can be seen is told at the end.
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

    /// The program is over: read what is left, and end. None if that was done before.
    pub fn finish(&self, looks: Looks) -> io::Result<Option<Changes>> {
        self.stop.store(true, Ordering::Release);
        let thread = self.reader.lock().take();
        let Some(thread) = thread else { return Ok(None) };
        let mut reader =
            thread.join().map_err(|_| io::Error::other("the agent's thread panicked"))?;
        reader.places.end();
        for (process, name) in self.started.lock().drain(..) {
            // Before all that it says itself.
            reader.programs.take(process, abi::PROGRAM_BEGINS, &name, 1);
        }
        let mut counts = reader.counts;
        counts.doubtful = reader.places.doubtful;
        counts.paths = reader.ledger.len() as u64;
        let words = self.segment.words();
        counts.lost = words.at(abi::LOST).load(Ordering::Relaxed);
        counts.unplaced = words.at(abi::UNPLACED).load(Ordering::Relaxed);
        counts.lost += reader.programs.beyond;
        counts.running = self.running();
        counts.unseen = reader.programs.unseen();
        counts.blind = reader.programs.blind();
        let names = reader.programs.names();
        Changes::new(&self.setup.root, reader.ledger, reader.places, counts, looks)
            .map(|changes| Some(changes.with_unseen(names)))
    }

    /// Processes that have the memory mapped and are still there.
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
            // A panic has told the process's stderr; there is nobody to tell here.
            let _ = thread.join();
        }
    }
}

/// What the thread has.
struct Reader {
    segment: Arc<Segment>,
    lanes: Vec<LaneReader>,
    /// Holders of lanes at the last sweep.
    held: Vec<Option<(u64, u64)>>,
    ledger: Ledger,
    places: Places,
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
            lanes: (0..shape.lanes).map(|lane| LaneReader::new(shape, lane)).collect(),
            held: vec![None; shape.lanes],
            ledger: Ledger::default(),
            places: Places::new(&setup.root),
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
            // Before the round: what was written before the program ended is read in the round after.
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
                std::thread::sleep(if idle { LONG_REST } else { SHORT_REST });
            }
        }
    }

    /// Read on while a process that still runs is between two programs, so that it is not taken for one that cannot be seen.
    fn await_arrivals(&mut self) {
        let end = Instant::now() + ARRIVAL;
        while self.programs.begun().any(is_running_process) && Instant::now() < end {
            std::thread::sleep(SHORT_REST);
            self.round();
        }
        self.records.store(self.counts.records, Ordering::Relaxed);
    }

    /// Read every lane once, as far as it is written.
    fn round(&mut self) -> Drained {
        let Self { segment, lanes, ledger, places, programs, counts, .. } = self;
        let words = segment.words();
        let mut all = Drained::default();
        for lane in lanes {
            let drained = lane.drain(&words, |record| {
                let Some(event) = parse(record) else { return false };
                counts.records += 1;
                match event {
                    Event::Program { process, state, name, when_ns } => {
                        programs.take(process, state, name, when_ns)
                    }
                    Event::Closed { token, facts } => {
                        ledger.closed(token, facts);
                        true
                    }
                    Event::Changed { kind, path, token } => {
                        changed(kind, path, token, ledger, places, counts);
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

    /// Free lanes of threads that ended while they held one.
    fn sweep(&mut self) {
        let words = self.segment.words();
        for (lane, before) in self.lanes.iter().zip(&mut self.held) {
            let holder = lane.holder(&words);
            if let (Some((thread, _)), true) = (holder, holder == *before) {
                if !is_running_process(thread) {
                    lane.release(&words, thread);
                }
            }
            *before = holder;
        }
    }
}

fn changed(
    kind: Kind,
    path: &[u8],
    token: u64,
    ledger: &mut Ledger,
    places: &mut Places,
    counts: &mut Counts,
) {
    match kind {
        Kind::Moved => places.moved(path, token),
        Kind::Symlink | Kind::Removed => places.named_anew(path, token),
        _ => {}
    }
    match places.of(path) {
        Some(place) if place.is_empty() => {}
        Some(place) => ledger.changed(&place, kind, token),
        None => counts.outside += 1,
    }
}

fn is_running_process(id: impl TryInto<i32>) -> bool {
    id.try_into().is_ok_and(is_running)
}

/// Whether a thread or process can still do anything: one that ended and was not waited for cannot.
fn is_running(id: i32) -> bool {
    match std::fs::read(format!("/proc/{id}/stat")) {
        Ok(stat) => {
            let state = stat.iter().rposition(|byte| *byte == b')').and_then(|at| stat.get(at + 2));
            !matches!(state, Some(b'Z' | b'X'))
        }
        // Without /proc only whether there is one.
        Err(_) => Pid::from_raw(id).is_some_and(|id| test_kill_process(id).is_ok()),
    }
}
