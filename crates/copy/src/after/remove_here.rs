//! A source on this machine, and its copy there: files are removed that both have, byte by byte.

use std::os::fd::{AsFd, BorrowedFd};
use std::path::PathBuf;
use std::sync::atomic::AtomicBool;
use std::sync::Arc;

use rustix::fs::{readlinkat, syncfs, Statx};
use rustix::io::Errno;
use waystage_catalog::{Exclude, Root};

use super::delete::Victim;
use super::digest::remove_unchanged;
use super::remove::{
    report, Removal, Remove, RemoveWorker, Remover, NO_COPY, ONE_FILE, OTHER_CONTENTS,
};
use super::{open, LastDirectory};
use crate::compare::same_contents;
use crate::ends::unwritable;
use crate::error::{At, CopyError, End, Failure};
use crate::file_io::open_file;
use crate::options::Limits;
use crate::source::{produce, Consumer, Item, Names, Selection, Source};
use crate::stat::{letter, split, stat_at, stat_fd};
use crate::state::CopyState;

/// Threads that walk the source.
const WALKERS: usize = 4;

/// Entries of a source that are given on together.
const GROUP: usize = 256;

/// Which entries a copy has taken, as in the copy.
#[derive(Debug, Clone, Default)]
pub struct Taken {
    /// None of these.
    pub exclude: Exclude,
    /// Of files only those that match one of these.
    pub include: Option<Exclude>,
    /// Only these, and what is in the directories among them.
    pub names: Option<Names>,
    /// Of regular files only those within these.
    pub limits: Limits,
    /// Whether directories on other file systems were left out.
    pub one_file_system: bool,
}

/// What to remove, after which copy.
#[derive(Debug, Clone)]
pub struct RemoveOptions {
    /// The directory, or the directory of the one file, that was copied.
    pub source: PathBuf,
    /// Where the copy is.
    pub destination: PathBuf,
    /// One file: its name at the source, and that at the destination.
    pub single: Option<(Vec<u8>, Vec<u8>)>,
    /// What was copied.
    pub taken: Taken,
}

impl Remove {
    /// Start, on this machine.
    ///
    /// # Errors
    /// Where source or destination cannot be opened.
    pub fn start(options: RemoveOptions, how: Removal) -> Result<Self, CopyError> {
        let name = options.single.as_ref().map(|(name, _)| &name[..]);
        let source = CopiedSource::open(options.source, name, options.taken)?;
        let destination = open(&options.destination)?;
        let there = options.destination;
        let renamed = options.single.map(|(_, other)| other);
        Self::by(Box::new(RemoverHere { source, destination, there, renamed }), how)
    }
}

/// A source on this machine that was copied.
pub struct CopiedSource {
    tree: Source,
    taken: Taken,
}

impl CopiedSource {
    /// Open the directory at `path`; with `single` of it this one file.
    ///
    /// # Errors
    /// Where it cannot be opened.
    pub fn open(path: PathBuf, single: Option<&[u8]>, taken: Taken) -> Result<Self, CopyError> {
        let path = path.canonicalize().map_err(|error| unwritable(&path, &error))?;
        let root = open(&path)?;
        let single = match single {
            None => None,
            Some(name) => {
                let found = root.directory(b"").and_then(|folder| stat_at(folder.as_fd(), name));
                let stat = found.map_err(|errno| unwritable(&path.join("."), &errno.into()))?;
                Some(Item::file(&stat, b"", name))
            }
        };
        Ok(Self { tree: Source { root, path, single }, taken })
    }

    /// Its directories.
    #[must_use]
    pub fn root(&self) -> &Root {
        &self.tree.root
    }

    /// See [`Remover::entries`].
    ///
    /// # Errors
    /// Where the walk cannot be started.
    pub fn entries(
        &self,
        state: &CopyState<CopyError>,
        take: &mut dyn FnMut(Vec<Victim>) -> bool,
    ) -> Result<bool, CopyError> {
        let taken = &self.taken;
        let selection = Selection {
            names: taken.names.as_ref(),
            exclude: taken.exclude.clone(),
            include: taken.include.as_ref(),
            limits: taken.limits,
            one_file_system: taken.one_file_system,
            walkers: WALKERS,
            ..Selection::default()
        };
        let mut walk = Walked { take, state, group: Vec::new() };
        let walked = produce(&self.tree, &selection, state, &mut walk)
            .map_err(|error| CopyError::Failed(error.to_string()))?;
        Ok(walked && walk.flush())
    }
}

struct Walked<'a> {
    take: &'a mut dyn FnMut(Vec<Victim>) -> bool,
    state: &'a CopyState<CopyError>,
    group: Vec<Victim>,
}

impl Consumer for Walked<'_> {
    fn entry(&mut self, item: Item) -> bool {
        self.group.push(Victim { path: item.path(), letter: item.letter, bytes: item.seen.size });
        self.group.len() < GROUP || self.flush()
    }

    fn flush(&mut self) -> bool {
        let group = std::mem::take(&mut self.group);
        !self.state.is_stopped() && (group.is_empty() || (self.take)(group))
    }
}

struct RemoverHere {
    source: CopiedSource,
    destination: Root,
    /// What its user calls the destination.
    there: PathBuf,
    /// The name there of the one file.
    renamed: Option<Vec<u8>>,
}

impl Remover for RemoverHere {
    fn begin(&self, dry_run: bool) -> Result<(), CopyError> {
        if dry_run {
            return Ok(());
        }
        self.destination
            .directory(b"")
            .and_then(syncfs)
            .map_err(|errno| CopyError::Failed(format!("{}: sync: {errno}", self.there.display())))
    }

    fn entries(
        &self,
        state: &CopyState<CopyError>,
        take: &mut dyn FnMut(Vec<Victim>) -> bool,
    ) -> Result<bool, CopyError> {
        self.source.entries(state, take)
    }

    fn at_once(&self) -> (usize, u64) {
        (1, 0)
    }

    fn worker(&self) -> Box<dyn RemoveWorker + '_> {
        let (here, there) = (LastDirectory::default(), LastDirectory::default());
        Box::new(WorkerHere { of: self, here, there })
    }
}

struct WorkerHere<'a> {
    of: &'a RemoverHere,
    here: LastDirectory,
    there: LastDirectory,
}

impl RemoveWorker for WorkerHere<'_> {
    fn remove(
        &mut self,
        entries: &[Victim],
        state: &CopyState<CopyError>,
    ) -> Result<(), CopyError> {
        for entry in entries {
            let removed = self.one(entry, &state.stop_flag());
            report(state, entry, removed);
        }
        Ok(())
    }
}

impl WorkerHere<'_> {
    fn one(&mut self, entry: &Victim, stop: &Arc<AtomicBool>) -> Result<bool, Failure> {
        let (directory, name) = split(&entry.path);
        let other = self.of.renamed.as_deref().unwrap_or(name);
        let source = self.here.of(self.of.source.root(), directory);
        let source = source.at(End::Source, "open directory")?;
        let copy = self.there.of(&self.of.destination, directory);
        let copy = copy.at(End::Destination, "open directory")?;
        let seen = stat_at(source, name).at(End::Source, "stat")?;
        if letter(seen.stx_mode) != entry.letter {
            return Err(OTHER_CONTENTS);
        }
        check_same((source, name, &seen), (copy, other), stop)?;
        remove_unchanged(source, name, &seen)
    }
}

/// An error that says why it stays, unless both directories have the same under these names.
fn check_same(
    (source, name, seen): (BorrowedFd<'_>, &[u8], &Statx),
    (copy, other): (BorrowedFd<'_>, &[u8]),
    stop: &Arc<AtomicBool>,
) -> Result<(), Failure> {
    let there = match stat_at(copy, other) {
        Err(Errno::NOENT) => return Err(NO_COPY),
        found => found.at(End::Destination, "stat")?,
    };
    let kind = letter(seen.stx_mode);
    if letter(there.stx_mode) != kind {
        return Err(OTHER_CONTENTS);
    }
    let is_same = match kind {
        b'f' => {
            let one = open_file(source, name, End::Source)?;
            let other = open_file(copy, other, End::Destination)?;
            let (a, b) = (
                stat_fd(one.as_fd()).at(End::Source, "stat")?,
                stat_fd(other.as_fd()).at(End::Destination, "stat")?,
            );
            if (a.stx_ino, a.stx_dev_major, a.stx_dev_minor)
                == (b.stx_ino, b.stx_dev_major, b.stx_dev_minor)
            {
                return Err(ONE_FILE); // Under two names: no copy of it.
            }
            a.stx_size == b.stx_size && same_contents(one.as_fd(), other.as_fd(), stop)?
        }
        b'l' => {
            let one = readlinkat(source, name, Vec::new()).at(End::Source, "read link")?;
            let other = readlinkat(copy, other, Vec::new()).at(End::Destination, "read link")?;
            one == other
        }
        _ => {
            (seen.stx_rdev_major, seen.stx_rdev_minor)
                == (there.stx_rdev_major, there.stx_rdev_minor)
        }
    };
    if is_same {
        Ok(())
    } else {
        Err(OTHER_CONTENTS)
    }
}
