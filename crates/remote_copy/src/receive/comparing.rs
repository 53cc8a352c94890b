//! Files of the destination that are compared: the sender gets their digests, and sends what has another one.
//!
//! Arrives: files that have the names of wanted ones, what the sender found equal. Leaves: digests; files that stay, or
//! temporary files with their equal parts. Must not know: how messages travel.

use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::fs::{fdatasync, Statx};
use rustix::io::Errno;
use twox_hash::XxHash3_128;
use waystage_copy::attributes::Attributes;
use waystage_copy::error::{At, End, Failure};
use waystage_copy::file_io::{
    for_data, logical_digest, open_file, read_full, write_all, CHANGED_HERE,
};
use waystage_copy::sink::journal::Record;
use waystage_copy::stat::{stat_at, stat_fd, FileState, Metadata};
use waystage_copy::{add, Fsync};
use waystage_transport::wire::Reader;

use super::{MessageError, Worker};
use crate::entry::{Digests, Entry};
use crate::receiver_state::{IncomingFile, IncomingState};

/// Parts whose digests go in one message: enough that messages are few, few enough that the sender soon has work.
const DIGESTS: u32 = 16;

impl Worker<'_> {
    /// The file that has the name, open, to be compared. What cannot be read is sent.
    pub(super) fn compared(&self, found: &FileState, name: &[u8]) -> Option<OwnedFd> {
        if self.receiver.is_dry() {
            return None;
        }
        let (_, folder) = self.folder.as_ref()?;
        let file = open_file(folder.fd(), name, End::Destination).ok()?;
        let opened = stat_fd(file.as_fd()).ok()?;
        (FileState::of(&opened) == *found).then_some(file)
    }

    /// Send the digests of a large file, part by part, but for those parts that an earlier run has written.
    pub(super) fn send_digests(&self, large: &IncomingFile) -> Result<(), MessageError> {
        let Some(file) = &large.compared else { return Ok(()) };
        let held = large.state.lock().written.clone();
        let there = stat_fd(file.as_fd()).map_or(0, |stat| stat.stx_size);
        let known = |part| {
            let range = large.range(part);
            if range.1 > there || self.receiver.copy_state.is_stopped() {
                return None;
            }
            logical_digest(file.as_fd(), range, End::Destination).ok()
        };
        for run in runs((0..large.parts()).filter(|part| !held.contains(*part))) {
            let first = run.start;
            let digests = run.map(|part| known(part).unwrap_or_default()).collect();
            let said = Digests { id: large.file.id, first, digests };
            self.channel.send(said.encode()).map_err(MessageError::Lost)?;
        }
        Ok(())
    }

    /// Small files whose contents the sender found equal.
    pub(super) fn equal(&mut self, reader: &mut Reader<'_>) -> Result<(), MessageError> {
        while !reader.is_empty() {
            let entry = self.read_entry(reader)?;
            let fixed = self.fix_attributes_of(&entry);
            self.report(&entry.path, fixed);
        }
        Ok(())
    }

    fn fix_attributes_of(&mut self, entry: &Entry) -> Result<(), Failure> {
        self.receiver.sink.may_be_made(&entry.path)?;
        let (directory, name) = self.receiver.sink.place(&entry.path);
        let folder = self.folder(directory)?;
        let file = match open_file(folder.fd(), name, End::Destination) {
            Err(Failure::Call { errno: Errno::NOENT, .. }) => return Err(CHANGED_HERE),
            other => other?,
        };
        self.fix_attributes(entry, &file)
    }

    /// Its contents are right; fix its attributes.
    fn fix_attributes(&self, entry: &Entry, file: &OwnedFd) -> Result<(), Failure> {
        let receiver = self.receiver;
        let found = stat_fd(file.as_fd()).at(End::Destination, "stat")?;
        let (xattrs, metadata, not_taken) = receiver.allowed(entry);
        let (preserver, from) = (&receiver.sink.preserver, Attributes::Known(&xattrs));
        let found = Metadata::of(&found);
        let (fixed, lost) = preserver.repair(&from, file.as_fd(), &metadata, &found)?;
        let tally = &receiver.copy_state.report.tally;
        add(if fixed { &tally.mended } else { &tally.same }, 1);
        receiver.copy_state.lost(&entry.path, lost.or(not_taken));
        Ok(())
    }

    /// A part of a large file that the sender found equal.
    pub(super) fn equal_part(&mut self, reader: &mut Reader<'_>) -> Result<(), MessageError> {
        let (id, index, digest) = (reader.u32()?, reader.u32()?, reader.u128()?);
        reader.end()?;
        let Some(large) = self.receiver.large(id) else { return Ok(()) };
        if index >= large.parts() || large.compared.is_none() {
            return Err(MessageError::Malformed);
        }
        let is_opened = {
            let mut state = large.state.lock();
            if state.over {
                return Ok(());
            }
            let before = state.equal.len();
            state.equal.insert(index, digest);
            let fits = self.receiver.limits.alike(before, state.equal.len());
            state.opened.is_some() || !fits
        };
        // Where nothing differs no temporary file is needed, so that until then it is only remembered.
        let made = if is_opened { self.copy_equal_parts(&large) } else { Ok(()) };
        let made = made.and_then(|()| self.finish_large(&large));
        self.report_large(&large, made);
        Ok(())
    }

    /// Copy equal parts into the temporary file.
    pub(super) fn copy_equal_parts(&self, large: &IncomingFile) -> Result<(), Failure> {
        loop {
            let (index, digest, opened) = {
                let mut state = large.state.lock();
                let Some((index, digest)) = state.equal.pop_first() else { return Ok(()) };
                self.receiver.limits.alike(1, 0);
                state.copying += 1;
                (index, digest, self.receiver.opened(large, &mut state)?)
            };
            let copied = self.copy_equal_part(large, index, digest, opened.1.as_fd());
            let mut state = large.state.lock();
            state.copying -= 1;
            copied?;
            self.receiver.wrote(&mut state, index)?;
        }
    }

    fn copy_equal_part(
        &self,
        large: &IncomingFile,
        index: u32,
        digest: u128,
        file: BorrowedFd<'_>,
    ) -> Result<(), Failure> {
        let Some(compared) = &large.compared else { return Err(CHANGED_HERE) };
        let (start, end) = large.range(index);
        let mut bytes = vec![0; (end - start) as usize];
        read_full(compared.as_fd(), start, &mut bytes, End::Destination)?;
        if XxHash3_128::oneshot(&bytes) != digest {
            return Err(CHANGED_HERE);
        }
        for_data(compared.as_fd(), (start, end), true, |from, to| {
            write_all(file, &bytes[(from - start) as usize..(to - start) as usize], from)
        })?;
        if self.receiver.options.fsync == Fsync::Each {
            fdatasync(file).at(End::Destination, "sync")?;
        }
        self.receiver.sink.record(&Record::Extent { id: large.file.id, index, digest: 0 })
    }

    /// Whether nothing of it differs, so that it can stay; its attributes are fixed then.
    pub(super) fn is_unchanged(
        &self,
        large: &IncomingFile,
        state: &IncomingState,
        entry: &Entry,
    ) -> Result<bool, Failure> {
        let Some(file) = &large.compared else { return Ok(false) };
        if state.opened.is_some() || !state.written.is_empty() {
            return Ok(false);
        }
        let (directory, name) = self.receiver.sink.place(&entry.path);
        let seen = |stat: Statx| FileState::of(&stat);
        let held = stat_fd(file.as_fd()).map(seen).at(End::Destination, "stat")?;
        let folder = self.receiver.sink.destination.find(directory)?;
        let named = folder.and_then(|folder| stat_at(folder.fd(), name).map(seen).ok());
        if held.size != entry.seen.size || named != Some(held) {
            return Ok(false);
        }
        self.fix_attributes(entry, file).map(|()| true)
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
        let sent: Vec<_> = runs((0..33).filter(|part| !held.contains(part))).collect();
        assert_eq!(sent, [1..5, 7..23, 23..30, 31..33]);
        assert_eq!(runs(0..0).count(), 0);
    }
}
