//! Opens directories and files below a root without ever leaving it.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::fs::{openat, openat2, Mode, OFlags, ResolveFlags, CWD};
use rustix::io::Errno;

/// Room for a path in one call, below the kernel's PATH_MAX of 4096 with its NUL.
const LONGEST: usize = 4000;

/// Directories only, closed on exec.
const HOW: OFlags = OFlags::RDONLY.union(OFlags::DIRECTORY).union(OFlags::CLOEXEC);

/// As a place for names only: a file server is not asked to open it.
const PLACE: OFlags = OFlags::PATH.union(OFlags::DIRECTORY).union(OFlags::CLOEXEC);

/// For reading. An entry that became a FIFO meanwhile must not block until a writer opens it.
const READ: OFlags = OFlags::RDONLY.union(OFlags::NONBLOCK).union(OFlags::CLOEXEC);

/// The top of a tree. Directories below are opened by their path from here, so that no descriptor has to stay open
/// for a directory whose turn has not come.
#[derive(Debug)]
pub struct Root {
    fd: OwnedFd,
    /// Whether symbolic links are followed, wherever they lead.
    follows: bool,
    /// Kernels before 5.6 have no openat2(2).
    stepwise: AtomicBool,
}

impl Root {
    /// The root itself may be a symbolic link: the user named it.
    pub fn open(path: &Path) -> io::Result<Self> {
        let fd = openat(CWD, path, HOW, Mode::empty())?;
        Ok(Self { fd, follows: false, stepwise: AtomicBool::new(false) })
    }

    /// The same, below which symbolic links are followed wherever they lead, as by any program of its user: never for
    /// what others ask for.
    ///
    /// # Errors
    /// Those of open(2).
    pub fn following(path: &Path) -> io::Result<Self> {
        Ok(Self { follows: true, ..Self::open(path)? })
    }

    /// Whether symbolic links are followed.
    #[must_use]
    pub fn follows(&self) -> bool {
        self.follows
    }

    /// The directory at `path` below the root; ELOOP where any part of it is a symbolic link by now.
    pub fn directory(&self, path: &[u8]) -> Result<OwnedFd, Errno> {
        if path.is_empty() {
            return openat(&self.fd, c".", HOW, Mode::empty());
        }
        self.below(path, HOW)
    }

    /// The same as a place for names, which cannot be read itself: the entries in it can be looked at.
    pub fn place(&self, path: &[u8]) -> Result<OwnedFd, Errno> {
        if path.is_empty() {
            return openat(&self.fd, c".", PLACE, Mode::empty());
        }
        self.below(path, PLACE)
    }

    /// The file at `path` below the root, opened for reading; ELOOP where any part of it is a symbolic link.
    pub fn readable(&self, path: &[u8]) -> Result<OwnedFd, Errno> {
        self.below(path, READ)
    }

    /// The same, opened for reading and writing.
    pub(crate) fn writable(&self, path: &[u8]) -> Result<OwnedFd, Errno> {
        self.below(path, READ.difference(OFlags::RDONLY).union(OFlags::RDWR))
    }

    fn below(&self, path: &[u8], how: OFlags) -> Result<OwnedFd, Errno> {
        let mut held: Option<OwnedFd> = None;
        let mut rest = path;
        loop {
            let from = held.as_ref().map_or(self.fd.as_fd(), OwnedFd::as_fd);
            match split(rest) {
                (last, []) => return self.step(from, last, how),
                (head, tail) => (held, rest) = (Some(self.step(from, head, HOW)?), tail),
            }
        }
    }

    fn step(&self, from: BorrowedFd<'_>, path: &[u8], how: OFlags) -> Result<OwnedFd, Errno> {
        if self.follows {
            return openat(from, path, how, Mode::empty());
        }
        if !self.stepwise.load(Ordering::Relaxed) {
            let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS;
            match openat2(from, path, how, Mode::empty(), resolve) {
                // A sandbox that does not know the call answers EPERM.
                Err(Errno::NOSYS | Errno::PERM) => self.stepwise.store(true, Ordering::Relaxed),
                // Something on the way was renamed meanwhile; the kernel asks to try again.
                Err(Errno::AGAIN) => {}
                answer => return answer,
            }
        }
        let mut held: Option<OwnedFd> = None;
        let (way, last) = match path.iter().rposition(|byte| *byte == b'/') {
            Some(slash) => (&path[..slash], &path[slash + 1..]),
            None => (&[][..], path),
        };
        for name in way.split(|byte| *byte == b'/').filter(|name| !name.is_empty()) {
            if name == b".." {
                return Err(Errno::XDEV);
            }
            let at = held.as_ref().map_or(from, OwnedFd::as_fd);
            held = Some(openat(at, name, HOW | OFlags::NOFOLLOW, Mode::empty())?);
        }
        if last == b".." {
            return Err(Errno::XDEV);
        }
        let at = held.as_ref().map_or(from, OwnedFd::as_fd);
        openat(at, last, how | OFlags::NOFOLLOW, Mode::empty())
    }
}

/// As much of a path as one call takes, and the rest.
fn split(path: &[u8]) -> (&[u8], &[u8]) {
    if path.len() <= LONGEST {
        return (path, &[]);
    }
    match path[..LONGEST].iter().rposition(|byte| *byte == b'/') {
        Some(slash) => (&path[..slash], &path[slash + 1..]),
        None => (path, &[]),
    }
}
