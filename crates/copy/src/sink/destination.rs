//! The tree that is made: directories opened below its root, and made where they are not there.

use std::collections::HashSet;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use parking_lot::Mutex;

use rustix::fs::{fgetxattr, mkdirat, Mode, Statx};
use rustix::io::Errno;
use waystage_catalog::Root;

use crate::counts::Report;
use crate::error::{At, End, Failure};
use crate::stat::{split, stat_at, stat_fd, FileState};

/// A directory at the destination, open.
pub struct Folder {
    fd: OwnedFd,
    /// Whether it hands nothing down to what is made in it.
    pub plain: bool,
    /// Whether this run made it: then it holds only what this run made.
    pub fresh: bool,
}

impl Folder {
    /// It, open.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }

    fn of(fd: OwnedFd, fresh: &Fresh) -> Result<Self, Failure> {
        let stat = stat_fd(fd.as_fd()).at(End::Destination, "stat directory")?;
        let acl = fgetxattr(&fd, c"system.posix_acl_default", &mut [0u8; 0][..]);
        let plain =
            stat.stx_mode & 0o2000 == 0 && matches!(acl, Err(Errno::NODATA | Errno::OPNOTSUPP));
        let fresh = fresh.has(&stat);
        Ok(Self { fd, plain, fresh })
    }
}

/// Limit on remembered directories that this run made: another host may decide how many a tree has.
const MOST_FRESH: usize = 1 << 18;

/// The directories that this run made, by device and inode, and how many they are.
#[derive(Default)]
struct Fresh(Mutex<(HashSet<(u64, u64)>, u64)>);

impl Fresh {
    fn has(&self, stat: &Statx) -> bool {
        let seen = FileState::of(stat);
        let made = self.0.lock();
        made.0.contains(&(seen.device, seen.inode))
    }

    fn add(&self, stat: &Statx) {
        let seen = FileState::of(stat);
        let mut made = self.0.lock();
        made.1 += 1;
        // Those beyond are only handled with more care than they need.
        if made.0.len() < MOST_FRESH {
            made.0.insert((seen.device, seen.inode));
        }
    }
}

/// The destination's tree. None of its methods ever follows a symbolic link or leaves the root.
pub struct Destination {
    /// None in a dry run of what is not there yet.
    root: Option<Root>,
    fresh: Fresh,
}

impl Destination {
    /// Open the root; where it may lack, it may be absent.
    pub fn open(path: &std::path::Path, may_lack: bool) -> io::Result<Self> {
        match Root::open(path) {
            Ok(root) => Ok(Self { root: Some(root), fresh: Fresh::default() }),
            Err(error) if may_lack && error.kind() == io::ErrorKind::NotFound => {
                Ok(Self { root: None, fresh: Fresh::default() })
            }
            Err(error) => Err(error),
        }
    }

    /// The root, opened once more; None where it is not there.
    pub fn root(&self) -> Option<Result<OwnedFd, Errno>> {
        self.root.as_ref().map(|root| root.directory(b""))
    }

    /// How many directories this run has made.
    #[must_use]
    pub fn made(&self) -> u64 {
        self.fresh.0.lock().1
    }

    /// The directory at `path`; None where there is none.
    pub fn find(&self, path: &[u8]) -> Result<Option<Folder>, Failure> {
        let Some(root) = &self.root else { return Ok(None) };
        match root.directory(path) {
            Ok(fd) => Folder::of(fd, &self.fresh).map(Some),
            Err(Errno::NOENT) => Ok(None),
            Err(errno) => Err(clash(errno)),
        }
    }

    /// The directory at `path`, made with all those above it where it is not there; its own attributes come last of
    /// all. Those made are logged in `report`.
    pub fn make(&self, path: &[u8], report: &Report) -> Result<Folder, Failure> {
        let Some(root) = &self.root else {
            return Err(Errno::NOENT).at(End::Destination, "open directory");
        };
        match root.directory(path) {
            Ok(fd) => return Folder::of(fd, &self.fresh),
            Err(Errno::NOENT) if !path.is_empty() => {}
            Err(errno) => return Err(clash(errno)),
        }
        let (parent, _) = split(path);
        // As deep as the tree; a path has at most some thousands of parts.
        let parent = self.make(parent, report)?;
        self.make_in(&parent, path, report)?;
        root.directory(path).map_err(clash).and_then(|fd| Folder::of(fd, &self.fresh))
    }

    /// Make the directory at `path`, which is in `parent`, unless another worker just did. It is logged and counted
    /// here: the worker that comes to its entry may find that another made it for an entry in it.
    pub(crate) fn make_in(
        &self,
        parent: &Folder,
        path: &[u8],
        report: &Report,
    ) -> Result<(), Failure> {
        let (_, name) = split(path);
        match mkdirat(parent.fd(), name, Mode::from_raw_mode(0o700)) {
            Ok(()) => {
                let made = stat_at(parent.fd(), name).at(End::Destination, "stat directory")?;
                self.fresh.add(&made);
                report.done("made", path, b'd', 0);
                Ok(())
            }
            Err(Errno::EXIST) => Ok(()),
            Err(errno) => Err(errno).at(End::Destination, "make directory"),
        }
    }
}

fn clash(errno: Errno) -> Failure {
    match errno {
        Errno::LOOP => Failure::Clash(
            "its path at the destination leads through a symbolic link, which is not followed",
        ),
        Errno::NOTDIR => Failure::Clash(
            "its path at the destination leads through an entry that is no directory",
        ),
        errno => Failure::Call { end: End::Destination, doing: "open directory", errno },
    }
}
