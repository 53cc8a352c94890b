//! What all threads of the receiving side share: the destination, large files in progress, what waits for the end.
//!
//! Arrives: where to, and how. Leaves: the state of a copy that may be killed at any moment. Must not know:
//! connections.
//!
//! The journal and the temporary names are those of copies on one machine (`docs/reference/copy-journal.md`).

mod finish;

use std::collections::{BTreeMap, HashMap};
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::Arc;
use std::time::Duration;

use crate::error::WanError;
use parking_lot::Mutex;
use waystage_copy::attributes::{AttributePreserver, Xattr};
use waystage_copy::backup::OpenBackup;
use waystage_copy::error::{At, End, Failure};
use waystage_copy::plan::{plan, Action, Found, Policy, Resume, Wanted};
use waystage_copy::sink::{Expected, Folder, LargeFile, Sink, SinkOptions};
use waystage_copy::stat::Metadata;
use waystage_copy::{add, PartSet};
use waystage_transport::message::CONTENT_BYTES;
use waystage_transport::wire::{Reader, Writer};

use crate::copy_state::CopyState;
use crate::entry::Entry;
use crate::external_sort::{ExternalSort, SpillDirectory, SpillRange};
use crate::privileges::PeerPrivileges;
use crate::receive_limits::ReceiveLimits;
use crate::request_filter::RequestFilter;
use crate::session::{CopyOptions, Dry};

/// How long a copy to the same destination that has just lost its connection may take to notice.
const BUSY_TIME: Duration = Duration::from_secs(30);

/// What a large file takes in memory beside its path, about.
const LARGE_BYTES: usize = 512;

/// Where a copy goes.
pub(crate) struct Target<'a> {
    /// A name of the root that stays valid.
    pub(crate) root: PathBuf,
    /// What keeps that name valid.
    pub(crate) _held: OwnedFd,
    /// The name of the one file, where only one is copied.
    pub(crate) rename: Option<Vec<u8>>,
    /// What its user calls it.
    pub(crate) shown: PathBuf,
    /// What the journal calls the source.
    pub(crate) from: Vec<u8>,
    /// What the peer may set on files here.
    pub(crate) privileges: PeerPrivileges,
    /// What may come.
    pub(crate) filter: RequestFilter<'a>,
}

/// A large file that is being received.
pub(crate) struct IncomingFile {
    pub(crate) entry: Entry,
    pub(crate) file: LargeFile,
    /// The file that has its name, where that is compared.
    pub(crate) compared: Option<OwnedFd>,
    pub(crate) state: Mutex<IncomingState>,
}

#[derive(Default)]
pub(crate) struct IncomingState {
    pub(crate) opened: Option<Arc<(Folder, OwnedFd)>>,
    pub(crate) written: PartSet,
    /// Parts that are equal in the compared file, and not in the temporary one, with their digests.
    pub(crate) equal: BTreeMap<u32, u128>,
    /// Workers that are copying such parts.
    pub(crate) copying: u32,
    /// The entry with all its attributes, once every part was sent; or where it is kept.
    pub(crate) closed: Option<Entry>,
    pub(crate) spilled: Option<SpillRange>,
    pub(crate) over: bool,
}

impl IncomingFile {
    pub(crate) fn parts(&self) -> u32 {
        waystage_copy::plan::extents_of(self.entry.seen.size, CONTENT_BYTES as u64)
    }

    /// Where a part begins and ends.
    pub(crate) fn range(&self, part: u32) -> (u64, u64) {
        let start = u64::from(part) * CONTENT_BYTES as u64;
        (start, (start + CONTENT_BYTES as u64).min(self.entry.seen.size))
    }

    /// What it takes in memory, about.
    fn cost(&self) -> usize {
        LARGE_BYTES + 2 * self.entry.path.len()
    }
}

pub(crate) struct ReceiverState<'a> {
    pub(crate) options: &'a CopyOptions,
    pub(crate) copy_state: &'a CopyState,
    pub(crate) target: &'a Target<'a>,
    pub(crate) sink: Sink,
    pub(crate) backup: Option<OpenBackup>,
    /// For entries that are there: their extended attributes are not asked for.
    pub(crate) plain_preserver: AttributePreserver,
    policy: Policy,
    larges: Mutex<HashMap<u32, Arc<IncomingFile>>>,
    /// Directories, the deepest first, whose attributes come last of all.
    directories: Mutex<ExternalSort>,
    /// Further names of files, by the first one.
    links: Mutex<ExternalSort>,
    pub(crate) limits: ReceiveLimits,
    pub(crate) handled: AtomicU64,
}

impl<'a> ReceiverState<'a> {
    pub(crate) fn open(
        target: &'a Target<'a>,
        options: &'a CopyOptions,
        copy_state: &'a CopyState,
        memory_bytes: u64,
    ) -> Result<Self, WanError> {
        let memory = usize::try_from(memory_bytes).unwrap_or(usize::MAX);
        let owners = options.owners && target.privileges.gives_owners();
        let sink = SinkOptions {
            root: &target.root,
            shown: &target.shown,
            rename: target.rename.clone(),
            share: None,
            from: &target.from,
            dry_run: options.dry.is_dry(),
            restart: options.restart,
            fsync: options.fsync,
            owners,
            xattrs: options.xattrs,
            most_recovered_bytes: memory / 8,
            busy_time: BUSY_TIME,
        };
        let sink = Sink::open(sink, &copy_state.report, &copy_state.pace.gate)?;
        // Nothing is written at the destination of a dry run.
        let place = || match sink.destination.root().filter(|_| !options.dry.is_dry()) {
            Some(Ok(root)) => SpillDirectory::In(root),
            _ => SpillDirectory::Anywhere,
        };
        let sort = |descending| Mutex::new(ExternalSort::new(place(), memory / 16, descending));
        let policy = Policy {
            update: options.update,
            doubtful_since: sink.doubtful_since,
            extent_bytes: CONTENT_BYTES as u64,
            compares_extents: true,
            on_other_hosts: false,
        };
        let (directories, links) = (sort(true), sort(false));
        let backup = options.backup.as_ref().filter(|_| !options.dry.is_dry());
        let backup = backup.map(|backup| backup.open_below(&target.root, sink.session));
        let backup = backup.transpose()?;
        Ok(Self {
            options,
            copy_state,
            target,
            policy,
            plain_preserver: AttributePreserver::new(owners, false),
            larges: Mutex::default(),
            directories,
            links,
            limits: ReceiveLimits::new(place(), memory),
            handled: AtomicU64::new(0),
            backup,
            sink,
        })
    }

    /// Whether nothing is to be written.
    pub(crate) fn is_dry(&self) -> bool {
        self.options.dry.is_dry()
    }

    /// What is done with an entry, where the destination has `found` under its name.
    pub(crate) fn plan(&self, entry: &Entry, found: Option<&Found>, most_held: u64) -> Action {
        let wanted = Wanted {
            letter: entry.letter,
            seen: &entry.seen,
            target: &entry.symlink,
            device: entry.device,
        };
        let is_large = entry.seen.size > self.policy.extent_bytes;
        let mut recovered = is_large.then(|| self.sink.recovered(&entry.path)).flatten();
        if let Some(partial) = &mut recovered {
            // An answer names only this many parts; those beyond are sent again.
            partial.written.keep_first(most_held);
        }
        plan(&wanted, found, recovered.as_ref(), &self.policy)
    }

    /// Keep what has this name and is about to be replaced, where that is wanted.
    pub(crate) fn keep(
        &self,
        folder: &Folder,
        directory: &[u8],
        name: &[u8],
    ) -> Result<(), Failure> {
        let backup = self.backup.as_ref();
        backup.map_or(Ok(()), |backup| backup.keep(folder.fd(), directory, name))
    }

    /// In a dry run, note what would be made, and count it where nothing else does; whether this is one.
    pub(crate) fn only_planned(&self, entry: &Entry) -> bool {
        if !self.is_dry() {
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

    pub(crate) fn remember_directory(&self, entry: &Entry) -> Result<(), Failure> {
        let mut body = Writer::default();
        entry.put(&mut body);
        self.directories.lock().put(entry.path.clone(), body.0).at(End::Destination, KEEP)
    }

    pub(crate) fn remember_link(&self, first: Vec<u8>, other: Vec<u8>) -> Result<(), Failure> {
        self.links.lock().put(first, other).at(End::Destination, KEEP)
    }

    /// Keep the entry of a large file until all its parts are there.
    pub(crate) fn spill(&self, entry: &[u8]) -> Result<SpillRange, Failure> {
        self.limits.keep(entry).at(End::Destination, KEEP)
    }

    /// They are: the entry.
    pub(crate) fn unspill(&self, range: SpillRange) -> Result<Entry, Failure> {
        let bytes = self.limits.kept(range).at(End::Destination, KEEP)?;
        Entry::read(&mut Reader(&bytes))
            .map_err(|_| rustix::io::Errno::IO)
            .at(End::Destination, KEEP)
    }

    /// A large file that is wanted, with what an earlier run left of it; `most_held` more parts of that can be named in
    /// the answer.
    pub(crate) fn expect(
        &self,
        mut entry: Entry,
        compared: Option<OwnedFd>,
        (missing, resume): (PartSet, Resume),
        most_held: &mut u64,
    ) -> Result<Arc<IncomingFile>, Failure> {
        // The message that closes it brings them.
        (entry.xattrs, entry.symlink) = Default::default();
        let (sink, report) = (&self.sink, &self.copy_state.report);
        let mut written = match sink.recovered(&entry.path) {
            Some(partial) if resume == Resume::Continue => partial.written,
            _ => PartSet::default(),
        };
        written.keep_first(*most_held);
        let mut planned = (missing, resume);
        if !self.limits.runs(0, written.runs()) {
            // There is no memory to remember them: they are sent again.
            self.limits.runs(written.runs(), 0);
            written.iter().for_each(|part| {
                planned.0.insert(part);
            });
            written = PartSet::default();
        }
        let extent_bytes = CONTENT_BYTES as u64;
        let expected = sink.expect_large(&entry.path, &entry.seen, extent_bytes, planned, report);
        let Expected { file, opened, .. } = expected?;
        if opened.is_none() {
            self.limits.runs(written.runs(), 0);
            written = PartSet::default();
        }
        *most_held -= written.len();
        let opened = opened.map(Arc::new);
        let state = Mutex::new(IncomingState { opened, written, ..IncomingState::default() });
        let large = Arc::new(IncomingFile { entry, file, compared, state });
        // Nothing of it comes in those dry runs that send nothing.
        if matches!(self.options.dry, Dry::No | Dry::Network) {
            self.limits.begins(large.cost());
            self.larges.lock().insert(large.file.id, Arc::clone(&large));
        }
        Ok(large)
    }

    pub(crate) fn large(&self, id: u32) -> Option<Arc<IncomingFile>> {
        self.larges.lock().get(&id).cloned()
    }

    /// Its temporary file, made where there is none yet.
    pub(crate) fn opened(
        &self,
        large: &IncomingFile,
        state: &mut IncomingState,
    ) -> Result<Arc<(Folder, OwnedFd)>, Failure> {
        if let Some(opened) = &state.opened {
            return Ok(Arc::clone(opened));
        }
        let opened = Arc::new(self.sink.create_large(&large.file, &self.copy_state.report)?);
        state.opened = Some(Arc::clone(&opened));
        Ok(opened)
    }

    /// A part of a large file is there; whether it was not before. The peer must not make it grow without bounds.
    pub(crate) fn wrote(&self, state: &mut IncomingState, index: u32) -> Result<bool, Failure> {
        let before = state.written.runs();
        let is_new = state.written.insert(index);
        if !self.limits.runs(before, state.written.runs()) {
            self.copy_state.end_for(WanError::lost(
                "the peer broke the protocol: it sends parts of large files in an order that takes more memory than there is",
            ));
            return Err(Failure::Stopped);
        }
        Ok(is_new)
    }

    /// Nothing more is to come of it.
    pub(crate) fn forget(&self, large: &IncomingFile) {
        if self.larges.lock().remove(&large.file.id).is_some() {
            let mut state = large.state.lock();
            self.limits.runs(state.written.runs(), 0);
            self.limits.alike(state.equal.len(), 0);
            (state.written, state.equal) = Default::default();
            self.limits.ends(large.cost());
        }
    }

    /// It will not be completed.
    pub(crate) fn abandon(&self, large: &IncomingFile) {
        large.state.lock().over = true;
        self.forget(large);
        self.sink.abandon_large(&large.file);
    }

    /// The attributes that the peer may set here, and what of them it may not.
    pub(crate) fn allowed(&self, entry: &Entry) -> (Vec<Xattr>, Metadata, Option<String>) {
        self.target.privileges.allowed(entry)
    }

    /// Count an entry whose owner would be another if the peer were trusted: only root could have given it away.
    pub(crate) fn count_owner(&self, entry: &Entry) {
        let owner = (entry.metadata.uid, entry.metadata.gid);
        if self.options.owners
            && rustix::process::geteuid().is_root()
            && !self.target.privileges.gives_owners()
            && owner != (0, 0)
        {
            self.copy_state.owners_left.fetch_add(1, Ordering::Relaxed);
        }
    }
}

const KEEP: &str = "keep what is to be done at the end";
