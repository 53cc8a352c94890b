//! What is to be copied, in the order in which it may be: contents, then links to them, then directories' times.

use std::collections::BTreeMap;
use std::os::fd::AsFd;
use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use waystage_catalog::walk::{Known, Next, Options as WalkOptions, Walk};
use waystage_catalog::{Batch, Exclude};

use crate::attributes::both;
use crate::counts::{add, ProblemKind};
use crate::engine::Shared;
use crate::error::{At, CopyError, CopyErrorKind, End, Failure};
use crate::item::{look_at, About, Item};
use crate::listed::{listed, Listed};
use crate::names::Names;
use crate::own_files::{OwnFiles, Whose};
use crate::queue::Task;

/// Entries that one worker takes at once: enough that opening their directory costs nothing, few enough that no worker
/// is left with all.
const GROUP: usize = 128;

/// Entries of a walk's batch: small, so that the copy begins when the walk has hardly begun.
const BATCH_ROWS: usize = 2048;

/// Threads that walk: on local storage one keeps several copiers busy.
const WALKERS: usize = 4;

/// How often the walk is asked whether it goes on.
const LOOK_ROUND: Duration = Duration::from_millis(100);

/// Names of one file, by device and inode, in the order of their paths: the same in every run.
type Linked = BTreeMap<(u64, u64), Vec<Item>>;

/// Give workers all there is; false after a stop.
pub(crate) fn feed(shared: &Shared) -> Result<bool, CopyError> {
    if let Some(item) = &shared.single {
        add(&shared.report.tally.found, 1);
        add(&shared.report.tally.found_bytes, item.seen.size);
        return Ok(shared.queue.feed(Task::Items(vec![item.clone()])) && shared.queue.drain());
    }
    let mut linked = Linked::new();
    let mut own = OwnFiles::default();
    let fed = match &shared.options.names {
        Some(names) => named(shared, names, &mut own, &mut linked)?,
        None => walk(shared, vec![Vec::new()], &mut own, &mut linked)?,
    };
    if !fed || !shared.queue.drain() {
        return Ok(false);
    }
    for items in linked.values_mut() {
        items.sort_by_key(Item::path);
        if !shared.queue.feed(Task::Items(vec![items[0].clone()])) {
            return Ok(false);
        }
    }
    if !shared.queue.drain() {
        return Ok(false);
    }
    for items in std::mem::take(&mut linked).into_values().filter(|items| items.len() > 1) {
        if !shared.queue.feed(Task::Links(items)) {
            return Ok(false);
        }
    }
    Ok(shared.queue.drain() && directories(shared))
}

/// Give the entries that a list names, and then what lies in the directories among them.
fn named(
    shared: &Shared,
    names: &Names,
    own: &mut OwnFiles,
    linked: &mut Linked,
) -> Result<bool, CopyError> {
    let tally = &shared.report.tally;
    let mut group: Vec<Item> = Vec::new();
    let tops = listed(&shared.source, names, &shared.options.exclude, |named| {
        if shared.ways.is_stopped() {
            return false;
        }
        let item = match named {
            Listed::Item(item) => item,
            Listed::Excluded => {
                add(&tally.excluded, 1);
                return true;
            }
            Listed::Failed(path, failure) => {
                shared.report.problem(path, ProblemKind::Error, failure.to_string());
                return true;
            }
        };
        add(&tally.found, 1);
        if item.letter == b'f' {
            add(&tally.found_bytes, item.seen.size);
        }
        let full = group.len() >= GROUP
            || group.first().is_some_and(|first| first.directory != item.directory);
        if full && !shared.queue.feed(Task::Items(std::mem::take(&mut group))) {
            return false;
        }
        group.extend(sorted_out(shared, item, own, linked));
        true
    });
    let Some(tops) = tops else { return Ok(false) };
    if !group.is_empty() && !shared.queue.feed(Task::Items(group)) {
        return Ok(false);
    }
    Ok(tops.is_empty() || walk(shared, tops, own, linked)?)
}

fn walk(
    shared: &Shared,
    tops: Vec<Vec<u8>>,
    own: &mut OwnFiles,
    linked: &mut Linked,
) -> Result<bool, CopyError> {
    let options = &shared.options;
    let walk = Walk::start(WalkOptions {
        root: shared.source_path.clone(),
        threads: options.workers.min(WALKERS),
        batch_rows: BATCH_ROWS,
        exclude: options.exclude.clone(),
        one_file_system: options.one_file_system,
        layouts: None,
        known: Known::default(),
        tops,
    })
    .map_err(|error| {
        let text = format!("{} cannot be read: {error}", options.source.display());
        CopyError::new(CopyErrorKind::Ends, text)
    })?;
    let tally = &shared.report.tally;
    let before = tally.read();
    loop {
        let next = walk.next(LOOK_ROUND);
        let counts = walk.counts();
        tally.found.store(before.found + counts.entries, Ordering::Relaxed);
        tally.found_bytes.store(before.found_bytes + counts.bytes, Ordering::Relaxed);
        match next {
            Next::Batch(batch) => {
                if !feed_batch(shared, &batch, own, linked) {
                    return Ok(false);
                }
            }
            Next::Waiting if shared.ways.is_stopped() => return Ok(false),
            Next::Waiting => {}
            Next::End => {
                add(&tally.vanished, counts.vanished);
                add(&tally.excluded, counts.excluded);
                return Ok(true);
            }
        }
    }
}

fn feed_batch(shared: &Shared, batch: &Batch, own: &mut OwnFiles, linked: &mut Linked) -> bool {
    for (path, text) in &batch.errors {
        shared.report.problem(path.clone(), ProblemKind::Error, format!("source: {text}"));
    }
    let paths: Vec<Arc<[u8]>> = (0..batch.directories.inode.len())
        .map(|index| Arc::from(batch.directories.path.get(index)))
        .collect();
    let mut group: Vec<Item> = Vec::new();
    let mut at = None;
    for (index, directory) in batch.entries.directory.iter().enumerate() {
        let Some(path) = usize::try_from(*directory).ok().and_then(|at| paths.get(at)) else {
            continue;
        };
        if (at != Some(*directory) || group.len() >= GROUP)
            && !group.is_empty()
            && !shared.queue.feed(Task::Items(std::mem::take(&mut group)))
        {
            return false;
        }
        at = Some(*directory);
        let item = Item::of(batch, index, path);
        group.extend(sorted_out(shared, item, own, linked));
    }
    group.is_empty() || shared.queue.feed(Task::Items(group))
}

/// The item, unless it is another copy's own, no pattern wants it, or it is one of several names of a file, which come last.
fn sorted_out(
    shared: &Shared,
    item: Item,
    own: &mut OwnFiles,
    linked: &mut Linked,
) -> Option<Item> {
    match own.of(&shared.source, &item) {
        None => {}
        Some(Whose::Within) => return None,
        Some(Whose::Copy(text)) => {
            shared.report.problem(item.path(), ProblemKind::Skipped, text.to_owned());
            return None;
        }
        Some(Whose::Taken(text)) => {
            shared.report.problem(item.path(), ProblemKind::Error, text.to_owned());
            return None;
        }
    }
    let unwanted = |include: &Exclude| !include.matches(&item.directory, &item.name);
    if item.letter != b'd' && shared.options.include.as_ref().is_some_and(unwanted) {
        add(&shared.report.tally.excluded, 1);
        return None;
    }
    if matches!(item.letter, b'f' | b'l' | b'p' | b'b' | b'c')
        && item.links > 1
        && shared.options.hard_links
    {
        linked.entry((item.seen.device, item.seen.inode)).or_default().push(item);
        return None;
    }
    Some(item)
}

/// Attributes of directories, the deepest first: those above may close the way to them.
fn directories(shared: &Shared) -> bool {
    let mut all =
        std::mem::take(&mut *shared.directories.lock().unwrap_or_else(PoisonError::into_inner));
    all.sort_by(|one, other| other.0.cmp(&one.0));
    for (path, about) in all {
        if shared.ways.is_stopped() {
            return false;
        }
        if shared.options.dry_run {
            continue;
        }
        if let Err(failure) = directory(shared, &path, &about) {
            shared.report.problem(path, ProblemKind::Error, failure.to_string());
        }
    }
    true
}

/// Make the attributes of one directory those of the source's.
pub(crate) fn directory(shared: &Shared, path: &[u8], about: &About) -> Result<(), Failure> {
    // Not made, where nothing in it was wanted.
    let Some(folder) = shared.destination.find(path)? else { return Ok(()) };
    let source = shared.source.directory(path).at(End::Source, "open directory")?;
    let found =
        look_at(folder.fd()).map(|stat| About::of(&stat)).at(End::Destination, "look at")?;
    let lost = if found.mtime == about.mtime {
        shared.keeper.mend(source.as_fd(), folder.fd(), about, &found)?.1
    } else {
        let lost = shared.keeper.give(source.as_fd(), folder.fd(), about, false)?;
        both(lost, shared.keeper.times(folder.fd(), about)?)
    };
    if let Some(lost) = lost {
        shared.report.problem(path.to_vec(), ProblemKind::Lost, format!("not kept: {lost}"));
    }
    Ok(())
}
