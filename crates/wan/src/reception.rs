//! What all threads of the receiving end share: the destination, its journal, large files under way.
//!
//! Arrives: where to, and how. Leaves: the state of a copy that may be killed at any moment. Must not know: connections.
//!
//! The journal and the names of drafts are those of copies on one machine (`docs/reference/copy-journal.md`).

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::os::fd::{AsFd, OwnedFd};
use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use rustix::fs::{ftruncate, linkat, openat, renameat, syncfs, unlinkat, AtFlags, Mode, OFlags};
use rustix::io::Errno;
use waystage_copy::journal::{Half, Journal, Record};
use waystage_copy::parts::{
    add, begin, doubtful_since, large_name, letter, look, look_at, remove_larges, session_of,
    unwritable, worker_name, At, Attribute, Beginning, Destination, End, Failure, Folder, Keeper,
    Seen,
};
use waystage_copy::{CopyErrorKind, Fsync, ProblemKind};

use crate::book::Book;
use crate::entry::{split, Entry};
use crate::error::WanError;
use crate::lane::CONTENT_BYTES;
use crate::session::{CopyOptions, Dry};

/// How long a copy to the same place that has just lost its connection may take to notice.
const BUSY_TIME: Duration = Duration::from_secs(30);

/// Where a copy goes.
pub(crate) struct Target {
    /// A name of the root that stays right.
    pub(crate) root: PathBuf,
    /// What keeps that name valid.
    pub(crate) _held: OwnedFd,
    /// The name of the one file, where only one is copied.
    pub(crate) rename: Option<Vec<u8>>,
    /// How people call it.
    pub(crate) shown: PathBuf,
    /// How the journal calls the source.
    pub(crate) from: Vec<u8>,
    /// Whether owners, set-user-id bits, devices and attributes of the system are for the other end to give.
    pub(crate) privileged: bool,
}

/// A large file coming in.
pub(crate) struct LargeIn {
    pub(crate) entry: Entry,
    pub(crate) id: u32,
    /// What bears its name, where that is compared.
    pub(crate) compared: Option<OwnedFd>,
    pub(crate) state: Mutex<LargeState>,
}

#[derive(Default)]
pub(crate) struct LargeState {
    pub(crate) opened: Option<Arc<(Folder, OwnedFd)>>,
    pub(crate) written: BTreeSet<u32>,
    /// Parts that are alike in what is there, and not in the draft, with their digests.
    pub(crate) alike: BTreeMap<u32, u128>,
    /// Workers who are copying such parts into the draft.
    pub(crate) taking: u32,
    /// The entry with all its attributes, once every part was sent.
    pub(crate) closed: Option<Entry>,
    pub(crate) over: bool,
}

impl LargeIn {
    pub(crate) fn parts(&self) -> u32 {
        u32::try_from(self.entry.seen.size.div_ceil(CONTENT_BYTES as u64)).unwrap_or(u32::MAX)
    }

    /// Where a part begins and ends.
    pub(crate) fn range(&self, part: u32) -> (u64, u64) {
        let start = u64::from(part) * CONTENT_BYTES as u64;
        (start, (start + CONTENT_BYTES as u64).min(self.entry.seen.size))
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, LargeState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn draft_name(&self, session: u64) -> Vec<u8> {
        large_name(session, self.id)
    }
}

type Remembered = (Vec<u8>, Entry);

pub(crate) struct Reception<'a> {
    pub(crate) options: &'a CopyOptions,
    pub(crate) book: &'a Book,
    pub(crate) target: &'a Target,
    pub(crate) destination: Destination,
    /// None in a dry run.
    journal: Option<Journal>,
    pub(crate) keeper: Keeper,
    /// For files that stand: their extended attributes are not asked for.
    pub(crate) plain_keeper: Keeper,
    session: u64,
    larges: Mutex<HashMap<u32, Arc<LargeIn>>>,
    halves: Mutex<HashMap<Vec<u8>, Half>>,
    directories: Mutex<Vec<Remembered>>,
    links: Mutex<Vec<(Vec<u8>, Vec<u8>)>>,
    next_id: AtomicU32,
    doubtful_since: Option<i64>,
    pub(crate) handled: AtomicU64,
}

impl<'a> Reception<'a> {
    pub(crate) fn open(
        target: &'a Target,
        options: &'a CopyOptions,
        book: &'a Book,
    ) -> Result<Self, WanError> {
        let dry = options.dry.is_dry();
        let destination = Destination::open(&target.root, dry)
            .map_err(|error| unwritable(&target.shown, &error))?;
        let owners = options.owners && target.privileged;
        let reception = Self {
            options,
            book,
            target,
            destination,
            journal: None,
            keeper: Keeper::new(owners, options.xattrs),
            plain_keeper: Keeper::new(owners, false),
            session: 0,
            larges: Mutex::default(),
            doubtful_since: None,
            next_id: AtomicU32::new(0),
            halves: Mutex::default(),
            directories: Mutex::default(),
            links: Mutex::default(),
            handled: AtomicU64::new(0),
        };
        if dry {
            return Ok(reception);
        }
        reception.with_journal()
    }

    /// Find what an earlier run left, and say that one begins.
    fn with_journal(self) -> Result<Self, WanError> {
        let Self { options, target, book, destination, .. } = &self;
        let root = || {
            destination.root().and_then(Result::ok).ok_or_else(|| {
                WanError::from(unwritable(&target.shown, &std::io::Error::from(Errno::NOENT)))
            })
        };
        let session = session_of(&root()?, target.rename.as_deref());
        let deadline = Instant::now() + BUSY_TIME;
        let (journal, mut past) = loop {
            match Journal::open(root()?, target.rename.as_deref(), &target.shown) {
                Err(error) if error.kind == CopyErrorKind::Busy && Instant::now() < deadline => {
                    std::thread::sleep(Duration::from_millis(100));
                }
                other => break other?,
            }
        };
        let how = Beginning {
            shown: &target.shown,
            from: &target.from,
            session,
            durable: options.fsync == Fsync::Each,
            restart: options.restart,
        };
        begin(&how, &journal, &mut past, destination, &book.report)?;
        Ok(Self {
            journal: Some(journal),
            session,
            doubtful_since: doubtful_since(&past),
            next_id: AtomicU32::new(past.next_id),
            halves: Mutex::new(past.halves),
            ..self
        })
    }

    /// Whether nothing is to be written.
    pub(crate) fn dry(&self) -> bool {
        self.options.dry.is_dry()
    }

    /// In a dry run, remember what would be made, and count it where nothing else does; whether this is one.
    pub(crate) fn plan(&self, entry: &Entry) -> bool {
        if !self.dry() {
            return false;
        }
        let tally = &self.book.report.tally;
        let is_file = entry.letter == b'f';
        match entry.letter {
            b'f' if self.options.dry == Dry::Plan => self.arrived(1, entry.seen.size),
            b'f' => {}
            b'l' => add(&tally.symlinks, 1),
            _ => add(&tally.specials, 1),
        }
        let bytes = if is_file { entry.seen.size } else { 0 };
        self.book.report.plan(entry.path.clone(), entry.letter, bytes);
        true
    }

    pub(crate) fn arrived(&self, files: u64, bytes: u64) {
        let tally = &self.book.report.tally;
        add(&tally.files, files);
        add(&tally.bytes, bytes);
    }

    pub(crate) fn draft_name(&self, worker: usize) -> Vec<u8> {
        worker_name(self.session, worker)
    }

    /// Whether a file changed at this time may be one whose contents a power failure took.
    pub(crate) fn doubtful(&self, ctime: i64) -> bool {
        self.doubtful_since.is_some_and(|since| ctime >= since)
    }

    pub(crate) fn record(&self, record: &Record) -> Result<(), Failure> {
        let Some(journal) = &self.journal else { return Ok(()) };
        journal.append(record).map_err(|error| {
            let errno = error.raw_os_error().map_or(Errno::IO, Errno::from_raw_os_error);
            Failure::Call { end: End::Destination, doing: "write the journal", errno }
        })
    }

    /// A file's directory, and the name it gets.
    pub(crate) fn place<'e>(&'e self, path: &'e [u8]) -> (&'e [u8], &'e [u8]) {
        match &self.target.rename {
            Some(name) => (b"", name),
            None => split(path),
        }
    }

    pub(crate) fn remember_directory(&self, path: Vec<u8>, entry: Entry) {
        lock(&self.directories).push((path, entry));
    }

    pub(crate) fn remember_link(&self, first: Vec<u8>, other: Vec<u8>) {
        lock(&self.links).push((first, other));
    }

    /// A large file that is wanted, with what an earlier run left of it.
    pub(crate) fn expect(&self, entry: Entry, compared: Option<OwnedFd>) -> Arc<LargeIn> {
        let seen = numbers(&entry.seen);
        let half = lock(&self.halves).remove(&entry.path);
        let fits = |half: &Half| half.seen == seen && half.extent_bytes == CONTENT_BYTES as u64;
        let mut id = None;
        let mut state = LargeState::default();
        if let Some(half) = half {
            if fits(&half) {
                if let Some(opened) = self.resumed(&entry, half.id) {
                    let bytes = (half.written.len() * CONTENT_BYTES) as u64;
                    add(&self.book.report.tally.resumed_bytes, bytes.min(entry.seen.size));
                    state.opened = Some(Arc::new(opened));
                    state.written = half.written;
                    id = Some(half.id);
                }
            }
            if id.is_none() {
                let stale = Half {
                    written: BTreeSet::new(),
                    id: half.id,
                    directory: half.directory,
                    ..half
                };
                remove_larges(
                    &self.destination,
                    [stale].into_iter(),
                    self.session,
                    &self.book.report,
                );
            }
        }
        let id = id.unwrap_or_else(|| self.next_id.fetch_add(1, Ordering::Relaxed));
        let large = Arc::new(LargeIn { entry, id, compared, state: Mutex::new(state) });
        lock(&self.larges).insert(id, Arc::clone(&large));
        large
    }

    pub(crate) fn large(&self, id: u32) -> Option<Arc<LargeIn>> {
        lock(&self.larges).get(&id).cloned()
    }

    /// The draft that an earlier run left, if it is still what it was.
    fn resumed(&self, entry: &Entry, id: u32) -> Option<(Folder, OwnedFd)> {
        let folder = self.destination.find(self.place(&entry.path).0).ok()??;
        let draft = open_draft(&folder, &large_name(self.session, id), OFlags::empty()).ok()?;
        let stat = look_at(draft.as_fd()).ok()?;
        let fits = letter(stat.stx_mode) == b'f'
            && stat.stx_size == entry.seen.size
            && stat.stx_nlink == 1;
        fits.then_some((folder, draft))
    }

    /// Its draft, made where it is not there yet.
    pub(crate) fn opened(
        &self,
        large: &LargeIn,
        state: &mut LargeState,
    ) -> Result<Arc<(Folder, OwnedFd)>, Failure> {
        if let Some(opened) = &state.opened {
            return Ok(Arc::clone(opened));
        }
        let (directory, _) = self.place(&large.entry.path);
        let folder = self.destination.make(directory)?;
        self.record(&Record::Begun {
            id: large.id,
            directory: directory.to_vec(),
            path: large.entry.path.clone(),
            seen: numbers(&large.entry.seen),
            extent_bytes: CONTENT_BYTES as u64,
        })?;
        let name = large.draft_name(self.session);
        let draft = open_draft(&folder, &name, OFlags::CREATE | OFlags::TRUNC)?;
        ftruncate(&draft, large.entry.seen.size).at(End::Destination, "set size")?;
        let opened = Arc::new((folder, draft));
        state.opened = Some(Arc::clone(&opened));
        Ok(opened)
    }

    /// It is whole: give it its name.
    pub(crate) fn name_large(&self, large: &LargeIn, folder: &Folder) -> Result<(), Failure> {
        let (_, name) = self.place(&large.entry.path);
        renameat(folder.fd(), &large.draft_name(self.session)[..], folder.fd(), name)
            .at(End::Destination, "give name")?;
        self.record(&Record::Ended { id: large.id })?;
        lock(&self.larges).remove(&large.id);
        Ok(())
    }

    /// What is there is what was wanted: no draft was made.
    pub(crate) fn stays(&self, large: &LargeIn) {
        lock(&self.larges).remove(&large.id);
    }

    /// Nobody will go on with it.
    pub(crate) fn give_up(&self, large: &LargeIn) {
        lock(&self.larges).remove(&large.id);
        let (directory, _) = self.place(&large.entry.path);
        if let Ok(Some(folder)) = self.destination.find(directory) {
            // Where it was never made there is nothing to remove.
            let name = large.draft_name(self.session);
            let _ = unlinkat(folder.fd(), &name[..], AtFlags::empty());
            let _ = self.record(&Record::Ended { id: large.id });
        }
    }

    /// All files are there: links to them, attributes of directories, and the journal is no longer needed.
    pub(crate) fn finish(&self, root: Option<&Entry>) -> Result<(), WanError> {
        for (first, other) in std::mem::take(&mut *lock(&self.links)) {
            if self.book.is_stopped() {
                return Err(self.book.verdict());
            }
            let linked =
                if self.dry() { self.plan_link(&first, &other) } else { self.link(&first, &other) };
            if let Err(failure) = linked {
                self.book.failed(&other, &failure);
            }
        }
        let Some(journal) = &self.journal else { return Ok(()) };
        let mut directories = std::mem::take(&mut *lock(&self.directories));
        // The deepest first: those above may close the way to them.
        directories.sort_by(|one, other| other.0.cmp(&one.0));
        for (path, entry) in &directories {
            if self.book.is_stopped() {
                return Err(self.book.verdict());
            }
            self.directory(path, entry);
        }
        let halves = std::mem::take(&mut *lock(&self.halves));
        remove_larges(&self.destination, halves.into_values(), self.session, &self.book.report);
        if self.options.fsync != Fsync::None {
            if let Some(Ok(root)) = self.destination.root() {
                syncfs(&root).map_err(|errno| unwritable(&self.target.shown, &errno.into()))?;
            }
        }
        journal.remove();
        if let (Some(root), None) = (root, &self.target.rename) {
            self.directory(b"", root);
        }
        Ok(())
    }

    fn directory(&self, path: &[u8], entry: &Entry) {
        let done = self.destination.find(path).and_then(|folder| {
            // Not made, where nothing in it was wanted.
            let Some(folder) = folder else { return Ok(None) };
            let (xattrs, about, _) = self.allowed(entry);
            let lost = self.keeper.give_known(&xattrs, folder.fd(), &about, false)?;
            self.keeper.times(folder.fd(), &about)?;
            Ok(lost)
        });
        match done {
            Ok(lost) => self.lost(path, lost),
            Err(failure) => self.book.failed(path, &failure),
        }
    }

    fn plan_link(&self, first: &[u8], other: &[u8]) -> Result<(), Failure> {
        let seen = |path: &[u8]| -> Result<Option<(u64, u64)>, Failure> {
            let (directory, name) = split(path);
            let folder = self.destination.find(directory)?;
            let stat = folder.and_then(|folder| look(folder.fd(), name).ok());
            Ok(stat.map(|stat| Seen::of(&stat)).map(|seen| (seen.device, seen.inode)))
        };
        let tally = &self.book.report.tally;
        if seen(first)?.zip(seen(other)?).is_some_and(|(one, another)| one == another) {
            add(&tally.same, 1);
        } else {
            add(&tally.hard_links, 1);
            self.book.report.plan(other.to_vec(), b'h', 0);
        }
        Ok(())
    }

    fn link(&self, first: &[u8], other: &[u8]) -> Result<(), Failure> {
        let ((from, name), (to, new_name)) = (split(first), split(other));
        let (from, to) = (self.destination.make(from)?, self.destination.make(to)?);
        let there = look(from.fd(), name)
            .map_err(|_| Failure::Clash("the file that it is a link to was not copied"))?;
        if let Ok(found) = look(to.fd(), new_name) {
            let (one, another) = (Seen::of(&found), Seen::of(&there));
            if (one.device, one.inode) == (another.device, another.inode) {
                add(&self.book.report.tally.same, 1);
                return Ok(());
            }
        }
        let draft = self.draft_name(usize::MAX);
        let _ = unlinkat(to.fd(), &draft[..], AtFlags::empty());
        linkat(from.fd(), name, to.fd(), &draft[..], AtFlags::empty())
            .at(End::Destination, "make hard link (--no-hard-links copies each name by itself)")?;
        let named =
            renameat(to.fd(), &draft[..], to.fd(), new_name).at(End::Destination, "give name");
        if named.is_err() {
            let _ = unlinkat(to.fd(), &draft[..], AtFlags::empty());
        }
        named?;
        add(&self.book.report.tally.hard_links, 1);
        Ok(())
    }

    pub(crate) fn lost(&self, path: &[u8], lost: Option<String>) {
        if let Some(lost) = lost {
            self.book.problem(path, ProblemKind::Lost, format!("not kept: {lost}"));
        }
    }

    /// The attributes that the other end may give here, and what of them it may not.
    pub(crate) fn allowed(
        &self,
        entry: &Entry,
    ) -> (Vec<Attribute>, waystage_copy::parts::About, Option<String>) {
        let (mut xattrs, mut about, mut lost) = (entry.xattrs.clone(), entry.about, None);
        if !self.target.privileged {
            let before = xattrs.len();
            xattrs.retain(|(name, _)| name.starts_with(b"user."));
            if xattrs.len() < before {
                lost = Some("attributes of the system, which this server does not take".to_owned());
            }
            if about.mode & 0o6000 != 0 && entry.letter != b'd' {
                lost = Some(
                    "set-user-id and set-group-id, which this server does not take".to_owned(),
                );
            }
            about.mode &= 0o1777;
        }
        (xattrs, about, lost)
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// What the journal says a file was at the source.
fn numbers(seen: &Seen) -> [u64; 5] {
    [seen.device, seen.inode, seen.size, seen.mtime as u64, seen.ctime as u64]
}

fn open_draft(folder: &Folder, name: &[u8], more: OFlags) -> Result<OwnedFd, Failure> {
    let how = OFlags::RDWR | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC | more;
    openat(folder.fd(), name, how, Mode::from_raw_mode(0o600)).at(End::Destination, "make file")
}
