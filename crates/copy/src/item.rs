//! One entry of the source as the walk saw it.

use rustix::fs::{statx, AtFlags, Statx, StatxFlags, Timespec, Timestamps};
use rustix::io::Errno;
use std::os::fd::BorrowedFd;
use std::sync::Arc;

use waystage_catalog::Batch;

/// What tells one state of a file from another.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Seen {
    /// The file system.
    pub device: u64,
    /// Its number there.
    pub inode: u64,
    /// Bytes.
    pub size: u64,
    /// When its contents changed, ns since 1970.
    pub mtime: i64,
    /// When anything of it changed, ns since 1970.
    pub ctime: i64,
}

impl Seen {
    /// From what the system says.
    pub fn of(stat: &Statx) -> Self {
        Self {
            device: rustix::fs::makedev(stat.stx_dev_major, stat.stx_dev_minor),
            inode: stat.stx_ino,
            size: stat.stx_size,
            mtime: nanoseconds(&stat.stx_mtime),
            ctime: nanoseconds(&stat.stx_ctime),
        }
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
    /// When its contents changed, ns since 1970.
    pub mtime: i64,
    /// When it was read, ns since 1970.
    pub atime: i64,
}

impl About {
    /// From what the system says.
    pub fn of(stat: &Statx) -> Self {
        Self {
            mode: stat.stx_mode & 0o7777,
            uid: stat.stx_uid,
            gid: stat.stx_gid,
            mtime: nanoseconds(&stat.stx_mtime),
            atime: nanoseconds(&stat.stx_atime),
        }
    }

    /// Its times, to be set.
    pub fn times(&self) -> Timestamps {
        Timestamps { last_access: timespec(self.atime), last_modification: timespec(self.mtime) }
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
}

impl Item {
    /// Entry `index` of a walk's batch.
    pub fn of(batch: &Batch, index: usize, directory: &Arc<[u8]>) -> Self {
        let e = &batch.entries;
        let kind = usize::try_from(e.kind[index]).unwrap_or(7).min(7);
        let size = e.size[index].unsigned_abs();
        Self {
            directory: Arc::clone(directory),
            name: e.name.get(index).to_vec(),
            letter: waystage_catalog::TYPE_LETTERS[kind].as_bytes()[0],
            seen: Seen {
                device: e.device[index],
                inode: e.inode[index],
                size,
                mtime: e.mtime[index],
                ctime: e.ctime[index],
            },
            about: About {
                mode: e.mode[index],
                uid: e.uid[index],
                gid: e.gid[index],
                mtime: e.mtime[index],
                atime: e.atime[index],
            },
            links: e.links[index],
            sparse: has_holes(size, e.blocks[index].unsigned_abs()),
            symlink: e.symlink.get(index).to_vec(),
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
        }
    }

    /// Its path below the root.
    pub fn path(&self) -> Vec<u8> {
        waystage_catalog::join(&self.directory, &self.name)
    }

    /// The same entry as it is now.
    pub fn renewed(&self, stat: &Statx) -> Self {
        Self { links: self.links, ..Self::file(stat, &self.directory, &self.name) }
    }
}

fn has_holes(size: u64, blocks: u64) -> bool {
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

/// A time in nanoseconds since 1970.
pub fn nanoseconds(time: &rustix::fs::StatxTimestamp) -> i64 {
    time.tv_sec.saturating_mul(1_000_000_000).saturating_add(i64::from(time.tv_nsec))
}

fn timespec(ns: i64) -> Timespec {
    Timespec { tv_sec: ns.div_euclid(1_000_000_000), tv_nsec: ns.rem_euclid(1_000_000_000) }
}
