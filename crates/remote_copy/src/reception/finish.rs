//! The end of a copy, once all files stand: hard links, attributes of directories, what earlier runs left.
//!
//! Arrives: what was kept for the end. Leaves: a finished destination without a journal. Must not know: messages.

use crate::error::WanError;
use rustix::fs::{linkat, syncfs, AtFlags};
use rustix::io::Errno;
use waystage_copy::parts::{
    add, drafted, letter, look, remove_larges, sweep, unwritable, At, End, Failure, Seen, NO_ROOM,
};
use waystage_copy::Fsync;
use waystage_transport::wire::Reader;

use super::{lock, Reception};
use crate::entry::{split, Entry};

impl Reception<'_> {
    /// All files are there: links to them, attributes of directories, and the journal is no longer needed.
    pub(crate) fn finish(&self, root: Option<&Entry>) -> Result<(), WanError> {
        let mut links = lock(&self.links);
        for link in links.sorted().map_err(|error| unread(&error))? {
            let (first, other) = link.map_err(|error| unread(&error))?;
            if self.copy_state.is_stopped() {
                return Err(self.copy_state.verdict());
            }
            let linked =
                if self.dry() { self.plan_link(&first, &other) } else { self.link(&first, &other) };
            if let Err(failure) = linked {
                self.copy_state.failed(&other, &failure);
            }
        }
        let Some(journal) = &self.journal else { return Ok(()) };
        let mut directories = lock(&self.directories);
        // The deepest first: those above may close the way to them.
        for directory in directories.sorted().map_err(|error| unread(&error))? {
            let (path, body) = directory.map_err(|error| unread(&error))?;
            if self.copy_state.is_stopped() {
                return Err(self.copy_state.verdict());
            }
            let entry = Entry::read(&mut Reader(&body)).map_err(|_| unread(&Errno::IO.into()))?;
            self.directory(&path, &entry);
        }
        drop(directories);
        let halves = std::mem::take(&mut *lock(&self.halves));
        remove_larges(
            &self.destination,
            halves.into_values(),
            self.session,
            &self.copy_state.report,
        );
        if self.sweeps {
            let below = self.target.rename.is_none();
            sweep(&self.destination, self.session, below, &self.copy_state.report);
        }
        if self.options.fsync != Fsync::None {
            if let Some(Ok(root)) = self.destination.root() {
                syncfs(&root).map_err(|errno| unwritable(&self.target.shown, &errno.into()))?;
            }
        }
        journal.remove();
        if let (Some(root), None) = (root, &self.target.rename) {
            self.directory(b"", root);
        }
        Ok(())
    }

    fn directory(&self, path: &[u8], entry: &Entry) {
        let done = self.destination.find(path).and_then(|folder| {
            // Not made, where nothing in it was wanted.
            let Some(folder) = folder else { return Ok(None) };
            let (xattrs, about, _) = self.allowed(entry);
            let lost = self.keeper.give_known(&xattrs, folder.fd(), &about, false)?;
            self.keeper.times(folder.fd(), &about)?;
            Ok(lost)
        });
        match done {
            Ok(lost) => self.lost(path, lost),
            Err(failure) => self.copy_state.failed(path, &failure),
        }
    }

    fn plan_link(&self, first: &[u8], other: &[u8]) -> Result<(), Failure> {
        let seen = |path: &[u8]| -> Result<Option<(u64, u64)>, Failure> {
            let (directory, name) = split(path);
            let folder = self.destination.find(directory)?;
            let stat = folder.and_then(|folder| look(folder.fd(), name).ok());
            Ok(stat.map(|stat| Seen::of(&stat)).map(|seen| (seen.device, seen.inode)))
        };
        let tally = &self.copy_state.report.tally;
        if seen(first)?.zip(seen(other)?).is_some_and(|(one, another)| one == another) {
            add(&tally.same, 1);
        } else {
            add(&tally.hard_links, 1);
            self.copy_state.report.plan(other.to_vec(), b'h', 0);
        }
        Ok(())
    }

    fn link(&self, first: &[u8], other: &[u8]) -> Result<(), Failure> {
        self.may_be_made(other)?;
        let ((from, name), (to, new_name)) = (split(first), split(other));
        let (from, to) = (self.destination.make(from)?, self.destination.make(to)?);
        let there = look(from.fd(), name)
            .map_err(|_| Failure::Clash("the file that it is a link to was not copied"))?;
        if let Ok(found) = look(to.fd(), new_name) {
            if !matches!(letter(found.stx_mode), b'f' | b'l') {
                return Err(NO_ROOM);
            }
            let (one, another) = (Seen::of(&found), Seen::of(&there));
            if (one.device, one.inode) == (another.device, another.inode) {
                add(&self.copy_state.report.tally.same, 1);
                return Ok(());
            }
        }
        drafted(to.fd(), self.session, new_name, |draft| {
            linkat(from.fd(), name, to.fd(), draft, AtFlags::empty())
                .at(End::Destination, "make hard link (--no-hard-links copies each name by itself)")
        })?;
        add(&self.copy_state.report.tally.hard_links, 1);
        Ok(())
    }
}

fn unread(error: &std::io::Error) -> WanError {
    WanError::io("read what was kept for the end of the copy", error)
}
