//! Contents that came in: written to drafts, which get their names when they are whole.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use rustix::fs::{fdatasync, fsync, ftruncate};
use rustix::io::Errno;
use twox_hash::XxHash3_128;
use waystage_copy::journal::Record;
use waystage_copy::parts::{add, both, forget, write_all, At, Draft, End, Failure, Folder};
use waystage_copy::{Fsync, Verify};
use waystage_transport::message::CONTENT_BYTES;
use waystage_transport::wire::Reader;

use super::{Trouble, Worker};
use crate::entry::{piece_digest, read_runs, Entry, Runs};
use crate::reception::{LargeIn, LargeState};

impl Worker<'_> {
    pub(super) fn small(
        &mut self,
        entry: &Entry,
        digest: u128,
        runs: &Runs,
        contents: &[u8],
    ) -> Result<(), Failure> {
        let reception = self.reception;
        let options = reception.options;
        if entry.letter != b'f' || entry.seen.size > CONTENT_BYTES as u64 {
            return Err(Failure::Clash("is no small file"));
        }
        if XxHash3_128::oneshot(contents) != digest {
            return Err(Failure::Damaged);
        }
        if reception.dry() {
            reception.copy_state.add(piece_digest(&entry.path, 0, digest));
            reception.arrived(1, contents.len() as u64);
            return Ok(());
        }
        reception.may_be_made(&entry.path)?;
        let (directory, name) = reception.place(&entry.path);
        self.enter(directory)?;
        let (xattrs, about, not_taken) = reception.allowed(entry);
        let folder = self.folder(directory)?;
        let (mode, mode_is_final) = reception.keeper.first_mode(&about, folder.plain);
        let verified = options.verify != Verify::None;
        let draft = Draft::begin(folder.fd(), reception.session, mode, verified)
            .at(End::Destination, "make file")?;
        let mode_is_final = mode_is_final && draft.has_mode();
        if contents.len() as u64 != entry.seen.size {
            ftruncate(draft.fd(), entry.seen.size).at(End::Destination, "set size")?;
        }
        write_runs(draft.fd(), runs, contents)?;
        if verified {
            read_back(draft.fd(), runs, digest, options.verify)?;
            add(&reception.copy_state.report.tally.verified, 1);
        }
        let lost = reception.keeper.give_known(&xattrs, draft.fd(), &about, mode_is_final)?;
        let lost = both(lost, reception.keeper.times(draft.fd(), &about)?);
        if options.fsync == Fsync::Each {
            fdatasync(draft.fd()).at(End::Destination, "sync")?;
        }
        draft.keep(name).at(End::Destination, "give name")?;
        if options.fsync == Fsync::Each {
            // A name is as durable as the directory it is in.
            fsync(folder.fd()).at(End::Destination, "sync directory")?;
        }
        let tally = &reception.copy_state.report.tally;
        add(&tally.bytes, contents.len() as u64);
        add(&tally.files, 1);
        add(&tally.objects, 1);
        reception.copy_state.add(piece_digest(&entry.path, 0, digest));
        reception.lost(&entry.path, lost.or(not_taken));
        Ok(())
    }

    pub(super) fn part(&mut self, reader: &mut Reader<'_>) -> Result<(), Trouble> {
        let (id, index, digest) = (reader.u32()?, reader.u32()?, reader.u128()?);
        // Given up meanwhile: what was underway is of no use.
        let Some(large) = self.reception.large(id) else { return Ok(()) };
        if index >= large.parts() {
            return Err(Trouble::Malformed);
        }
        let (start, end) = large.range(index);
        let (runs, contents) = read_runs(reader, start..end)?;
        reader.end()?;
        let made = self.write_part(&large, index, digest, &runs, contents);
        self.large_said(&large, made);
        Ok(())
    }

    fn write_part(
        &mut self,
        large: &Arc<LargeIn>,
        index: u32,
        digest: u128,
        runs: &Runs,
        contents: &[u8],
    ) -> Result<(), Failure> {
        let reception = self.reception;
        let options = reception.options;
        if XxHash3_128::oneshot(contents) != digest {
            return Err(Failure::Damaged);
        }
        let opened = {
            let mut state = large.lock();
            if state.over {
                return Ok(());
            }
            if reception.dry() {
                drop(state);
                reception.arrived(0, contents.len() as u64);
                return self.part_is_there(large, index, digest);
            }
            reception.opened(large, &mut state)?
        };
        let draft = opened.1.as_fd();
        write_runs(draft, runs, contents)?;
        if options.verify != Verify::None {
            read_back(draft, runs, digest, options.verify)?;
        } else if options.fsync == Fsync::Each {
            fdatasync(draft).at(End::Destination, "sync")?;
        }
        reception.record(&Record::Extent { id: large.id, index, digest })?;
        let tally = &reception.copy_state.report.tally;
        add(&tally.bytes, contents.len() as u64);
        add(&tally.objects, 1);
        self.part_is_there(large, index, digest)
    }

    fn part_is_there(&mut self, large: &LargeIn, index: u32, digest: u128) -> Result<(), Failure> {
        let mut state = large.lock();
        let is_new = self.reception.wrote(&mut state, index)?;
        drop(state);
        if is_new {
            self.reception.copy_state.add(piece_digest(&large.entry.path, index, digest));
        }
        self.finish_large(large)
    }

    /// Give it its name, if all of it is there.
    pub(super) fn finish_large(&mut self, large: &LargeIn) -> Result<(), Failure> {
        let reception = self.reception;
        let (entry, opened) = {
            let mut state: parking_lot::MutexGuard<'_, LargeState> = large.lock();
            let there = state.written.len() + state.alike.len() as u64;
            let whole = there == u64::from(large.parts()) && state.taking == 0;
            if let Some(ticket) = state.shelved.filter(|_| whole && !state.over) {
                state.closed = Some(reception.unshelve(ticket)?);
                state.shelved = None;
            }
            let Some(entry) = state.closed.as_ref().filter(|_| whole && !state.over) else {
                return Ok(());
            };
            if !state.alike.is_empty() {
                if self.stands_whole(large, &state, entry)? {
                    state.over = true;
                    drop(state);
                    // No draft was made.
                    reception.forget(large);
                    return Ok(());
                }
                drop(state);
                self.take_over(large)?;
                return self.finish_large(large);
            }
            state.over = true;
            if reception.dry() {
                drop(state);
                reception.forget(large);
                reception.arrived(1, 0);
                return Ok(());
            }
            let opened = reception.opened(large, &mut state)?;
            let Some(entry) = state.closed.take() else { return Ok(()) };
            // Its descriptor is no longer kept open once this is done.
            state.opened = None;
            (entry, opened)
        };
        let (folder, draft): &(Folder, OwnedFd) = &opened;
        let (xattrs, about, not_taken) = reception.allowed(&entry);
        let lost = reception.keeper.give_known(&xattrs, draft.as_fd(), &about, false)?;
        let lost = both(lost, reception.keeper.times(draft.as_fd(), &about)?);
        if reception.options.fsync == Fsync::Each {
            fdatasync(draft).at(End::Destination, "sync")?;
        }
        reception.name_large(large, folder)?;
        let tally = &reception.copy_state.report.tally;
        add(&tally.files, 1);
        if reception.options.verify != Verify::None {
            add(&tally.verified, 1);
        }
        reception.lost(&entry.path, lost.or(not_taken));
        Ok(())
    }

    pub(super) fn large_said(&self, large: &LargeIn, result: Result<(), Failure>) {
        let Err(failure) = result else { return };
        // A copy that was stopped, or has no room, goes on with the draft.
        if failure != Failure::Stopped && failure.fatal().is_none() {
            large.lock().over = true;
            self.reception.give_up(large);
        }
        self.reception.copy_state.failed(&large.entry.path, &failure);
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
fn read_back(file: BorrowedFd<'_>, runs: &Runs, digest: u128, how: Verify) -> Result<(), Failure> {
    if how == Verify::Storage {
        forget(file)?;
    }
    let mut hasher = XxHash3_128::new();
    let mut buffer = vec![0; 256 << 10];
    for (offset, length) in runs {
        let (mut at, end) = (*offset, offset + length);
        while at < end {
            let most = buffer.len().min((end - at) as usize);
            match rustix::io::pread(file, &mut buffer[..most], at) {
                Ok(0) => return Err(Failure::Damaged),
                Ok(count) => {
                    hasher.write(&buffer[..count]);
                    at += count as u64;
                }
                Err(Errno::INTR) => {}
                Err(errno) => return Err(errno).at(End::Destination, "read back"),
            }
        }
    }
    if hasher.finish_128() == digest {
        Ok(())
    } else {
        Err(Failure::Damaged)
    }
}
