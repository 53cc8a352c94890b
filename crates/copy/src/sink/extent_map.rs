//! The map of a large file whose extents several processes write: a byte for each extent, 1 once it is on storage.
//!
//! Arrives: an open map. Leaves: which extents are written. Must not know: what is written.

use std::os::fd::BorrowedFd;

use rustix::fs::{flock, FlockOperation};
use rustix::io::Errno;

use crate::error::{At, End, Failure};
use crate::file_io::{read_full, write_all};
use crate::part_set::PartSet;
use crate::stat::stat_fd;

/// Which extents are written.
pub(crate) fn written(map: BorrowedFd<'_>, end: End) -> Result<PartSet, Failure> {
    let size = stat_fd(map).at(end, "stat")?.stx_size;
    let mut bytes = vec![0; usize::try_from(size).unwrap_or(0)];
    read_full(map, 0, &mut bytes, end)?;
    let extents = (0_u32..).zip(bytes).filter(|(_, byte)| *byte == 1);
    Ok(extents.map(|(extent, _)| extent).collect())
}

/// Note that an extent is on storage.
pub(crate) fn mark(map: BorrowedFd<'_>, extent: u32) -> Result<(), Failure> {
    write_all(map, &[1], u64::from(extent))
}

/// Hold the map as one of the processes that write extents; fails while another completes the file.
pub(crate) fn lock_shared(map: BorrowedFd<'_>) -> Result<(), Failure> {
    locked(map, FlockOperation::NonBlockingLockShared)
}

/// Hold the map as the process that completes the file; fails while another writes extents.
pub(crate) fn lock_alone(map: BorrowedFd<'_>) -> Result<(), Failure> {
    locked(map, FlockOperation::NonBlockingLockExclusive)
}

fn locked(map: BorrowedFd<'_>, how: FlockOperation) -> Result<(), Failure> {
    match flock(map, how) {
        Err(Errno::WOULDBLOCK) => Err(Failure::Clash(
            "is still written by a process of another node: give the same command again",
        )),
        // Some file systems have no locks.
        _ => Ok(()),
    }
}
