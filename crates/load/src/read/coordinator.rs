//! The read coordinator: the scheduler behind a lock, the items that are ready, and the waiting loaders and consumer.

mod waking;

use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::Arc;
use std::time::{Duration, Instant};

use waystage_pacing::Pace;
use waystage_sync::{Condvar, Mutex};

use super::delivery::{Counts, Delivered, Next, TargetCounts};
use super::file::{Assembly, Outcome, Source};
use super::started::Started;
use crate::buffer::Buffer;
use crate::error::{Failure, Trouble};
use crate::files::Extent;
use crate::plan::Delivery;
use crate::progress::Progress;
use crate::schedule::{Binding, Piece, Rules, Scheduler, Turn};
use crate::stream::Item;

/// A piece to read.
pub(super) struct Job {
    pub(super) piece: Piece,
    pub(super) item: Arc<Item>,
    pub(super) extent: Extent,
    /// Where the item has several pieces.
    pub(super) assembly: Option<Arc<Assembly>>,
}

/// Pieces of one target that a loader reads one after the other.
pub(super) struct Batch {
    pub(super) jobs: Vec<Job>,
    target: usize,
    since: Instant,
    /// Time in which a limit or a pause held it before a piece was read.
    pub(super) held: Duration,
    /// Whether its reader had to wait for the storage.
    pub(super) waited: bool,
}

/// An item that was read.
struct Ready {
    delivered: Delivered,
    part: u32,
    parts: u32,
    held: u64,
}

struct State {
    scheduler: Scheduler,
    assemblies: HashMap<usize, Arc<Assembly>>,
    /// What of a file was whole before all its pieces came back, by slot.
    early: HashMap<usize, Result<Option<Buffer>, Failure>>,
    /// In order, from the item whose turn it is on; None for one that is not read yet. Else all that is ready.
    ready: VecDeque<Option<Ready>>,
    /// The place in the order of the first of them.
    first: u64,
    counts: Counts,
    /// For each target: its readers, and since when it has had any.
    readers: Vec<(u32, Instant)>,
    sleeping: u32,
    /// Those that sleep because they found no work.
    idle: u32,
    reading: u32,
    /// Loaders among those that read, without the consumer.
    loading: u32,
    /// Whether a loader that sleeps may have work, since enough others read: it is woken when one of them finds none.
    owed: bool,
    /// Batches in succession whose reader did not have to wait, and whose reader had to.
    unwaited: u32,
    waited: u32,
    loaders: u32,
    stopped: bool,
    /// Whether readers were limited after the start.
    limited: bool,
}

/// Items on their way to the consumer, taken several at once, so that it locks the state for some of them only.
struct Consumer {
    taken: VecDeque<Ready>,
    /// Bytes of all of them, which are given back with the last.
    held: u64,
    progress: Progress,
    items: u64,
    bytes: u64,
    failed: [u64; 5],
}

/// Limits of what the consumer takes at once: the number of items, and the bytes at which it stops.
const TAKEN: usize = 64;
const TAKEN_BYTES: u64 = 1 << 20;

/// This number of batches without a wait are of files in memory.
const IN_MEMORY: u32 = 16;

/// This number of batches with a wait are of files that are not: a single one may be for memory.
const IN_STORAGE: u32 = 3;

pub(super) struct Coordinator {
    pub(super) pace: Pace,
    pub(super) source: Source,
    ordered: bool,
    binding: Binding,
    began: Instant,
    /// The consumer as a loader: it reads where it would sleep for less time than a wake-up takes.
    pub(super) helper: u32,
    pub(super) started: Mutex<Started>,
    /// Whether some were not started yet.
    short_of_loaders: AtomicBool,
    /// Loaders that read from memory at once, at most: with the consumer they have all cores, and more would only take
    /// turns.
    pub(super) quick_loaders: u32,
    state: Mutex<State>,
    /// Locked alone, or after the state.
    consumer: Mutex<Consumer>,
    work: Condvar,
    arrived: Condvar,
}

impl Coordinator {
    pub(super) fn new(
        source: Source,
        mut scheduler: Scheduler,
        progress: Progress,
        rules: &Rules,
    ) -> Self {
        let began = Instant::now();
        let targets = source.files.targets().len();
        let units = scheduler.units() as u64;
        let counts =
            Counts { units, targets: vec![TargetCounts::default(); targets], ..Counts::default() };
        Self {
            pace: Pace::default(),
            source,
            ordered: rules.ordered,
            binding: rules.binding,
            began,
            helper: scheduler.add_loader(),
            started: Mutex::default(),
            short_of_loaders: AtomicBool::new(false),
            quick_loaders: std::thread::available_parallelism()
                .map_or(1, |cores| u32::try_from(cores.get() - 1).unwrap_or(u32::MAX).max(1)),
            state: Mutex::new(State {
                scheduler,
                assemblies: HashMap::new(),
                early: HashMap::new(),
                ready: VecDeque::new(),
                first: 0,
                counts,
                readers: vec![(0, began); targets],
                sleeping: 0,
                idle: 0,
                reading: 0,
                loading: 0,
                owed: false,
                unwaited: 0,
                waited: 0,
                loaders: 0,
                stopped: false,
                limited: false,
            }),
            consumer: Mutex::new(Consumer {
                taken: VecDeque::new(),
                held: 0,
                progress,
                items: 0,
                bytes: 0,
                failed: [0; 5],
            }),
            work: Condvar::new(),
            arrived: Condvar::new(),
        }
    }

    pub(super) fn set_short_of_loaders(&self, short: bool) {
        self.short_of_loaders.store(short, Ordering::Relaxed);
    }

    /// Whether some loaders were not started yet.
    pub(super) fn is_short_of_loaders(&self) -> bool {
        self.short_of_loaders.load(Ordering::Relaxed)
    }

    pub(super) fn loader_started(&self) {
        self.state.lock().loaders += 1;
    }

    pub(super) fn loader_ended(&self) {
        self.state.lock().loaders -= 1;
        self.wake_all();
    }

    /// Let loaders and the consumer end.
    pub(super) fn stop(&self) {
        self.state.lock().stopped = true;
        self.pace.gate.set_stopped(true);
        self.wake_all();
    }

    /// Limit the readers of targets, given by index; the numbers of the loaders that are to be started for it, so that
    /// there are at most `most`.
    pub(super) fn limit_readers(&self, of: &[(usize, u32)], most: u32) -> Vec<u32> {
        let mut guard = self.state.lock();
        let state = &mut *guard;
        if state.stopped || state.loaders == 0 {
            return Vec::new();
        }
        for (target, readers) in of {
            state.scheduler.limit_readers(*target, *readers);
        }
        state.limited = true;
        let wanted = state.scheduler.most_loaders().min(most);
        let more = wanted.saturating_sub(state.loaders);
        let started = (0..more).map(|_| state.scheduler.add_loader()).collect();
        drop(guard);
        self.wake_all();
        started
    }

    fn wake_all(&self) {
        self.work.notify_all();
        self.arrived.notify_all();
    }

    fn turn(&self, state: &mut State, loader: u32) -> Result<Batch, Turn> {
        let queued = state.scheduler.queued();
        let turn = state.scheduler.turn(loader, &self.source.files, self.now_ns());
        let mut pieces = Vec::new();
        if let Turn::Read(piece) = turn {
            pieces.push(piece);
            state.scheduler.more(loader, piece, &mut pieces);
        }
        self.wake(state, loader, pieces.len() as u64, queued);
        match turn {
            Turn::Read(piece) => self.batch(state, piece.target, &pieces).ok_or(Turn::End),
            none => Err(none),
        }
    }

    fn batch(&self, state: &mut State, target: u16, pieces: &[Piece]) -> Option<Batch> {
        let jobs: Option<Vec<Job>> = pieces.iter().map(|piece| job(state, *piece)).collect();
        let (jobs, target, since) = (jobs?, usize::from(target), Instant::now());
        let (readers, busy_since) = &mut state.readers[target];
        if *readers == 0 {
            *busy_since = since;
        }
        *readers += 1;
        state.reading += 1;
        Some(Batch { jobs, target, since, held: Duration::ZERO, waited: false })
    }

    /// Some pieces of a batch were read; whether the reader had to wait.
    pub(super) fn done(&self, read: &mut Vec<(Job, Outcome)>, waited: bool) {
        let mut state = self.state.lock();
        if waited {
            state.unwaited = 0;
            self.wake_owed(&mut state);
        }
        if self.file(&mut state, read) {
            drop(state);
            self.arrived.notify_one();
        }
    }

    /// A loader has read its batch; `read` are the pieces for which [`Self::done`] was not called. Whether loaders wait
    /// for the storage.
    pub(super) fn batch_done(
        &self,
        loader: u32,
        batch: &Batch,
        read: &mut Vec<(Job, Outcome)>,
    ) -> bool {
        let now = Instant::now();
        let mut guard = self.state.lock();
        let state = &mut *guard;
        state.scheduler.ended(loader, self.now_ns());
        let counts = &mut state.counts.targets[batch.target];
        counts.reading_ns += nanoseconds((now - batch.since).saturating_sub(batch.held));
        let (readers, busy_since) = &mut state.readers[batch.target];
        *readers -= 1;
        if *readers == 0 {
            counts.busy_ns += nanoseconds(now.saturating_duration_since(*busy_since));
        }
        state.reading -= 1;
        state.loading -= u32::from(loader != self.helper);
        if batch.waited {
            (state.unwaited, state.waited) = (0, state.waited.saturating_add(1));
            self.wake_owed(state);
        } else {
            (state.unwaited, state.waited) = (state.unwaited.saturating_add(1), 0);
        }
        let are_slow = state.waited >= IN_STORAGE;
        if state.limited && state.sleeping > 0 {
            // The target takes a reader again, and this loader may go to another one.
            self.work.notify_one();
        }
        if self.file(state, read) {
            drop(guard);
            self.arrived.notify_one();
        }
        are_slow
    }

    /// Put what was read among what is ready. Whether the consumer may take an item that it could not before.
    fn file(&self, state: &mut State, read: &mut Vec<(Job, Outcome)>) -> bool {
        let mut arrived = false;
        for (job, outcome) in read.drain(..) {
            self.pace.moved(outcome.read);
            let counts = &mut state.counts.targets[usize::from(job.piece.target)];
            counts.bytes += outcome.read;
            counts.pieces += 1;
            state.counts.shrunk += u64::from(outcome.shrunk);
            arrived |= self.file_one(state, job, outcome);
        }
        arrived
    }

    fn file_one(&self, state: &mut State, job: Job, outcome: Outcome) -> bool {
        let used = match &outcome.bytes {
            Ok(Some(buffer)) => Some(buffer.bytes.len() as u64),
            Ok(None) => job.assembly.is_none().then_some(0),
            Err(_) => Some(0),
        };
        let Some((item, sequence, held)) = state.scheduler.read(job.piece, used) else {
            // Who put the last bytes into a file need not be the last to come here with a piece of it.
            if !matches!(outcome.bytes, Ok(None)) {
                state.early.insert(job.piece.slot, outcome.bytes);
            }
            return false;
        };
        let mut bytes = outcome.bytes;
        if job.assembly.is_some() {
            let early = state.early.remove(&job.piece.slot);
            if matches!(bytes, Ok(None)) {
                bytes = early.unwrap_or(Ok(None));
            }
            state.assemblies.remove(&job.piece.slot);
        }
        let offset = if self.source.delivery == Delivery::Files { 0 } else { job.extent.offset };
        let Item { position, part, parts, file, .. } = *item;
        let delivered = Delivered { position, file, offset, bytes };
        let ready = Some(Ready { delivered, part, parts, held });
        if !self.ordered {
            state.ready.push_back(ready);
            return true;
        }
        let at = usize::try_from(sequence - state.first).unwrap_or(usize::MAX);
        if state.ready.len() <= at {
            state.ready.resize_with(at + 1, || None);
        }
        state.ready[at] = ready;
        at == 0
    }

    /// The next item, waiting until `deadline` at most; Err with what the consumer is to read meanwhile, as the loader
    /// [`Self::helper`].
    pub(super) fn next(&self, deadline: Option<Instant>) -> Result<Next, Batch> {
        if let Some(delivered) = self.hand_out() {
            return Ok(Next::Item(delivered));
        }
        let mut state = self.state.lock();
        loop {
            if matches!(state.ready.front(), Some(Some(_))) {
                self.take(&mut state);
                drop(state);
                // Another consumer may have been quicker.
                match self.hand_out() {
                    Some(delivered) => return Ok(Next::Item(delivered)),
                    None => state = self.state.lock(),
                }
                continue;
            }
            if state.loaders == 0 || state.stopped {
                return Ok(Next::End);
            }
            let left =
                deadline.map_or(Duration::ZERO, |at| at.saturating_duration_since(Instant::now()));
            if left.is_zero() {
                return Ok(Next::Waiting);
            }
            if self.pace.gate.is_open() && state.scheduler.serves_quickly() {
                if let Ok(batch) = self.turn(&mut state, self.helper) {
                    return Err(batch);
                }
            }
            self.arrived.wait_for(&mut state, left);
        }
    }

    /// Move what is ready to the consumer.
    fn take(&self, state: &mut State) {
        let mut consumer = self.consumer.lock();
        let mut bytes = 0;
        while consumer.taken.len() < TAKEN && bytes < TAKEN_BYTES {
            let Some(Some(ready)) = state.ready.front_mut().map(Option::take) else { break };
            state.ready.pop_front();
            state.first += 1;
            bytes += ready.held;
            consumer.held += ready.held;
            consumer.taken.push_back(ready);
        }
    }

    /// The first of the items that were taken.
    fn hand_out(&self) -> Option<Delivered> {
        let mut consumer = self.consumer.lock();
        let Ready { delivered, part, parts, .. } = consumer.taken.pop_front()?;
        consumer.progress.delivered(delivered.position, part, parts);
        match &delivered.bytes {
            Ok(Some(buffer)) => {
                consumer.items += 1;
                consumer.bytes += buffer.bytes.len() as u64;
            }
            Ok(None) => {}
            Err(failure) => consumer.failed[index(failure.trouble)] += 1,
        }
        if consumer.taken.is_empty() {
            let held = std::mem::take(&mut consumer.held);
            drop(consumer);
            self.release(held);
        }
        Some(delivered)
    }

    fn release(&self, held: u64) {
        let mut state = self.state.lock();
        state.scheduler.release(held);
        self.wake_for_room(&mut state);
    }

    pub(super) fn progress(&self) -> Progress {
        self.consumer.lock().progress.clone()
    }

    pub(super) fn counts(&self) -> Counts {
        let state = self.state.lock();
        let mut counts = state.counts.clone();
        counts.stolen = state.scheduler.stolen();
        let now = Instant::now();
        for (of, (readers, since)) in counts.targets.iter_mut().zip(&state.readers) {
            if *readers > 0 {
                of.busy_ns += nanoseconds(now.saturating_duration_since(*since));
            }
        }
        drop(state);
        let consumer = self.consumer.lock();
        counts.delivered = consumer.progress.count();
        (counts.items, counts.bytes, counts.failed) =
            (consumer.items, consumer.bytes, consumer.failed);
        counts
    }

    fn now_ns(&self) -> u64 {
        nanoseconds(self.began.elapsed())
    }
}

/// A piece with what is needed to read it.
fn job(state: &mut State, piece: Piece) -> Option<Job> {
    let item = Arc::clone(state.scheduler.item(piece.slot)?);
    let extent = item.extent(piece.extent);
    let assembly = (item.count() > 1).then(|| {
        let made = || Arc::new(Assembly::new(item.count()));
        Arc::clone(state.assemblies.entry(piece.slot).or_insert_with(made))
    });
    Some(Job { piece, item, extent, assembly })
}

/// Where a trouble is counted.
fn index(trouble: Trouble) -> usize {
    match trouble {
        Trouble::Vanished => 0,
        Trouble::NotAFile => 1,
        Trouble::Unreadable => 2,
        Trouble::Grown => 3,
        Trouble::Resized => 4,
    }
}

fn nanoseconds(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}
