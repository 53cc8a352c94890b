//! Source and destination of a deletion on this machine.
//!
//! Arrives: directories. Leaves: what they have; fewer entries. Must not know: why an entry goes.

use std::path::{Path, PathBuf};

use rustix::fs::{unlinkat, AtFlags};
use rustix::io::Errno;
use waystage_catalog::{Exclude, Root};

use super::delete::{Asker, Delete, Deleted, Deleter, Deletion, Origin, Target, Victim};
use super::{open, LastDirectory};
use crate::backup::{Backup, OpenBackup};
use crate::error::{describe, At, CopyError, End};
use crate::options::Limits;
use crate::own_names::OWN_PREFIX;
use crate::source::{produce, Consumer, Item, Selection, Source};
use crate::stat::{letter, split, stat_at};
use crate::state::{CopyState, Fatal};

/// Threads that walk the destination.
const WALKERS: usize = 4;

/// Entries of a destination that are given on together.
const GROUP: usize = 256;

/// What to delete, and what not.
#[derive(Debug, Clone)]
pub struct DeleteOptions {
    /// The directory that was copied.
    pub source: PathBuf,
    /// Its copy.
    pub destination: PathBuf,
    /// Whether symbolic links of the source were followed.
    pub copy_links: bool,
    /// What was copied.
    pub copied: Copied,
    /// Where given, files are kept there.
    pub backup: Option<Backup>,
}

/// Which entries a copy has put at the destination: all others are left alone there.
#[derive(Debug, Clone, Default)]
pub struct Copied {
    /// None of these.
    pub exclude: Exclude,
    /// Of files only those that match one of these.
    pub include: Option<Exclude>,
    /// Whether directories on other file systems are left alone.
    pub one_file_system: bool,
    /// Of regular files only those within these.
    pub limits: Limits,
}

impl Delete {
    /// Start, on this machine.
    ///
    /// # Errors
    /// Where source or destination cannot be opened.
    pub fn start(options: DeleteOptions, how: Deletion) -> Result<Self, CopyError> {
        let origin = OriginHere::open(&options.source, options.copy_links)?;
        let target = TargetHere::open(options.destination, options.copied, options.backup)?;
        Self::between(Box::new(origin), Box::new(target), how)
    }
}

/// A source on this machine.
pub struct OriginHere(Root);

impl OriginHere {
    /// Open it; `copy_links` says whether its links were followed.
    ///
    /// # Errors
    /// Those of open(2).
    pub fn open(path: &Path, copy_links: bool) -> Result<Self, CopyError> {
        let root = match copy_links {
            false => open(path)?,
            true => Root::following(path).map_err(|error| crate::ends::unwritable(path, &error))?,
        };
        Ok(Self(root))
    }
}

impl Origin for OriginHere {
    fn asker(&self) -> Box<dyn Asker + '_> {
        Box::new(AskerHere { root: &self.0, last: LastDirectory::default() })
    }

    fn at_once(&self) -> usize {
        1
    }
}

struct AskerHere<'a> {
    root: &'a Root,
    last: LastDirectory,
}

impl Asker for AskerHere<'_> {
    fn has(&mut self, paths: &[&[u8]]) -> Result<Vec<bool>, CopyError> {
        let each = paths.iter().map(|path| {
            let (directory, name) = split(path);
            match self.last.has(self.root, directory, name) {
                // What is behind a symbolic link of the source is not this copy's.
                Err(Errno::LOOP) => Ok(true),
                // A source that cannot be read lacks nothing: all stays.
                Err(errno) => {
                    let path = String::from_utf8_lossy(path);
                    let why = describe(errno);
                    Err(CopyError::Failed(format!(
                        "source: {path:?}: stat: {why}: what may be missing there stays"
                    )))
                }
                Ok(has) => Ok(has),
            }
        });
        each.collect()
    }
}

/// A destination on this machine.
pub struct TargetHere {
    source: Source,
    copied: Copied,
    backup: Option<OpenBackup>,
}

impl TargetHere {
    /// Open it.
    ///
    /// # Errors
    /// Where it, or the directory of backups, cannot be opened.
    pub fn open(path: PathBuf, copied: Copied, backup: Option<Backup>) -> Result<Self, CopyError> {
        let root = open(&path)?;
        let backup = backup.map(|backup| backup.open(&path, 0)).transpose()?;
        Ok(Self { source: Source { root, path, single: None }, copied, backup })
    }
}

impl Target for TargetHere {
    fn entries(
        &self,
        state: &CopyState<CopyError>,
        take: &mut dyn FnMut(Vec<Victim>) -> bool,
    ) -> Result<bool, CopyError> {
        let mine = |item: &Item| {
            self.backup.as_ref().is_some_and(|own| own.is_own(&item.directory, &item.name))
        };
        each_entry(&self.source, &self.copied, state, &mine, take)
            .map_err(|error| CopyError::Failed(error.to_string()))
    }

    fn deleter(&self) -> Box<dyn Deleter + '_> {
        Box::new(DeleterHere::of(&self.source.root, self.backup.as_ref()))
    }

    fn at_once(&self) -> usize {
        1
    }
}

/// Give every entry of a tree that a copy would have put there to `take`, but for temporary files of copies and what is
/// `mine`; false where that, or a stop, ended it.
///
/// # Errors
/// Where the walk cannot be started.
pub fn each_entry<E: Fatal>(
    tree: &Source,
    copied: &Copied,
    state: &CopyState<E>,
    mine: &dyn Fn(&Item) -> bool,
    take: &mut dyn FnMut(Vec<Victim>) -> bool,
) -> std::io::Result<bool> {
    let selection = Selection {
        exclude: copied.exclude.clone(),
        include: copied.include.as_ref(),
        limits: copied.limits,
        one_file_system: copied.one_file_system,
        walkers: WALKERS,
        ..Selection::default()
    };
    let mut collector = Collector { mine, take, group: Vec::new() };
    let walked = produce(tree, &selection, state, &mut collector)?;
    Ok(walked && collector.give())
}

struct Collector<'a> {
    mine: &'a dyn Fn(&Item) -> bool,
    take: &'a mut dyn FnMut(Vec<Victim>) -> bool,
    group: Vec<Victim>,
}

impl Collector<'_> {
    fn give(&mut self) -> bool {
        self.group.is_empty() || (self.take)(std::mem::take(&mut self.group))
    }
}

impl Consumer for Collector<'_> {
    fn entry(&mut self, item: Item) -> bool {
        if item.name.starts_with(OWN_PREFIX) || (self.mine)(&item) {
            return true;
        }
        let bytes = if item.letter == b'f' { item.seen.size } else { 0 };
        self.group.push(Victim { path: item.path(), letter: item.letter, bytes });
        self.group.len() < GROUP || self.give()
    }

    fn flush(&mut self) -> bool {
        self.give()
    }
}

/// Deletes entries of an open tree, through no symbolic link.
pub struct DeleterHere<'a> {
    root: &'a Root,
    backup: Option<&'a OpenBackup>,
    last: LastDirectory,
}

impl<'a> DeleterHere<'a> {
    /// Of this tree; files are kept in backups where there are any.
    #[must_use]
    pub fn of(root: &'a Root, backup: Option<&'a OpenBackup>) -> Self {
        Self { root, backup, last: LastDirectory::default() }
    }

    /// Delete one entry: see [`Deleter::delete`].
    ///
    /// # Errors
    /// Those of the calls that do so.
    pub fn one(&mut self, victim: &Victim) -> Deleted {
        let (directory, name) = split(&victim.path);
        let folder = match self.last.of(self.root, directory) {
            Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP) => return Ok(false),
            other => other.at(End::Destination, "open directory")?,
        };
        let is_directory = victim.letter == b'd';
        if !is_directory {
            match stat_at(folder, name) {
                Ok(stat) if letter(stat.stx_mode) == victim.letter => {}
                // Another entry by now, or none.
                Ok(_) | Err(Errno::NOENT) => return Ok(false),
                Err(errno) => return Err(errno).at(End::Destination, "stat"),
            }
        }
        let deleted = match &self.backup {
            Some(backup) if !is_directory => {
                return backup.take_away(folder, directory, name).map(|()| true);
            }
            _ if is_directory => unlinkat(folder, name, AtFlags::REMOVEDIR),
            _ => unlinkat(folder, name, AtFlags::empty()),
        };
        match deleted {
            Ok(()) => Ok(true),
            Err(Errno::NOENT) => Ok(false),
            // It holds what was left out, is new or is another's.
            Err(Errno::NOTEMPTY | Errno::EXIST | Errno::BUSY) if is_directory => Ok(false),
            Err(Errno::NOTDIR) if is_directory => Ok(false),
            Err(errno) => Err(errno).at(End::Destination, "delete"),
        }
    }
}

impl Deleter for DeleterHere<'_> {
    fn delete(&mut self, victims: &[&Victim]) -> Result<Vec<Deleted>, CopyError> {
        Ok(victims.iter().map(|victim| self.one(victim)).collect())
    }
}
