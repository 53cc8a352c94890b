//! What must not stay: drafts of runs that were killed, and at the very end the journal itself.

use std::collections::BTreeSet;

use rustix::fs::{syncfs, unlinkat, AtFlags, Dir, FileType};

use crate::counts::{add, ProblemKind, Report};
use crate::destination::{Destination, Folder};
use crate::engine::Shared;
use crate::error::CopyError;
use crate::feed::directory;
use crate::item::{letter, look, look_at};
use crate::journal::{Half, Past};
use crate::options::Fsync;
use crate::own::{is_of_session, is_small_of_session, large_name};

/// Remove the drafts that workers of earlier runs may have left, where each was last.
pub fn workers(destination: &Destination, past: &Past, session: u64, report: &Report) {
    let directories: BTreeSet<&Vec<u8>> = past.entered.values().collect();
    for directory in directories {
        sweep_one(destination, directory, report, |name| is_small_of_session(name, session));
    }
}

/// Remove the drafts of large files that nobody will go on with.
pub fn larges(
    destination: &Destination,
    halves: impl Iterator<Item = Half>,
    session: u64,
    report: &Report,
) {
    for half in halves {
        // The draft was removed with its directory.
        if let Ok(Some(folder)) = destination.find(&half.directory) {
            remove(&folder, &large_name(session, half.key), report);
        }
    }
}

/// Remove every draft of copies to this destination: for when a journal was there, which may have been damaged. `below`
/// where it is a tree, and not one file in a directory that is shared with others.
pub fn sweep(destination: &Destination, session: u64, below: bool, report: &Report) {
    let device = |directory: &[u8]| {
        let folder = destination.find(directory).ok()??;
        look_at(folder.fd()).ok().map(|stat| (stat.stx_dev_major, stat.stx_dev_minor))
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

/// Remove the drafts in one directory; the names of the directories in it.
fn sweep_one(
    destination: &Destination,
    directory: &[u8],
    report: &Report,
    is_draft: impl Fn(&[u8]) -> bool,
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
                look(folder.fd(), name).is_ok_and(|stat| letter(stat.stx_mode) == b'd')
            }
            known => known == FileType::Directory,
        };
        if is_directory {
            directories.push(name.to_vec());
        } else if is_draft(name) {
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

/// All is copied: force it out if that was asked for, forget the journal, and give the root its times.
pub(crate) fn finish(shared: &Shared) -> Result<(), CopyError> {
    let Some(journal) = &shared.journal else { return Ok(()) };
    let (destination, session, report) = (&shared.destination, shared.session, &shared.report);
    larges(destination, shared.other_halves().into_iter(), session, report);
    if shared.sweeps {
        sweep(destination, session, shared.single.is_none(), report);
    }
    if shared.options.fsync != Fsync::None {
        if let Some(Ok(root)) = shared.destination.root() {
            if let Err(errno) = syncfs(&root) {
                return Err(crate::ends::unwritable(&shared.options.destination, &errno.into()));
            }
        }
    }
    journal.remove();
    if shared.single.is_none() {
        if let Err(failure) = directory(shared, b"", &shared.root_about) {
            shared.report.problem(Vec::new(), ProblemKind::Error, failure.to_string());
        }
    }
    Ok(())
}
