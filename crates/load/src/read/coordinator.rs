//! The read coordinator: the scheduler behind a lock, the items that are ready, and the waiting loaders and consumer.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};
use waystage_pacing::{during, Cause, Pace};

use super::delivery::{Counts, Delivered, Next, TargetCounts};
use super::file::{Assembly, Outcome, Source};
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
    since: Instant,
    /// Time in which a limit or a pause held it before it was read.
    pub(super) held: Duration,
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
    progress: Progress,
    counts: Counts,
    /// For each target: its readers, and since when it has had any.
    readers: Vec<(u32, Instant)>,
    sleeping: u32,
    reading: u32,
    loaders: u32,
    stopped: bool,
    /// Whether readers were limited after the start.
    limited: bool,
}

pub(super) struct Coordinator {
    pub(super) pace: Pace,
    pub(super) source: Source,
    ordered: bool,
    binding: Binding,
    began: Instant,
    state: Mutex<State>,
    work: Condvar,
    arrived: Condvar,
}

impl Coordinator {
    pub(super) fn new(
        source: Source,
        scheduler: Scheduler,
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
            state: Mutex::new(State {
                scheduler,
                assemblies: HashMap::new(),
                early: HashMap::new(),
                ready: VecDeque::new(),
                first: 0,
                progress,
                counts,
                readers: vec![(0, began); targets],
                sleeping: 0,
                reading: 0,
                loaders: 0,
                stopped: false,
                limited: false,
            }),
            work: Condvar::new(),
            arrived: Condvar::new(),
        }
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

    /// What a loader reads next, once there is something; None where nothing is left for it.
    pub(super) fn wait_for_turn(&self, loader: u32) -> Option<Job> {
        let mut state = self.state.lock();
        loop {
            if state.stopped {
                return None;
            }
            let queued = state.scheduler.queued();
            let turn = state.scheduler.turn(loader, &self.source.files, self.now_ns());
            self.wake(&state, turn, queued);
            match turn {
                Turn::Read(piece) => return self.job(&mut state, piece),
                Turn::End => return None,
                Turn::Wait => {
                    // Where memory is full, the consumer of the data is slower than the loaders.
                    let full = !state.scheduler.has_room();
                    let cause = if full { Cause::Destination } else { Cause::Source };
                    state.sleeping += 1;
                    during(cause, || self.work.wait(&mut state));
                    state.sleeping -= 1;
                }
            }
        }
    }

    /// Wake who may find work after a turn, before which `queued` pieces waited.
    fn wake(&self, state: &State, turn: Turn, queued: u64) {
        let now = state.scheduler.queued();
        if state.sleeping == 0 || now == 0 {
            return;
        }
        let took = matches!(turn, Turn::Read(_));
        if took && self.binding == Binding::Steal {
            // Anyone can read it, and looks in turn whether to wake another.
            self.work.notify_one();
        } else if now + u64::from(took) > queued {
            // What was let in is for loaders that only they themselves know.
            self.work.notify_all();
        }
    }

    fn job(&self, state: &mut State, piece: Piece) -> Option<Job> {
        let item = Arc::clone(state.scheduler.item(piece.slot)?);
        let extent = item.extents[piece.extent];
        let assembly = (item.extents.len() > 1).then(|| {
            let made = || Arc::new(Assembly::new(item.extents.len()));
            Arc::clone(state.assemblies.entry(piece.slot).or_insert_with(made))
        });
        let since = Instant::now();
        let (readers, busy_since) = &mut state.readers[usize::from(piece.target)];
        if *readers == 0 {
            *busy_since = since;
        }
        *readers += 1;
        state.reading += 1;
        Some(Job { piece, item, extent, assembly, since, held: Duration::ZERO })
    }

    /// A loader has read its piece.
    pub(super) fn done(&self, loader: u32, job: Job, outcome: Outcome) {
        let now = Instant::now();
        self.pace.moved(outcome.read);
        let mut guard = self.state.lock();
        let state = &mut *guard;
        let target = usize::from(job.piece.target);
        let counts = &mut state.counts.targets[target];
        counts.bytes += outcome.read;
        counts.pieces += 1;
        counts.reading_ns += nanoseconds((now - job.since).saturating_sub(job.held));
        let (readers, busy_since) = &mut state.readers[target];
        *readers -= 1;
        if *readers == 0 {
            counts.busy_ns += nanoseconds(now.saturating_duration_since(*busy_since));
        }
        state.reading -= 1;
        if state.limited && state.sleeping > 0 {
            // The target takes a reader again, and this loader may go to another one.
            self.work.notify_one();
        }
        state.counts.shrunk += u64::from(outcome.shrunk);
        let used = match &outcome.bytes {
            Ok(Some(buffer)) => Some(buffer.bytes.len() as u64),
            Ok(None) => job.assembly.is_none().then_some(0),
            Err(_) => Some(0),
        };
        let Some((item, sequence, held)) =
            state.scheduler.read(loader, job.piece, used, self.now_ns())
        else {
            // Who put the last bytes into a file need not be the last to come here with a piece of it.
            if !matches!(outcome.bytes, Ok(None)) {
                state.early.insert(job.piece.slot, outcome.bytes);
            }
            return;
        };
        let early = state.early.remove(&job.piece.slot);
        let bytes = match outcome.bytes {
            Ok(None) => early.unwrap_or(Ok(None)),
            own => own,
        };
        state.assemblies.remove(&job.piece.slot);
        let offset = if self.source.delivery == Delivery::Files { 0 } else { job.extent.offset };
        let Item { position, part, parts, file, .. } = *item;
        let delivered = Delivered { position, file, offset, bytes };
        let ready = Some(Ready { delivered, part, parts, held });
        if self.ordered {
            let at = usize::try_from(sequence - state.first).unwrap_or(usize::MAX);
            if state.ready.len() <= at {
                state.ready.resize_with(at + 1, || None);
            }
            state.ready[at] = ready;
            if at > 0 {
                return;
            }
        } else {
            state.ready.push_back(ready);
        }
        drop(guard);
        self.arrived.notify_one();
    }

    /// The next item, waiting for at most `timeout`.
    pub(super) fn next(&self, timeout: Duration) -> Next {
        let deadline = Instant::now() + timeout;
        let mut state = self.state.lock();
        loop {
            if matches!(state.ready.front(), Some(Some(_))) {
                if let Some(Some(ready)) = state.ready.pop_front() {
                    return Next::Item(Box::new(self.hand_out(&mut state, ready)));
                }
            }
            if state.loaders == 0 || state.stopped {
                return Next::End;
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Next::Waiting;
            }
            self.arrived.wait_for(&mut state, left);
        }
    }

    fn hand_out(&self, state: &mut State, ready: Ready) -> Delivered {
        let Ready { delivered, part, parts, held } = ready;
        state.first += 1;
        state.scheduler.release(held);
        state.progress.delivered(delivered.position, part, parts);
        match &delivered.bytes {
            Ok(Some(buffer)) => {
                state.counts.items += 1;
                state.counts.bytes += buffer.bytes.len() as u64;
            }
            Ok(None) => {}
            Err(failure) => state.counts.failed[index(failure.trouble)] += 1,
        }
        // Not for every item: a loader that wakes to find no room again costs more than it brings.
        if state.sleeping > 0 && (state.reading == 0 || state.scheduler.has_room()) {
            self.work.notify_all();
        }
        delivered
    }

    pub(super) fn progress(&self) -> Progress {
        self.state.lock().progress.clone()
    }

    pub(super) fn counts(&self) -> Counts {
        let state = self.state.lock();
        let mut counts = state.counts.clone();
        counts.delivered = state.progress.count();
        counts.stolen = state.scheduler.stolen();
        let now = Instant::now();
        for (of, (readers, since)) in counts.targets.iter_mut().zip(&state.readers) {
            if *readers > 0 {
                of.busy_ns += nanoseconds(now.saturating_duration_since(*since));
            }
        }
        counts
    }

    fn now_ns(&self) -> u64 {
        nanoseconds(self.began.elapsed())
    }
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
