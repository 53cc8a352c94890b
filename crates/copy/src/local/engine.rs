//! A copy from start to end: contents first, then links to them, then the attributes of directories.

use std::collections::HashMap;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use waystage_catalog::{LayoutMethod, Layouts, Root};

use super::contents::ContentMover;
use super::context::Context;
use super::grouper::Grouper;
use super::queue::Queue;
use super::task::Task;
use super::worker::Worker;
use crate::attributes::Attributes;
use crate::counts::Counts;
use crate::ends::{ends, Ends};
use crate::engine::{Engine, Job};
use crate::error::{join_lost, At, CopyError, End, Failure};
use crate::file_io::open_file;
use crate::options::{Options, Order, Reflink, Verify};
use crate::plan::Policy;
use crate::sink::{DividedFile, Sink, SinkOptions};
use crate::source::{produce, Item, Names, Selection, Source};
use crate::stat::{stat_fd, FileState, Metadata};
use crate::state::CopyState;

/// Bytes of an extent: the most that a crash makes be sent again, per worker; at 1 GB/s a thirtieth of a second.
pub(super) const EXTENT_BYTES: u64 = 32 << 20;

/// Threads that walk: on local storage one keeps several copiers busy.
const WALKERS: usize = 4;

/// The same where files are striped over servers: a walk there waits for a message of each file, and its layout.
const WALKERS_OF_SERVERS: usize = 16;

/// What earlier runs left takes at most this memory, in bytes: about a million large files in progress.
const MOST_RECOVERED_BYTES: usize = 1 << 30;

/// A copy in progress. Dropping it stops it; what it has done stays, and the same copy goes on from there.
pub type Copy = Engine<CopyJob>;

/// A copy of a tree on one machine.
pub struct CopyJob(Context);

impl Job for CopyJob {
    const NAME: &'static str = "copy";

    fn state(&self) -> &CopyState<CopyError> {
        &self.0.state
    }

    fn run(&self) -> Result<(), CopyError> {
        run(&self.0)
    }

    fn stop(&self) {
        self.0.stop();
    }

    fn counts(&self) -> Counts {
        let counts = self.0.state.report.tally.read();
        // A dry run makes none: its tally counts directories as the walk finds them.
        Counts { directories: counts.directories + self.0.sink.destination.made(), ..counts }
    }
}

impl Copy {
    /// Start.
    ///
    /// # Errors
    /// Where source or destination cannot be used, do not fit together, or another process copies to the destination.
    pub fn start(options: Options) -> Result<Self, CopyError> {
        Self::of(CopyJob(prepare(options)?))
    }

    /// The large files that were prepared for other processes.
    pub fn divided(&self) -> Vec<DividedFile> {
        self.job.0.divided.lock().clone()
    }

    /// Let at most `each` workers read from one storage target.
    pub fn limit_readers(&self, each: u32) {
        self.job.0.queue.limit_readers(each);
    }

    /// Let at most this number of workers read from each of these storage targets.
    pub fn limit_readers_of(&self, most: &HashMap<u32, u32>) {
        self.job.0.queue.limit_readers_of(most);
    }
}

fn prepare(mut options: Options) -> Result<Context, CopyError> {
    options.workers = options.workers.clamp(1, 1024);
    if options.reflink == Reflink::Always && options.verify != Verify::None {
        let text =
            "blocks that are shared with the source are not read back: omit verify or reflink";
        return Err(CopyError::Ends(text.to_owned()));
    }
    let Ends { source: path, destination, single } =
        ends(&options.source, &options.destination, options.dry_run)?;
    if single.is_some() && options.names.is_some() {
        return Err(not_a_directory(&options.source));
    }
    let root = match options.copy_links {
        false => Root::open(&path),
        true => Root::following(&path),
    };
    let root = root.map_err(|error| unreadable(&options, &error))?;
    let top = root.directory(b"").and_then(|top| stat_fd(top.as_fd()));
    let top = top.map_err(|errno| unreadable(&options, &errno.into()))?;
    let named = options.names.as_ref();
    let by_target = options.order == Order::Auto
        && (named.is_some_and(Names::have_objects)
            || root.directory(b"").is_ok_and(|top| Layouts::are_cheap(top.as_fd())));
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
    if options.log {
        state.report.log();
    }
    let backup = match &options.backup {
        Some(backup) if !options.dry_run => Some(backup.open(&destination, sink.session)?),
        _ => None,
    };
    Ok(Context {
        mover: ContentMover::new(Arc::clone(&state.pace), options.workers, state.stop_flag())
            .sharing(options.reflink),
        policy: Policy {
            update: options.update,
            doubtful_since: sink.doubtful_since,
            extent_bytes: EXTENT_BYTES,
            compares_extents: false,
            on_other_hosts: options.share.is_some(),
        },
        source: Source {
            single: single.map(|item| with_targets(&root, item, by_target)),
            root,
            path,
        },
        sink,
        backup,
        state,
        queue: Queue::new(options.workers, options.readers_per_target),
        by_target,
        directories: Mutex::default(),
        divided: Mutex::default(),
        root_metadata: Metadata::of(&top),
        options,
    })
}

/// One file that is the source, with its storage targets.
fn with_targets(root: &Root, mut item: Item, wanted: bool) -> Item {
    if wanted {
        let layouts = Layouts::new(LayoutMethod::PerFileSystem);
        let opened = root.directory(b"").map_err(|errno| Failure::Call {
            end: End::Source,
            doing: "open directory",
            errno,
        });
        let file = opened.and_then(|top| open_file(top.as_fd(), &item.name, End::Source));
        // Where it cannot be opened the copy says so.
        let found = file.ok().map(|file| layouts.of_open(file.as_fd(), item.seen.size));
        if let Some(Ok(Some(objects))) = found {
            item.objects = objects.objects.into();
        }
    }
    item
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

/// Device and inode.
fn identity(directory: &OwnedFd) -> Option<(u64, u64)> {
    let seen = stat_fd(directory.as_fd()).map(|stat| FileState::of(&stat));
    seen.ok().map(|seen| (seen.device, seen.inode))
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
    if !context.divided.lock().is_empty() {
        // The journal stays, as after a kill: a later run completes what others write.
        return Ok(());
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
        limits: context.options.limits,
        one_file_system: context.options.one_file_system,
        avoid: context
            .sink
            .destination
            .root()
            .and_then(Result::ok)
            .and_then(|root| identity(&root)),
        walkers: context.options.workers.min(match context.by_target {
            true => WALKERS_OF_SERVERS,
            false => WALKERS,
        }),
        with_targets: context.by_target,
        with_own_files: false,
    };
    let mut grouper = Grouper::of(context);
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

/// Attributes of directories, the deepest first: those above may close the way to them. Those of one depth by all
/// threads.
fn directories(context: &Context) -> bool {
    if context.options.share.is_some_and(|share| !share.directories) {
        return true;
    }
    let mut all = std::mem::take(&mut *context.directories.lock());
    if context.options.dry_run {
        return !context.state.is_stopped();
    }
    let depth = |path: &[u8]| path.iter().filter(|byte| **byte == b'/').count();
    all.sort_by_cached_key(|(path, _)| std::cmp::Reverse(depth(path)));
    for level in all.chunk_by(|one, other| depth(&one.0) == depth(&other.0)) {
        let next = AtomicUsize::new(0);
        let work = || {
            while let Some((path, metadata)) = level.get(next.fetch_add(1, Ordering::Relaxed)) {
                if context.state.is_stopped() {
                    return;
                }
                if let Err(failure) = directory(context, path, metadata) {
                    context.failed(path, &failure);
                }
            }
        };
        std::thread::scope(|scope| {
            for _ in 1..context.options.workers.min(level.len()) {
                scope.spawn(work);
            }
            work();
        });
    }
    !context.state.is_stopped()
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
