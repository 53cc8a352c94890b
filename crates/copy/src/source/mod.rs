//! The source of a copy: its entries, in the order in which they may be copied.
//!
//! Arrives: a tree, a list of names, or one file; patterns. Leaves: entries, given to a consumer; problems.
//! Must not know: destinations, transports.

mod in_order;
mod item;
mod listed;
pub(crate) mod names;
mod own_files;

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::PathBuf;
use std::sync::atomic::Ordering;
use std::sync::Arc;
use std::time::Duration;

use waystage_catalog::walk::{Follow, Known, Options as WalkOptions, Walk};
use waystage_catalog::{Batch, Exclude, LayoutMethod, Layouts, Root};

use crate::counts::{add, ProblemKind};
use crate::error::{At, End, Failure};
use crate::options::Limits;
use crate::state::{CopyState, Fatal};

use listed::{listed, Listed};
use own_files::{OwnFiles, Owner};

pub use item::Item;
pub use names::{Names, NamesError, MOST_LIST_BYTES};

/// Entries of a walk's batch: small, so that the copy begins when the walk has hardly begun.
const BATCH_ROWS: usize = 2048;

/// The walk's counts are read at least this often, and a stop is noticed.
const PROGRESS_INTERVAL: Duration = Duration::from_millis(100);

/// What is copied from.
pub struct Source {
    /// Its root, open.
    pub root: Root,
    /// Where a walk finds the root.
    pub path: PathBuf,
    /// The one file that is copied, where it is one file.
    pub single: Option<Item>,
}

/// Which entries are copied.
#[derive(Debug, Clone, Default)]
pub struct Selection<'a> {
    /// Only these, and directories of them with all that is in them.
    pub names: Option<&'a Names>,
    /// Whether directories among the names are only themselves. What is not there then has vanished.
    pub only_named: bool,
    /// None of these.
    pub exclude: Exclude,
    /// Of files only those that match one of these.
    pub include: Option<&'a Exclude>,
    /// Of regular files only those within these.
    pub limits: Limits,
    /// Whether directories on other file systems are left out.
    pub one_file_system: bool,
    /// Where symbolic links are followed, device and inode of a directory that none may lead into.
    pub avoid: Option<(u64, u64)>,
    /// Threads that walk.
    pub walkers: usize,
    /// Whether the walk asks for the storage targets of files.
    pub with_targets: bool,
    /// Whether what copies have left in the source is among the entries.
    pub with_own_files: bool,
}

/// Takes the entries of a source.
pub trait Consumer {
    /// The next entry; false to end.
    fn entry(&mut self, item: Item) -> bool;

    /// No entry may follow for a while: what has been taken is to be worked on. False to end.
    fn flush(&mut self) -> bool;
}

/// A directory of a source, open: the last one that was asked for.
#[derive(Default)]
pub struct OpenDirectory(Option<(Arc<[u8]>, OwnedFd)>);

impl OpenDirectory {
    /// The directory of this entry.
    ///
    /// # Errors
    /// Those of open(2).
    pub fn of(&mut self, source: &Source, item: &Item) -> Result<BorrowedFd<'_>, Failure> {
        if self.0.as_ref().is_none_or(|(path, _)| *path != item.directory) {
            let opened = source.root.directory(&item.directory);
            let opened = opened.at(End::Source, "open directory")?;
            self.0 = Some((Arc::clone(&item.directory), opened));
        }
        self.0.as_ref().map(|(_, opened)| opened.as_fd()).ok_or(Failure::Stopped)
    }
}

struct Producer<'a, E, C> {
    source: &'a Source,
    selection: &'a Selection<'a>,
    state: &'a CopyState<E>,
    consumer: &'a mut C,
    own_files: OwnFiles,
}

/// Give the consumer every entry that is selected; false where it or a stop ended that.
///
/// # Errors
/// Where the walk cannot be started.
pub fn produce<E: Fatal, C: Consumer>(
    source: &Source,
    selection: &Selection<'_>,
    state: &CopyState<E>,
    consumer: &mut C,
) -> std::io::Result<bool> {
    let own_files = OwnFiles::default();
    let mut producer = Producer { source, selection, state, consumer, own_files };
    match (&source.single, selection.names) {
        (Some(item), _) if !selection.limits.admit(item.seen.size, item.seen.mtime) => {
            add(&state.report.tally.excluded, 1);
            Ok(true)
        }
        (Some(item), _) => Ok(producer.found(item.clone(), false) && producer.consumer.flush()),
        (None, Some(names)) => producer.named(names),
        (None, None) => producer.walk(vec![Vec::new()]),
    }
}

impl<E: Fatal, C: Consumer> Producer<'_, E, C> {
    /// Entries that a list names, and then what is in the directories among them.
    fn named(&mut self, names: &Names) -> std::io::Result<bool> {
        let (root, exclude) = (&self.source.root, &self.selection.exclude);
        let only_named = self.selection.only_named;
        let threads = self.selection.walkers;
        let tops = listed(root, names, exclude, only_named, threads, |named| match named {
            Listed::Item(item) => self.found(item, true),
            Listed::Excluded => {
                add(&self.state.report.tally.excluded, 1);
                !self.state.is_stopped()
            }
            Listed::Vanished(path) => {
                let text = "was gone before it could be copied";
                self.state.problem(&path, ProblemKind::Vanished, text);
                !self.state.is_stopped()
            }
            Listed::Failed(path, failure) => {
                self.state.problem(&path, ProblemKind::Error, failure.to_string());
                !self.state.is_stopped()
            }
        });
        let Some(tops) = tops else { return Ok(false) };
        if !self.consumer.flush() {
            return Ok(false);
        }
        Ok(tops.is_empty() || self.walk(tops)?)
    }

    /// An entry that no walk counts.
    fn found(&mut self, item: Item, selects: bool) -> bool {
        let tally = &self.state.report.tally;
        add(&tally.found, 1);
        if item.letter == b'f' {
            add(&tally.found_bytes, item.seen.size);
        }
        !self.state.is_stopped()
            && (selects && !self.is_selected(&item) || self.consumer.entry(item))
    }

    fn walk(&mut self, tops: Vec<Vec<u8>>) -> std::io::Result<bool> {
        let walk = Walk::start(WalkOptions {
            root: self.source.path.clone(),
            threads: self.selection.walkers,
            batch_rows: BATCH_ROWS,
            eager: true,
            exclude: self.selection.exclude.clone(),
            one_file_system: self.selection.one_file_system,
            layouts: self.selection.with_targets.then(|| Layouts::new(LayoutMethod::PerFileSystem)),
            known: Known::default(),
            follow: self.source.root.follows().then_some(Follow { avoid: self.selection.avoid }),
            tops,
        })?;
        let tally = &self.state.report.tally;
        let before = tally.read();
        loop {
            let ended = walk.wait(PROGRESS_INTERVAL) == Some(true);
            let counts = walk.counts();
            tally.found.store(before.found + counts.entries, Ordering::Relaxed);
            tally.found_bytes.store(before.found_bytes + counts.bytes, Ordering::Relaxed);
            if ended {
                add(&tally.vanished, counts.vanished);
                add(&tally.excluded, counts.excluded);
                return Ok(true);
            }
            let mut goes_on = !self.state.is_stopped();
            while let (true, Some(batch)) = (goes_on, walk.try_recv()) {
                goes_on = self.batch(&batch);
            }
            if !(goes_on && self.consumer.flush()) {
                return Ok(false);
            }
        }
    }

    fn batch(&mut self, batch: &Batch) -> bool {
        for (path, text) in &batch.errors {
            self.state.problem(path, ProblemKind::Error, format!("source: {text}"));
        }
        let paths: Vec<Arc<[u8]>> = (0..batch.directories.inode.len())
            .map(|index| Arc::from(batch.directories.path.get(index)))
            .collect();
        for (index, directory) in batch.entries.directory.iter().enumerate() {
            let Some(path) = usize::try_from(*directory).ok().and_then(|at| paths.get(at)) else {
                continue;
            };
            let item = Item::of(batch, index, path);
            if self.is_selected(&item) && !self.consumer.entry(item) {
                return false;
            }
        }
        true
    }

    /// Whether it is copied: it is no other copy's own, and a pattern wants it.
    fn is_selected(&mut self, item: &Item) -> bool {
        let owner = match self.selection.with_own_files {
            true => None,
            false => self.own_files.of(&self.source.root, item),
        };
        match owner {
            None => {}
            Some(Owner::Within) => return false,
            Some(Owner::Copy(text)) => {
                self.state.problem(&item.path(), ProblemKind::Skipped, text);
                return false;
            }
            Some(Owner::NameTaken(text)) => {
                self.state.problem(&item.path(), ProblemKind::Error, text);
                return false;
            }
        }
        if item.letter == b'f' && !self.selection.limits.admit(item.seen.size, item.seen.mtime) {
            add(&self.state.report.tally.excluded, 1);
            return false;
        }
        let unwanted = |include: &Exclude| !include.matches(&item.directory, &item.name);
        if item.letter != b'd' && self.selection.include.is_some_and(unwanted) {
            add(&self.state.report.tally.excluded, 1);
            return false;
        }
        true
    }
}
