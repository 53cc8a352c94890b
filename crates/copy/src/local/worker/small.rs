//! Regular files: those of one extent are copied in one piece.

use std::os::fd::{AsFd, BorrowedFd};

use rustix::fs::ftruncate;
use waystage_pacing::{during, Cause};

use super::Worker;
use crate::attributes::Attributes;
use crate::compare::same_contents;
use crate::counts::add;
use crate::error::{At, End, Failure};
use crate::file_io::{forget, open_file, ANOTHER_TYPE};
use crate::options::Verify;
use crate::sink::Folder;
use crate::source::Item;
use crate::stat::{letter, stat_fd, FileState, Metadata};

impl Worker<'_> {
    /// Copy a file of at most one extent.
    pub(super) fn small(
        &mut self,
        source: BorrowedFd<'_>,
        folder: &Folder,
        item: &Item,
        name: &[u8],
    ) -> Result<(), Failure> {
        match self.copied(source, folder, item, name) {
            Err(Failure::Changed(_)) => {
                // Once more, as it is now: most files that change do so once.
                let stat = item.stat(source).at(End::Source, "stat")?;
                if letter(stat.stx_mode) != b'f' {
                    return Err(ANOTHER_TYPE);
                }
                let now = item.renewed(&stat);
                if now.seen.size > self.context.policy.extent_bytes {
                    return Err(Failure::Changed("it grew while it was copied"));
                }
                self.copied(source, folder, &now, name)
            }
            other => other,
        }
    }

    pub(super) fn has_same_contents(
        &self,
        source: BorrowedFd<'_>,
        folder: &Folder,
        item: &Item,
        name: &[u8],
    ) -> Result<bool, Failure> {
        let one = item.open(source)?;
        let other = open_file(folder.fd(), name, End::Destination)?;
        same_contents(one.as_fd(), other.as_fd(), &self.context.mover.stop)
    }

    /// The contents are right; fix attributes that differ.
    pub(super) fn repair(
        &self,
        source: BorrowedFd<'_>,
        folder: &Folder,
        item: &Item,
        name: &[u8],
        found: &Metadata,
    ) -> Result<(), Failure> {
        let context = self.context;
        let tally = &context.state.report.tally;
        // Where this user may not open one of them, its attributes stay.
        let opened = item
            .open(source)
            .and_then(|one| Ok((one, open_file(folder.fd(), name, End::Destination)?)));
        let (repaired, lost) = match opened {
            Ok((one, other)) if !context.options.dry_run => {
                let from = Attributes::Of(one.as_fd());
                context.sink.preserver.repair(&from, other.as_fd(), &item.metadata, found)?
            }
            _ => (false, None),
        };
        add(if repaired { &tally.mended } else { &tally.same }, 1);
        context.state.lost(&item.path(), lost);
        Ok(())
    }

    fn copied(
        &mut self,
        source: BorrowedFd<'_>,
        folder: &Folder,
        item: &Item,
        name: &[u8],
    ) -> Result<(), Failure> {
        let context = self.context;
        let from = during(Cause::Source, || item.open(source))?;
        let verified = context.options.verify != Verify::None;
        let file =
            during(Cause::Destination, || context.sink.new_file(folder, &item.metadata, verified))?;
        let range = (0, item.seen.size);
        let mover = &context.mover;
        let cloned = item.seen.size > 0 && mover.clone_file(from.as_fd(), file.fd(), verified)?;
        let mut moved = 0;
        if !cloned && item.seen.size > 0 {
            if item.sparse {
                ftruncate(file.fd(), item.seen.size).at(End::Destination, "set size")?;
            }
            let (source, destination) = (from.as_fd().into(), file.fd().into());
            let buffer = &mut self.buffer;
            let copied = mover.copy(buffer, source, destination, range, item.sparse, verified)?;
            moved = copied.bytes;
            if verified {
                if context.options.verify == Verify::Storage {
                    during(Cause::Destination, || forget(file.fd()))?;
                }
                let like = from.as_fd();
                if mover.digest(buffer, destination, like, range, item.sparse)? != copied.digest {
                    return Err(Failure::Damaged);
                }
            }
        }
        // What the walk saw is what was copied, if it is so still.
        let now = stat_fd(from.as_fd()).at(End::Source, "stat")?;
        if FileState::of(&now) != item.seen {
            return Err(Failure::Changed("it was changed while it was copied"));
        }
        let attributes = Attributes::Of(from.as_fd());
        let lost = during(Cause::Destination, || file.finish(name, &attributes, &item.metadata))?;
        let tally = &context.state.report.tally;
        add(&tally.bytes, moved);
        add(&tally.files, 1);
        add(&tally.objects, 1);
        context.state.report.done("copied", &item.path(), b'f', item.seen.size);
        if verified {
            add(&tally.verified, 1);
        }
        context.state.lost(&item.path(), lost);
        Ok(())
    }
}
