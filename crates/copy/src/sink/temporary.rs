//! A file that is being made: without a name, or under a temporary one beside its final name, until it is complete.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::LazyLock;

use rustix::fs::{linkat, openat, renameat, unlinkat, AtFlags, Mode, OFlags, CWD};
use rustix::io::Errno;

use crate::error::{At, End, Failure};
use crate::own_names::{create, fresh_name};

/// Whether temporary files still may be without a name; no longer once a file system has refused one. Without
/// capabilities it is by /proc that they get one.
static UNNAMED: LazyLock<AtomicBool> =
    LazyLock::new(|| AtomicBool::new(std::path::Path::new("/proc/self/fd").exists()));

/// Names that are tried before it is believed that none is free.
const TRIES: usize = 16;

/// A temporary file in the folder of its final name; dropped, it is gone.
///
/// Where the file system can (`O_TMPFILE`), it has no name at all until it is kept: nothing is left of it whatever
/// happens, and one entry of the directory is written instead of three.
pub struct TemporaryFile<'a> {
    folder: BorrowedFd<'a>,
    session: u64,
    fd: OwnedFd,
    /// Its name, where it has one.
    name: Option<Vec<u8>>,
    has_mode: bool,
}

impl<'a> TemporaryFile<'a> {
    /// Make one. It has `mode` only where it has no name, by which others could open it; else its mode is 0600.
    ///
    /// # Errors
    /// Of open(2).
    pub fn begin(
        folder: BorrowedFd<'a>,
        session: u64,
        mode: Mode,
        readable: bool,
    ) -> Result<Self, Errno> {
        let access = if readable { OFlags::RDWR } else { OFlags::WRONLY } | OFlags::CLOEXEC;
        if UNNAMED.load(Ordering::Relaxed) {
            match openat(folder, c".", access | OFlags::TMPFILE, mode) {
                Ok(fd) => return Ok(Self { folder, session, fd, name: None, has_mode: true }),
                // What file systems and kernels say that cannot do this.
                Err(Errno::OPNOTSUPP | Errno::ISDIR | Errno::INVAL) => {
                    UNNAMED.store(false, Ordering::Relaxed);
                }
                Err(errno) => return Err(errno),
            }
        }
        let (name, fd) = named(session, |name| create(folder, name))?;
        Ok(Self { folder, session, fd, name: Some(name), has_mode: false })
    }

    /// It, open.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }

    /// Whether it was made with the mode that was asked for.
    pub fn has_mode(&self) -> bool {
        self.has_mode
    }

    /// Give it its name, in place of any file that bore it.
    ///
    /// # Errors
    /// Of link(2) and rename(2).
    pub fn keep(mut self, name: &[u8]) -> Result<(), Errno> {
        let temporary = match self.name.take() {
            Some(temporary) => temporary,
            None => match self.link(name) {
                // Only a rename replaces an entry, and that needs a name to rename.
                Err(Errno::EXIST) => named(self.session, |temporary| self.link(temporary))?.0,
                done => return done,
            },
        };
        let renamed = renameat(self.folder, &temporary[..], self.folder, name);
        if renamed.is_err() {
            self.name = Some(temporary);
        }
        renamed
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

impl Drop for TemporaryFile<'_> {
    fn drop(&mut self) {
        if let Some(name) = &self.name {
            // It may have been removed with the folder.
            let _ = unlinkat(self.folder, &name[..], AtFlags::empty());
        }
    }
}

/// Make something under a new name; an entry that has a name already is left alone.
fn named<T>(
    session: u64,
    mut make: impl FnMut(&[u8]) -> Result<T, Errno>,
) -> Result<(Vec<u8>, T), Errno> {
    for _ in 0..TRIES {
        let name = fresh_name(session)?;
        match make(&name) {
            Err(Errno::EXIST) => {}
            made => return made.map(|made| (name, made)),
        }
    }
    Err(Errno::EXIST)
}

/// Let `make` make an entry that is no file under a temporary name, and give it its final one.
///
/// # Errors
/// Those of `make`, and of rename(2).
pub fn with_temporary_name<T>(
    folder: BorrowedFd<'_>,
    session: u64,
    name: &[u8],
    make: impl FnOnce(&[u8]) -> Result<T, Failure>,
) -> Result<T, Failure> {
    let temporary = fresh_name(session).at(End::Destination, "find a name")?;
    let made = make(&temporary).and_then(|made| {
        renameat(folder, &temporary[..], folder, name).at(End::Destination, "give name")?;
        Ok(made)
    });
    // rename(2) does nothing where both are names of one inode already.
    let _ = unlinkat(folder, &temporary[..], AtFlags::empty());
    made
}
