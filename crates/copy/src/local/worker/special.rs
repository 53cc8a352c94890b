//! Symbolic links, devices and FIFOs.

use std::os::fd::{AsFd, BorrowedFd};

use super::Worker;
use crate::attributes::Xattr;
use crate::counts::add;
use crate::error::{join_lost, At, End, Failure, Lost};
use crate::file_io::ANOTHER_TYPE;
use crate::sink::{Folder, Sink, Special};
use crate::source::Item;
use crate::stat::{letter, stat_fd};

impl Worker<'_> {
    /// The number of a device; 0 for any other entry.
    pub(super) fn device_of(source: BorrowedFd<'_>, item: &Item) -> Result<u64, Failure> {
        if !matches!(item.letter, b'p' | b'b' | b'c') {
            return Ok(0);
        }
        // The walk reports no device numbers.
        let stat = item.stat(source).at(End::Source, "stat")?;
        if letter(stat.stx_mode) != item.letter {
            return Err(ANOTHER_TYPE);
        }
        Ok(rustix::fs::makedev(stat.stx_rdev_major, stat.stx_rdev_minor))
    }

    pub(super) fn make_special(
        &mut self,
        source: BorrowedFd<'_>,
        folder: &Folder,
        item: &Item,
        name: &[u8],
        device: u64,
    ) -> Result<(), Failure> {
        let (sink, state) = (&self.context.sink, &self.context.state);
        let tally = &state.report.tally;
        let (what, count) = match item.letter {
            b'l' => (Special::Symlink(&item.symlink), &tally.symlinks),
            letter => (Special::Node(letter, device), &tally.specials),
        };
        self.enter(&item.directory)?;
        let (xattrs, unread) = self.xattrs_of_special(source, item)?;
        let attributes = (&sink.preserver, &xattrs[..]);
        let lost = sink.make_special(folder, name, what, &item.metadata, attributes)?;
        add(count, 1);
        state.report.done("made", &item.path(), item.letter, 0);
        state.lost(&item.path(), join_lost(unread, lost));
        Ok(())
    }

    pub(super) fn repair_special(
        &self,
        source: BorrowedFd<'_>,
        folder: &Folder,
        item: &Item,
        name: &[u8],
    ) -> Result<(), Failure> {
        if self.context.options.dry_run {
            return Ok(());
        }
        let (xattrs, unread) = self.xattrs_of_special(source, item)?;
        let attributes = (&self.context.sink.preserver, &xattrs[..]);
        let lost = Sink::repair_special(folder, name, item.letter, &item.metadata, attributes)?;
        self.context.state.lost(&item.path(), join_lost(unread, lost));
        Ok(())
    }

    fn xattrs_of_special(
        &self,
        source: BorrowedFd<'_>,
        item: &Item,
    ) -> Result<(Vec<Xattr>, Lost), Failure> {
        let from = item.open_path(source).at(End::Source, "open")?;
        let stat = stat_fd(from.as_fd()).at(End::Source, "stat")?;
        if letter(stat.stx_mode) != item.letter {
            return Err(ANOTHER_TYPE);
        }
        self.context.sink.preserver.xattrs_of_special(from.as_fd())
    }
}
