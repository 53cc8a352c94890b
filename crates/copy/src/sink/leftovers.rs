//! What must not stay: temporary files of runs that were killed.

use std::collections::BTreeSet;

use rustix::fs::{unlinkat, AtFlags, Dir, FileType};

use super::destination::{Destination, Folder};
use super::journal::{PartialFile, Recovered};
use crate::counts::{add, Report};
use crate::own_names::{is_of_session, is_small_of_session, large_name, map_name};
use crate::stat::{letter, stat_at, stat_fd};

/// Remove the temporary files that workers of earlier runs may have left, where each was last.
pub(super) fn of_workers(
    destination: &Destination,
    recovered: &Recovered,
    session: u64,
    report: &Report,
) {
    let directories: BTreeSet<&Vec<u8>> = recovered.entered.values().collect();
    for directory in directories {
        sweep_one(destination, directory, report, |name| is_small_of_session(name, session));
    }
}

/// Remove the temporary file of a large file that will not be completed.
pub(super) fn of_large_file(
    destination: &Destination,
    partial: &PartialFile,
    session: u64,
    report: &Report,
) {
    // Where its directory was removed, it was removed with it.
    if let Ok(Some(folder)) = destination.find(&partial.directory) {
        remove(&folder, &large_name(session, partial.key), report);
        // Most have none.
        let _ = unlinkat(folder.fd(), &map_name(session, partial.key)[..], AtFlags::empty());
    }
}

/// Remove every temporary file of copies to this destination: for when a journal was there, which may have been
/// damaged. `below` where it is a tree, and not one file in a directory that is shared with others.
pub(super) fn sweep(destination: &Destination, session: u64, below: bool, report: &Report) {
    let device = |directory: &[u8]| {
        let folder = destination.find(directory).ok()??;
        stat_fd(folder.fd()).ok().map(|stat| (stat.stx_dev_major, stat.stx_dev_minor))
    };
    let top = device(b"");
    let mut waiting = vec![Vec::new()];
    while let Some(directory) = waiting.pop() {
        // Another file system in it may be the destination of another copy, of the same number.
        if device(&directory) != top {
            continue;
        }
        let found = sweep_one(destination, &directory, report, |name| is_of_session(name, session));
        if below {
            waiting.extend(found.iter().map(|name| waystage_catalog::join(&directory, name)));
        }
    }
}

/// Remove the temporary files in one directory; the names of the directories in it.
fn sweep_one(
    destination: &Destination,
    directory: &[u8],
    report: &Report,
    is_temporary: impl Fn(&[u8]) -> bool,
) -> Vec<Vec<u8>> {
    let mut directories = Vec::new();
    let Ok(Some(folder)) = destination.find(directory) else { return directories };
    let Ok(entries) = Dir::read_from(folder.fd()) else { return directories };
    for entry in entries.flatten() {
        let name = entry.file_name().to_bytes();
        if matches!(name, b"." | b"..") {
            continue;
        }
        let is_directory = match entry.file_type() {
            FileType::Unknown => {
                stat_at(folder.fd(), name).is_ok_and(|stat| letter(stat.stx_mode) == b'd')
            }
            known => known == FileType::Directory,
        };
        if is_directory {
            directories.push(name.to_vec());
        } else if is_temporary(name) {
            remove(&folder, name, report);
        }
    }
    directories
}

fn remove(folder: &Folder, name: &[u8], report: &Report) {
    if unlinkat(folder.fd(), name, AtFlags::empty()).is_ok() {
        add(&report.tally.leftovers, 1);
    }
}
