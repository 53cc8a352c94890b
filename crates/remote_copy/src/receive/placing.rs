//! What is whole in an offer and has no contents: symbolic links, FIFOs, devices.
//!
//! Arrives: an entry. Leaves: it, under its name. Must not know: messages.

use rustix::fs::readlinkat;
use waystage_copy::parts::{
    add, drafted, letter, make_special, make_symlink, mend_place, About, Failure, NO_ROOM,
};

use super::{Wish, Worker};
use crate::entry::Entry;

impl Worker<'_> {
    pub(super) fn symlink(&mut self, entry: &Entry) -> Result<Wish, Failure> {
        let reception = self.reception;
        let (directory, name) = entry.split();
        if let Some(stat) = self.found(directory, name)? {
            if letter(stat.stx_mode) == b'd' {
                return Err(Failure::Clash("a directory bears its name at the destination"));
            }
            if !matches!(letter(stat.stx_mode), b'f' | b'l') {
                return Err(NO_ROOM);
            }
            let folder = self.folder(directory)?;
            let same = letter(stat.stx_mode) == b'l'
                && readlinkat(folder.fd(), name, Vec::new())
                    .is_ok_and(|target| target.as_bytes() == entry.symlink)
                && About::of(&stat).mtime == entry.about.mtime;
            if same {
                return Ok(Wish::Nothing);
            }
        }
        if reception.plan(entry) {
            return Ok(Wish::Planned);
        }
        self.enter(directory)?;
        let (session, keeper) = (reception.session, reception.plain_keeper);
        let folder = self.folder(directory)?;
        let lost = drafted(folder.fd(), session, name, |draft| {
            make_symlink(&keeper, folder.fd(), draft, &entry.symlink, &entry.about, &[])
        })?;
        reception.lost(&entry.path, lost);
        add(&self.reception.copy_state.report.tally.symlinks, 1);
        Ok(Wish::Nothing)
    }

    pub(super) fn special(&mut self, entry: &Entry) -> Result<Wish, Failure> {
        if let Some(why) = self.reception.target.trust.refuses_device(entry.letter) {
            return Err(Failure::Clash(why));
        }
        let (_, about, lost) = self.reception.allowed(entry);
        let (directory, name) = entry.split();
        if let Some(stat) = self.found(directory, name)? {
            let device = rustix::fs::makedev(stat.stx_rdev_major, stat.stx_rdev_minor);
            if letter(stat.stx_mode) == b'd' {
                return Err(Failure::Clash("a directory bears its name at the destination"));
            }
            if letter(stat.stx_mode) == entry.letter
                && (device, About::of(&stat).mode) == (entry.device, about.mode)
            {
                return Ok(Wish::Nothing);
            }
            if (letter(stat.stx_mode), device) == (entry.letter, entry.device) {
                if !self.reception.dry() {
                    let (_, about, _) = self.reception.allowed(entry);
                    let (keeper, reception) = (self.reception.plain_keeper, self.reception);
                    let folder = self.folder(directory)?.fd();
                    let lost = mend_place(&keeper, folder, name, entry.letter, &about, &[])?;
                    reception.lost(&entry.path, lost);
                }
                return Ok(Wish::Nothing);
            }
            if !matches!(letter(stat.stx_mode), b'f' | b'l') {
                return Err(NO_ROOM);
            }
        }
        if self.reception.plan(entry) {
            return Ok(Wish::Planned);
        }
        self.enter(directory)?;
        let (session, keeper) = (self.reception.session, self.reception.plain_keeper);
        let reception = self.reception;
        let folder = self.folder(directory)?;
        let not_set = drafted(folder.fd(), session, name, |draft| {
            let what = (entry.letter, entry.device);
            make_special(&keeper, folder.fd(), draft, what, &about, &[])
        })?;
        reception.lost(&entry.path, not_set.or(lost));
        add(&self.reception.copy_state.report.tally.specials, 1);
        Ok(Wish::Nothing)
    }
}
