//! One entry of the source as the walk saw it.

use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::Arc;

use rustix::fs::{openat, statx, AtFlags, Mode, OFlags, Statx, StatxFlags};
use rustix::io::Errno;
use waystage_catalog::{Batch, ObjectRange};

use crate::error::Failure;
use crate::file_io::open_source;
use crate::stat::{has_holes, letter, stat_at, FileState, Metadata};
use crate::time::{may_be_clamped, Time};

/// An entry of the source.
#[derive(Debug, Clone)]
pub struct Item {
    /// Its directory's path below the root.
    pub directory: Arc<[u8]>,
    /// Its own name.
    pub name: Vec<u8>,
    /// The letter of its type, as in [`waystage_catalog::TYPE_LETTERS`].
    pub letter: u8,
    /// Its state.
    pub seen: FileState,
    /// Its attributes.
    pub metadata: Metadata,
    /// Whether its name is that of a symbolic link, and all else what the link leads to.
    pub followed: bool,
    /// How many names it has.
    pub links: u32,
    /// Whether blocks are missing: it has holes.
    pub sparse: bool,
    /// What it points to, if it is a symbolic link.
    pub symlink: Vec<u8>,
    /// Whether the walk may not have been able to say its times: see [`Item::look_again`].
    pub clamped: bool,
    /// Its storage targets, where they are known.
    pub objects: Box<[ObjectRange]>,
}

impl Item {
    /// Entry `index` of a walk's batch.
    pub fn of(batch: &Batch, index: usize, directory: &Arc<[u8]>) -> Self {
        let e = &batch.entries;
        let kind = usize::try_from(e.kind[index]).unwrap_or(7).min(7);
        let size = e.size[index].unsigned_abs();
        let times = [e.mtime[index], e.ctime[index], e.atime[index]];
        let letter = waystage_catalog::TYPE_LETTERS[kind].as_bytes()[0];
        let symlink = e.symlink.get(index);
        let followed = letter != b'l' && !symlink.is_empty();
        Self {
            directory: Arc::clone(directory),
            name: e.name.get(index).to_vec(),
            letter,
            followed,
            seen: FileState {
                device: e.device[index],
                inode: e.inode[index],
                size,
                mtime: Time::from_ns(e.mtime[index]),
                ctime: Time::from_ns(e.ctime[index]),
            },
            metadata: Metadata {
                mode: e.mode[index],
                uid: e.uid[index],
                gid: e.gid[index],
                mtime: Time::from_ns(e.mtime[index]),
                atime: Time::from_ns(e.atime[index]),
            },
            // Of its names that of the link is none.
            links: if followed { 1 } else { e.links[index] },
            sparse: has_holes(size, e.blocks[index].unsigned_abs()),
            symlink: if followed { Vec::new() } else { symlink.to_vec() },
            clamped: times.into_iter().any(may_be_clamped),
            objects: objects_of(batch, index),
        }
    }

    /// A regular file looked at outside a walk.
    pub fn file(stat: &Statx, directory: &[u8], name: &[u8]) -> Self {
        Self {
            directory: directory.into(),
            name: name.to_vec(),
            letter: b'f',
            seen: FileState::of(stat),
            metadata: Metadata::of(stat),
            followed: false,
            links: 1,
            sparse: has_holes(stat.stx_size, stat.stx_blocks),
            symlink: Vec::new(),
            clamped: false,
            objects: Box::default(),
        }
    }

    /// Its path below the root.
    pub fn path(&self) -> Vec<u8> {
        waystage_catalog::join(&self.directory, &self.name)
    }

    /// Where a walk's nanoseconds may not hold its times, ask the file system for them.
    pub fn refresh(&mut self, folder: BorrowedFd<'_>) -> Result<(), Errno> {
        if self.clamped {
            let stat = self.stat(folder)?;
            if letter(stat.stx_mode) == self.letter {
                (self.seen, self.metadata) = (FileState::of(&stat), Metadata::of(&stat));
            }
            self.clamped = false;
        }
        Ok(())
    }

    /// The same entry as it is now.
    pub fn renewed(&self, stat: &Statx) -> Self {
        let Self { links, followed, .. } = *self;
        Self { links, followed, ..Self::file(stat, &self.directory, &self.name) }
    }

    /// Its attributes now.
    ///
    /// # Errors
    /// Those of statx(2).
    pub fn stat(&self, folder: BorrowedFd<'_>) -> Result<Statx, Errno> {
        if self.followed {
            return statx(folder, &self.name[..], AtFlags::empty(), StatxFlags::BASIC_STATS);
        }
        stat_at(folder, &self.name)
    }

    /// It, a regular file, open for reading.
    ///
    /// # Errors
    /// Those of open(2); [`crate::file_io::ANOTHER_TYPE`] where it is no longer a regular file.
    pub fn open(&self, folder: BorrowedFd<'_>) -> Result<OwnedFd, Failure> {
        open_source(folder, &self.name, self.followed)
    }

    /// It as a place, that cannot be read itself.
    ///
    /// # Errors
    /// Those of open(2).
    pub(crate) fn open_path(&self, folder: BorrowedFd<'_>) -> Result<OwnedFd, Errno> {
        let unfollowed = if self.followed { OFlags::empty() } else { OFlags::NOFOLLOW };
        let how = OFlags::PATH | OFlags::CLOEXEC | unfollowed;
        openat(folder, &self.name[..], how, Mode::empty())
    }
}

fn objects_of(batch: &Batch, index: usize) -> Box<[ObjectRange]> {
    let e = &batch.entries;
    let place = |at: usize| e.objects.get(at).and_then(|place| usize::try_from(*place).ok());
    let (Some(from), Some(to)) = (place(index), place(index + 1)) else { return Box::default() };
    let object = |at: usize| ObjectRange {
        target: e.object_target[at],
        offset: e.object_offset[at].unsigned_abs(),
        length: e.object_length[at].unsigned_abs(),
    };
    (from..to).map(object).collect()
}
