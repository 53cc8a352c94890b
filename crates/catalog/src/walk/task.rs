//! The tasks of a walk: a directory to read, or a block of entries of a huge one.

use std::ffi::CStr;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicI64, AtomicUsize};
use std::sync::Arc;

use rustix::fs::Statx;

use super::follow::Way;

pub(super) enum Task {
    /// Read the directory at this path below the root; the directories above it, where links are followed.
    Directory(Vec<u8>, Option<Arc<Way>>),
    /// Record these entries of a huge directory.
    Block(Arc<OpenDirectory>, Block),
}

/// A directory being read.
pub(super) struct OpenDirectory {
    pub(super) id: u64,
    pub(super) fd: OwnedFd,
    pub(super) path: Vec<u8>,
    pub(super) stat: Statx,
    /// It and those above it, where links are followed.
    pub(super) way: Option<Arc<Way>>,
    /// Entries recorded so far.
    pub(super) rows: AtomicI64,
    /// Blocks not yet done, and one for the reading itself.
    pub(super) left: AtomicUsize,
}

/// Names of a directory, each with its NUL, and their inodes.
#[derive(Default)]
pub(super) struct Block {
    pub(super) names: Vec<u8>,
    pub(super) entries: Vec<(u64, u32, u32)>,
}

impl Block {
    pub(super) fn push(&mut self, inode: u64, name: &CStr) {
        // 64 KiB of directory hold far fewer than 2^32 bytes of names.
        let start = self.names.len() as u32;
        self.names.extend_from_slice(name.to_bytes_with_nul());
        self.entries.push((inode, start, self.names.len() as u32));
    }
}
