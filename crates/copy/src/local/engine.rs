//! A copy from start to end: contents first, then links to them, then the attributes of directories.

use std::collections::BTreeMap;
use std::os::fd::AsFd;
use std::path::Path;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use parking_lot::{Condvar, Mutex};
use waystage_catalog::Root;
use waystage_pacing::{FlowCounts, Gate};

use super::contents::ContentMover;
use super::context::Context;
use super::queue::{Queue, Task};
use super::worker::Worker;
use crate::attributes::Attributes;
use crate::counts::{Counts, Planned, Problem};
use crate::ends::{ends, Ends};
use crate::error::{join_lost, At, CopyError, End, Failure};
use crate::options::Options;
use crate::plan::Policy;
use crate::sink::{Sink, SinkOptions};
use crate::source::{produce, Consumer, Item, Selection, Source};
use crate::stat::{stat_fd, Metadata};
use crate::state::CopyState;

/// Bytes of an extent: the most that a crash makes be sent again, per worker; at 1 GB/s a thirtieth of a second.
const EXTENT_BYTES: u64 = 32 << 20;

/// Entries that one worker takes at once: enough that opening their directory costs nothing, few enough that no worker
/// is left with all.
const GROUP: usize = 128;

/// Threads that walk: on local storage one keeps several copiers busy.
const WALKERS: usize = 4;

/// What earlier runs left takes at most this memory, in bytes: about a million large files in progress.
const MOST_RECOVERED_BYTES: usize = 1 << 30;

#[derive(Default)]
struct Outcome {
    result: Mutex<Option<Result<(), CopyError>>>,
    changed: Condvar,
}

/// A copy in progress. Dropping it stops it; what it has done stays, and the same copy goes on from there.
pub struct Copy {
    context: Arc<Context>,
    outcome: Arc<Outcome>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

impl Copy {
    /// Start.
    ///
    /// # Errors
    /// Where source or destination cannot be used, do not fit together, or another process copies to the destination.
    pub fn start(options: Options) -> Result<Self, CopyError> {
        let context = Arc::new(prepare(options)?);
        let outcome = Arc::new(Outcome::default());
        let (running, ended) = (Arc::clone(&context), Arc::clone(&outcome));
        let thread = std::thread::Builder::new()
            .name("copy".to_owned())
            .spawn(move || {
                let result = run(&running);
                *ended.result.lock() = Some(result);
                ended.changed.notify_all();
            })
            .map_err(|error| CopyError::Failed(error.to_string()))?;
        Ok(Self { context, outcome, thread: Mutex::new(Some(thread)) })
    }

    /// How it ended; None where it has not within `timeout`.
    pub fn wait(&self, timeout: Duration) -> Option<Result<(), CopyError>> {
        let mut result = self.outcome.result.lock();
        self.outcome.changed.wait_while_for(&mut result, |result| result.is_none(), timeout);
        result.clone()
    }

    /// How far it is.
    pub fn counts(&self) -> Counts {
        let counts = self.context.state.report.tally.read();
        // A dry run makes none: its tally counts directories as the walk finds them.
        Counts { directories: counts.directories + self.context.sink.destination.made(), ..counts }
    }

    /// What could not be copied and why, the first ten thousand.
    pub fn problems(&self) -> Vec<Problem> {
        self.context.state.report.problems()
    }

    /// What a dry run would make, the first ten thousand paths.
    pub fn planned(&self) -> Vec<Planned> {
        self.context.state.report.planned()
    }

    /// Where the rate is limited and the copy paused.
    pub fn gate(&self) -> &Gate {
        &self.context.state.pace.gate
    }

    /// Bytes moved and found, and what limits it.
    pub fn flow(&self) -> FlowCounts {
        let state = &self.context.state;
        state.pace.counts(state.report.tally.read().found_bytes)
    }

    /// End it; its threads and unfinished small files are gone when this returns.
    pub fn stop(&self) {
        self.context.stop();
        let thread = self.thread.lock().take();
        if let Some(thread) = thread {
            // A thread that panicked has written to the process's stderr.
            let _ = thread.join();
        }
    }
}

impl Drop for Copy {
    fn drop(&mut self) {
        self.stop();
    }
}

fn prepare(mut options: Options) -> Result<Context, CopyError> {
    options.workers = options.workers.clamp(1, 1024);
    let Ends { source: path, destination, single } =
        ends(&options.source, &options.destination, options.dry_run)?;
    if single.is_some() && options.names.is_some() {
        return Err(not_a_directory(&options.source));
    }
    let root = Root::open(&path).map_err(|error| unreadable(&options, &error))?;
    let top = root.directory(b"").and_then(|top| stat_fd(top.as_fd()));
    let top = top.map_err(|errno| unreadable(&options, &errno.into()))?;
    let (rename, single) = single.map_or((None, None), |(item, name)| (Some(name), Some(item)));
    let state = Arc::new(CopyState::default());
    let from = origin(&path, single.as_ref());
    let sink = SinkOptions {
        root: &destination,
        shown: &options.destination,
        rename,
        share: options.share.map(|share| share.key),
        from: &from,
        dry_run: options.dry_run,
        restart: options.restart,
        fsync: options.fsync,
        owners: options.owners,
        xattrs: options.xattrs,
        most_recovered_bytes: MOST_RECOVERED_BYTES,
        busy_time: Duration::ZERO,
    };
    let sink = Sink::open(sink, &state.report, &state.pace.gate)?;
    state.pace.gate.set_limit(options.rate_bytes_per_s);
    Ok(Context {
        mover: ContentMover::new(Arc::clone(&state.pace), options.workers, state.stop_flag()),
        policy: Policy {
            update: options.update,
            doubtful_since: sink.doubtful_since,
            extent_bytes: EXTENT_BYTES,
            compares_extents: false,
        },
        source: Source { root, path, single },
        sink,
        state,
        queue: Queue::default(),
        directories: Mutex::default(),
        root_metadata: Metadata::of(&top),
        options,
    })
}

fn unreadable(options: &Options, error: &std::io::Error) -> CopyError {
    let text = format!("{} cannot be read: {error}", options.source.display());
    CopyError::Ends(text)
}

/// A list names entries of a directory, and this source is none.
#[must_use]
pub fn not_a_directory(source: &Path) -> CopyError {
    let text = format!(
        "{} is a file, and a list names entries of a directory: copy it without the list",
        source.display()
    );
    CopyError::Ends(text)
}

/// What the journal calls the source; copies between hosts have another word before the colon.
fn origin(path: &Path, single: Option<&Item>) -> Vec<u8> {
    use std::os::unix::ffi::OsStrExt;
    let mut from = b"local:".to_vec();
    from.extend_from_slice(path.as_os_str().as_bytes());
    if let Some(item) = single {
        from.push(b'/');
        from.extend_from_slice(&item.name);
    }
    from
}

fn run(context: &Context) -> Result<(), CopyError> {
    let copied = std::thread::scope(|scope| {
        for number in 0..context.options.workers {
            let builder = std::thread::Builder::new().name(format!("copy-{number}"));
            let spawned = builder.spawn_scoped(scope, move || {
                let _attached = context.state.pace.meter.attach();
                Worker::new(number, context).run();
            });
            if let Err(error) = spawned {
                context.queue.stop();
                return Err(CopyError::Failed(error.to_string()));
            }
        }
        let copied = copy(context);
        context.queue.stop();
        copied
    })?;
    if !copied {
        return Err(context.state.verdict());
    }
    context.sink.finish(&context.state.report)?;
    let sets_root = context.options.share.is_none_or(|share| share.directories);
    if sets_root && !context.options.dry_run && context.source.single.is_none() {
        if let Err(failure) = directory(context, b"", &context.root_metadata) {
            context.failed(b"", &failure);
        }
    }
    Ok(())
}

/// Give the workers every entry, in order; false after a stop.
fn copy(context: &Context) -> Result<bool, CopyError> {
    let selection = Selection {
        names: context.options.names.as_ref(),
        only_named: context.options.share.is_some(),
        exclude: context.options.exclude.clone(),
        include: context.options.include.as_ref(),
        one_file_system: context.options.one_file_system,
        walkers: context.options.workers.min(WALKERS),
    };
    let mut grouper = Grouper { context, group: Vec::new(), linked: BTreeMap::new() };
    let produced = produce(&context.source, &selection, &context.state, &mut grouper)
        .map_err(|error| unreadable(&context.options, &error))?;
    let queue = &context.queue;
    if !produced || !queue.drain() {
        return Ok(false);
    }
    let mut linked = grouper.linked;
    for items in linked.values_mut() {
        items.sort_by_key(Item::path);
        if !queue.push(Task::Items(vec![items[0].clone()])) {
            return Ok(false);
        }
    }
    let mut several = linked.into_values().filter(|items| items.len() > 1);
    Ok(queue.drain()
        && several.all(|items| queue.push(Task::Links(items)))
        && queue.drain()
        && directories(context))
}

/// Makes groups of entries of one directory.
struct Grouper<'a> {
    context: &'a Context,
    group: Vec<Item>,
    /// Names of one file, by device and inode, in the order of their paths: the same in every run.
    linked: BTreeMap<(u64, u64), Vec<Item>>,
}

impl Consumer for Grouper<'_> {
    fn entry(&mut self, item: Item) -> bool {
        let has_links = matches!(item.letter, b'f' | b'l' | b'p' | b'b' | b'c') && item.links > 1;
        if has_links && self.context.options.hard_links {
            self.linked.entry((item.seen.device, item.seen.inode)).or_default().push(item);
            return true;
        }
        let is_full = self.group.len() >= GROUP
            || self.group.first().is_some_and(|first| first.directory != item.directory);
        if is_full && !self.flush() {
            return false;
        }
        self.group.push(item);
        true
    }

    fn flush(&mut self) -> bool {
        let group = std::mem::take(&mut self.group);
        group.is_empty() || self.context.queue.push(Task::Items(group))
    }
}

/// Attributes of directories, the deepest first: those above may close the way to them.
fn directories(context: &Context) -> bool {
    if context.options.share.is_some_and(|share| !share.directories) {
        return true;
    }
    let mut all = std::mem::take(&mut *context.directories.lock());
    all.sort_by(|one, other| other.0.cmp(&one.0));
    for (path, metadata) in all {
        if context.state.is_stopped() {
            return false;
        }
        if context.options.dry_run {
            continue;
        }
        if let Err(failure) = directory(context, &path, &metadata) {
            context.failed(&path, &failure);
        }
    }
    true
}

/// Make the attributes of one directory those of the source's.
fn directory(context: &Context, path: &[u8], metadata: &Metadata) -> Result<(), Failure> {
    // Not made, where nothing in it was wanted.
    let Some(folder) = context.sink.destination.find(path)? else { return Ok(()) };
    let source = context.source.root.directory(path).at(End::Source, "open directory")?;
    let found = stat_fd(folder.fd()).map(|stat| Metadata::of(&stat));
    let found = found.at(End::Destination, "stat")?;
    let (preserver, from) = (&context.sink.preserver, Attributes::Of(source.as_fd()));
    let lost = if found.mtime == metadata.mtime {
        preserver.repair(&from, folder.fd(), metadata, &found)?.1
    } else {
        let lost = preserver.apply(&from, folder.fd(), metadata, false)?;
        join_lost(lost, preserver.times(folder.fd(), metadata)?)
    };
    context.state.lost(path, lost);
    Ok(())
}
