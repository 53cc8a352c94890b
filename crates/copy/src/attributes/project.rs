//! The project that a file counts for in quotas of ext4 and XFS, and whether a directory hands it down.

use std::collections::BTreeSet;
use std::os::fd::BorrowedFd;

use parking_lot::Mutex;
use rustix::fs::{statx, AtFlags, StatxFlags};
use rustix::io::Errno;
use rustix::ioctl::{ioctl, opcode, Getter, Setter};

/// `struct fsxattr` of linux/fs.h.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default)]
struct Fsxattr {
    flags: u32,
    extent_size: u32,
    extents: u32,
    project: u32,
    cow_extent_size: u32,
    padding: [u8; 8],
}

/// `FS_XFLAG_PROJINHERIT`
const INHERIT: u32 = 0x200;

const GET: rustix::ioctl::Opcode = opcode::read::<Fsxattr>(b'X', 31);
const SET: rustix::ioctl::Opcode = opcode::write::<Fsxattr>(b'X', 32);

/// A project other than 0, or a directory that hands its project down.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Project {
    id: u32,
    inherited: bool,
}

/// File systems that know no projects, by device: they are asked once. FUSE opens a file for the question.
#[derive(Debug, Default)]
pub(super) struct WithoutProjects(Mutex<BTreeSet<(u32, u32)>>);

impl WithoutProjects {
    /// The project of an open file or directory; None where it has none, or its file system knows none.
    pub(super) fn project_of(&self, file: BorrowedFd<'_>) -> Option<Project> {
        // Answered without the server.
        let flags = AtFlags::EMPTY_PATH | AtFlags::STATX_DONT_SYNC;
        let device = statx(file, c"", flags, StatxFlags::empty())
            .map(|stat| (stat.stx_dev_major, stat.stx_dev_minor))
            .ok();
        if device.is_some_and(|device| self.0.lock().contains(&device)) {
            return None;
        }
        let found = get(file);
        if let (Some(device), Err(Errno::NOTTY | Errno::NOSYS)) = (device, &found) {
            self.0.lock().insert(device);
        }
        found.ok().and_then(Project::found)
    }
}

impl Project {
    fn found(found: Fsxattr) -> Option<Self> {
        let project = Self { id: found.project, inherited: found.flags & INHERIT != 0 };
        (project != Self { id: 0, inherited: false }).then_some(project)
    }

    /// Give it to an open file, if that has none: one that the destination's directory has handed down stays, since
    /// its quota covers that directory's files. Returns why it could not be kept, where it could not.
    pub(crate) fn apply(self, file: BorrowedFd<'_>) -> Option<String> {
        let lost = |why: String| Some(format!("project {}: {why}", self.id));
        let found = match get(file) {
            Ok(found) => found,
            Err(errno) => return lost(why(errno)),
        };
        let flags = if self.inherited { found.flags | INHERIT } else { found.flags };
        if (found.project, found.flags) == (self.id, flags) {
            return None;
        }
        if found.project != 0 && found.project != self.id {
            return lost(format!("the destination belongs to project {}", found.project));
        }
        match set(file, Fsxattr { project: self.id, flags, ..found }) {
            Ok(()) => None,
            Err(errno) => lost(why(errno)),
        }
    }
}

fn why(errno: Errno) -> String {
    match errno {
        Errno::NOTTY | Errno::OPNOTSUPP | Errno::INVAL => "this file system keeps none".to_owned(),
        errno => crate::error::describe(errno),
    }
}

fn get(file: BorrowedFd<'_>) -> Result<Fsxattr, Errno> {
    // SAFETY: the kernel writes one `struct fsxattr` for this request, which is what the type is.
    #[allow(unsafe_code)]
    unsafe {
        ioctl(file, Getter::<GET, Fsxattr>::new())
    }
}

fn set(file: BorrowedFd<'_>, wanted: Fsxattr) -> Result<(), Errno> {
    // SAFETY: the kernel reads one `struct fsxattr` for this request, which is what the type is.
    #[allow(unsafe_code)]
    unsafe {
        ioctl(file, Setter::<SET, Fsxattr>::new(wanted))
    }
}
