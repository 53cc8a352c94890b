//! Contents that were received: written to files that get their names when they are complete.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use rustix::fs::{fdatasync, ftruncate};
use twox_hash::XxHash3_128;
use waystage_copy::attributes::Attributes;
use waystage_copy::error::{At, End, Failure};
use waystage_copy::file_io::{forget, read_back, write_all};
use waystage_copy::sink::journal::Record;
use waystage_copy::sink::Folder;
use waystage_copy::{add, Fsync, Verify};
use waystage_transport::message::CONTENT_BYTES;
use waystage_transport::wire::Reader;

use super::{MessageError, Worker};
use crate::entry::{piece_digest, read_runs, Entry, Runs};
use crate::receiver_state::IncomingFile;

impl Worker<'_> {
    pub(super) fn small(
        &mut self,
        entry: &Entry,
        digest: u128,
        runs: &Runs,
        contents: &[u8],
    ) -> Result<(), Failure> {
        let receiver = self.receiver;
        let (options, sink, state) = (receiver.options, &receiver.sink, receiver.copy_state);
        if entry.letter != b'f' || entry.seen.size > CONTENT_BYTES as u64 {
            return Err(Failure::Clash("is no small file"));
        }
        if XxHash3_128::oneshot(contents) != digest {
            return Err(Failure::Damaged);
        }
        if receiver.is_dry() {
            state.add(piece_digest(&entry.path, 0, digest));
            receiver.arrived(1, contents.len() as u64);
            return Ok(());
        }
        sink.may_be_made(&entry.path)?;
        let (directory, name) = sink.place(&entry.path);
        self.enter(directory)?;
        let (xattrs, metadata, not_taken) = receiver.allowed(entry);
        let folder = self.folder(directory)?;
        let verified = options.verify != Verify::None;
        let file = sink.new_file(folder, &metadata, verified)?;
        if contents.len() as u64 != entry.seen.size {
            ftruncate(file.fd(), entry.seen.size).at(End::Destination, "set size")?;
        }
        write_runs(file.fd(), runs, contents)?;
        if verified {
            check(file.fd(), runs, digest, options.verify)?;
            add(&state.report.tally.verified, 1);
        }
        receiver.keep(folder, directory, name)?;
        let lost = file.finish(name, &Attributes::Known(&xattrs), &metadata)?;
        sink.sync_names(folder)?;
        let tally = &state.report.tally;
        add(&tally.bytes, contents.len() as u64);
        add(&tally.files, 1);
        add(&tally.objects, 1);
        state.add(piece_digest(&entry.path, 0, digest));
        state.lost(&entry.path, lost.or(not_taken));
        Ok(())
    }

    pub(super) fn part(&mut self, reader: &mut Reader<'_>) -> Result<(), MessageError> {
        let (id, index, digest) = (reader.u32()?, reader.u32()?, reader.u128()?);
        // Abandoned meanwhile: what was in flight is of no use.
        let Some(large) = self.receiver.large(id) else { return Ok(()) };
        if index >= large.parts() {
            return Err(MessageError::Malformed);
        }
        let (start, end) = large.range(index);
        let (runs, contents) = read_runs(reader, start..end)?;
        reader.end()?;
        let made = self.write_part(&large, index, digest, &runs, contents);
        self.report_large(&large, made);
        Ok(())
    }

    fn write_part(
        &mut self,
        large: &Arc<IncomingFile>,
        index: u32,
        digest: u128,
        runs: &Runs,
        contents: &[u8],
    ) -> Result<(), Failure> {
        let receiver = self.receiver;
        let options = receiver.options;
        if XxHash3_128::oneshot(contents) != digest {
            return Err(Failure::Damaged);
        }
        let opened = {
            let mut state = large.state.lock();
            if state.over {
                return Ok(());
            }
            if receiver.is_dry() {
                drop(state);
                receiver.arrived(0, contents.len() as u64);
                return self.part_is_there(large, index, digest);
            }
            receiver.opened(large, &mut state)?
        };
        let file = opened.1.as_fd();
        write_runs(file, runs, contents)?;
        if options.verify != Verify::None {
            check(file, runs, digest, options.verify)?;
        } else if options.fsync == Fsync::Each {
            fdatasync(file).at(End::Destination, "sync")?;
        }
        receiver.sink.record(&Record::Extent { id: large.file.id, index, digest })?;
        let tally = &receiver.copy_state.report.tally;
        add(&tally.bytes, contents.len() as u64);
        add(&tally.objects, 1);
        self.part_is_there(large, index, digest)
    }

    fn part_is_there(
        &mut self,
        large: &IncomingFile,
        index: u32,
        digest: u128,
    ) -> Result<(), Failure> {
        let is_new = self.receiver.wrote(&mut large.state.lock(), index)?;
        if is_new {
            self.receiver.copy_state.add(piece_digest(&large.entry.path, index, digest));
        }
        self.finish_large(large)
    }

    /// Give it its name, if it is complete.
    pub(super) fn finish_large(&mut self, large: &IncomingFile) -> Result<(), Failure> {
        let receiver = self.receiver;
        let (entry, opened) = {
            let mut state = large.state.lock();
            let there = state.written.len() + state.equal.len() as u64;
            let is_complete = there == u64::from(large.parts()) && state.copying == 0;
            if let Some(range) = state.spilled.filter(|_| is_complete && !state.over) {
                state.closed = Some(receiver.unspill(range)?);
                state.spilled = None;
            }
            let Some(entry) = state.closed.as_ref().filter(|_| is_complete && !state.over) else {
                return Ok(());
            };
            if !state.equal.is_empty() {
                if self.is_unchanged(large, &state, entry)? {
                    state.over = true;
                    drop(state);
                    // No temporary file was made.
                    receiver.forget(large);
                    return Ok(());
                }
                drop(state);
                self.copy_equal_parts(large)?;
                return self.finish_large(large);
            }
            state.over = true;
            if receiver.is_dry() {
                drop(state);
                receiver.forget(large);
                receiver.arrived(1, 0);
                return Ok(());
            }
            let opened = receiver.opened(large, &mut state)?;
            let Some(entry) = state.closed.take() else { return Ok(()) };
            // Its descriptor is no longer kept open once this is done.
            state.opened = None;
            (entry, opened)
        };
        let (folder, file): &(Folder, OwnedFd) = &opened;
        let (xattrs, metadata, not_taken) = receiver.allowed(&entry);
        let attributes = Attributes::Known(&xattrs);
        let lost = receiver.sink.complete(file.as_fd(), &attributes, &metadata, false)?;
        let (directory, name) = receiver.sink.place(&entry.path);
        if receiver.backup.is_some() {
            self.enter(directory)?;
        }
        receiver.keep(folder, directory, name)?;
        receiver.sink.name_large(&large.file, folder)?;
        receiver.forget(large);
        let tally = &receiver.copy_state.report.tally;
        add(&tally.files, 1);
        if receiver.options.verify != Verify::None {
            add(&tally.verified, 1);
        }
        receiver.copy_state.lost(&entry.path, lost.or(not_taken));
        Ok(())
    }

    pub(super) fn report_large(&self, large: &IncomingFile, result: Result<(), Failure>) {
        let Err(failure) = result else { return };
        if !failure.is_resumable() {
            self.receiver.abandon(large);
        }
        self.receiver.copy_state.failed(&large.entry.path, &failure);
    }
}

fn write_runs(to: BorrowedFd<'_>, runs: &Runs, mut contents: &[u8]) -> Result<(), Failure> {
    for (offset, length) in runs {
        let (run, rest) = contents.split_at(*length as usize);
        write_all(to, run, *offset)?;
        contents = rest;
    }
    Ok(())
}

/// Whether what was written can be read again.
fn check(file: BorrowedFd<'_>, runs: &Runs, digest: u128, how: Verify) -> Result<(), Failure> {
    if how == Verify::Storage {
        forget(file)?;
    }
    read_back(file, runs.iter().map(|(offset, length)| (*offset, offset + length)), digest)
}
