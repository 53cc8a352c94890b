//! The new inode of a file: made without objects, so that it takes a layout, and locked while it is in use.

use std::collections::HashSet;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use parking_lot::Mutex;
use rustix::fs::{
    flock, linkat, mknodat, openat, unlinkat, AtFlags, FileType, FlockOperation, Mode, OFlags, CWD,
};
use rustix::io::Errno;

use crate::error::{At, End, Failure};
use crate::own_names::{fresh_name, is_of_session, is_ours};
use crate::stat::{letter, stat_fd};

/// The attribute by which Lustre tells and takes layouts.
pub(super) const LAYOUT: &std::ffi::CStr = c"lustre.lov";

/// What the names of temporary files have in common: "restripe" in ASCII.
const SESSION: u64 = 0x7265_7374_7269_7065;

/// Names that this process uses; they are no leftovers.
#[derive(Debug, Default)]
pub(super) struct Live(Mutex<HashSet<Vec<u8>>>);

impl Live {
    /// Whether a name is that of a temporary file of a restriping that ended early.
    pub(super) fn is_leftover(&self, name: &[u8]) -> bool {
        is_of_session(name, SESSION) && !self.0.lock().contains(name)
    }
}

/// Remove a leftover, unless another process uses it. Whether it was removed.
pub(super) fn remove_leftover(folder: BorrowedFd<'_>, name: &[u8]) -> bool {
    let how = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let Ok(file) = openat(folder, name, how, Mode::empty()) else { return false };
    let is_file = stat_fd(file.as_fd()).is_ok_and(|stat| letter(stat.stx_mode) == b'f');
    let unused = flock(&file, FlockOperation::NonBlockingLockExclusive) != Err(Errno::AGAIN);
    is_file && unused && unlinkat(folder, name, AtFlags::empty()).is_ok()
}

/// A temporary name of an inode; dropped, the name is gone.
#[derive(Debug)]
pub(super) struct TemporaryName<'a> {
    folder: OwnedFd,
    pub(super) name: Vec<u8>,
    live: &'a Live,
}

impl<'a> TemporaryName<'a> {
    fn new(folder: BorrowedFd<'_>, live: &'a Live) -> Result<Self, Errno> {
        let folder = rustix::io::fcntl_dupfd_cloexec(folder, 0)?;
        let name = fresh_name(SESSION)?;
        live.0.lock().insert(name.clone());
        Ok(Self { folder, name, live })
    }

    /// Another name, in `folder`, of an open file.
    pub(super) fn of(
        folder: BorrowedFd<'_>,
        file: BorrowedFd<'_>,
        live: &'a Live,
    ) -> Result<Self, Errno> {
        use std::os::fd::AsRawFd;
        let made = Self::new(folder, live)?;
        let path = format!("/proc/self/fd/{}", file.as_raw_fd());
        match linkat(file, c"", folder, &made.name[..], AtFlags::EMPTY_PATH) {
            // Without a capability only /proc leads to an open file.
            Err(Errno::NOENT | Errno::PERM | Errno::INVAL) => {
                linkat(CWD, path, folder, &made.name[..], AtFlags::SYMLINK_FOLLOW)?;
            }
            done => done?,
        }
        Ok(made)
    }

    pub(super) fn folder(&self) -> BorrowedFd<'_> {
        self.folder.as_fd()
    }
}

impl Drop for TemporaryName<'_> {
    fn drop(&mut self) {
        // After a rename over another name it is gone already.
        let _ = unlinkat(&self.folder, &self.name[..], AtFlags::empty());
        self.live.0.lock().remove(&self.name);
    }
}

/// A new file with a layout.
#[derive(Debug)]
pub(super) struct NewInode<'a> {
    pub(super) name: TemporaryName<'a>,
    pub(super) file: OwnedFd,
}

impl<'a> NewInode<'a> {
    /// Make one. `layout` is a value of `lustre.lov`.
    pub(super) fn make(
        folder: BorrowedFd<'_>,
        layout: &[u8],
        live: &'a Live,
    ) -> Result<Self, Failure> {
        let name = TemporaryName::new(folder, live).at(End::Destination, "find a name")?;
        let mode = Mode::from_raw_mode(0o600);
        // Unlike open(2), mknod(2) gives a file no objects yet.
        mknodat(folder, &name.name[..], FileType::RegularFile, mode, 0)
            .at(End::Destination, "make file")?;
        set_layout(folder, &name.name, layout).at(End::Destination, "set layout")?;
        let how = OFlags::RDWR | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let file =
            openat(folder, &name.name[..], how, Mode::empty()).at(End::Destination, "open")?;
        let stat = stat_fd(file.as_fd()).at(End::Destination, "stat")?;
        if letter(stat.stx_mode) != b'f'
            || stat.stx_nlink != 1
            || stat.stx_size != 0
            || !is_ours(folder, &stat)
        {
            return Err(Errno::STALE).at(End::Destination, "open");
        }
        // Another process that finds the name leaves it alone.
        let _ = flock(&file, FlockOperation::NonBlockingLockExclusive);
        Ok(Self { name, file })
    }
}

fn by_name(folder: BorrowedFd<'_>, name: &[u8]) -> Vec<u8> {
    use std::os::fd::AsRawFd;
    let mut path = format!("/proc/self/fd/{}/", folder.as_raw_fd()).into_bytes();
    path.extend_from_slice(name);
    path
}

fn set_layout(folder: BorrowedFd<'_>, name: &[u8], layout: &[u8]) -> Result<(), Errno> {
    rustix::fs::lsetxattr(by_name(folder, name), LAYOUT, layout, rustix::fs::XattrFlags::empty())
}

/// The value of `lustre.lov` of a file that is not opened for it; None where it has none.
pub(super) fn layout_of(folder: BorrowedFd<'_>, name: &[u8]) -> Result<Option<Vec<u8>>, Errno> {
    let path = by_name(folder, name);
    let mut value = vec![0; 4 << 10];
    let length = match rustix::fs::lgetxattr(&path, LAYOUT, &mut value[..]) {
        Err(Errno::RANGE) => {
            value.resize(64 << 10, 0);
            rustix::fs::lgetxattr(&path, LAYOUT, &mut value[..])
        }
        answer => answer,
    };
    match length {
        Ok(length) => {
            value.truncate(length);
            Ok(Some(value))
        }
        Err(Errno::NODATA | Errno::OPNOTSUPP) => Ok(None),
        Err(errno) => Err(errno),
    }
}
