//! The files of a transfer and the room for them: checked before anything is sent.
//!
//! Arrives: names. Leaves: the names under which they are copied, the bytes of the largest; or why one is not. Must not
//! know: connections.

use std::os::fd::AsFd;

use rustix::fs::fstatvfs;
use rustix::io::Errno;
use waystage_catalog::Root;
use waystage_copy::stat::{letter, split, stat_at};
use waystage_copy::Names;

use crate::error::{shown, StagingError};

/// Bytes of a block of `stx_blocks` (statx(2)).
const BLOCK_BYTES: u64 = 512;

/// All of these are regular files: the bytes of the largest, holes left out.
pub(crate) fn check_sources(root: &Root, names: &Names) -> Result<u64, StagingError> {
    let mut largest = 0;
    for name in names.iter() {
        let (directory, last) = split(name);
        let failed = |errno: Errno| StagingError::file(name, errno);
        let folder = root.directory(directory).map_err(failed)?;
        let stat = stat_at(folder.as_fd(), last).map_err(failed)?;
        if letter(stat.stx_mode) != b'f' {
            let text = format!("{}: is no regular file", shown(name));
            return Err(StagingError::Refused(text));
        }
        largest = largest.max(stat.stx_size.min(stat.stx_blocks.saturating_mul(BLOCK_BYTES)));
    }
    Ok(largest)
}

/// Bytes that are free in a directory's file system.
pub(crate) fn room(directory: impl AsFd) -> Result<u64, Errno> {
    let about = fstatvfs(directory)?;
    // A tmpfs without a limit says that it has no blocks at all.
    let is_unlimited = about.f_blocks == 0;
    let free = about.f_bfree.saturating_mul(about.f_frsize);
    Ok(if is_unlimited { u64::MAX } else { free })
}

/// Whether the largest file fits: each is complete under a temporary name before it replaces another.
pub(crate) fn fits(largest: u64, room: u64) -> Result<(), StagingError> {
    if largest > room {
        let text = format!("no space left: a file has {largest} bytes and {room} are free");
        return Err(StagingError::NoSpace(text));
    }
    Ok(())
}

/// The last names of files, under which they are copied.
pub(crate) fn last_names(names: &Names) -> Result<Names, StagingError> {
    let mut list = Vec::new();
    for name in names.iter() {
        list.extend_from_slice(split(name).1);
        list.push(0);
    }
    Names::parse(&list, true).map_err(|error| StagingError::Refused(format!("the files: {error}")))
}
