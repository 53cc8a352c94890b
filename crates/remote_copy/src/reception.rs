//! What all threads of the receiving end share: the destination, its journal, large files under way.
//!
//! Arrives: where to, and how. Leaves: the state of a copy that may be killed at any moment. Must not know: connections.
//!
//! The journal and the names of drafts are those of copies on one machine (`docs/reference/copy-journal.md`).

mod finish;

use std::collections::{BTreeMap, HashMap};
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::error::WanError;
use parking_lot::{Mutex, MutexGuard};
use rustix::fs::{ftruncate, renameat, unlinkat, AtFlags};
use rustix::io::Errno;
use waystage_copy::journal::{Half, Journal, Record};
use waystage_copy::parts::{
    add, begin, create, doubtful_since, is_journal_folder, large_name, random, remove_larges,
    reopen, session_of, unwritable, At, Attribute, Beginning, Destination, End, Failure, Folder,
    Keeper, Parts, Time,
};
use waystage_copy::{CopyErrorKind, Fsync, ProblemKind};
use waystage_transport::message::CONTENT_BYTES;
use waystage_transport::wire::{Reader, Writer};

use crate::asked::Asked;
use crate::copy_state::CopyState;
use crate::entry::{split, Entry};
use crate::pile::{Pile, Place, Ticket};
use crate::session::{CopyOptions, Dry};
use crate::trust::Trust;
use crate::waiting::Waiting;

/// How long a copy to the same place that has just lost its connection may take to notice.
const BUSY_TIME: Duration = Duration::from_secs(30);

/// What a large file takes in memory beside its path, about.
const LARGE_BYTES: usize = 512;

/// Where a copy goes.
pub(crate) struct Target<'a> {
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
    /// What the other end may give to files here.
    pub(crate) trust: Trust,
    /// What may come.
    pub(crate) asked: Asked<'a>,
}

/// A large file coming in.
pub(crate) struct LargeIn {
    pub(crate) entry: Entry,
    pub(crate) id: u32,
    /// The random number in its draft's name.
    pub(crate) key: u64,
    /// What bears its name, where that is compared.
    pub(crate) compared: Option<OwnedFd>,
    pub(crate) state: Mutex<LargeState>,
}

#[derive(Default)]
pub(crate) struct LargeState {
    pub(crate) opened: Option<Arc<(Folder, OwnedFd)>>,
    pub(crate) written: Parts,
    /// Parts that are alike in what is there, and not in the draft, with their digests.
    pub(crate) alike: BTreeMap<u32, u128>,
    /// Workers who are copying such parts into the draft.
    pub(crate) taking: u32,
    /// The entry with all its attributes, once every part was sent; or where it is kept.
    pub(crate) closed: Option<Entry>,
    pub(crate) shelved: Option<Ticket>,
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
        self.state.lock()
    }

    /// What it takes in memory, about.
    fn cost(&self) -> usize {
        LARGE_BYTES + 2 * self.entry.path.len()
    }

    fn draft_name(&self, session: u64) -> Vec<u8> {
        large_name(session, self.key)
    }
}

pub(crate) struct Reception<'a> {
    pub(crate) options: &'a CopyOptions,
    pub(crate) copy_state: &'a CopyState,
    pub(crate) target: &'a Target<'a>,
    pub(crate) destination: Destination,
    /// None in a dry run.
    journal: Option<Journal>,
    pub(crate) keeper: Keeper,
    /// For files that stand: their extended attributes are not asked for.
    pub(crate) plain_keeper: Keeper,
    pub(crate) session: u64,
    /// Whether drafts may lie where no journal says so.
    sweeps: bool,
    larges: Mutex<HashMap<u32, Arc<LargeIn>>>,
    halves: Mutex<HashMap<Vec<u8>, Half>>,
    /// Directories, the deepest first, whose attributes come last of all.
    directories: Mutex<Pile>,
    /// Further names of files, by the first one.
    links: Mutex<Pile>,
    pub(crate) waiting: Waiting,
    next_id: AtomicU32,
    doubtful_since: Option<Time>,
    pub(crate) handled: AtomicU64,
}

impl<'a> Reception<'a> {
    pub(crate) fn open(
        target: &'a Target<'a>,
        options: &'a CopyOptions,
        copy_state: &'a CopyState,
        memory_bytes: u64,
    ) -> Result<Self, WanError> {
        let dry = options.dry.is_dry();
        let destination = Destination::open(&target.root, dry)
            .map_err(|error| unwritable(&target.shown, &error))?;
        // Nothing is written at the destination of a dry run.
        let place = || match destination.root().filter(|_| !dry) {
            Some(Ok(root)) => Place::In(root),
            _ => Place::Anywhere,
        };
        let memory = usize::try_from(memory_bytes).unwrap_or(usize::MAX);
        let pile = |descending| Mutex::new(Pile::new(place(), memory / 16, descending));
        let (directories, links) = (pile(true), pile(false));
        let waiting = Waiting::new(place(), memory);
        let owners = options.owners && target.trust.gives_owners();
        let reception = Self {
            options,
            copy_state,
            target,
            destination,
            journal: None,
            keeper: Keeper::new(owners, options.xattrs),
            plain_keeper: Keeper::new(owners, false),
            session: 0,
            sweeps: false,
            larges: Mutex::default(),
            doubtful_since: None,
            next_id: AtomicU32::new(0),
            halves: Mutex::default(),
            directories,
            links,
            waiting,
            handled: AtomicU64::new(0),
        };
        if dry {
            return Ok(reception);
        }
        reception.with_journal(memory / 8)
    }

    /// Find what an earlier run left, and say that one begins.
    fn with_journal(self, most_past_bytes: usize) -> Result<Self, WanError> {
        let Self { options, target, copy_state, destination, .. } = &self;
        let root = || {
            destination.root().and_then(Result::ok).ok_or_else(|| {
                WanError::from(unwritable(&target.shown, &std::io::Error::from(Errno::NOENT)))
            })
        };
        let session = session_of(&root()?, target.rename.as_deref());
        let deadline = Instant::now() + BUSY_TIME;
        let (journal, mut past) = loop {
            match Journal::open(root()?, target.rename.as_deref(), &target.shown, most_past_bytes) {
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
        let sweeps = past.found;
        begin(&how, &journal, &mut past, destination, &copy_state.report)?;
        Ok(Self {
            journal: Some(journal),
            session,
            sweeps,
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
        let tally = &self.copy_state.report.tally;
        let is_file = entry.letter == b'f';
        match entry.letter {
            b'f' if self.options.dry == Dry::Plan => self.arrived(1, entry.seen.size),
            b'f' => {}
            b'l' => add(&tally.symlinks, 1),
            _ => add(&tally.specials, 1),
        }
        let bytes = if is_file { entry.seen.size } else { 0 };
        self.copy_state.report.plan(entry.path.clone(), entry.letter, bytes);
        true
    }

    pub(crate) fn arrived(&self, files: u64, bytes: u64) {
        let tally = &self.copy_state.report.tally;
        add(&tally.files, files);
        add(&tally.bytes, bytes);
    }

    /// Whether a file changed at this time may be one whose contents a power failure took.
    pub(crate) fn doubtful(&self, ctime: Time) -> bool {
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

    /// Nothing is made where this copy's journal is: no sender that keeps to the rules names it.
    pub(crate) fn may_be_made(&self, path: &[u8]) -> Result<(), Failure> {
        let (directory, name) = self.place(path);
        let above = directory.split(|byte| *byte == b'/').next().filter(|name| !name.is_empty());
        if is_journal_folder(above.unwrap_or(name)) {
            return Err(Failure::Clash("bears the name of a copy's own journal"));
        }
        Ok(())
    }

    pub(crate) fn remember_directory(&self, entry: &Entry) -> Result<(), Failure> {
        let mut body = Writer::default();
        entry.put(&mut body);
        lock(&self.directories).put(entry.path.clone(), body.0).map_err(|error| unkept(&error))
    }

    pub(crate) fn remember_link(&self, first: Vec<u8>, other: Vec<u8>) -> Result<(), Failure> {
        lock(&self.links).put(first, other).map_err(|error| unkept(&error))
    }

    /// Keep the entry of a large file until all its parts are there.
    pub(crate) fn shelve(&self, entry: &[u8]) -> Result<Ticket, Failure> {
        self.waiting.keep(entry).map_err(|error| unkept(&error))
    }

    /// They are: the entry.
    pub(crate) fn unshelve(&self, ticket: Ticket) -> Result<Entry, Failure> {
        let bytes = self.waiting.kept(ticket).map_err(|error| unkept(&error))?;
        Entry::read(&mut Reader(&bytes)).map_err(|_| unkept(&Errno::IO.into()))
    }

    /// A large file that is wanted, with what an earlier run left of it; `most_held` parts of that may still be told in the answer.
    pub(crate) fn expect(
        &self,
        mut entry: Entry,
        compared: Option<OwnedFd>,
        most_held: &mut u64,
    ) -> Result<Arc<LargeIn>, Failure> {
        // What closes it brings them.
        (entry.xattrs, entry.symlink) = Default::default();
        let seen = entry.seen.numbers();
        let half = lock(&self.halves).remove(&entry.path).map(|mut half| {
            half.written.keep_first(*most_held);
            if !self.waiting.runs(0, half.written.runs()) {
                self.waiting.runs(half.written.runs(), 0);
                half.written = Parts::default();
            }
            half
        });
        let fits = |half: &Half| half.seen == seen && half.extent_bytes == CONTENT_BYTES as u64;
        let mut id = None;
        let mut state = LargeState::default();
        if let Some(half) = half {
            if fits(&half) {
                if let Some(opened) = self.resumed(&entry, half.key) {
                    let bytes = half.written.len().saturating_mul(CONTENT_BYTES as u64);
                    *most_held -= half.written.len();
                    add(&self.copy_state.report.tally.resumed_bytes, bytes.min(entry.seen.size));
                    state.opened = Some(Arc::new(opened));
                    state.written = half.written.clone();
                    id = Some((half.id, half.key));
                }
            }
            if id.is_none() {
                self.waiting.runs(half.written.runs(), 0);
                remove_larges(
                    &self.destination,
                    [half].into_iter(),
                    self.session,
                    &self.copy_state.report,
                );
            }
        }
        let (id, key) = match id {
            Some(of_half) => of_half,
            None => {
                let key = random().at(End::Destination, "find a name")?;
                (self.next_id.fetch_add(1, Ordering::Relaxed), key)
            }
        };
        let large = Arc::new(LargeIn { entry, id, key, compared, state: Mutex::new(state) });
        // Nothing of it comes in those dry runs that send nothing.
        if matches!(self.options.dry, Dry::No | Dry::Network) {
            self.waiting.begins(large.cost());
            lock(&self.larges).insert(id, Arc::clone(&large));
        }
        Ok(large)
    }

    pub(crate) fn large(&self, id: u32) -> Option<Arc<LargeIn>> {
        lock(&self.larges).get(&id).cloned()
    }

    /// The draft that an earlier run left, if it is still what it was.
    fn resumed(&self, entry: &Entry, key: u64) -> Option<(Folder, OwnedFd)> {
        let folder = self.destination.find(self.place(&entry.path).0).ok()??;
        let draft = reopen(folder.fd(), &large_name(self.session, key), entry.seen.size)?;
        Some((folder, draft))
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
            key: large.key,
            seen: large.entry.seen.numbers(),
            extent_bytes: CONTENT_BYTES as u64,
        })?;
        let name = large.draft_name(self.session);
        let draft = create(folder.fd(), &name).at(End::Destination, "make file")?;
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
        self.forget(large);
        Ok(())
    }

    /// A part of a large file is there; whether it was not before. The other end must not have it grow without bounds.
    pub(crate) fn wrote(&self, state: &mut LargeState, index: u32) -> Result<bool, Failure> {
        let before = state.written.runs();
        let is_new = state.written.insert(index);
        if !self.waiting.runs(before, state.written.runs()) {
            self.copy_state.end_for(WanError::lost(
                "the other end broke the protocol: it sends parts of large files in an order that takes more memory than there is",
            ));
            return Err(Failure::Stopped);
        }
        Ok(is_new)
    }

    /// Nothing more is to come of it.
    pub(crate) fn forget(&self, large: &LargeIn) {
        if lock(&self.larges).remove(&large.id).is_some() {
            let mut state = large.lock();
            self.waiting.runs(state.written.runs(), 0);
            self.waiting.alike(state.alike.len(), 0);
            (state.written, state.alike) = Default::default();
            self.waiting.ends(large.cost());
        }
    }

    /// Nobody will go on with it.
    pub(crate) fn give_up(&self, large: &LargeIn) {
        self.forget(large);
        let (directory, _) = self.place(&large.entry.path);
        if let Ok(Some(folder)) = self.destination.find(directory) {
            // Where it was never made there is nothing to remove.
            let name = large.draft_name(self.session);
            let _ = unlinkat(folder.fd(), &name[..], AtFlags::empty());
            let _ = self.record(&Record::Ended { id: large.id });
        }
    }

    pub(crate) fn lost(&self, path: &[u8], lost: Option<String>) {
        if let Some(lost) = lost {
            self.copy_state.problem(path, ProblemKind::Lost, format!("not kept: {lost}"));
        }
    }

    /// The attributes that the other end may give here, and what of them it may not.
    pub(crate) fn allowed(
        &self,
        entry: &Entry,
    ) -> (Vec<Attribute>, waystage_copy::parts::About, Option<String>) {
        self.target.trust.allowed(entry)
    }

    /// Count an entry whose owner would be another if the other end were trusted: only root could have given it away.
    pub(crate) fn count_owner(&self, entry: &Entry) {
        let owner = (entry.about.uid, entry.about.gid);
        if self.options.owners
            && rustix::process::geteuid().is_root()
            && !self.target.trust.gives_owners()
            && owner != (0, 0)
        {
            self.copy_state.owners_left.fetch_add(1, Ordering::Relaxed);
        }
    }
}

fn unkept(error: &std::io::Error) -> Failure {
    let errno = error.raw_os_error().map_or(Errno::IO, Errno::from_raw_os_error);
    Failure::Call { end: End::Destination, doing: "keep what is to be done at the end", errno }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock()
}
