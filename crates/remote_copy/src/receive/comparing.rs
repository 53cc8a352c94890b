//! What is there already, held against the source: digests of it go to the sender, which sends what has another one.
//!
//! Arrives: files that bear the names of wanted ones, what the sender found alike. Leaves: digests; files that stand, drafts with
//! what was alike in them. Must not know: how messages travel.

use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::fs::{fdatasync, Statx};
use rustix::io::Errno;
use twox_hash::XxHash3_128;
use waystage_copy::journal::Record;
use waystage_copy::parts::{
    add, for_data, look, look_at, open_file, write_all, About, At, End, Failure, Seen,
};
use waystage_copy::{Fsync, Update};
use waystage_transport::wire::Reader;

use super::{Trouble, Worker};
use crate::digest::{logical_digest, read_full, CHANGED_HERE};
use crate::entry::{Digests, Entry};
use crate::reception::{LargeIn, LargeState};

/// Parts whose digests go in one message: enough that messages are few, few enough that the sender soon has work.
const DIGESTS: u32 = 16;

impl Worker<'_> {
    /// The file that bears the name, open, where contents are to be compared. What cannot be read is sent.
    pub(super) fn compared(&self, found: &Statx, name: &[u8]) -> Option<OwnedFd> {
        if self.reception.options.update != Update::Content || self.reception.dry() {
            return None;
        }
        let (_, folder) = self.folder.as_ref()?;
        let file = open_file(folder.fd(), name, End::Destination).ok()?;
        let opened = look_at(file.as_fd()).ok()?;
        (Seen::of(&opened) == Seen::of(found)).then_some(file)
    }

    /// The digest of a small file that is there, where it could be alike.
    pub(super) fn digest_of(&self, file: &OwnedFd, entry: &Entry, found: &Seen) -> Option<u128> {
        let size = entry.seen.size;
        (found.size == size)
            .then(|| logical_digest(file.as_fd(), (0, size), End::Destination).ok())?
    }

    /// Tell the sender what is there of a large file, part by part, but for those that an earlier run has written.
    pub(super) fn tell_digests(&self, large: &LargeIn) -> Result<(), Trouble> {
        let Some(file) = &large.compared else { return Ok(()) };
        let held = large.lock().written.clone();
        let there = look_at(file.as_fd()).map_or(0, |stat| stat.stx_size);
        let known = |part| {
            let range = large.range(part);
            if range.1 > there || self.reception.copy_state.is_stopped() {
                return None;
            }
            logical_digest(file.as_fd(), range, End::Destination).ok()
        };
        for run in runs((0..large.parts()).filter(|part| !held.contains(*part))) {
            let first = run.start;
            let digests = run.map(|part| known(part).unwrap_or_default()).collect();
            let said = Digests { id: large.id, first, digests };
            self.channel.send(said.encode()).map_err(|error| Trouble::Lost(error.into()))?;
        }
        Ok(())
    }

    /// Small files whose contents the sender found alike.
    pub(super) fn alike(&mut self, reader: &mut Reader<'_>) -> Result<(), Trouble> {
        while !reader.is_empty() {
            let entry = self.read_entry(reader)?;
            let made = self.stands(&entry);
            self.said(&entry.path, made);
        }
        Ok(())
    }

    fn stands(&mut self, entry: &Entry) -> Result<(), Failure> {
        self.reception.may_be_made(&entry.path)?;
        let (directory, name) = self.reception.place(&entry.path);
        let folder = self.folder(directory)?;
        let file = match open_file(folder.fd(), name, End::Destination) {
            Err(Failure::Call { errno: Errno::NOENT, .. }) => return Err(CHANGED_HERE),
            other => other?,
        };
        self.attributes_of(entry, &file)
    }

    /// Its contents stand; make its attributes stand, too.
    fn attributes_of(&self, entry: &Entry, file: &OwnedFd) -> Result<(), Failure> {
        let reception = self.reception;
        let found = look_at(file.as_fd()).at(End::Destination, "look at")?;
        let (xattrs, about, not_taken) = reception.allowed(entry);
        let (mended, lost) =
            reception.keeper.mend_known(&xattrs, file.as_fd(), &about, &About::of(&found))?;
        let tally = &reception.copy_state.report.tally;
        add(if mended { &tally.mended } else { &tally.same }, 1);
        reception.lost(&entry.path, lost.or(not_taken));
        Ok(())
    }

    /// A part of a large file that the sender found alike.
    pub(super) fn alike_part(&mut self, reader: &mut Reader<'_>) -> Result<(), Trouble> {
        let (id, index, digest) = (reader.u32()?, reader.u32()?, reader.u128()?);
        reader.end()?;
        let Some(large) = self.reception.large(id) else { return Ok(()) };
        if index >= large.parts() || large.compared.is_none() {
            return Err(Trouble::Malformed);
        }
        let has_draft = {
            let mut state = large.lock();
            if state.over {
                return Ok(());
            }
            let before = state.alike.len();
            state.alike.insert(index, digest);
            let fits = self.reception.waiting.alike(before, state.alike.len());
            state.opened.is_some() || !fits
        };
        // Where nothing differs no draft is needed, so that until then it is only remembered.
        let made = if has_draft { self.take_over(&large) } else { Ok(()) };
        let made = made.and_then(|()| self.finish_large(&large));
        self.large_said(&large, made);
        Ok(())
    }

    /// Copy into the draft what is alike and not there yet.
    pub(super) fn take_over(&self, large: &LargeIn) -> Result<(), Failure> {
        loop {
            let (index, digest, opened) = {
                let mut state = large.lock();
                let Some((index, digest)) = state.alike.pop_first() else { return Ok(()) };
                self.reception.waiting.alike(1, 0);
                state.taking += 1;
                (index, digest, self.reception.opened(large, &mut state)?)
            };
            let taken = self.take_part(large, index, digest, opened.1.as_fd());
            let mut state = large.lock();
            state.taking -= 1;
            taken?;
            self.reception.wrote(&mut state, index)?;
        }
    }

    fn take_part(
        &self,
        large: &LargeIn,
        index: u32,
        digest: u128,
        draft: BorrowedFd<'_>,
    ) -> Result<(), Failure> {
        let Some(file) = &large.compared else { return Err(CHANGED_HERE) };
        let (start, end) = large.range(index);
        let mut bytes = vec![0; (end - start) as usize];
        read_full(file.as_fd(), start, &mut bytes, End::Destination)?;
        if XxHash3_128::oneshot(&bytes) != digest {
            return Err(CHANGED_HERE);
        }
        for_data(file.as_fd(), (start, end), true, |from, to| {
            write_all(draft, &bytes[(from - start) as usize..(to - start) as usize], from)
        })?;
        if self.reception.options.fsync == Fsync::Each {
            fdatasync(draft).at(End::Destination, "sync")?;
        }
        self.reception.record(&Record::Extent { id: large.id, index, digest: 0 })
    }

    /// Whether nothing of it differs, so that it can stay; its attributes are made to stand.
    pub(super) fn stands_whole(
        &self,
        large: &LargeIn,
        state: &LargeState,
        entry: &Entry,
    ) -> Result<bool, Failure> {
        let Some(file) = &large.compared else { return Ok(false) };
        if state.opened.is_some() || !state.written.is_empty() {
            return Ok(false);
        }
        let (directory, name) = self.reception.place(&entry.path);
        let seen = |stat: Statx| Seen::of(&stat);
        let held = look_at(file.as_fd()).map(seen).at(End::Destination, "look at")?;
        let folder = self.reception.destination.find(directory)?;
        let named = folder.and_then(|folder| look(folder.fd(), name).map(seen).ok());
        if held.size != entry.seen.size || named != Some(held) {
            return Ok(false);
        }
        self.attributes_of(entry, file).map(|()| true)
    }
}

/// Parts, in their order, as runs of neighbours that fit in a message each.
fn runs(parts: impl Iterator<Item = u32>) -> impl Iterator<Item = Range<u32>> {
    let mut parts = parts.peekable();
    std::iter::from_fn(move || {
        let first = parts.next()?;
        let mut end = first + 1;
        while end - first < DIGESTS && parts.next_if_eq(&end).is_some() {
            end += 1;
        }
        Some(first..end)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_message_is_of_parts_that_are_to_be_compared() {
        let held = [0, 5, 6, 30];
        let told: Vec<_> = runs((0..33).filter(|part| !held.contains(part))).collect();
        assert_eq!(told, [1..5, 7..23, 23..30, 31..33]);
        assert_eq!(runs(0..0).count(), 0);
    }
}
