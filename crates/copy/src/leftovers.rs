//! What must not stay: drafts of runs that were killed, and at the very end the journal itself.

use rustix::fs::{syncfs, unlinkat, AtFlags};

use crate::counts::{add, ProblemKind, Report};
use crate::destination::Destination;
use crate::draft::{large_name, worker_name};
use crate::engine::Shared;
use crate::error::CopyError;
use crate::feed::directory;
use crate::journal::{Half, Past};
use crate::options::Fsync;

/// Remove the drafts that workers of earlier runs may have left: each at most one, where it was last.
pub fn workers(destination: &Destination, past: &Past, session: u64, report: &Report) {
    for (worker, directory) in &past.entered {
        let name = worker_name(session, usize::try_from(*worker).unwrap_or(usize::MAX));
        remove(destination, directory, &name, report);
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
        remove(destination, &half.directory, &large_name(session, half.id), report);
    }
}

fn remove(destination: &Destination, directory: &[u8], name: &[u8], report: &Report) {
    // Whoever removed the directory has removed the draft with it.
    if let Ok(Some(folder)) = destination.find(directory) {
        if unlinkat(folder.fd(), name, AtFlags::empty()).is_ok() {
            add(&report.tally.leftovers, 1);
        }
    }
}

/// All is copied: force it out if that was asked for, forget the journal, and give the root its times.
pub(crate) fn finish(shared: &Shared) -> Result<(), CopyError> {
    let Some(journal) = &shared.journal else { return Ok(()) };
    larges(&shared.destination, shared.other_halves().into_iter(), shared.session, &shared.report);
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
