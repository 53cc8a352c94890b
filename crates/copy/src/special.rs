//! What is neither file nor directory: symbolic links, devices, FIFOs.

use std::os::fd::BorrowedFd;

use rustix::fs::{
    chmodat, mknodat, readlinkat, renameat, symlinkat, unlinkat, AtFlags, FileType, Mode,
};
use rustix::io::Errno;

use crate::counts::add;
use crate::destination::Folder;
use crate::error::{At, End, Failure};
use crate::item::{letter, look, About, Item};
use crate::worker::Worker;

impl Worker<'_> {
    /// Make a symbolic link that says the same.
    pub(crate) fn symlink(
        &mut self,
        folder: &Folder,
        item: &Item,
        name: &[u8],
    ) -> Result<(), Failure> {
        let shared = self.shared;
        let found = self.other_than_directory(folder.fd(), name)?;
        if let Some((b'l', about)) = found {
            let target = readlinkat(folder.fd(), name, Vec::new())
                .at(End::Destination, "read link")?
                .into_bytes();
            if target == item.symlink {
                if about.mtime != item.about.mtime && !shared.options.dry_run {
                    shared.keeper.give_name(folder.fd(), name, &item.about)?;
                }
                return Ok(());
            }
        }
        if self.only_planned(item) {
            return Ok(());
        }
        self.draft(folder, name, |draft| {
            symlinkat(&item.symlink[..], folder.fd(), draft).at(End::Destination, "make link")?;
            shared.keeper.give_name(folder.fd(), draft, &item.about)
        })?;
        add(&shared.report.tally.symlinks, 1);
        Ok(())
    }

    /// Make a device or FIFO like the source's.
    pub(crate) fn special(
        &mut self,
        source: BorrowedFd<'_>,
        folder: &Folder,
        item: &Item,
        name: &[u8],
    ) -> Result<(), Failure> {
        let shared = self.shared;
        // The walk tells no device numbers.
        let stat = look(source, &item.name).at(End::Source, "look at")?;
        if letter(stat.stx_mode) != item.letter {
            return Err(crate::small::ANOTHER_SORT);
        }
        let device = rustix::fs::makedev(stat.stx_rdev_major, stat.stx_rdev_minor);
        if let Some((found, about)) = self.other_than_directory(folder.fd(), name)? {
            let there = look(folder.fd(), name).at(End::Destination, "look at")?;
            let same = found == item.letter
                && about.mode == item.about.mode
                && rustix::fs::makedev(there.stx_rdev_major, there.stx_rdev_minor) == device;
            if same {
                return Ok(());
            }
        }
        if self.only_planned(item) {
            return Ok(());
        }
        let kind = match item.letter {
            b'p' => FileType::Fifo,
            b'b' => FileType::BlockDevice,
            _ => FileType::CharacterDevice,
        };
        self.draft(folder, name, |draft| {
            mknodat(folder.fd(), draft, kind, Mode::from_raw_mode(0o600), device)
                .at(End::Destination, "make device or FIFO")?;
            shared.keeper.give_name(folder.fd(), draft, &item.about)?;
            // A name of our own, made a moment ago: no link that could be followed.
            let mode = Mode::from_raw_mode(u32::from(item.about.mode));
            chmodat(folder.fd(), draft, mode, AtFlags::empty()).at(End::Destination, "set mode")
        })?;
        add(&shared.report.tally.specials, 1);
        Ok(())
    }

    /// Type and attributes of what bears the name, if anything does; a directory never makes room.
    fn other_than_directory(
        &self,
        folder: BorrowedFd<'_>,
        name: &[u8],
    ) -> Result<Option<(u8, About)>, Failure> {
        match look(folder, name) {
            Ok(stat) if letter(stat.stx_mode) == b'd' => {
                Err(Failure::Clash("a directory bears its name at the destination"))
            }
            Ok(stat) => Ok(Some((letter(stat.stx_mode), About::of(&stat)))),
            Err(Errno::NOENT) => Ok(None),
            Err(errno) => Err(errno).at(End::Destination, "look at"),
        }
    }

    /// Let `make` make something under this worker's own name, and give it its final one.
    pub(crate) fn draft(
        &self,
        folder: &Folder,
        name: &[u8],
        make: impl FnOnce(&[u8]) -> Result<(), Failure>,
    ) -> Result<(), Failure> {
        let draft = &self.draft_name[..];
        match unlinkat(folder.fd(), draft, AtFlags::empty()) {
            Ok(()) | Err(Errno::NOENT) => {}
            Err(errno) => return Err(errno).at(End::Destination, "remove leftover"),
        }
        let made = make(draft).and_then(|()| {
            renameat(folder.fd(), draft, folder.fd(), name).at(End::Destination, "give name")
        });
        if made.is_err() {
            let _ = unlinkat(folder.fd(), draft, AtFlags::empty());
        }
        made
    }
}
