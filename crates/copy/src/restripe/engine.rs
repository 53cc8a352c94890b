//! A restriping from start to end: recovery, the walk, files by workers, hard links, times of directories.

use std::collections::BTreeMap;
use std::os::fd::AsFd;
use std::sync::atomic::Ordering;
use std::sync::mpsc::{sync_channel, Receiver, SyncSender};
use std::sync::Arc;

use parking_lot::Mutex;
use rustix::fs::futimens;
use waystage_catalog::Root;

use super::context::{Class, Context, DirectoryTimes};
use super::file::restripe;
use super::group::rejoin;
use super::journal::{Journal, FOLDER};
use super::probe::try_layout;
use super::stripes::{Current, Shape};
use super::temporary::{remove_leftover, Live};
use super::RestripeOptions;
use crate::attributes::AttributePreserver;
use crate::counts::{add, ProblemKind};
use crate::engine::{Engine, Job};
use crate::error::CopyError;
use crate::local::ContentMover;
use crate::own_names::is_part;
use crate::source::{produce, Consumer, Item, Selection, Source};
use crate::stat::{stat_fd, Metadata};
use crate::state::CopyState;

/// Files that one worker takes at once.
const GROUP: usize = 64;

/// Groups that may wait for a worker.
const WAITING: usize = 64;

const WALKERS: usize = 4;

/// A restriping in progress. Dropping it stops it; files that are done stay done.
pub type Restripe = Engine<RestripeJob>;

/// A tree whose files are laid out anew.
pub struct RestripeJob(Context);

impl Job for RestripeJob {
    const NAME: &'static str = "restripe";

    fn state(&self) -> &CopyState<CopyError> {
        &self.0.state
    }

    fn run(&self) -> Result<(), CopyError> {
        run(&self.0)
    }
}

impl Restripe {
    /// Start.
    ///
    /// # Errors
    /// Where the tree cannot be used, its file system takes no layouts or not these, or another process restripes it.
    pub fn start(options: RestripeOptions) -> Result<Self, CopyError> {
        Self::of(RestripeJob(prepare(options)?))
    }

    /// Whether no file was left as it was, as far as it has come.
    pub fn is_complete(&self) -> bool {
        let counts = self.counts();
        counts.errors + counts.changed + counts.lost == 0
    }
}

fn prepare(mut options: RestripeOptions) -> Result<Context, CopyError> {
    options.workers = options.workers.clamp(1, 1024);
    let shown = options.tree.display().to_string();
    let root = Root::open(&options.tree)
        .map_err(|error| CopyError::Ends(format!("{shown} cannot be read: {error}")))?;
    let (live, state) = (Live::default(), Arc::new(CopyState::default()));
    let times = |root: &Root| root.directory(b"").and_then(|top| stat_fd(top.as_fd()));
    let was = times(&root).map(|stat| Metadata::of(&stat));
    state.pace.gate.set_limit(options.rate_bytes_per_s);
    let mut classes = Vec::with_capacity(options.classes.len());
    for class in &options.classes {
        let request = class.layout.encode();
        let shape = if options.dry_run {
            planned_shape(&request)
        } else {
            try_layout(&root, &class.layout, &live, &shown)?
        };
        classes.push(Class { most_bytes: class.most_bytes, request, shape });
    }
    let mut context = Context {
        preserver: AttributePreserver::new(true, true),
        mover: ContentMover::new(Arc::clone(&state.pace), options.workers, state.stop_flag())
            .through_own_memory(),
        source: Source { root, path: options.tree.clone(), single: None },
        classes,
        state,
        live,
        times: Mutex::default(),
        large: Mutex::default(),
        journal: None,
        options,
    };
    if !context.options.dry_run {
        let (journal, unfinished) = Journal::open(&context.source.root, &shown)?;
        if !unfinished.is_empty() {
            rejoin(&context, &unfinished);
            let emptied = journal.empty();
            emptied.map_err(|failure| CopyError::Refused(format!("{shown}: {failure}")))?;
            add(&context.state.report.tally.resumed, 1);
        }
        context.journal = Some(journal);
        if let (Ok(was), Ok(now)) = (was, times(&context.source.root)) {
            let ours = Metadata::of(&now).mtime;
            context.times.lock().insert(Arc::from(&b""[..]), DirectoryTimes { was, ours });
        }
    }
    Ok(context)
}

/// What is asked for, where nothing is made to see what it comes to.
fn planned_shape(request: &[u8]) -> Shape {
    match Current::of(request) {
        Current::Striped(shape) => shape,
        Current::Archived | Current::Other => Shape::default(),
    }
}

/// Names of one file: one, or all of its hard links.
type Work = Vec<Vec<Item>>;

fn run(context: &Context) -> Result<(), CopyError> {
    let (give, take) = sync_channel::<Work>(WAITING);
    let take = Mutex::new(take);
    let walked = std::thread::scope(|scope| {
        for number in 0..context.options.workers {
            let builder = std::thread::Builder::new().name(format!("restripe-{number}"));
            if let Err(error) = builder.spawn_scoped(scope, || work(context, &take)) {
                context.state.stop();
                return Err(CopyError::Failed(error.to_string()));
            }
        }
        // The workers end when what they wait for is gone.
        walk(context, give)
    });
    let mine = changed_here_alone(context);
    let ended = walked.and_then(|()| match context.state.is_stopped() {
        true => Err(context.state.verdict()),
        false => Ok(()),
    });
    if let (Ok(()), Some(journal)) = (&ended, &context.journal) {
        if let Err(errno) = journal.remove(&context.source.root) {
            let text = format!("the journal stays: {}", crate::error::describe(errno));
            context.state.problem(FOLDER, ProblemKind::Error, text);
        }
    }
    for (path, was) in mine {
        if let Ok(folder) = context.source.root.directory(&path) {
            // Its user may not be allowed to set them.
            let _ = futimens(&folder, &was.times());
        }
    }
    ended
}

fn work(context: &Context, take: &Mutex<Receiver<Work>>) {
    let _attached = context.state.pace.meter.attach();
    loop {
        // The lock is held while waiting: the others wait for it instead.
        let Ok(files) = take.lock().recv() else { return };
        for names in files {
            if context.state.is_stopped() {
                break;
            }
            if let Err(failure) = restripe(context, &names) {
                let path = names.first().map_or_else(Vec::new, Item::path);
                context.state.failed(&path, &failure);
            }
        }
    }
}

fn walk(context: &Context, give: SyncSender<Work>) -> Result<(), CopyError> {
    let selection = Selection {
        exclude: context.options.exclude.clone(),
        one_file_system: context.options.one_file_system,
        walkers: context.options.workers.min(WALKERS),
        with_own_files: true,
        ..Selection::default()
    };
    let mut sorter = Sorter { context, give, waiting: Vec::new(), linked: BTreeMap::new() };
    let produced = produce(&context.source, &selection, &context.state, &mut sorter);
    let ended = produced.map_err(|error| {
        context.state.stop();
        CopyError::Ends(format!("{} cannot be read: {error}", context.options.tree.display()))
    })?;
    // What vanished since the directory was read was this process's own, or no longer needs a layout.
    context.state.report.tally.vanished.store(0, Ordering::Relaxed);
    if !ended {
        return Ok(());
    }
    for mut names in std::mem::take(&mut sorter.linked).into_values() {
        names.sort_by_key(Item::path);
        sorter.waiting.push(names);
        sorter.flush();
    }
    Ok(())
}

/// Gives files to workers, hard links of one file together.
struct Sorter<'a> {
    context: &'a Context,
    give: SyncSender<Work>,
    waiting: Work,
    linked: BTreeMap<(u64, u64), Vec<Item>>,
}

impl Consumer for Sorter<'_> {
    fn entry(&mut self, item: Item) -> bool {
        self.sort(item);
        !self.context.state.is_stopped()
    }

    fn flush(&mut self) -> bool {
        let waiting = std::mem::take(&mut self.waiting);
        if !waiting.is_empty() && !self.context.state.is_stopped() {
            // Refused only where every worker has ended, after a stop.
            let _ = self.give.send(waiting);
        }
        !self.context.state.is_stopped()
    }
}

impl Sorter<'_> {
    fn sort(&mut self, item: Item) {
        let context = self.context;
        if item.letter == b'd' && item.name == FOLDER && !item.directory.is_empty() {
            let text = "a restripe of this directory was killed: restripe it first, so that its hard links stay together";
            context.state.problem(&item.directory, ProblemKind::Error, text);
        }
        if item.letter != b'f'
            || item.directory.split(|byte| *byte == b'/').any(|part| part == FOLDER)
        {
            return;
        }
        if context.live.is_leftover(&item.name) && !context.options.dry_run {
            let folder = context.source.root.directory(&item.directory);
            if folder.is_ok_and(|folder| remove_leftover(folder.as_fd(), &item.name)) {
                add(&context.state.report.tally.leftovers, 1);
            }
            return;
        }
        if is_part(&item.name) {
            return;
        }
        if item.links > 1 {
            self.linked.entry((item.seen.device, item.seen.inode)).or_default().push(item);
            return;
        }
        self.waiting.push(vec![item]);
        if self.waiting.len() >= GROUP {
            self.flush();
        }
    }
}

/// Directories that no other process has changed, which get back the times that they had.
fn changed_here_alone(context: &Context) -> Vec<(Arc<[u8]>, Metadata)> {
    let times = std::mem::take(&mut *context.times.lock());
    let mine = |(path, times): (Arc<[u8]>, DirectoryTimes)| {
        let folder = context.source.root.directory(&path).ok()?;
        let stat = stat_fd(folder.as_fd()).ok()?;
        (Metadata::of(&stat).mtime == times.ours).then_some((path, times.was))
    };
    times.into_iter().filter_map(mine).collect()
}
