//! Entries without contents: directories, symbolic links, devices and FIFOs; attributes of existing entries.
//!
//! Arrives: an entry. Leaves: it, under its name, or what was there with its attributes. Must not know: messages.

use std::os::fd::AsFd;

use rustix::fs::{openat, Mode, OFlags};
use waystage_copy::add;
use waystage_copy::attributes::Attributes;
use waystage_copy::error::Failure;
use waystage_copy::sink::{Sink, Special};
use waystage_copy::stat::Metadata;

use super::Worker;
use crate::entry::Entry;

impl Worker<'_> {
    /// Owner and mode of a file, and all but extended attributes of another entry, that is otherwise right.
    pub(super) fn fix(
        &mut self,
        entry: &Entry,
        directory: &[u8],
        name: &[u8],
        found: &Metadata,
    ) -> Result<(), Failure> {
        let receiver = self.receiver;
        let (_, metadata, _) = receiver.allowed(entry);
        let preserver = &receiver.plain_preserver;
        let folder = self.folder(directory)?;
        if entry.letter != b'f' {
            let attributes = (preserver, &[][..]);
            let letter = entry.letter;
            let lost = Sink::repair_special(folder, name, letter, &metadata, attributes)?;
            receiver.copy_state.lost(&entry.path, lost);
            return Ok(());
        }
        let same_owner = (metadata.uid, metadata.gid) == (found.uid, found.gid);
        let how = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let mut fixed = false;
        if (metadata.mode != found.mode || !same_owner) && !receiver.is_dry() {
            // Where this user may not open it, its attributes stay.
            if let Ok(file) = openat(folder.fd(), name, how, Mode::empty()) {
                let none = Attributes::Known(&[]);
                fixed = preserver.repair(&none, file.as_fd(), &metadata, found)?.0;
            }
        }
        let tally = &receiver.copy_state.report.tally;
        add(if fixed { &tally.mended } else { &tally.same }, 1);
        Ok(())
    }

    pub(super) fn make_special(
        &mut self,
        entry: &Entry,
        directory: &[u8],
        name: &[u8],
    ) -> Result<(), Failure> {
        let receiver = self.receiver;
        let (_, metadata, not_taken) = receiver.allowed(entry);
        let tally = &receiver.copy_state.report.tally;
        let (what, count) = match entry.letter {
            b'l' => (Special::Symlink(&entry.symlink), &tally.symlinks),
            letter => (Special::Node(letter, entry.device), &tally.specials),
        };
        self.enter(directory)?;
        let folder = self.folder(directory)?;
        receiver.keep(folder, directory, name)?;
        let attributes = (&receiver.plain_preserver, &[][..]);
        let lost = receiver.sink.make_special(folder, name, what, &metadata, attributes)?;
        receiver.copy_state.lost(&entry.path, lost.or(not_taken));
        add(count, 1);
        Ok(())
    }

    pub(super) fn make_directory(&mut self, entry: &Entry) -> Result<(), Failure> {
        let receiver = self.receiver;
        if receiver.options.include.is_some() {
            // Made with the first file in it.
        } else if receiver.is_dry() {
            add(&receiver.copy_state.report.tally.directories, 1);
        } else {
            // Counted by the destination: another worker may make it, for an entry in it.
            receiver.sink.destination.make(&entry.path, &receiver.copy_state.report)?;
        }
        self.remember_directory(entry)
    }

    pub(super) fn remember_directory(&mut self, entry: &Entry) -> Result<(), Failure> {
        let (_, _, lost) = self.receiver.allowed(entry);
        self.receiver.copy_state.lost(&entry.path, lost);
        self.receiver.remember_directory(entry)
    }
}
