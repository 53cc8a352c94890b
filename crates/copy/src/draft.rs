//! A file on its way in: without a name, or beside its final name under one of its own, until it is whole.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::LazyLock;

use rustix::fs::{linkat, openat, renameat, unlinkat, AtFlags, Mode, OFlags, CWD};
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

/// Whether drafts still may be without a name; no longer once a file system has refused one. Without capabilities it is
/// by /proc that they get one.
static UNNAMED: LazyLock<AtomicBool> =
    LazyLock::new(|| AtomicBool::new(std::path::Path::new("/proc/self/fd").exists()));

/// A draft of a file in its folder; dropped, it is gone.
///
/// Where the file system can (`O_TMPFILE`), it has no name at all until it is kept: nothing is left of it whatever
/// happens, and one entry of the directory is written instead of three.
pub struct Draft<'a> {
    folder: BorrowedFd<'a>,
    name: &'a [u8],
    fd: OwnedFd,
    named: bool,
}

impl<'a> Draft<'a> {
    /// Make one. `name` is what it is called where it needs a name: a leftover of that name, which is always our own,
    /// makes room.
    pub fn begin(
        folder: BorrowedFd<'a>,
        name: &'a [u8],
        mode: Mode,
        readable: bool,
    ) -> Result<Self, Errno> {
        let access = if readable { OFlags::RDWR } else { OFlags::WRONLY } | OFlags::CLOEXEC;
        if UNNAMED.load(Ordering::Relaxed) {
            match openat(folder, c".", access | OFlags::TMPFILE, mode) {
                Ok(fd) => return Ok(Self { folder, name, fd, named: false }),
                // What file systems and kernels say that cannot do this.
                Err(Errno::OPNOTSUPP | Errno::ISDIR | Errno::INVAL) => {
                    UNNAMED.store(false, Ordering::Relaxed);
                }
                Err(errno) => return Err(errno),
            }
        }
        let how = access | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW;
        let fd = match openat(folder, name, how, mode) {
            Err(Errno::EXIST) => {
                unlinkat(folder, name, AtFlags::empty())?;
                openat(folder, name, how, mode)?
            }
            other => other?,
        };
        Ok(Self { folder, name, fd, named: true })
    }

    /// It, open.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }

    /// Give it its name, in place of whatever file bore it.
    pub fn keep(mut self, name: &[u8]) -> Result<(), Errno> {
        if !self.named {
            match self.link(name) {
                // Only a rename takes the place of what is there, and that needs a name to rename.
                Err(Errno::EXIST) => {}
                done => return done,
            }
            match self.link(self.name) {
                Err(Errno::EXIST) => {
                    unlinkat(self.folder, self.name, AtFlags::empty())?;
                    self.link(self.name)?;
                }
                done => done?,
            }
            self.named = true;
        }
        renameat(self.folder, self.name, self.folder, name)?;
        self.named = false;
        Ok(())
    }

    fn link(&self, name: &[u8]) -> Result<(), Errno> {
        // The kernel wants a capability for the first way (before 6.10 in every case), /proc for the second.
        match linkat(&self.fd, c"", self.folder, name, AtFlags::EMPTY_PATH) {
            Err(Errno::NOENT | Errno::PERM) => {}
            done => return done,
        }
        let path = format!("/proc/self/fd/{}", self.fd.as_raw_fd());
        linkat(CWD, path, self.folder, name, AtFlags::SYMLINK_FOLLOW)
    }
}

impl Drop for Draft<'_> {
    fn drop(&mut self) {
        if self.named {
            // Whoever removed the folder has removed the draft with it.
            let _ = unlinkat(self.folder, self.name, AtFlags::empty());
        }
    }
}
