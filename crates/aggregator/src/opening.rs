//! Opens files, and asks the storage how it lays them out.
//!
//! Arrives: paths, flags. Leaves: descriptors, stripes, errors with their sentences. Must not know: who wants them.

use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::time::Duration;

use rustix::fs::{fstat, openat, FileType, Mode, OFlags, CWD};
use waystage_catalog::layout::FileSystems;
use waystage_collective_wire::Status;

use crate::effect::Outcome;
use crate::gatherer::{CREATE, EXCL};

/// Opens a regular file, by bits of `enum ws_io_flags`.
pub(crate) fn open(path: &[u8], flags: u32) -> Result<OwnedFd, Outcome> {
    let path = Path::new(std::ffi::OsStr::from_bytes(path));
    let mut how = match flags & 7 {
        1 => OFlags::RDONLY,
        2 => OFlags::WRONLY,
        _ => OFlags::RDWR,
    };
    if flags & CREATE != 0 {
        how |= OFlags::CREATE;
    }
    if flags & EXCL != 0 {
        how |= OFlags::EXCL;
    }
    // A FIFO must not block.
    how |= OFlags::CLOEXEC | OFlags::NONBLOCK | OFlags::NOCTTY;
    let fail = |error: rustix::io::Errno| failed(path, "opened", error.raw_os_error());
    let fd = openat(CWD, path, how, Mode::from_raw_mode(0o666)).map_err(fail)?;
    let kind = FileType::from_raw_mode(fstat(&fd).map_err(fail)?.st_mode);
    if kind != FileType::RegularFile {
        let text = format!("{} is no regular file: collective I/O needs one", path.display());
        return Err(Outcome::failed(Status::BadFile, text));
    }
    Ok(fd)
}

/// What a failed call of the storage is to the ranks.
pub(crate) fn failed(path: &Path, what: &str, number: i32) -> Outcome {
    let (status, error) = (Status::from_errno(number), std::io::Error::from_raw_os_error(number));
    Outcome::failed(status, format!("{} cannot be {what}: {error}", path.display()))
}

/// What a call that the storage does not end is to the ranks.
pub(crate) fn hangs(path: &Path, what: &str, timeout: Duration) -> Outcome {
    let (path, seconds) = (path.display(), timeout.as_secs_f64());
    let text = format!(
        "{path} cannot be {what}: the storage has not answered for {seconds} s (--storage-timeout)"
    );
    Outcome::failed(Status::Io, text)
}

/// Bytes of a stripe of the open file, and the number of targets that they go round; None where its file system has no
/// stripes, or does not say. Of a file that is laid out in several ways, the largest stripe of its first mirror.
pub(crate) fn stripe(systems: &FileSystems, fd: &OwnedFd) -> Option<(u64, u32)> {
    let (unit, count) = systems.layout_of(fd).ok()??.stripe()?;
    Some((unit, u32::try_from(count).unwrap_or(u32::MAX)))
}
