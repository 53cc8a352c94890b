//! The receiving end of a copy: says what it wants, and makes what comes.
//!
//! Arrives: offers, packs, parts, in any order. Leaves: answers; files under their names only when whole.
//! Must not know: which end of the connection this is, how messages travel.

mod comparing;
mod filling;
mod placing;

use std::os::fd::AsFd;
use std::sync::atomic::Ordering;
use std::sync::Arc;
use std::time::Duration;

use crate::error::{WanError, WanErrorKind};
use parking_lot::{Condvar, Mutex};
use rustix::fs::{openat, Mode, OFlags};
use rustix::io::Errno;
use waystage_copy::journal::Record;
use waystage_copy::parts::{add, letter, look, About, At, End, Failure, Folder, Seen, NO_ROOM};
use waystage_copy::Update;
use waystage_transport::channel::Channel;
use waystage_transport::message::CONTENT_BYTES;
use waystage_transport::wire::{Malformed, Reader, Writer};

use crate::copy_state::CopyState;
use crate::entry::{kinds, path, read_runs, Answer, Entry, Wanted};
use crate::reception::{LargeIn, Reception, Target};
use crate::session::CopyOptions;

/// Threads that wait for messages look so often whether the copy is over.
const LOOK_ROUND: Duration = Duration::from_millis(25);

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
enum Trouble {
    /// It makes no sense: the other end is wrong.
    Malformed,
    /// It is of an entry that was not asked for: its path.
    Unasked(Vec<u8>),
    /// The connection is gone.
    Lost(WanError),
}

impl From<Trouble> for WanError {
    fn from(trouble: Trouble) -> Self {
        match trouble {
            Trouble::Lost(error) => error,
            Trouble::Unasked(path) => Self::lost(format!(
                "the other end broke the protocol: it sends \"{}\", which was not asked for",
                String::from_utf8_lossy(&path).escape_debug()
            )),
            Trouble::Malformed => {
                Self::lost("the other end broke the protocol: a message cannot be read")
            }
        }
    }
}

fn aside(error: &std::io::Error) -> Trouble {
    Trouble::Lost(WanError::io("lay aside what the other end offers", error))
}

impl From<Malformed> for Trouble {
    fn from(_: Malformed) -> Self {
        Self::Malformed
    }
}

/// Receive until the sender is done and everything stands.
pub(crate) fn receive(
    target: &Target<'_>,
    options: &CopyOptions,
    channel: &Channel,
    copy_state: &CopyState,
    workers: usize,
) -> Result<(), WanError> {
    let reception = Reception::open(target, options, copy_state, channel.incoming().most_bytes())?;
    let received = receive_all(&reception, channel, workers);
    add(&copy_state.report.tally.directories, reception.destination.made());
    received
}

fn receive_all(
    reception: &Reception<'_>,
    channel: &Channel,
    workers: usize,
) -> Result<(), WanError> {
    let copy_state = reception.copy_state;
    let done: (Mutex<Option<Done>>, Condvar) = Default::default();
    let end = std::thread::scope(|scope| {
        for number in 0..workers.max(1) {
            let done = &done;
            scope.spawn(move || {
                Worker { number, reception, channel, entered: None, folder: None, most_held: 0 }
                    .run(done);
            });
        }
        let mut said = done.0.lock();
        while !copy_state.is_stopped() {
            let all = |done: &Done| done.messages == reception.handled.load(Ordering::SeqCst);
            if said.as_ref().is_some_and(all) {
                break;
            }
            done.1.wait_for(&mut said, LOOK_ROUND);
        }
        let stopped = copy_state.is_stopped();
        // Also what ends the workers.
        copy_state.stop();
        if stopped {
            Err(copy_state.verdict())
        } else {
            Ok(said.take())
        }
    })?;
    let Some(end) = end else { return Err(copy_state.verdict()) };
    if end.sum != copy_state.sum() {
        // Each piece was checked by itself: this is for pieces that never came, or came twice.
        let counts = copy_state.report.tally.read();
        if end.problems + counts.errors + counts.changed == 0 {
            return Err(WanError::new(
                WanErrorKind::Files(waystage_copy::CopyErrorKind::Failed),
                "what was written is not what was sent: give the same command with --restart",
            ));
        }
    }
    copy_state.go_on();
    reception.finish(end.root.as_ref())
}

struct Worker<'a> {
    number: usize,
    reception: &'a Reception<'a>,
    channel: &'a Channel,
    /// The directory in which this worker's draft may lie, as the journal has it.
    entered: Option<Vec<u8>>,
    /// The last directory, open.
    folder: Option<(Vec<u8>, Folder)>,
    /// Parts that earlier runs wrote that the answer to this offer can still name.
    most_held: u64,
}

impl Worker<'_> {
    fn run(mut self, done: &(Mutex<Option<Done>>, Condvar)) {
        let copy_state = self.reception.copy_state;
        while !copy_state.is_stopped() {
            let message = match self.channel.receive(LOOK_ROUND) {
                Ok(Some(message)) => message,
                Ok(None) => {
                    if let Err(trouble) = self.laid_aside() {
                        return copy_state.end_for(trouble.into());
                    }
                    continue;
                }
                Err(error) => return copy_state.end_for(error.into()),
            };
            match self.message(&message).and_then(|said| self.laid_aside().map(|()| said)) {
                Ok(said) => {
                    self.channel.done(message);
                    if let Some(said) = said {
                        *done.0.lock() = Some(said);
                    } else {
                        self.reception.handled.fetch_add(1, Ordering::SeqCst);
                    }
                    done.1.notify_all();
                }
                Err(trouble) => return copy_state.end_for(trouble.into()),
            }
        }
    }

    fn message(&mut self, message: &[u8]) -> Result<Option<Done>, Trouble> {
        let mut reader = Reader(message);
        match reader.u8()? {
            kinds::OFFER if self.reception.waiting.is_full() => {
                if !self.reception.waiting.lay_aside(reader.0).map_err(|error| aside(&error))? {
                    return Err(Trouble::Malformed);
                }
            }
            kinds::OFFER => self.offer(&mut reader)?,
            kinds::PACK => {
                while !reader.is_empty() {
                    let entry = self.read_entry(&mut reader)?;
                    let digest = reader.u128()?;
                    let (runs, contents) = read_runs(&mut reader, 0..entry.seen.size)?;
                    let made = self.small(&entry, digest, &runs, contents);
                    self.said(&entry.path, made);
                }
            }
            kinds::PART => self.part(&mut reader)?,
            kinds::ALIKE => self.alike(&mut reader)?,
            kinds::ALIKE_PART => self.alike_part(&mut reader)?,
            kinds::CLOSE => {
                let large = self.reception.large(reader.u32()?);
                let entry = Entry::read(&mut reader)?;
                reader.end()?;
                if let Some(large) = large {
                    if entry.seen != large.entry.seen || entry.path != large.entry.path {
                        return Err(Trouble::Malformed);
                    }
                    let made = self.close(&large, entry).and_then(|()| self.finish_large(&large));
                    self.large_said(&large, made);
                }
            }
            kinds::ABORT => {
                if let Some(large) = self.reception.large(reader.u32()?) {
                    large.lock().over = true;
                    self.reception.give_up(&large);
                }
            }
            kinds::LINKS => {
                let first = path(reader.bytes()?)?;
                self.asked_for(b'f', &first)?;
                for _ in 0..reader.count(4)? {
                    let other = path(reader.bytes()?)?;
                    self.asked_for(b'f', &other)?;
                    let kept = self.reception.remember_link(first.clone(), other.clone());
                    self.said(&other, kept);
                }
            }
            kinds::DONE => {
                let (messages, sum, problems) = (reader.u64()?, reader.u128()?, reader.u64()?);
                let root = if reader.flag()? { Some(Entry::read(&mut reader)?) } else { None };
                // The message that says so is one of those it counts.
                return Ok(Some(Done { messages, sum, problems, root }));
            }
            _ => return Err(Trouble::Malformed),
        }
        Ok(None)
    }

    /// An entry, if it was asked for.
    fn read_entry(&self, reader: &mut Reader<'_>) -> Result<Entry, Trouble> {
        let entry = Entry::read(reader)?;
        self.asked_for(entry.letter, &entry.path)?;
        Ok(entry)
    }

    fn asked_for(&self, letter: u8, path: &[u8]) -> Result<(), Trouble> {
        if self.reception.target.asked.allows(letter, path) {
            Ok(())
        } else {
            Err(Trouble::Unasked(path.to_vec()))
        }
    }

    /// Go on with offers that had to wait, if they need no longer.
    fn laid_aside(&mut self) -> Result<(), Trouble> {
        while let Some(offer) =
            self.reception.waiting.next_offer().map_err(|error| aside(&error))?
        {
            self.offer(&mut Reader(&offer))?;
        }
        Ok(())
    }

    /// All parts of it were sent: its attributes wait until all are there.
    fn close(&self, large: &LargeIn, entry: Entry) -> Result<(), Failure> {
        let mut state = large.lock();
        let bytes: usize = entry.xattrs.iter().map(|(name, value)| name.len() + value.len()).sum();
        if bytes <= FEW_XATTR_BYTES {
            state.closed = Some(entry);
            return Ok(());
        }
        let mut out = Writer::default();
        entry.put(&mut out);
        state.shelved = Some(self.reception.shelve(&out.0)?);
        Ok(())
    }

    fn said(&self, path: &[u8], result: Result<(), Failure>) {
        if let Err(failure) = result {
            self.reception.copy_state.failed(path, &failure);
        }
    }

    fn offer(&mut self, reader: &mut Reader<'_>) -> Result<(), Trouble> {
        let mut answer = Answer { batch: reader.u32()?, ..Answer::default() };
        let count = reader.u32()?;
        let mut compared = Vec::new();
        self.most_held = MOST_HELD;
        for index in 0..count {
            let entry = self.read_entry(reader)?;
            let path = entry.path.clone();
            match self.entry(entry) {
                Ok(Wish::Nothing) => {}
                Ok(Wish::Small | Wish::Planned) => answer.small.push(index),
                Ok(Wish::Compared(digest)) => answer.compared.push((index, digest)),
                Ok(Wish::Large(large)) => {
                    let held = large.lock().written.iter().collect();
                    let is_compared = large.compared.is_some();
                    answer.large.push(Wanted { index, id: large.id, held, compared: is_compared });
                    compared.extend(is_compared.then_some(large));
                }
                Err(failure) => self.reception.copy_state.failed(&path, &failure),
            }
        }
        reader.end()?;
        self.channel.say(answer.encode()).map_err(|error| Trouble::Lost(error.into()))?;
        compared.iter().try_for_each(|large| self.tell_digests(large))
    }

    /// Make what is whole in the offer itself; for a file, say whether its contents are wanted.
    fn entry(&mut self, entry: Entry) -> Result<Wish, Failure> {
        let reception = self.reception;
        reception.count_owner(&entry);
        reception.may_be_made(&entry.path)?;
        match entry.letter {
            b'f' => self.file(entry),
            _ if reception.target.rename.is_some() => Err(Failure::Clash("is no regular file")),
            b'd' => self.directory(entry),
            b'l' => self.symlink(&entry),
            b'p' | b'b' | b'c' => self.special(&entry),
            _ => Err(Failure::Clash("is of a type unknown here")),
        }
    }

    fn file(&mut self, entry: Entry) -> Result<Wish, Failure> {
        let reception = self.reception;
        let tally = &reception.copy_state.report.tally;
        let (directory, name) = reception.place(&entry.path);
        let (directory, name) = (directory.to_vec(), name.to_vec());
        let found = match self.found(&directory, &name)? {
            Some(stat) if letter(stat.stx_mode) == b'd' => {
                return Err(Failure::Clash("a directory bears its name at the destination"))
            }
            Some(stat) if letter(stat.stx_mode) == b'f' => Some(stat),
            // A link makes room, as a file would.
            Some(stat) if letter(stat.stx_mode) != b'l' => return Err(NO_ROOM),
            _ => None,
        };
        let mut there = None;
        if let Some(stat) = found {
            let (seen, about) = (Seen::of(&stat), About::of(&stat));
            let alike = (seen.size, seen.mtime) == (entry.seen.size, entry.seen.mtime);
            let stands = !reception.doubtful(seen.ctime)
                && match reception.options.update {
                    Update::Missing => true,
                    Update::Newer => alike || seen.mtime > entry.seen.mtime,
                    Update::Changed => alike,
                    Update::Content | Update::Always => false,
                };
            if stands {
                let mended =
                    alike && !reception.dry() && self.mend(&directory, &name, &entry, &about)?;
                add(if mended { &tally.mended } else { &tally.same }, 1);
                return Ok(Wish::Nothing);
            }
            there = self.compared(&stat, &name).map(|file| (file, seen));
        }
        reception.plan(&entry);
        if entry.seen.size > CONTENT_BYTES as u64 {
            let compared = there.map(|(file, _)| file);
            return Ok(Wish::Large(reception.expect(entry, compared, &mut self.most_held)?));
        }
        let digest = there.and_then(|(file, seen)| self.digest_of(&file, &entry, &seen));
        if let Some(digest) = digest {
            return Ok(Wish::Compared(digest));
        }
        Ok(Wish::Small)
    }

    /// What bears the name, if its directory is there and something does.
    fn found(
        &mut self,
        directory: &[u8],
        name: &[u8],
    ) -> Result<Option<rustix::fs::Statx>, Failure> {
        let reception = self.reception;
        if self.folder.as_ref().is_none_or(|(path, _)| path != directory) {
            match reception.destination.find(directory)? {
                Some(folder) => self.folder = Some((directory.to_vec(), folder)),
                None => return Ok(None),
            }
        }
        let Some((_, folder)) = &self.folder else { return Ok(None) };
        match look(folder.fd(), name) {
            Err(Errno::NOENT) => Ok(None),
            other => other.map(Some).at(End::Destination, "look at"),
        }
    }

    /// Owner and mode of a file whose contents stand; whether there was anything to mend.
    fn mend(
        &mut self,
        directory: &[u8],
        name: &[u8],
        entry: &Entry,
        found: &About,
    ) -> Result<bool, Failure> {
        let reception = self.reception;
        let (_, about, _) = reception.allowed(entry);
        if about.mode == found.mode && (about.uid, about.gid) == (found.uid, found.gid) {
            return Ok(false);
        }
        let folder = self.folder(directory)?;
        let how = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        // Closed to us: then its attributes stay as they are.
        let Ok(file) = openat(folder.fd(), name, how, Mode::empty()) else { return Ok(false) };
        Ok(reception.plain_keeper.mend_known(&[], file.as_fd(), &about, found)?.0)
    }

    /// The directory, open, and made where it is not there.
    fn folder(&mut self, directory: &[u8]) -> Result<&Folder, Failure> {
        if self.folder.as_ref().is_none_or(|(path, _)| path != directory) {
            let folder = self.reception.destination.make(directory)?;
            self.folder = Some((directory.to_vec(), folder));
        }
        self.folder.as_ref().map(|(_, folder)| folder).ok_or(Failure::Stopped)
    }

    /// Tell the journal where this worker's draft may lie from now on.
    fn enter(&mut self, directory: &[u8]) -> Result<(), Failure> {
        if self.entered.as_deref() != Some(directory) {
            let worker = u32::try_from(self.number).unwrap_or(u32::MAX);
            self.reception.record(&Record::Entered { worker, directory: directory.to_vec() })?;
            self.entered = Some(directory.to_vec());
        }
        Ok(())
    }

    fn directory(&mut self, entry: Entry) -> Result<Wish, Failure> {
        let reception = self.reception;
        let (parent, name) = entry.split();
        let (parent, name) = (parent.to_vec(), name.to_vec());
        match self.found(&parent, &name)? {
            Some(stat) if letter(stat.stx_mode) == b'd' => {}
            Some(_) => {
                return Err(Failure::Clash("at the destination its name is borne by no directory"))
            }
            // Made when something that is wanted lies in it.
            None if reception.options.include.is_some() => {}
            None if reception.dry() => {
                add(&reception.copy_state.report.tally.directories, 1);
            }
            None => {
                // Counted by who makes it: another worker may, for what lies in it.
                reception.destination.make(&entry.path)?;
            }
        }
        let (_, _, lost) = reception.allowed(&entry);
        reception.lost(&entry.path, lost);
        reception.remember_directory(&entry)?;
        Ok(Wish::Nothing)
    }
}

/// What an entry of an offer needs further.
enum Wish {
    Nothing,
    /// It would be made; this is a dry run.
    Planned,
    Small,
    /// Unless this is its digest.
    Compared(u128),
    Large(Arc<LargeIn>),
}

#[cfg(test)]
mod tests;
