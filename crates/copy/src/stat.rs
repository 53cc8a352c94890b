//! What statx(2) says of a file: its state, its attributes, its type.
//!
//! Arrives: open directories and files, names. Leaves: states that compare. Must not know: what is copied.

use std::os::fd::BorrowedFd;

use rustix::fs::{statx, AtFlags, Statx, StatxFlags, Timestamps};
use rustix::io::Errno;

use crate::time::Time;

/// What tells one state of a file from another.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FileState {
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

impl FileState {
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
pub struct Metadata {
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

impl Metadata {
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

/// Whether fewer blocks of 512 bytes are stored than a file of `size` bytes fills.
pub fn has_holes(size: u64, blocks: u64) -> bool {
    blocks.saturating_mul(512) < size
}

/// A path's directory and last name.
pub fn split(path: &[u8]) -> (&[u8], &[u8]) {
    match path.iter().rposition(|byte| *byte == b'/') {
        Some(slash) => (&path[..slash], &path[slash + 1..]),
        None => (b"", path),
    }
}

/// The attributes of the entry `name` in `folder`, a symbolic link's own.
pub fn stat_at(folder: BorrowedFd<'_>, name: &[u8]) -> Result<Statx, Errno> {
    let flags = AtFlags::SYMLINK_NOFOLLOW | AtFlags::NO_AUTOMOUNT;
    statx(folder, name, flags, StatxFlags::BASIC_STATS)
}

/// The attributes of an open file.
pub fn stat_fd(fd: BorrowedFd<'_>) -> Result<Statx, Errno> {
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
