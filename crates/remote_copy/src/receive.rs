//! The receiving side of a copy: answers what it wants, and makes what comes.
//!
//! Arrives: offers, packs, parts, in any order. Leaves: answers; files that have their names only when complete.
//! Must not know: which side of the connection this is, how messages travel.

mod comparing;
mod filling;
mod making;

use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::Ordering;
use std::sync::Arc;

use crate::error::{protocol_violation, WanError};
use parking_lot::{Condvar, Mutex};
use waystage_copy::error::{End, Failure};
use waystage_copy::file_io::logical_digest;
use waystage_copy::plan::{Action, Found, Transfer};
use waystage_copy::sink::{Folder, Sink};
use waystage_copy::stat::Metadata;
use waystage_copy::{add, CopyError};
use waystage_pacing::{during, Cause};
use waystage_transport::message::CONTENT_BYTES;
use waystage_transport::wire::{Malformed, Reader, Writer};

use crate::channel::Channel;
use crate::compression::read_compressed;
use crate::copy_state::CopyState;
use crate::entry::{kinds, path, read_runs, Answer, Entry, Wanted};
use crate::receiver_state::{IncomingFile, ReceiverState, Target};
use crate::session::CopyOptions;

/// Attributes of a large file that wait in memory for its parts; longer ones are kept on storage.
const FEW_XATTR_BYTES: usize = 4 << 10;

/// Parts that earlier runs wrote, of files of one offer: what an answer names beside them fits into the same message.
const MOST_HELD: u64 = CONTENT_BYTES as u64 / 4;

/// What the sender says at the end.
struct Done {
    messages: u64,
    sum: u128,
    /// Entries that it could not send, or not to their end.
    problems: u64,
    root: Option<Entry>,
}

/// Why a message was not dealt with.
enum MessageError {
    /// It is malformed, or does not belong here.
    Malformed,
    /// It is of an entry that was not asked for: its path.
    Unasked(Vec<u8>),
    /// The connection is gone.
    Lost(WanError),
}

impl From<MessageError> for WanError {
    fn from(error: MessageError) -> Self {
        match error {
            MessageError::Lost(error) => error,
            MessageError::Unasked(path) => Self::lost(format!(
                "the peer broke the protocol: it sends \"{}\", which was not asked for",
                String::from_utf8_lossy(&path).escape_debug()
            )),
            MessageError::Malformed => protocol_violation(),
        }
    }
}

fn aside(error: &std::io::Error) -> MessageError {
    MessageError::Lost(WanError::io("lay aside what the peer offers", error))
}

impl From<Malformed> for MessageError {
    fn from(_: Malformed) -> Self {
        Self::Malformed
    }
}

/// Receive until the sender is done and everything is complete.
pub(crate) fn receive(
    target: &Target<'_>,
    options: &CopyOptions,
    channel: &dyn Channel,
    copy_state: &CopyState,
    workers: usize,
) -> Result<(), WanError> {
    let receiver = ReceiverState::open(target, options, copy_state, channel.memory_bytes())?;
    let received = receive_all(&receiver, channel, workers);
    add(&copy_state.report.tally.directories, receiver.sink.destination.made());
    received
}

/// What the workers tell the thread that waits for them.
#[derive(Default)]
struct Progress {
    done: Option<Done>,
    /// A worker has ended: the copy is stopped, or the channel has ended.
    has_ended: bool,
}

fn receive_all(
    receiver: &ReceiverState<'_>,
    channel: &dyn Channel,
    workers: usize,
) -> Result<(), WanError> {
    let copy_state = receiver.copy_state;
    let progress: (Mutex<Progress>, Condvar) = Default::default();
    let end = std::thread::scope(|scope| {
        for number in 0..workers.max(1) {
            let progress = &progress;
            scope.spawn(move || {
                let worker = Worker {
                    number,
                    receiver,
                    channel,
                    entered: None,
                    folder: None,
                    most_held: 0,
                    whole: Vec::new(),
                };
                worker.run(progress);
                progress.0.lock().has_ended = true;
                progress.1.notify_all();
            });
        }
        let mut held = progress.0.lock();
        progress.1.wait_while(&mut held, |progress| {
            let handled = || receiver.handled.load(Ordering::SeqCst);
            !progress.has_ended
                && progress.done.as_ref().is_none_or(|done| done.messages != handled())
        });
        let (stopped, done) = (copy_state.is_stopped(), held.done.take());
        drop(held);
        // Also what ends the workers.
        copy_state.stop();
        channel.interrupt();
        done.filter(|_| !stopped).ok_or_else(|| copy_state.verdict())
    })?;
    if end.sum != copy_state.sum() {
        // Each piece was checked by itself: this is for pieces that never came, or came twice.
        let counts = copy_state.report.tally.read();
        if end.problems + counts.errors + counts.changed == 0 {
            let text = "sender and receiver digests differ: give the same command with --restart";
            return Err(CopyError::Failed(text.to_owned()).into());
        }
    }
    copy_state.next_phase();
    receiver.finish(end.root.as_ref())
}

struct Worker<'a> {
    number: usize,
    receiver: &'a ReceiverState<'a>,
    channel: &'a dyn Channel,
    /// The directory in which this worker's temporary file may be, as the journal has it.
    entered: Option<Vec<u8>>,
    /// The last directory, open.
    folder: Option<(Vec<u8>, Folder)>,
    /// Parts that earlier runs wrote that the answer to this offer can still name.
    most_held: u64,
    /// Memory of a message that came compressed.
    whole: Vec<u8>,
}

impl Worker<'_> {
    fn run(mut self, progress: &(Mutex<Progress>, Condvar)) {
        let state = self.receiver.copy_state;
        let _attached = state.pace.meter.attach();
        while !state.is_stopped() {
            let taken = match during(Cause::Network, || self.channel.receive(state)) {
                Ok(Some(message)) => {
                    let made = during(Cause::Destination, || self.message(&message));
                    made.map(|done| Some((message, done)))
                }
                Ok(None) => Ok(None),
                Err(error) => Err(MessageError::Lost(error)),
            };
            match taken.and_then(|taken| self.offers_laid_aside().map(|()| taken)) {
                Ok(None) => {}
                Ok(Some((message, done))) => {
                    self.channel.done(message);
                    let mut held = progress.0.lock();
                    match done {
                        Some(done) => held.done = Some(done),
                        None => {
                            self.receiver.handled.fetch_add(1, Ordering::SeqCst);
                        }
                    }
                    if held.done.is_some() {
                        progress.1.notify_all();
                    }
                }
                Err(error) => return state.end_for(error.into()),
            }
        }
    }

    fn message(&mut self, message: &[u8]) -> Result<Option<Done>, MessageError> {
        let mut reader = Reader(message);
        match reader.u8()? {
            kinds::OFFER if self.receiver.limits.is_full() => {
                if !self.receiver.limits.lay_aside(reader.0).map_err(|error| aside(&error))? {
                    return Err(MessageError::Malformed);
                }
            }
            kinds::OFFER => self.offer(&mut reader)?,
            kinds::PACK => {
                while !reader.is_empty() {
                    let entry = self.read_entry(&mut reader)?;
                    let digest = reader.u128()?;
                    let (runs, contents) = read_runs(&mut reader, 0..entry.seen.size)?;
                    let made = self.small(&entry, digest, &runs, contents);
                    self.report(&entry.path, made);
                }
            }
            kinds::PART => self.part(&mut reader)?,
            kinds::COMPRESSED => {
                let mut whole = std::mem::take(&mut self.whole);
                read_compressed(reader, &mut whole)?;
                let done = self.message(&whole);
                self.whole = whole;
                return done;
            }
            kinds::EQUAL => self.equal(&mut reader)?,
            kinds::EQUAL_PART => self.equal_part(&mut reader)?,
            kinds::CLOSE => {
                let large = self.receiver.large(reader.u32()?);
                let entry = Entry::read(&mut reader)?;
                reader.end()?;
                if let Some(large) = large {
                    if entry.seen != large.entry.seen || entry.path != large.entry.path {
                        return Err(MessageError::Malformed);
                    }
                    let closed = self.close(&large, entry).and_then(|()| self.finish_large(&large));
                    self.report_large(&large, closed);
                }
            }
            kinds::ABORT => {
                if let Some(large) = self.receiver.large(reader.u32()?) {
                    self.receiver.abandon(&large);
                }
            }
            kinds::LINKS => {
                let first = path(reader.bytes()?)?;
                self.asked_for(b'f', &first)?;
                for _ in 0..reader.count(4)? {
                    let other = path(reader.bytes()?)?;
                    self.asked_for(b'f', &other)?;
                    let kept = self.receiver.remember_link(first.clone(), other.clone());
                    self.report(&other, kept);
                }
            }
            kinds::DONE => {
                let (messages, sum, problems) = (reader.u64()?, reader.u128()?, reader.u64()?);
                let root = if reader.flag()? { Some(Entry::read(&mut reader)?) } else { None };
                // The message that says so is one of those it counts.
                return Ok(Some(Done { messages, sum, problems, root }));
            }
            _ => return Err(MessageError::Malformed),
        }
        Ok(None)
    }

    /// An entry, if it was asked for.
    fn read_entry(&self, reader: &mut Reader<'_>) -> Result<Entry, MessageError> {
        let entry = Entry::read(reader)?;
        self.asked_for(entry.letter, &entry.path)?;
        Ok(entry)
    }

    fn asked_for(&self, letter: u8, path: &[u8]) -> Result<(), MessageError> {
        if self.receiver.target.filter.allows(letter, path) {
            Ok(())
        } else {
            Err(MessageError::Unasked(path.to_vec()))
        }
    }

    /// Go on with offers that had to wait, if they need no longer.
    fn offers_laid_aside(&mut self) -> Result<(), MessageError> {
        while let Some(offer) = self.receiver.limits.next_offer().map_err(|error| aside(&error))? {
            self.offer(&mut Reader(&offer))?;
        }
        Ok(())
    }

    /// All parts of it were sent: its attributes wait until all are there.
    fn close(&self, large: &IncomingFile, entry: Entry) -> Result<(), Failure> {
        let mut state = large.state.lock();
        let bytes: usize = entry.xattrs.iter().map(|(name, value)| name.len() + value.len()).sum();
        if bytes <= FEW_XATTR_BYTES {
            state.closed = Some(entry);
            return Ok(());
        }
        let mut out = Writer::default();
        entry.put(&mut out);
        state.spilled = Some(self.receiver.spill(&out.0)?);
        Ok(())
    }

    fn report(&self, path: &[u8], result: Result<(), Failure>) {
        if let Err(failure) = result {
            self.receiver.copy_state.failed(path, &failure);
        }
    }

    fn offer(&mut self, reader: &mut Reader<'_>) -> Result<(), MessageError> {
        let mut answer = Answer { batch: reader.u32()?, ..Answer::default() };
        let count = reader.u32()?;
        let mut compared = Vec::new();
        self.most_held = MOST_HELD;
        for index in 0..count {
            let entry = self.read_entry(reader)?;
            let path = entry.path.clone();
            match self.entry(entry) {
                Ok(Requested::Nothing) => {}
                Ok(Requested::Small | Requested::Planned) => answer.small.push(index),
                Ok(Requested::Compare(digest)) => answer.compared.push((index, digest)),
                Ok(Requested::Large(large)) => {
                    let held = large.state.lock().written.iter().collect();
                    let is_compared = large.compared.is_some();
                    answer.large.push(Wanted {
                        index,
                        id: large.file.id,
                        held,
                        compared: is_compared,
                    });
                    compared.extend(is_compared.then_some(large));
                }
                Err(failure) => self.receiver.copy_state.failed(&path, &failure),
            }
        }
        reader.end()?;
        self.channel.send_urgent(answer.encode()).map_err(MessageError::Lost)?;
        compared.iter().try_for_each(|large| self.send_digests(large))
    }

    /// Make what is complete in the offer itself; for a file, plan whether its contents are wanted.
    fn entry(&mut self, entry: Entry) -> Result<Requested, Failure> {
        let receiver = self.receiver;
        receiver.count_owner(&entry);
        receiver.sink.may_be_made(&entry.path)?;
        if receiver.target.rename.is_some() && entry.letter != b'f' {
            return Err(Failure::Clash("is no regular file"));
        }
        if let Some(why) = receiver.target.privileges.refuses_device(entry.letter) {
            return Err(Failure::Clash(why));
        }
        let (directory, name) = receiver.sink.place(&entry.path);
        let found = self.found(directory, name)?;
        let there = found.as_ref().map(|(found, _)| found);
        match receiver.plan(&entry, there, self.most_held) {
            Action::Conflict(failure) => Err(failure),
            Action::Same => {
                add(&receiver.copy_state.report.tally.same, 1);
                Ok(Requested::Nothing)
            }
            Action::MakeDirectory => self.make_directory(&entry).map(|()| Requested::Nothing),
            Action::FixAttributes if entry.letter == b'd' => {
                self.remember_directory(&entry).map(|()| Requested::Nothing)
            }
            Action::FixAttributes if receiver.is_dry() && entry.letter != b'f' => {
                Ok(Requested::Nothing)
            }
            Action::FixAttributes => {
                if let Some((_, found)) = &found {
                    self.fix(&entry, directory, name, found)?;
                }
                Ok(Requested::Nothing)
            }
            Action::MakeSymlink | Action::MakeSpecial => {
                if receiver.only_planned(&entry) {
                    return Ok(Requested::Planned);
                }
                self.make_special(&entry, directory, name)?;
                Ok(Requested::Nothing)
            }
            Action::Compare(transfer) => {
                let seen = there.map(|found| found.seen);
                let compared = seen.and_then(|seen| self.compared(&seen, name));
                receiver.only_planned(&entry);
                match (transfer, compared) {
                    (Transfer::Small, Some(file)) => {
                        let range = (0, entry.seen.size);
                        let digest = logical_digest(file.as_fd(), range, End::Destination);
                        Ok(digest.map_or(Requested::Small, Requested::Compare))
                    }
                    (transfer, compared) => self.transfer(entry, transfer, compared),
                }
            }
            Action::Copy(transfer) => {
                receiver.only_planned(&entry);
                self.transfer(entry, transfer, None)
            }
        }
    }

    fn transfer(
        &mut self,
        entry: Entry,
        transfer: Transfer,
        compared: Option<OwnedFd>,
    ) -> Result<Requested, Failure> {
        match transfer {
            Transfer::Small => Ok(Requested::Small),
            Transfer::Large { missing, resume } => {
                let planned = (missing, resume);
                let large = self.receiver.expect(entry, compared, planned, &mut self.most_held)?;
                Ok(Requested::Large(large))
            }
        }
    }

    /// What has the name, if its directory is there and something has.
    fn found(
        &mut self,
        directory: &[u8],
        name: &[u8],
    ) -> Result<Option<(Found, Metadata)>, Failure> {
        if self.folder.as_ref().is_none_or(|(path, _)| path != directory) {
            match self.receiver.sink.destination.find(directory)? {
                Some(folder) => self.folder = Some((directory.to_vec(), folder)),
                None => return Ok(None),
            }
        }
        let Some((_, folder)) = &self.folder else { return Ok(None) };
        Sink::found(folder, name)
    }

    /// The directory, open, and made where it is not there.
    fn folder(&mut self, directory: &[u8]) -> Result<&Folder, Failure> {
        if self.folder.as_ref().is_none_or(|(path, _)| path != directory) {
            let report = &self.receiver.copy_state.report;
            let folder = self.receiver.sink.destination.make(directory, report)?;
            self.folder = Some((directory.to_vec(), folder));
        }
        self.folder.as_ref().map(|(_, folder)| folder).ok_or(Failure::Stopped)
    }

    fn enter(&mut self, directory: &[u8]) -> Result<(), Failure> {
        self.receiver.sink.enter(&mut self.entered, self.number, directory)
    }
}

/// What an entry of an offer needs further.
enum Requested {
    Nothing,
    /// It would be made; this is a dry run.
    Planned,
    Small,
    /// Unless this is its digest.
    Compare(u128),
    Large(Arc<IncomingFile>),
}

#[cfg(test)]
mod tests;
