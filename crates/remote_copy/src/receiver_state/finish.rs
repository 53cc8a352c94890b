//! The end of a copy, once all files are complete: hard links, attributes of directories, what earlier runs left.
//!
//! Arrives: what was kept for the end. Leaves: a finished destination without a journal. Must not know: messages.

use crate::error::WanError;
use rustix::io::Errno;
use waystage_copy::add;
use waystage_copy::attributes::Attributes;
use waystage_copy::error::{At, End, Failure};
use waystage_copy::plan::NOT_REPLACED;
use waystage_copy::sink::Linked;
use waystage_copy::stat::{split, stat_at};
use waystage_transport::wire::Reader;

use super::ReceiverState;
use crate::entry::Entry;

impl ReceiverState<'_> {
    /// All files are complete: make links to them, set attributes of directories, remove the journal.
    pub(crate) fn finish(&self, root: Option<&Entry>) -> Result<(), WanError> {
        let state = self.copy_state;
        let mut links = self.links.lock();
        for link in links.sorted().map_err(|error| unread(&error))? {
            let (first, other) = link.map_err(|error| unread(&error))?;
            if state.is_stopped() {
                return Err(state.verdict());
            }
            let linked = if self.is_dry() {
                self.plan_link(&first, &other)
            } else {
                self.link(&first, &other)
            };
            if let Err(failure) = linked {
                state.failed(&other, &failure);
            }
        }
        if self.is_dry() {
            return Ok(());
        }
        let mut directories = self.directories.lock();
        // The deepest first: those above may close the way to them.
        for directory in directories.sorted().map_err(|error| unread(&error))? {
            let (path, body) = directory.map_err(|error| unread(&error))?;
            if state.is_stopped() {
                return Err(state.verdict());
            }
            let entry = Entry::read(&mut Reader(&body)).map_err(|_| unread(&Errno::IO.into()))?;
            self.directory(&path, &entry);
        }
        drop(directories);
        self.sink.finish(&state.report)?;
        if let (Some(root), None) = (root, &self.target.rename) {
            self.directory(b"", root);
        }
        Ok(())
    }

    fn directory(&self, path: &[u8], entry: &Entry) {
        let done = self.sink.destination.find(path).and_then(|folder| {
            // Not made, where nothing in it was wanted.
            let Some(folder) = folder else { return Ok(None) };
            let (xattrs, metadata, _) = self.allowed(entry);
            let (preserver, from) = (&self.sink.preserver, Attributes::Known(&xattrs));
            let lost = preserver.apply(&from, folder.fd(), &metadata, false)?;
            preserver.times(folder.fd(), &metadata)?;
            Ok(lost)
        });
        match done {
            Ok(lost) => self.copy_state.lost(path, lost),
            Err(failure) => self.copy_state.failed(path, &failure),
        }
    }

    fn plan_link(&self, first: &[u8], other: &[u8]) -> Result<(), Failure> {
        let tally = &self.copy_state.report.tally;
        if self.sink.are_linked(split(first), split(other))? {
            add(&tally.same, 1);
        } else {
            add(&tally.hard_links, 1);
            self.copy_state.report.plan(other.to_vec(), b'h', 0);
        }
        Ok(())
    }

    fn link(&self, first: &[u8], other: &[u8]) -> Result<(), Failure> {
        self.sink.may_be_made(other)?;
        let ((from, name), (to, new_name)) = (split(first), split(other));
        let (destination, report) = (&self.sink.destination, &self.copy_state.report);
        let (from, to) = (destination.make(from, report)?, destination.make(to, report)?);
        let there = stat_at(from.fd(), name)
            .map_err(|_| Failure::Clash("the file that it is a link to was not copied"))?;
        let tally = &self.copy_state.report.tally;
        let keep = || self.keep(&to, split(other).0, new_name);
        match self.sink.hard_link((&from, name, &there), (&to, new_name), keep)? {
            Linked::Made => add(&tally.hard_links, 1),
            Linked::Already => add(&tally.same, 1),
            Linked::Alike => return Err(NOT_REPLACED),
            Linked::Refused(errno) => {
                let doing = "make hard link (--no-hard-links copies each name by itself)";
                return Err(errno).at(End::Destination, doing);
            }
        }
        Ok(())
    }
}

fn unread(error: &std::io::Error) -> WanError {
    WanError::io("read what was kept for the end of the copy", error)
}
