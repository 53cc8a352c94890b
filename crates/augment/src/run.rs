//! Augments images with several threads, and delivers them in order.

use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::panic::{catch_unwind, AssertUnwindSafe};
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};
use waystage_catalog::check::{Differences, Recorded};
use waystage_catalog::CheckedTree;
use waystage_pacing::{during, Cause, Pace, Stopped};

use crate::content::{named_as_image, Content};
use crate::counts::Counts;
use crate::error::{AugmentError, ImageError};
use crate::image_file::{self, Encoding};
use crate::pixels::Pixels;
use crate::recipe::{Decoded, Recipe};
use crate::sink::{name_of, write_file, Shard, Target};

/// Files listed with their error; all are counted.
const LISTED_ERRORS: usize = 1000;

/// Images that are ready before their turn, for each thread.
const AHEAD: usize = 8;

/// A file that may be an image.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Source {
    /// Its path below the root.
    pub path: Vec<u8>,
    /// What it is expected to be.
    pub recorded: Recorded,
}

/// How images are made.
#[derive(Clone, Debug)]
pub struct Options {
    /// What all paths are below.
    pub root: PathBuf,
    /// What is done.
    pub recipe: Recipe,
    /// The number of the first copy, and how many are made of each image.
    pub copies: (u32, u32),
    /// Threads.
    pub threads: usize,
    /// The most bytes read in a second; 0 for no limit.
    pub bytes_per_s: u64,
    /// Where to.
    pub target: Target,
    /// Whether files of a tree that are there already are made again.
    pub overwrite: bool,
}

/// A new image.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Made {
    /// As a file: the path of what it was made from, the number of the copy, its own name, its bytes.
    File(Vec<u8>, u32, Vec<u8>, Vec<u8>),
    /// As pixels.
    Pixels(Vec<u8>, u32, Pixels),
}

/// Images being made.
pub struct Augmentation {
    shared: Arc<Shared>,
    threads: Mutex<Vec<JoinHandle<()>>>,
}

struct Shared {
    tree: CheckedTree,
    sources: Vec<Source>,
    options: Options,
    taken: AtomicUsize,
    done: AtomicU64,
    bytes_total: u64,
    pace: Pace,
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    running: usize,
    counts: Counts,
    errors: Vec<(Vec<u8>, String)>,
    failure: Option<AugmentError>,
    /// Whose turn it is.
    turn: usize,
    /// What is ready before its turn.
    ready: BTreeMap<usize, Vec<Made>>,
    /// What is to be taken next.
    front: VecDeque<Made>,
    shard: Option<Shard>,
}

impl Augmentation {
    /// Begin.
    pub fn start(options: Options, sources: Vec<Source>) -> Result<Self, AugmentError> {
        let tree = CheckedTree::open(&options.root)
            .map_err(|error| AugmentError::Io { path: options.root.clone(), source: error })?;
        let shard = match &options.target {
            Target::Shard(path) => Some(
                Shard::create(path)
                    .map_err(|error| AugmentError::Io { path: path.clone(), source: error })?,
            ),
            _ => None,
        };
        let threads = options.threads.clamp(1, 1024);
        let bytes = |source: &Source| u64::try_from(source.recorded.size).unwrap_or(0);
        let bytes_total = sources.iter().map(bytes).sum();
        let limit = Some(options.bytes_per_s).filter(|rate| *rate > 0);
        let shared = Arc::new(Shared {
            tree,
            sources,
            options,
            taken: AtomicUsize::new(0),
            done: AtomicU64::new(0),
            bytes_total,
            pace: Pace::limited_to(limit),
            state: Mutex::new(State { running: threads, shard, ..State::default() }),
            changed: Condvar::new(),
        });
        let run = Self { shared, threads: Mutex::default() };
        for number in 0..threads {
            let shared = Arc::clone(&run.shared);
            let spawned = std::thread::Builder::new()
                .name(format!("augment-{number}"))
                .spawn(move || shared.work())
                .map_err(|error| {
                    run.stop();
                    AugmentError::Io {
                        path: PathBuf::from(format!("thread {number}")),
                        source: error,
                    }
                })?;
            run.threads.lock().push(spawned);
        }
        Ok(run)
    }

    /// (bytes read, files done with, files there are).
    #[must_use]
    pub fn progress(&self) -> (u64, u64, u64) {
        let shared = &self.shared;
        let of = shared.sources.len() as u64;
        (shared.pace.bytes(), shared.done.load(Ordering::Relaxed), of)
    }

    /// The next image within `timeout`: (an image, whether all have come). For targets that are polled.
    pub fn next(&self, timeout: Duration) -> (Option<Made>, bool) {
        let shared = &self.shared;
        let deadline = Instant::now() + timeout;
        let mut state = shared.state.lock();
        loop {
            if let Some(made) = state.front.pop_front() {
                return (Some(made), false);
            }
            let turn = state.turn;
            if let Some(made) = state.ready.remove(&turn) {
                state.turn += 1;
                state.front.extend(made);
                shared.changed.notify_all();
                continue;
            }
            let over = state.turn >= shared.sources.len() || state.running == 0;
            if over || shared.pace.gate.is_stopped() {
                return (None, true);
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return (None, false);
            }
            shared.changed.wait_for(&mut state, left);
        }
    }

    /// Wait until all images are written, for at most `timeout`; whether they are.
    #[must_use]
    pub fn wait(&self, timeout: Duration) -> bool {
        let mut state = self.shared.state.lock();
        self.shared.changed.wait_while_for(&mut state, |state| state.running > 0, timeout);
        state.running == 0
    }

    /// Where the rate is limited, and the run paused and counted.
    #[must_use]
    pub fn pace(&self) -> &Pace {
        &self.shared.pace
    }

    /// Bytes of all files, as they were recorded.
    #[must_use]
    pub fn bytes_total(&self) -> u64 {
        self.shared.bytes_total
    }

    /// End it early.
    pub fn stop(&self) {
        self.shared.end();
    }

    /// Wait for the end: what became of all, and what befell the first of those that could not be used. Of targets
    /// that are asked, only after all have come or after a stop: threads wait for their images to be taken.
    #[allow(clippy::type_complexity, reason = "a pair")]
    pub fn finish(self) -> Result<(Counts, Vec<(Vec<u8>, String)>), AugmentError> {
        for thread in self.threads.lock().drain(..) {
            if thread.join().is_err() {
                self.stop();
            }
        }
        let mut state = self.shared.state.lock();
        if let Some(failure) = state.failure.take() {
            return Err(failure);
        }
        if self.shared.pace.gate.is_stopped() {
            return Err(AugmentError::Stopped);
        }
        if let Some(shard) = state.shard.take() {
            let path = match &self.shared.options.target {
                Target::Shard(path) => path.clone(),
                _ => PathBuf::new(),
            };
            shard.finish().map_err(|error| AugmentError::Io { path, source: error })?;
        }
        Ok((state.counts, std::mem::take(&mut state.errors)))
    }
}

impl Drop for Augmentation {
    fn drop(&mut self) {
        self.stop();
        for thread in self.threads.lock().drain(..) {
            // A panic has been printed to stderr.
            let _ = thread.join();
        }
        self.shared.state.lock().shard = None;
    }
}

/// Why a thread ends.
struct Over;

/// An image of which copies are made; it is decoded for the first copy that is missing.
struct Image<'a> {
    data: &'a [u8],
    decoded: Option<Decoded>,
}

impl Image<'_> {
    fn decoded(&mut self, recipe: &Recipe) -> Result<Decoded, ImageError> {
        if let Some(decoded) = &self.decoded {
            return Ok(decoded.clone());
        }
        let decoded = recipe.decode(self.data)?;
        Ok(self.decoded.insert(decoded).clone())
    }
}

impl Shared {
    fn work(&self) {
        let _attached = self.pace.meter.attach();
        let mut counts = Counts::default();
        let mut errors = Vec::new();
        loop {
            let turn = self.taken.fetch_add(1, Ordering::Relaxed);
            let Some(source) = self.sources.get(turn) else { break };
            let Ok(made) = self.one(source, &mut counts, &mut errors) else { break };
            if self.deliver(turn, made, &mut counts).is_err() {
                break;
            }
            self.done.fetch_add(1, Ordering::Relaxed);
        }
        let mut state = self.state.lock();
        state.counts.merge(counts);
        let free = LISTED_ERRORS.saturating_sub(state.errors.len());
        state.errors.extend(errors.into_iter().take(free));
        state.running -= 1;
        drop(state);
        self.changed.notify_all();
    }

    /// All copies of one image; none where it cannot be used.
    fn one(
        &self,
        source: &Source,
        counts: &mut Counts,
        errors: &mut Vec<(Vec<u8>, String)>,
    ) -> Result<Vec<Made>, Over> {
        let mut list = |text: String| {
            if errors.len() < LISTED_ERRORS {
                errors.push((source.path.clone(), text));
            }
        };
        // What a file will have is known best by what was recorded of it.
        let expected = u64::try_from(source.recorded.size).unwrap_or(0);
        self.pace.gate.pass(expected).map_err(|Stopped| Over)?;
        let opened = during(Cause::Source, || self.tree.open_file(&source.path, &source.recorded));
        let opened = match opened {
            Ok(opened) => opened,
            Err(failed) if failed.differences.contains(Differences::UNREADABLE) => {
                counts.unreadable += 1;
                list(io::Error::from(failed.error).to_string());
                return Ok(Vec::new());
            }
            Err(_) => {
                counts.vanished += 1;
                return Ok(Vec::new());
            }
        };
        let limits = self.options.recipe.limits;
        let read = || Content::read(&opened.file, opened.stat.stx_size, limits);
        let data = match during(Cause::Source, read) {
            Ok(data) => data,
            Err(error) => {
                counts.unreadable += 1;
                list(io::Error::from(error).to_string());
                return Ok(Vec::new());
            }
        };
        self.pace.moved(data.len() as u64);
        let Some(data) = data.image() else {
            if named_as_image(&source.path) {
                counts.broken += 1;
                list(ImageError::Format.to_string());
            } else {
                counts.others += 1;
            }
            return Ok(Vec::new());
        };
        counts.images += 1;
        counts.bytes_in += data.len() as u64;
        counts.changed += u64::from(!opened.differences.is_empty());
        let mut made = Vec::new();
        let (first, many) = self.options.copies;
        let mut image = Image { data: &data, decoded: None };
        for copy in first..first.saturating_add(many) {
            if self.pace.gate.is_stopped() {
                return Err(Over);
            }
            match self.copy(&mut image, &source.path, copy, counts) {
                Ok(Some(image)) => made.push(image),
                Ok(None) => {}
                Err(broken) => {
                    counts.broken += 1;
                    list(broken.to_string());
                    break;
                }
            }
        }
        Ok(made)
    }

    fn copy(
        &self,
        image: &mut Image<'_>,
        path: &[u8],
        copy: u32,
        counts: &mut Counts,
    ) -> Result<Option<Made>, ImageError> {
        let recipe = &self.options.recipe;
        if let (Target::Tree(folder), false) = (&self.options.target, self.options.overwrite) {
            let ending = match recipe.encoding {
                Encoding::Same => image_file::encoding_of(image.data)?.ending(),
                other => other.ending(),
            };
            if folder.join(os(&name_of(path, copy, ending))).exists() {
                counts.kept += 1;
                return Ok(None);
            }
        }
        let work = || {
            let (pixels, encoding) = recipe.change(image.decoded(recipe)?, path, copy)?;
            if self.options.target == Target::Pixels {
                return Ok(Made::Pixels(path.to_vec(), copy, pixels));
            }
            let bytes = image_file::encode(pixels, encoding)?;
            Ok(Made::File(path.to_vec(), copy, name_of(path, copy, encoding.ending()), bytes))
        };
        // A decoder that panics on damaged data must not take the run with it.
        catch_unwind(AssertUnwindSafe(work))
            .unwrap_or_else(|_| {
                Err(ImageError::Damaged("it made the decoder panic: please report it".to_owned()))
            })
            .map(Some)
    }

    fn deliver(&self, turn: usize, made: Vec<Made>, counts: &mut Counts) -> Result<(), Over> {
        counts.made += made.len() as u64;
        counts.bytes_out += made.iter().map(Made::bytes).sum::<u64>();
        if let Target::Tree(folder) = &self.options.target {
            for image in made {
                if let Made::File(_, _, name, bytes) = image {
                    let written = during(Cause::Destination, || write_file(folder, &name, &bytes));
                    written.map_err(|error| {
                        self.fail(AugmentError::Io { path: folder.join(os(&name)), source: error })
                    })?;
                }
            }
            return Ok(());
        }
        let window = AHEAD * self.options.threads.max(1);
        let mut state = self.state.lock();
        while turn >= state.turn + window && !self.pace.gate.is_stopped() {
            // What takes the images is slower.
            during(Cause::Destination, || self.changed.wait(&mut state));
        }
        if self.pace.gate.is_stopped() {
            return Err(Over);
        }
        state.ready.insert(turn, made);
        if let Target::Shard(path) = &self.options.target {
            loop {
                let turn = state.turn;
                let Some(made) = state.ready.remove(&turn) else { break };
                state.turn += 1;
                for image in made {
                    if let (Made::File(_, _, name, bytes), Some(shard)) = (image, &mut state.shard)
                    {
                        if let Err(error) = during(Cause::Destination, || shard.add(&name, &bytes))
                        {
                            drop(state);
                            return Err(
                                self.fail(AugmentError::Io { path: path.clone(), source: error })
                            );
                        }
                    }
                }
            }
        }
        drop(state);
        self.changed.notify_all();
        Ok(())
    }

    /// What cannot be written ends everything.
    fn fail(&self, error: AugmentError) -> Over {
        self.state.lock().failure.get_or_insert(error);
        self.end();
        Over
    }

    fn end(&self) {
        // Under the lock, so that a thread that is about to wait is woken.
        let state = self.state.lock();
        self.pace.gate.set_stopped(true);
        drop(state);
        self.changed.notify_all();
    }
}

impl Made {
    fn bytes(&self) -> u64 {
        match self {
            Self::File(_, _, _, bytes) => bytes.len() as u64,
            Self::Pixels(_, _, pixels) => pixels.data.len() as u64,
        }
    }
}

fn os(name: &[u8]) -> &std::ffi::OsStr {
    std::os::unix::ffi::OsStrExt::from_bytes(name)
}
