//! One entry of the source as the walk saw it.

use rustix::fs::{statx, AtFlags, Statx, StatxFlags, Timestamps};
use rustix::io::Errno;
use std::os::fd::BorrowedFd;
use std::sync::Arc;

use waystage_catalog::Batch;

use crate::time::{may_be_clamped, Time};

/// What tells one state of a file from another.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Seen {
    /// The file system.
    pub device: u64,
    /// Its number there.
    pub inode: u64,
    /// Bytes.
    pub size: u64,
    /// When its contents changed.
    pub mtime: Time,
    /// When anything of it changed.
    pub ctime: Time,
}

impl Seen {
    /// From what the system says.
    pub fn of(stat: &Statx) -> Self {
        Self {
            device: rustix::fs::makedev(stat.stx_dev_major, stat.stx_dev_minor),
            inode: stat.stx_ino,
            size: stat.stx_size,
            mtime: Time::of(&stat.stx_mtime),
            ctime: Time::of(&stat.stx_ctime),
        }
    }

    /// What the journal says a file was at the source.
    #[must_use]
    pub fn numbers(&self) -> [u64; 7] {
        let Self { device, inode, size, mtime, ctime } = *self;
        let parts = |time: Time| (time.seconds as u64, u64::from(time.nanoseconds));
        let ((changed, and), (any, more)) = (parts(mtime), parts(ctime));
        [device, inode, size, changed, and, any, more]
    }
}

/// Its attributes, but for the extended ones.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct About {
    /// Permission bits and the three above them.
    pub mode: u16,
    /// Its owner.
    pub uid: u32,
    /// Its group.
    pub gid: u32,
    /// When its contents changed.
    pub mtime: Time,
    /// When it was read.
    pub atime: Time,
}

impl About {
    /// From what the system says.
    pub fn of(stat: &Statx) -> Self {
        Self {
            mode: stat.stx_mode & 0o7777,
            uid: stat.stx_uid,
            gid: stat.stx_gid,
            mtime: Time::of(&stat.stx_mtime),
            atime: Time::of(&stat.stx_atime),
        }
    }

    /// Its times, to be set.
    pub fn times(&self) -> Timestamps {
        Timestamps { last_access: self.atime.timespec(), last_modification: self.mtime.timespec() }
    }
}

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
    pub seen: Seen,
    /// Its attributes.
    pub about: About,
    /// How many names it has.
    pub links: u32,
    /// Whether blocks are missing: it has holes.
    pub sparse: bool,
    /// What it points to, if it is a symbolic link.
    pub symlink: Vec<u8>,
    /// Whether the walk may not have been able to say its times: see [`Item::look_again`].
    pub clamped: bool,
}

impl Item {
    /// Entry `index` of a walk's batch.
    pub fn of(batch: &Batch, index: usize, directory: &Arc<[u8]>) -> Self {
        let e = &batch.entries;
        let kind = usize::try_from(e.kind[index]).unwrap_or(7).min(7);
        let size = e.size[index].unsigned_abs();
        let times = [e.mtime[index], e.ctime[index], e.atime[index]];
        Self {
            directory: Arc::clone(directory),
            name: e.name.get(index).to_vec(),
            letter: waystage_catalog::TYPE_LETTERS[kind].as_bytes()[0],
            seen: Seen {
                device: e.device[index],
                inode: e.inode[index],
                size,
                mtime: Time::from_ns(e.mtime[index]),
                ctime: Time::from_ns(e.ctime[index]),
            },
            about: About {
                mode: e.mode[index],
                uid: e.uid[index],
                gid: e.gid[index],
                mtime: Time::from_ns(e.mtime[index]),
                atime: Time::from_ns(e.atime[index]),
            },
            links: e.links[index],
            sparse: has_holes(size, e.blocks[index].unsigned_abs()),
            symlink: e.symlink.get(index).to_vec(),
            clamped: times.into_iter().any(may_be_clamped),
        }
    }

    /// A regular file looked at outside a walk.
    pub fn file(stat: &Statx, directory: &[u8], name: &[u8]) -> Self {
        Self {
            directory: directory.into(),
            name: name.to_vec(),
            letter: b'f',
            seen: Seen::of(stat),
            about: About::of(stat),
            links: 1,
            sparse: has_holes(stat.stx_size, stat.stx_blocks),
            symlink: Vec::new(),
            clamped: false,
        }
    }

    /// Its path below the root.
    pub fn path(&self) -> Vec<u8> {
        waystage_catalog::join(&self.directory, &self.name)
    }

    /// Where a walk's nanoseconds may not hold its times, ask the file system for them.
    pub fn look_again(&mut self, folder: BorrowedFd<'_>) -> Result<(), Errno> {
        if self.clamped {
            let stat = look(folder, &self.name)?;
            if letter(stat.stx_mode) == self.letter {
                (self.seen, self.about) = (Seen::of(&stat), About::of(&stat));
            }
            self.clamped = false;
        }
        Ok(())
    }

    /// The same entry as it is now.
    pub fn renewed(&self, stat: &Statx) -> Self {
        Self { links: self.links, ..Self::file(stat, &self.directory, &self.name) }
    }
}

/// Whether fewer blocks of 512 bytes are stored than a file of `size` bytes fills.
pub(crate) fn has_holes(size: u64, blocks: u64) -> bool {
    blocks.saturating_mul(512) < size
}

/// A path's directory and last name.
pub fn split(path: &[u8]) -> (&[u8], &[u8]) {
    match path.iter().rposition(|byte| *byte == b'/') {
        Some(slash) => (&path[..slash], &path[slash + 1..]),
        None => (b"", path),
    }
}

/// The attributes of what bears `name` in `folder`, a symbolic link's own.
pub fn look(folder: BorrowedFd<'_>, name: &[u8]) -> Result<Statx, Errno> {
    let flags = AtFlags::SYMLINK_NOFOLLOW | AtFlags::NO_AUTOMOUNT;
    statx(folder, name, flags, StatxFlags::BASIC_STATS)
}

/// The attributes of an open file.
pub fn look_at(fd: BorrowedFd<'_>) -> Result<Statx, Errno> {
    statx(fd, c"", AtFlags::EMPTY_PATH, StatxFlags::BASIC_STATS)
}

/// The type in a mode, as a letter.
pub fn letter(mode: u16) -> u8 {
    match mode & 0o170_000 {
        0o100_000 => b'f',
        0o040_000 => b'd',
        0o120_000 => b'l',
        0o060_000 => b'b',
        0o020_000 => b'c',
        0o010_000 => b'p',
        0o140_000 => b's',
        _ => b'?',
    }
}
