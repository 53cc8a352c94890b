//! Attributes of given entries, instead of all that a walk finds.
//!
//! As in a walk, no path leaves the root: directories are opened below it with no symbolic link on the way.

use std::collections::{HashMap, HashSet};
use std::ffi::CString;
use std::os::fd::{AsFd, BorrowedFd};
use std::path::Path;

use rustix::fs::{readlinkat, FileType, RawDir};
use rustix::io::Errno;

use crate::batch::{Attributes, Batch};
use crate::exclude::{join, Exclude};
use crate::layouts::{Layouts, WorkerLayouts};
use crate::root::Root;
use crate::stat::{stat_name, stat_open};

/// Where fewer than one name in this number is wanted, reading the directory costs more than a stat(2) of each.
const ONE_IN: u64 = 32;

/// The least that a name adds to a directory's size: 20 bytes on tmpfs, more elsewhere.
const NAME_BYTES: u64 = 20;

/// What getdents64(2) may fill at once.
const NAMES_BYTES: usize = 64 << 10;

/// An entry to stat, by its name in a directory.
#[derive(Debug, Clone)]
pub struct NamedEntry<'a> {
    /// The name.
    pub name: &'a [u8],
    /// Attributes that are known already. They hold where the directory lists a regular file of this name and inode
    /// number, which takes no call for each file.
    pub known: Option<Attributes>,
}

/// What was found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Found {
    /// Nothing, or it is not accessible.
    Absent,
    /// An entry that catalogs of this tree exclude.
    LeftOut,
    /// A directory.
    Directory,
    /// A symbolic link.
    Link,
    /// Anything else; whether it has other names too.
    Other {
        /// More than one hard link.
        linked: bool,
    },
}

/// Stats entries below a root.
pub struct EntryLookup {
    root: Root,
    device: u64,
    exclude: Exclude,
    one_file_system: bool,
    layouts: Option<Layouts>,
}

impl EntryLookup {
    /// Fails where the root cannot be opened as a directory.
    pub fn open(
        root: &Path,
        exclude: Exclude,
        one_file_system: bool,
        layouts: Option<Layouts>,
    ) -> std::io::Result<Self> {
        let root = Root::open(root)?;
        let top = stat_open(root.directory(b"")?)?;
        let device = Attributes::from(&top).device;
        Ok(Self { root, device, exclude, one_file_system, layouts })
    }

    /// The storage targets met so far, by number: see [`Layouts::targets`].
    pub fn targets(&self) -> Vec<(u32, String)> {
        self.layouts.as_ref().map_or_else(Vec::new, Layouts::targets)
    }

    /// Stat entries of one directory, and add them to `batch`; what was found of each.
    ///
    /// The batch lists the directory too, as incomplete.
    pub fn look_up(
        &self,
        directory: &[u8],
        asked: &[NamedEntry<'_>],
        batch: &mut Batch,
    ) -> Vec<Found> {
        if self.left_out(directory) {
            return vec![Found::LeftOut; asked.len()];
        }
        let opened = self.root.directory(directory).and_then(|fd| {
            let stat = stat_open(&fd)?;
            Ok((fd, stat))
        });
        let (fd, stat) = match opened {
            Ok(opened) => opened,
            Err(error) => {
                if !gone(error) {
                    note(batch, directory.to_vec(), "open directory", error);
                }
                return vec![Found::Absent; asked.len()];
            }
        };
        if self.elsewhere(Attributes::from(&stat).device) {
            return vec![Found::LeftOut; asked.len()];
        }
        let place = batch.directories.push(directory, &stat);
        let confirmed = confirmed(fd.as_fd(), stat.stx_size, asked);
        let mut layouts = self.layouts.as_ref().map(WorkerLayouts::new);
        let mut found = Vec::with_capacity(asked.len());
        for one in asked {
            let known = one.known.filter(|_| confirmed.contains(one.name));
            found.push(self.entry(
                (fd.as_fd(), directory, place),
                one.name,
                known,
                layouts.as_mut(),
                batch,
            ));
        }
        found
    }

    fn entry(
        &self,
        (fd, directory, place): (BorrowedFd<'_>, &[u8], usize),
        entry: &[u8],
        known: Option<Attributes>,
        layouts: Option<&mut WorkerLayouts<'_>>,
        batch: &mut Batch,
    ) -> Found {
        if self.exclude.matches(directory, entry) {
            return Found::LeftOut;
        }
        let Ok(name) = CString::new(entry) else { return Found::Absent };
        let facts = match known {
            Some(facts) => facts,
            None => match stat_name(fd, &name) {
                Ok(stat) => Attributes::from(&stat),
                Err(error) => {
                    if !gone(error) {
                        note(batch, join(directory, entry), "stat", error);
                    }
                    return Found::Absent;
                }
            },
        };
        if self.elsewhere(facts.device) {
            return Found::LeftOut;
        }
        let kind = FileType::from_raw_mode(u32::from(facts.mode));
        let mut link = Vec::new();
        if kind == FileType::Symlink {
            match readlinkat(fd, &name, Vec::new()) {
                Ok(target) => link = target.into_bytes(),
                Err(error) if gone(error) => return Found::Absent,
                Err(error) => note(batch, join(directory, entry), "read link", error),
            }
        }
        let layouts = layouts.filter(|_| kind == FileType::RegularFile);
        let asked = layouts
            .map_or(Ok(None), |layouts| layouts.objects_of(fd, &name, facts.size, facts.device));
        let layout = asked.unwrap_or_else(|error| {
            batch.errors.push((join(directory, entry), format!("layout: {error}")));
            None
        });
        batch.directories.rows[place] += 1;
        batch.entries.push(place, entry, &facts, &link, layout);
        match kind {
            FileType::Directory => Found::Directory,
            FileType::Symlink => Found::Link,
            _ => Found::Other { linked: facts.links > 1 },
        }
    }

    /// A walk does not go into what is left out.
    fn left_out(&self, directory: &[u8]) -> bool {
        let mut start = 0;
        directory.split(|byte| *byte == b'/').any(|name| {
            let parent = directory.get(..start.max(1) - 1).unwrap_or_default();
            start += name.len() + 1;
            !name.is_empty() && self.exclude.matches(parent, name)
        })
    }

    fn elsewhere(&self, device: u64) -> bool {
        self.one_file_system && device != self.device
    }
}

/// The names of which the directory, of `size` bytes, says the same type and inode as what is known of them.
fn confirmed<'a>(fd: BorrowedFd<'_>, size: u64, asked: &'a [NamedEntry<'_>]) -> HashSet<&'a [u8]> {
    let mut inodes: HashMap<&[u8], u64> = HashMap::new();
    inodes.extend(asked.iter().filter_map(|one| Some((one.name, one.known?.inode))));
    let mut same = HashSet::new();
    if (inodes.len() as u64).saturating_mul(ONE_IN) < size / NAME_BYTES {
        return same;
    }
    let mut buffer = Vec::with_capacity(NAMES_BYTES);
    let mut names = RawDir::new(fd, buffer.spare_capacity_mut());
    while let Some(Ok(entry)) = names.next() {
        if entry.file_type() == FileType::RegularFile {
            if let Some((name, inode)) = inodes.get_key_value(entry.file_name().to_bytes()) {
                if *inode == entry.ino() {
                    same.insert(*name);
                }
            }
        }
    }
    same
}

/// Gone, or something else by now.
fn gone(error: Errno) -> bool {
    matches!(error, Errno::NOENT | Errno::NOTDIR | Errno::LOOP | Errno::INVAL | Errno::NAMETOOLONG)
}

fn note(batch: &mut Batch, path: Vec<u8>, doing: &str, error: Errno) {
    let text = std::io::Error::from(error);
    batch.errors.push((path, format!("{doing}: {text}")));
}
