//! The sending end of a copy: what is there is offered, what is wanted is read and sent.
//!
//! Arrives: a tree or a file, answers of the other end. Leaves: offers, packs of small files, parts of large ones.
//! Must not know: which end of the connection this is, what is at the destination, how messages travel.
//!
//! Nothing waits for an answer but the files it is about: offers run ahead by tens of thousands of entries.

mod comparing;
mod linked;
mod lost;
mod reading;

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::Arc;
use std::time::Duration;

use crate::error::{WanError, WanErrorKind};
use parking_lot::Mutex;
use rustix::fs::makedev;
use waystage_catalog::walk::{Known, Next, Options as WalkOptions, Walk};
use waystage_catalog::{Batch, Exclude, Root};
use waystage_copy::parts::{
    add, listed, look, look_at, xattrs_of, About, At, Attribute, End, Failure, Item, Listed,
    OwnFiles, Whose,
};
use waystage_copy::{Names, ProblemKind};
use waystage_transport::channel::Channel;
use waystage_transport::channel_connection::EARLY_BYTES;
use waystage_transport::wire::{Reader, Writer};

use self::lost::{is_time_lost, SpecialLinks};
use crate::copy_state::CopyState;
use crate::entry::{kinds, Answer, Digests, Entry, MOST_XATTR_BYTES};
use crate::pile::{Pile, Place};
use crate::sending::Sending;
use crate::session::CopyOptions;

/// Entries of an offer, and bytes of it at most.
const OFFER: usize = 512;
const OFFER_BYTES: usize = 1 << 20;

/// Bytes of the first offer: it goes out before anything has come back, so that answers to it come back with the server's first words.
const FIRST_OFFER_BYTES: usize = EARLY_BYTES / 2;

/// Threads that walk: on local storage one keeps several readers busy.
const WALKERS: usize = 2;

const BATCH_ROWS: usize = 2048;
/// Threads that wait for messages look so often whether the copy is over.
const LOOK_ROUND: Duration = Duration::from_millis(25);

/// What is copied from.
pub(crate) struct Origin {
    pub(crate) root: Root,
    /// Where a walk finds the root; below /proc, so that what it opens is what was checked.
    pub(crate) walk: PathBuf,
    /// What keeps that name valid.
    pub(crate) _held: OwnedFd,
    /// One file of it, where only one is copied.
    pub(crate) single: Option<Item>,
}

struct Sender<'a> {
    origin: &'a Origin,
    names: Option<&'a Names>,
    options: &'a CopyOptions,
    include: Option<Exclude>,
    channel: &'a Channel,
    copy_state: &'a CopyState,
    sending: Sending,
    messages: AtomicU64,
    /// Whether the first offer was made.
    begun: AtomicBool,
    own: Mutex<OwnFiles>,
    special_links: Mutex<SpecialLinks>,
}

/// Send everything that is wanted; returns when the connection has taken it all.
pub(crate) fn send(
    origin: &Origin,
    names: Option<&Names>,
    options: &CopyOptions,
    channel: &Channel,
    copy_state: &CopyState,
    workers: usize,
) -> Result<(), WanError> {
    let sender = Sender {
        origin,
        names,
        options,
        include: options.include.clone().map(Exclude::new),
        channel,
        copy_state,
        sending: Sending::new(options.dry, channel.incoming().most_bytes()),
        messages: AtomicU64::new(0),
        begun: AtomicBool::new(false),
        own: Mutex::default(),
        special_links: Mutex::default(),
    };
    std::thread::scope(|scope| {
        let sender = &sender;
        scope.spawn(move || sender.listen());
        for number in 0..workers.max(1) {
            scope.spawn(move || sender.work(number == 0));
        }
        let fed = sender.feed();
        // Given to the connection is not with the other end yet, and what limits the copy shows until then.
        while matches!(fed, Ok(true)) && !channel.delivered(LOOK_ROUND) && !copy_state.is_stopped()
        {
        }
        sender.sending.stop();
        // Also what ends the one who listens.
        let stopped = copy_state.is_stopped();
        copy_state.stop();
        match fed {
            Ok(true) if !stopped => Ok(()),
            Ok(_) => Err(copy_state.verdict()),
            Err(error) => Err(error),
        }
    })
}

impl Sender<'_> {
    /// Contents, which wait until it is known which way is open.
    fn give(&self, message: Vec<u8>) -> bool {
        self.sent(self.channel.send(message).map_err(WanError::from))
    }

    /// What others wait for, which does not.
    fn say(&self, message: Vec<u8>) -> bool {
        self.sent(self.channel.say(message).map_err(WanError::from))
    }

    fn sent(&self, sent: Result<(), WanError>) -> bool {
        self.messages.fetch_add(1, Ordering::SeqCst);
        match sent {
            Ok(()) => true,
            Err(error) => {
                self.end(error);
                false
            }
        }
    }

    fn end(&self, error: WanError) {
        self.copy_state.end_for(error);
        self.sending.stop();
    }

    /// Take in answers until the copy is over.
    fn listen(&self) {
        while !self.copy_state.is_stopped() {
            let message = match self.channel.receive(LOOK_ROUND) {
                Ok(Some(message)) => message,
                Ok(None) => continue,
                Err(error) => return self.end(error.into()),
            };
            let mut reader = Reader(&message);
            let plan = |item: &Item| {
                let bytes = if item.letter == b'f' { item.seen.size } else { 0 };
                self.copy_state.report.plan(item.path(), item.letter, bytes);
            };
            let fits = match reader.u8() {
                Ok(kinds::ANSWER) => Answer::read(&mut reader)
                    .is_ok_and(|answer| self.sending.answered(&answer, plan)),
                Ok(kinds::DIGESTS) => {
                    Digests::read(&mut reader).is_ok_and(|said| self.sending.digests(said))
                }
                _ => false,
            };
            if !fits {
                return self.end(WanError::new(
                    WanErrorKind::Lost,
                    "the other end broke the protocol: it answered what was not asked",
                ));
            }
            self.channel.done(message);
        }
        self.sending.stop();
    }

    /// Offer all there is; false after a stop.
    fn feed(&self) -> Result<bool, WanError> {
        let tally = &self.copy_state.report.tally;
        let memory = usize::try_from(self.channel.incoming().most_bytes()).unwrap_or(usize::MAX);
        let mut linked = Pile::new(Place::Anywhere, memory / 16, false);
        let mut root = None;
        if let Some(item) = &self.origin.single {
            add(&tally.found, 1);
            add(&tally.found_bytes, item.seen.size);
            if !self.offer(vec![item.clone()]) {
                return Ok(false);
            }
        } else {
            root = Some(self.root()?);
            if !self.tree(&mut linked)? {
                return Ok(false);
            }
        }
        if !self.firsts(&mut linked)? || !self.sending.drain() || !self.links(&mut linked)? {
            return Ok(false);
        }
        let mut out = Writer::new(kinds::DONE);
        let counts = self.copy_state.report.tally.read();
        out.u64(self.messages.load(Ordering::SeqCst)).u128(self.copy_state.sum());
        out.u64(counts.errors + counts.changed + counts.vanished);
        out.u8(u8::from(root.is_some()));
        if let Some(root) = root {
            root.put(&mut out);
        }
        Ok(self.say(out.0))
    }

    /// The root's own attributes.
    fn root(&self) -> Result<Entry, WanError> {
        let read = || {
            let fd = self.origin.root.directory(b"").at(End::Source, "open directory")?;
            let stat = look_at(fd.as_fd()).at(End::Source, "look at")?;
            let item = Item { letter: b'd', ..Item::file(&stat, b"", b"root") };
            let xattrs = self.xattrs(fd.as_fd(), b"");
            Ok(Entry { xattrs, ..entry(&item) })
        };
        read().map_err(|failure: Failure| {
            let kind = waystage_copy::CopyErrorKind::Ends;
            WanError::new(
                WanErrorKind::Files(kind),
                format!("the source cannot be read: {failure}"),
            )
        })
    }

    /// Offer the tree, or what of it is listed; false after a stop.
    fn tree(&self, linked: &mut Pile) -> Result<bool, WanError> {
        let exclude = Exclude::new(self.options.exclude.clone());
        let tally = &self.copy_state.report.tally;
        let Some(names) = self.names else {
            return self.walk(exclude, vec![Vec::new()], linked);
        };
        let mut group = Vec::new();
        let tops = listed(&self.origin.root, names, &exclude, |named| {
            match named {
                Listed::Excluded => add(&tally.excluded, 1),
                Listed::Failed(path, failure) => {
                    self.copy_state.problem(&path, ProblemKind::Error, failure.to_string());
                }
                Listed::Item(item) => {
                    add(&tally.found, 1);
                    if item.letter == b'f' {
                        add(&tally.found_bytes, item.seen.size);
                    }
                    group.extend(self.sorted_out(item, linked));
                }
            }
            !self.copy_state.is_stopped()
                && (group.len() < OFFER || self.offer(std::mem::take(&mut group)))
        });
        let Some(tops) = tops else { return Ok(false) };
        if !group.is_empty() && !self.offer(group) {
            return Ok(false);
        }
        Ok(tops.is_empty() || self.walk(exclude, tops, linked)?)
    }

    fn walk(
        &self,
        exclude: Exclude,
        tops: Vec<Vec<u8>>,
        linked: &mut Pile,
    ) -> Result<bool, WanError> {
        let walk = Walk::start(WalkOptions {
            root: self.origin.walk.clone(),
            threads: WALKERS,
            batch_rows: BATCH_ROWS,
            exclude,
            one_file_system: self.options.one_file_system,
            layouts: None,
            known: Known::default(),
            tops,
        })
        .map_err(|error| WanError::io("read the source", &error))?;
        let tally = &self.copy_state.report.tally;
        let before = tally.read();
        loop {
            let next = walk.next(LOOK_ROUND);
            let counts = walk.counts();
            tally.found.store(before.found + counts.entries, Ordering::Relaxed);
            tally.found_bytes.store(before.found_bytes + counts.bytes, Ordering::Relaxed);
            match next {
                Next::Batch(batch) => {
                    if !self.batch(&batch, linked) {
                        return Ok(false);
                    }
                }
                Next::Waiting if self.copy_state.is_stopped() => return Ok(false),
                Next::Waiting => {}
                Next::End => {
                    add(&tally.vanished, counts.vanished);
                    add(&tally.excluded, counts.excluded);
                    return Ok(true);
                }
            }
        }
    }

    fn batch(&self, batch: &Batch, linked: &mut Pile) -> bool {
        for (path, text) in &batch.errors {
            self.copy_state.problem(path, ProblemKind::Error, format!("source: {text}"));
        }
        let paths: Vec<Arc<[u8]>> = (0..batch.directories.inode.len())
            .map(|index| Arc::from(batch.directories.path.get(index)))
            .collect();
        let mut group: Vec<Item> = Vec::new();
        for (index, directory) in batch.entries.directory.iter().enumerate() {
            let Some(path) = usize::try_from(*directory).ok().and_then(|at| paths.get(at)) else {
                continue;
            };
            group.extend(self.sorted_out(Item::of(batch, index, path), linked));
            if group.len() >= OFFER && !self.offer(std::mem::take(&mut group)) {
                return false;
            }
        }
        group.is_empty() || self.offer(group)
    }

    /// The item, unless no pattern wants it, or it is one of several names of a file, which come last.
    fn sorted_out(&self, item: Item, linked: &mut Pile) -> Option<Item> {
        let own = self.own.lock().of(&self.origin.root, &item);
        match own {
            None => {}
            Some(Whose::Within) => return None,
            Some(Whose::Copy(text)) => {
                self.copy_state.problem(&item.path(), ProblemKind::Skipped, text.to_owned());
                return None;
            }
            Some(Whose::Taken(text)) => {
                self.copy_state.problem(&item.path(), ProblemKind::Error, text.to_owned());
                return None;
            }
        }
        let unwanted = |include: &Exclude| !include.matches(&item.directory, &item.name);
        if item.letter != b'd' && self.include.as_ref().is_some_and(unwanted) {
            add(&self.copy_state.report.tally.excluded, 1);
            return None;
        }
        self.count_lost(&item);
        if item.letter == b'f' && item.links > 1 && self.options.hard_links {
            self.remember(&item, linked);
            return None;
        }
        Some(item)
    }

    /// Count what of the entry the other end is not told.
    fn count_lost(&self, item: &Item) {
        let mut met = self.special_links.lock();
        if self.options.hard_links && met.is_further_name(item) {
            let text = "not kept: its hard link, which between hosts files alone have";
            self.copy_state.problem(&item.path(), ProblemKind::Lost, text.to_owned());
        }
        if is_time_lost(item) {
            let text = "not kept: its time, which between hosts is from 1677 to 2262";
            self.copy_state.problem(&item.path(), ProblemKind::Lost, text.to_owned());
        }
    }

    /// Offer entries; all but the contents of files is in the offer itself.
    fn offer(&self, items: Vec<Item>) -> bool {
        let mut items = items.into_iter().peekable();
        while items.peek().is_some() {
            let (mut offered, mut body) = (Vec::new(), Writer::default());
            let first = !self.begun.swap(true, Ordering::Relaxed);
            let most = if first { FIRST_OFFER_BYTES } else { OFFER_BYTES };
            while let Some(item) = items.next_if(|_| body.written() < most) {
                match self.described(&item) {
                    Ok(Some(entry)) => {
                        entry.put(&mut body);
                        offered.push(item);
                    }
                    Ok(None) => {}
                    Err(failure) => self.copy_state.failed(&item.path(), &failure),
                }
            }
            if offered.is_empty() {
                continue;
            }
            let mut out = Writer::new(kinds::OFFER);
            let count = offered.len();
            let Some(batch) = self.sending.offer(offered) else { return false };
            out.u32(batch).count(count);
            out.0.extend_from_slice(&body.0);
            if !self.say(out.0) {
                return false;
            }
        }
        true
    }

    /// The entry with what the walk did not tell; None for what is not copied.
    fn described(&self, item: &Item) -> Result<Option<Entry>, Failure> {
        let mut entry = entry(item);
        match item.letter {
            b's' => {
                let text = "is a socket, which only its own program can make";
                self.copy_state.problem(&item.path(), ProblemKind::Skipped, text);
                return Ok(None);
            }
            b'f' | b'l' => {}
            b'd' if self.options.xattrs && !self.options.dry.is_dry() => {
                let fd =
                    self.origin.root.directory(&item.path()).at(End::Source, "open directory")?;
                entry.xattrs = self.xattrs(fd.as_fd(), &item.path());
            }
            b'd' => {}
            b'b' | b'c' | b'p' => {
                let folder = self
                    .origin
                    .root
                    .directory(&item.directory)
                    .at(End::Source, "open directory")?;
                let stat = look(folder.as_fd(), &item.name).at(End::Source, "look at")?;
                entry.device = makedev(stat.stx_rdev_major, stat.stx_rdev_minor);
            }
            _ => return Err(Failure::Clash("is of a type unknown here")),
        }
        Ok(Some(entry))
    }

    fn xattrs(&self, fd: BorrowedFd<'_>, path: &[u8]) -> Vec<Attribute> {
        if !self.options.xattrs || self.options.dry.is_dry() {
            return Vec::new();
        }
        let lost = |text: String| {
            self.copy_state.problem(path, ProblemKind::Lost, format!("not kept: {text}"));
            Vec::new()
        };
        match xattrs_of(fd, End::Source) {
            Err(failure) => lost(failure.to_string()),
            Ok(found) => {
                let bytes: usize = found.iter().map(|(n, v)| n.len() + v.len() + 8).sum();
                if bytes > MOST_XATTR_BYTES {
                    return lost("its extended attributes, which are too long".to_owned());
                }
                found
            }
        }
    }
}

fn entry(item: &Item) -> Entry {
    Entry {
        letter: item.letter,
        path: item.path(),
        seen: item.seen,
        about: About { mtime: item.seen.mtime, ..item.about },
        symlink: item.symlink.clone(),
        device: 0,
        xattrs: Vec::new(),
    }
}
