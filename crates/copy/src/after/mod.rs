//! What follows a copy that has ended without errors: entries of the destination that the source lacks are deleted,
//! files of the source that the destination holds are removed.
//!
//! Arrives: two roots, which entries are meant. Leaves: fewer entries in one of the trees; counts and problems.
//! Must not know: how the copy was made.
//!
//! Both look at each entry again right before they remove it, open no directory through a symbolic link, and can be
//! killed and repeated at any time: an entry is there or it is not.

mod delete;
mod delete_here;
mod digest;
mod remove;
mod remove_here;

pub use delete::{Asker, Delete, DeleteJob, Deleted, Deleter, Deletion, Origin, Target, Victim};
pub use delete_here::{each_entry, Copied, DeleteOptions, DeleterHere, OriginHere, TargetHere};
pub use digest::{remove_unchanged, Digester, Held, Key, CHANGED_MEANWHILE};
pub use remove::{
    report, Removal, Remove, RemoveJob, RemoveWorker, Remover, NO_COPY, ONE_FILE, OTHER_CONTENTS,
};
pub use remove_here::{CopiedSource, RemoveOptions, Taken};

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};

use rustix::io::Errno;
use waystage_catalog::Root;

use crate::ends::unwritable;
use crate::error::CopyError;
use crate::stat::stat_at;

/// A root, by a path that its user gave.
fn open(path: &Path) -> Result<Root, CopyError> {
    Root::open(path).map_err(|error| unwritable(path, &error))
}

/// The last directory that was asked for, open.
#[derive(Default)]
pub struct LastDirectory(Option<(Vec<u8>, OwnedFd)>);

impl LastDirectory {
    /// The directory at `path` below the root.
    ///
    /// # Errors
    /// Those of open(2).
    pub fn of(&mut self, root: &Root, path: &[u8]) -> Result<BorrowedFd<'_>, Errno> {
        if self.0.as_ref().is_none_or(|(known, _)| known != path) {
            self.0 = Some((path.to_vec(), root.directory(path)?));
        }
        self.0.as_ref().map(|(_, opened)| opened.as_fd()).ok_or(Errno::NOENT)
    }

    /// Whether the directory has an entry of this name; false where the directory itself is not there.
    fn has(&mut self, root: &Root, directory: &[u8], name: &[u8]) -> Result<bool, Errno> {
        let found = self.of(root, directory).and_then(|folder| stat_at(folder, name).map(|_| ()));
        match found {
            Ok(()) => Ok(true),
            Err(Errno::NOENT | Errno::NOTDIR) => Ok(false),
            Err(errno) => Err(errno),
        }
    }
}

/// Let `threads` work on all of `items`; each thread has what `begin` makes.
fn in_parallel<T: Sync, S>(
    items: &[T],
    threads: usize,
    begin: impl Fn() -> S + Sync,
    work: impl Fn(&mut S, &T) + Sync,
) {
    let next = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        let run = || {
            let mut own = begin();
            while let Some(item) = items.get(next.fetch_add(1, Ordering::Relaxed)) {
                work(&mut own, item);
            }
        };
        for number in 1..threads.min(items.len()) {
            // A thread that cannot be started leaves its part to the others.
            let _ = std::thread::Builder::new()
                .name(format!("after-{number}"))
                .spawn_scoped(scope, run);
        }
        run();
    });
}
