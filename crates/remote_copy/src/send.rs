//! The sending side of a copy: entries are offered, and what is wanted is read and sent.
//!
//! Arrives: a source, answers of the peer. Leaves: offers, packs of small files, parts of large ones.
//! Must not know: which side of the connection this is, what is at the destination, how messages travel.
//!
//! Only the files of an offer wait for its answer: offers run ahead by tens of thousands of entries.

mod comparing;
mod linked;
mod lost;
mod reading;

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use crate::error::WanError;
use parking_lot::Mutex;
use rustix::fs::makedev;
use waystage_catalog::Exclude;
use waystage_copy::attributes::{all as xattrs_of, Xattr};
use waystage_copy::error::{At, End, Failure};
use waystage_copy::source::{produce, Consumer, Item, Selection, Source};
use waystage_copy::stat::{stat_fd, Metadata};
use waystage_copy::{CopyError, Names, ProblemKind};
use waystage_transport::route::EARLY_BYTES;
use waystage_transport::wire::{Reader, Writer};

use self::lost::{is_time_lost, SpecialLinks};
use crate::channel::Channel;
use crate::copy_state::CopyState;
use crate::entry::{kinds, Answer, Digests, Entry, MOST_XATTR_BYTES};
use crate::external_sort::{ExternalSort, SpillDirectory};
use crate::send_queue::SendQueue;
use crate::session::CopyOptions;

/// Entries of an offer, and bytes of it at most.
const OFFER: usize = 512;
const OFFER_BYTES: usize = 1 << 20;

/// Bytes of the first offer: it is sent before anything has been received, so that answers to it come back with the
/// server's first message.
const FIRST_OFFER_BYTES: usize = EARLY_BYTES / 2;

/// Threads that walk: on local storage one keeps several readers busy.
const WALKERS: usize = 2;

/// What is copied from.
pub(crate) struct Origin {
    pub(crate) source: Source,
    /// What keeps the name of its root valid.
    pub(crate) _held: OwnedFd,
    /// Whether files are sent under their last names alone, and their directories not at all.
    pub(crate) flat: bool,
}

impl Origin {
    /// The path under which an entry is sent.
    fn path_of(&self, item: &Item) -> Vec<u8> {
        if self.flat {
            item.name.clone()
        } else {
            item.path()
        }
    }

    /// An entry as it is sent, but for what the walk does not report.
    fn entry(&self, item: &Item) -> Entry {
        Entry {
            letter: item.letter,
            path: self.path_of(item),
            seen: item.seen,
            metadata: Metadata { mtime: item.seen.mtime, ..item.metadata },
            symlink: item.symlink.clone(),
            device: 0,
            xattrs: Vec::new(),
        }
    }
}

struct Sender<'a> {
    origin: &'a Origin,
    names: Option<&'a Names>,
    options: &'a CopyOptions,
    include: Option<Exclude>,
    channel: &'a dyn Channel,
    copy_state: &'a CopyState,
    queue: SendQueue,
    messages: AtomicU64,
    /// Whether the first offer was made.
    begun: AtomicBool,
    special_links: Mutex<SpecialLinks>,
}

/// Send everything that is wanted; returns when the connection has taken it all.
pub(crate) fn send(
    origin: &Origin,
    names: Option<&Names>,
    options: &CopyOptions,
    channel: &dyn Channel,
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
        queue: SendQueue::new(options.dry, channel.memory_bytes()),
        messages: AtomicU64::new(0),
        begun: AtomicBool::new(false),
        special_links: Mutex::default(),
    };
    std::thread::scope(|scope| {
        let sender = &sender;
        scope.spawn(move || sender.listen());
        for number in 0..workers.max(1) {
            scope.spawn(move || sender.work(number == 0));
        }
        let fed = sender.feed();
        // The peer does not have it all yet, and until then the bottleneck shows.
        while matches!(fed, Ok(true)) && !copy_state.is_stopped() && !channel.delivered() {}
        sender.queue.stop();
        // Also what ends the one who listens.
        let stopped = copy_state.is_stopped();
        copy_state.stop();
        channel.interrupt();
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
        self.sent(self.channel.send(message))
    }

    /// What others wait for, which does not.
    fn send_urgent(&self, message: Vec<u8>) -> bool {
        self.sent(self.channel.send_urgent(message))
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
        self.queue.stop();
        self.channel.interrupt();
    }

    /// Take in answers until the copy is over.
    fn listen(&self) {
        while !self.copy_state.is_stopped() {
            let message = match self.channel.receive(self.copy_state) {
                Ok(Some(message)) => message,
                Ok(None) => continue,
                Err(error) => return self.end(error),
            };
            let mut reader = Reader(&message);
            let plan = |item: &Item| {
                let bytes = if item.letter == b'f' { item.seen.size } else { 0 };
                self.copy_state.report.plan(item.path(), item.letter, bytes);
            };
            let fits = match reader.u8() {
                Ok(kinds::ANSWER) => {
                    Answer::read(&mut reader).is_ok_and(|answer| self.queue.answered(&answer, plan))
                }
                Ok(kinds::DIGESTS) => {
                    Digests::read(&mut reader).is_ok_and(|said| self.queue.digests(said))
                }
                _ => false,
            };
            if !fits {
                return self.end(WanError::lost(
                    "the peer broke the protocol: it answered what was not asked",
                ));
            }
            self.channel.done(message);
        }
        self.queue.stop();
    }

    /// Offer every entry; false after a stop.
    fn feed(&self) -> Result<bool, WanError> {
        let memory = usize::try_from(self.channel.memory_bytes()).unwrap_or(usize::MAX);
        let linked = ExternalSort::new(SpillDirectory::Anywhere, memory / 16, false);
        let has_root = self.origin.source.single.is_none() && !self.origin.flat;
        let root = has_root.then(|| self.root()).transpose()?;
        let selection = Selection {
            names: self.names,
            only_named: false,
            exclude: Exclude::new(self.options.exclude.clone()),
            include: self.include.as_ref(),
            limits: self.options.limits,
            one_file_system: self.options.one_file_system,
            avoid: None,
            walkers: WALKERS,
            with_targets: false,
            with_own_files: false,
        };
        let mut offers = Offers { sender: self, group: Vec::new(), linked };
        let produced = produce(&self.origin.source, &selection, self.copy_state, &mut offers)
            .map_err(|error| WanError::io("read the source", &error))?;
        let mut linked = offers.linked;
        if !produced
            || !self.firsts(&mut linked)?
            || !self.queue.drain()
            || !self.links(&mut linked)?
        {
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
        Ok(self.send_urgent(out.0))
    }

    /// The root's own attributes.
    fn root(&self) -> Result<Entry, WanError> {
        let read = || {
            let fd = self.origin.source.root.directory(b"").at(End::Source, "open directory")?;
            let stat = stat_fd(fd.as_fd()).at(End::Source, "stat")?;
            let item = Item { letter: b'd', ..Item::file(&stat, b"", b"root") };
            let xattrs = self.xattrs(fd.as_fd(), b"");
            Ok(Entry { xattrs, ..self.origin.entry(&item) })
        };
        read().map_err(|failure: Failure| {
            CopyError::Ends(format!("the source cannot be read: {failure}")).into()
        })
    }

    /// Count what of the entry the messages cannot say.
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
            let Some(batch) = self.queue.offer(offered) else { return false };
            out.u32(batch).count(count);
            out.0.extend_from_slice(&body.0);
            if !self.send_urgent(out.0) {
                return false;
            }
        }
        true
    }

    /// The entry with what the walk did not tell; None for what is not copied.
    fn described(&self, item: &Item) -> Result<Option<Entry>, Failure> {
        let mut entry = self.origin.entry(item);
        match item.letter {
            b's' => {
                let text = "is a socket, which only its own program can make";
                self.copy_state.problem(&item.path(), ProblemKind::Skipped, text);
                return Ok(None);
            }
            b'f' | b'l' => {}
            b'd' if self.options.xattrs && !self.options.dry.is_dry() => {
                let fd = self
                    .origin
                    .source
                    .root
                    .directory(&item.path())
                    .at(End::Source, "open directory")?;
                entry.xattrs = self.xattrs(fd.as_fd(), &item.path());
            }
            b'd' => {}
            b'b' | b'c' | b'p' => {
                let folder = self
                    .origin
                    .source
                    .root
                    .directory(&item.directory)
                    .at(End::Source, "open directory")?;
                let stat = item.stat(folder.as_fd()).at(End::Source, "stat")?;
                entry.device = makedev(stat.stx_rdev_major, stat.stx_rdev_minor);
            }
            _ => return Err(Failure::Clash("is of a type unknown here")),
        }
        Ok(Some(entry))
    }

    fn xattrs(&self, fd: BorrowedFd<'_>, path: &[u8]) -> Vec<Xattr> {
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

/// Makes offers of entries.
struct Offers<'a> {
    sender: &'a Sender<'a>,
    group: Vec<Item>,
    /// Names of files that have several, which come last.
    linked: ExternalSort,
}

impl Consumer for Offers<'_> {
    fn entry(&mut self, item: Item) -> bool {
        let sender = self.sender;
        if sender.origin.flat && item.letter == b'd' {
            return true;
        }
        sender.count_lost(&item);
        if item.letter == b'f' && item.links > 1 && sender.options.hard_links {
            sender.remember(&item, &mut self.linked);
            return true;
        }
        self.group.push(item);
        self.group.len() < OFFER || self.flush()
    }

    fn flush(&mut self) -> bool {
        let group = std::mem::take(&mut self.group);
        group.is_empty() || self.sender.offer(group)
    }
}

#[cfg(test)]
mod tests;
