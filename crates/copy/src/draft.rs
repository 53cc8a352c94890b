//! A file on its way in: beside its final name, under one of its own, until it is whole.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::fs::{openat, renameat, unlinkat, AtFlags, Mode, OFlags};
use rustix::io::Errno;

use crate::journal::OWN_PREFIX;

/// The name under which a worker makes whatever it makes.
pub fn worker_name(session: u64, worker: usize) -> Vec<u8> {
    let prefix = String::from_utf8_lossy(OWN_PREFIX);
    format!("{prefix}-{session:016x}-{worker}.part").into_bytes()
}

/// The name of a large file under way.
pub fn large_name(session: u64, id: u32) -> Vec<u8> {
    let prefix = String::from_utf8_lossy(OWN_PREFIX);
    format!("{prefix}-{session:016x}-large-{id}.part").into_bytes()
}

/// A draft in its folder; dropped, it is removed.
pub struct Draft<'a> {
    folder: BorrowedFd<'a>,
    name: &'a [u8],
    fd: OwnedFd,
    kept: bool,
}

impl<'a> Draft<'a> {
    /// Make one; a leftover of the same name, which is always our own, makes room.
    pub fn begin(
        folder: BorrowedFd<'a>,
        name: &'a [u8],
        mode: Mode,
        readable: bool,
    ) -> Result<Self, Errno> {
        let access = if readable { OFlags::RDWR } else { OFlags::WRONLY };
        let how = access | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let fd = match openat(folder, name, how, mode) {
            Err(Errno::EXIST) => {
                unlinkat(folder, name, AtFlags::empty())?;
                openat(folder, name, how, mode)?
            }
            other => other?,
        };
        Ok(Self { folder, name, fd, kept: false })
    }

    /// It, open.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }

    /// Give it its name, in place of whatever file bore it.
    pub fn keep(mut self, name: &[u8]) -> Result<(), Errno> {
        renameat(self.folder, self.name, self.folder, name)?;
        self.kept = true;
        Ok(())
    }
}

impl Drop for Draft<'_> {
    fn drop(&mut self) {
        if !self.kept {
            // Whoever removed the folder has removed the draft with it.
            let _ = unlinkat(self.folder, self.name, AtFlags::empty());
        }
    }
}
