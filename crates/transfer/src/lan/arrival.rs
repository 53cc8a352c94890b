//! A file on its way in: under a name of its own until it is whole, and gone if it never is.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{self, Write};
use std::os::fd::OwnedFd;
use std::process;
use std::sync::atomic::{AtomicU64, Ordering};

use nix::errno::Errno;
use nix::fcntl::{fallocate, openat, renameat, FallocateFlags, OFlag};
use nix::sys::stat::Mode;
use nix::sys::statvfs::fstatvfs;
use nix::unistd::{unlinkat, UnlinkatFlags};

/// Tells the drafts of one process apart.
static NEXT: AtomicU64 = AtomicU64::new(0);

/// A draft in its folder; dropped, it is removed.
pub(crate) struct Arrival {
    folder: OwnedFd,
    draft: OsString,
    file: File,
    kept: bool,
}

impl Arrival {
    /// Make a draft with room for `size` bytes: a full disk is noticed before anything is moved.
    pub(crate) fn begin(folder: OwnedFd, size: u64) -> io::Result<Self> {
        // Some file systems reserve all they have before they find that it is not enough, and leave
        // everybody without space meanwhile. So they are asked only for what they can give.
        let about = fstatvfs(&folder)?;
        let room = u128::from(about.blocks_available()) * u128::from(about.fragment_size());
        // A tmpfs without a limit says that it has no blocks at all.
        if about.blocks() > 0 && u128::from(size) > room {
            return Err(Errno::ENOSPC.into());
        }
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let draft = OsString::from(format!(".waystage-{}-{number}.part", process::id()));
        let flags =
            OFlag::O_WRONLY | OFlag::O_CREAT | OFlag::O_EXCL | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
        let mode = Mode::from_bits_truncate(0o644);
        let file = File::from(openat(&folder, draft.as_os_str(), flags, mode)?);
        let arrival = Self { folder, draft, file, kept: false };
        if size > 0 {
            let length = i64::try_from(size).map_err(|_| Errno::EFBIG)?;
            match fallocate(&arrival.file, FallocateFlags::empty(), 0, length) {
                // Not every file system can; there a full disk is noticed in writing.
                Ok(()) | Err(Errno::EOPNOTSUPP | Errno::ENOSYS) => {}
                Err(errno) => return Err(errno.into()),
            }
        }
        Ok(arrival)
    }

    pub(crate) fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.file.write_all(bytes)
    }

    /// Give the whole file its name, in place of whatever bore it.
    pub(crate) fn keep(mut self, name: &OsStr) -> io::Result<()> {
        renameat(&self.folder, self.draft.as_os_str(), &self.folder, name)?;
        self.kept = true;
        Ok(())
    }
}

impl Drop for Arrival {
    fn drop(&mut self) {
        if !self.kept {
            // Whoever removed the folder has removed the draft with it.
            let _ = unlinkat(&self.folder, self.draft.as_os_str(), UnlinkatFlags::NoRemoveDir);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::super::testing::Scratch;
    use super::*;

    fn begin(scratch: &Scratch, size: u64) -> io::Result<Arrival> {
        Arrival::begin(File::open(scratch.path())?.into(), size)
    }

    #[test]
    fn a_file_bears_its_name_only_when_it_is_whole() {
        let scratch = Scratch::new("arrival");
        fs::write(scratch.path().join("name"), b"old").unwrap();
        let mut arrival = begin(&scratch, 3).unwrap();
        arrival.write(b"new").unwrap();
        assert_eq!(fs::read(scratch.path().join("name")).unwrap(), b"old");
        arrival.keep(OsStr::new("name")).unwrap();
        assert_eq!(fs::read(scratch.path().join("name")).unwrap(), b"new");
        assert_eq!(scratch.names(), ["name"]);
    }

    #[test]
    fn a_file_that_is_given_up_leaves_nothing() {
        let scratch = Scratch::new("given-up");
        let mut arrival = begin(&scratch, 0).unwrap();
        arrival.write(b"half").unwrap();
        assert_eq!(scratch.names().len(), 1);
        drop(arrival);
        assert!(scratch.names().is_empty());
    }

    #[test]
    fn more_than_the_disk_holds_is_refused_at_once_and_leaves_nothing() {
        let scratch = Scratch::new("too-big");
        for size in [1 << 43, 1 << 60, u64::MAX] {
            let error = begin(&scratch, size).err().unwrap();
            assert_eq!(error.kind(), io::ErrorKind::StorageFull, "{error}");
        }
        assert!(scratch.names().is_empty());
    }
}
