//! What an end of a copy holds at a path: the digest of its contents, and which entry it is.
//!
//! Arrives: open directories, names, a key. Leaves: digests (BLAKE3, keyed). Must not know: who compares them.
//!
//! The key is chosen when the digest is asked for, so that only who has the contents then can give it.

use std::os::fd::{AsFd, BorrowedFd};

use rustix::fs::{fsync, readlinkat, unlinkat, AtFlags, Statx};
use rustix::io::{pread, Errno};

use crate::error::{At, End, Failure};
use crate::file_io::{open_file, ANOTHER_TYPE, PIECE_BYTES};
use crate::stat::{letter, stat_at, stat_fd, FileState};

/// The key of a digest.
pub type Key = [u8; 32];

/// An entry, and its contents in a digest: of a symbolic link its target, of a device its number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Held {
    /// The letter of its type.
    pub letter: u8,
    /// Bytes.
    pub size: u64,
    /// Its number in its file system.
    pub inode: u64,
    /// When anything of it changed, in seconds since 1970.
    pub changed: i64,
    /// Of the contents.
    pub digest: [u8; 32],
}

impl Held {
    /// Whether both have the same contents.
    #[must_use]
    pub fn is_alike(&self, other: &Self) -> bool {
        (self.letter, self.size, self.digest) == (other.letter, other.size, other.digest)
    }

    /// Whether both may be one entry that two hosts, or two paths of a host, show: a copy has another number, or has
    /// changed at another time.
    #[must_use]
    pub fn may_be(&self, other: &Self) -> bool {
        (self.inode, self.changed) == (other.inode, other.changed)
    }
}

/// Makes digests with one key.
pub struct Digester {
    key: Key,
    end: End,
    piece: Vec<u8>,
}

impl Digester {
    /// At this end; what a destination holds is forced to storage before it is read.
    #[must_use]
    pub fn new(key: Key, end: End) -> Self {
        Self { key, end, piece: vec![0; PIECE_BYTES] }
    }

    /// The entry `name` in `folder` and what statx(2) said of it before it was read; `stop` is asked between pieces.
    ///
    /// # Errors
    /// Those of the calls that read it; [`Failure::Stopped`].
    pub fn held(
        &mut self,
        folder: BorrowedFd<'_>,
        name: &[u8],
        stop: &dyn Fn() -> bool,
    ) -> Result<(Held, Statx), Failure> {
        let mut stat = stat_at(folder, name).at(self.end, "stat")?;
        let letter = letter(stat.stx_mode);
        let mut hasher = blake3::Hasher::new_keyed(&self.key);
        let size = match letter {
            b'f' => {
                stat = self.contents(folder, name, stop, &mut hasher)?;
                hasher.count()
            }
            b'l' => {
                let target =
                    readlinkat(folder, name, Vec::new()).at(self.end, "read link")?.into_bytes();
                hasher.update(&target);
                target.len() as u64
            }
            _ => {
                hasher.update(&stat.stx_rdev_major.to_le_bytes());
                hasher.update(&stat.stx_rdev_minor.to_le_bytes());
                0
            }
        };
        let digest = *hasher.finalize().as_bytes();
        let (inode, changed) = (stat.stx_ino, stat.stx_ctime.tv_sec);
        Ok((Held { letter, size, inode, changed, digest }, stat))
    }

    fn contents(
        &mut self,
        folder: BorrowedFd<'_>,
        name: &[u8],
        stop: &dyn Fn() -> bool,
        hasher: &mut blake3::Hasher,
    ) -> Result<Statx, Failure> {
        let file = open_file(folder, name, self.end)?;
        let stat = stat_fd(file.as_fd()).at(self.end, "stat")?;
        if letter(stat.stx_mode) != b'f' {
            return Err(ANOTHER_TYPE);
        }
        if self.end == End::Destination {
            match fsync(&file) {
                // A file system that has no such call wrote it out for syncfs(2).
                Ok(()) | Err(Errno::INVAL | Errno::NOSYS | Errno::OPNOTSUPP) => {}
                Err(errno) => return Err(errno).at(self.end, "sync"),
            }
        }
        let mut at = 0;
        loop {
            if stop() {
                return Err(Failure::Stopped);
            }
            match pread(&file, &mut self.piece[..], at) {
                Ok(0) => return Ok(stat),
                Ok(count) => {
                    hasher.update(&self.piece[..count]);
                    at += count as u64;
                }
                Err(Errno::INTR) => {}
                Err(errno) => return Err(errno).at(self.end, "read"),
            }
        }
    }
}

/// The source is not what was compared.
pub const CHANGED_MEANWHILE: Failure =
    Failure::Changed("stays at the source: it was changed while it was compared");

/// Remove an entry of a source whose contents the destination holds, where it is still what it was `before` it was
/// read; false where it is gone already.
///
/// # Errors
/// [`Failure::Changed`]; those of statx(2) and unlink(2).
pub fn remove_unchanged(
    folder: BorrowedFd<'_>,
    name: &[u8],
    before: &Statx,
) -> Result<bool, Failure> {
    let now = stat_at(folder, name).at(End::Source, "stat")?;
    if !is_unchanged(&FileState::of(before), &FileState::of(&now), before.stx_nlink) {
        return Err(CHANGED_MEANWHILE);
    }
    match unlinkat(folder, name, AtFlags::empty()) {
        Ok(()) => Ok(true),
        Err(Errno::NOENT) => Ok(false),
        Err(errno) => Err(errno).at(End::Source, "remove"),
    }
}

/// Another of its names may have been removed meanwhile, which changes the inode and not the file.
fn is_unchanged(before: &FileState, now: &FileState, links: u32) -> bool {
    if links > 1 {
        return FileState { ctime: before.ctime, ..*now } == *before;
    }
    now == before
}
