//! Files of the source that the destination holds, byte by byte, are removed.

use std::os::fd::{AsFd, BorrowedFd};
use std::path::PathBuf;
use std::sync::mpsc::{sync_channel, Receiver, SyncSender};

use parking_lot::Mutex;
use rustix::fs::{readlinkat, syncfs, unlinkat, AtFlags};
use rustix::io::Errno;
use waystage_catalog::{Exclude, Root};

use super::{open, LastDirectory};
use crate::compare::same_contents;
use crate::counts::{add, ProblemKind};
use crate::engine::{Engine, Job};
use crate::error::{At, CopyError, End, Failure};
use crate::file_io::open_file;
use crate::options::Limits;
use crate::source::{produce, Consumer, Item, Names, Selection, Source};
use crate::stat::{letter, stat_at, stat_fd, FileState};
use crate::state::CopyState;

/// Threads that walk the source.
const WALKERS: usize = 4;

/// Entries that wait for a thread, at most.
const WAITING: usize = 1024;

/// What to remove, after which copy.
#[derive(Debug, Clone)]
pub struct RemoveOptions {
    /// The directory, or the directory of the one file, that was copied.
    pub source: PathBuf,
    /// Where the copy is.
    pub destination: PathBuf,
    /// One file: its name at the source, and that at the destination.
    pub single: Option<(Vec<u8>, Vec<u8>)>,
    /// As in the copy.
    pub exclude: Exclude,
    /// As in the copy.
    pub include: Option<Exclude>,
    /// As in the copy.
    pub names: Option<Names>,
    /// As in the copy.
    pub limits: Limits,
    /// As in the copy.
    pub one_file_system: bool,
    /// Threads that compare.
    pub workers: usize,
    /// Only say what would be removed; nothing is compared.
    pub dry_run: bool,
    /// Keep what is done with each entry, to be taken.
    pub log: bool,
}

/// A removal in progress.
pub type Remove = Engine<RemoveJob>;

/// See [`Remove`].
pub struct RemoveJob {
    options: RemoveOptions,
    source: Source,
    destination: Root,
    state: CopyState<CopyError>,
}

impl Remove {
    /// Start.
    ///
    /// # Errors
    /// Where source or destination cannot be opened.
    pub fn start(options: RemoveOptions) -> Result<Self, CopyError> {
        let path = options.source.canonicalize();
        let path = path.map_err(|error| crate::ends::unwritable(&options.source, &error))?;
        let (root, destination) = (open(&path)?, open(&options.destination)?);
        let mut single = None;
        if let Some((name, _)) = &options.single {
            let folder = root.directory(b"").map_err(|errno| CopyError::Ends(errno.to_string()))?;
            let stat = stat_at(folder.as_fd(), name)
                .map_err(|errno| CopyError::Ends(errno.to_string()))?;
            single = Some(Item::file(&stat, b"", name));
        }
        let source = Source { root, path, single };
        let state = CopyState::default();
        if options.log {
            state.report.log();
        }
        Self::of(RemoveJob { options, source, destination, state })
    }
}

struct Sender<'a>(SyncSender<Item>, &'a CopyState<CopyError>);

impl Consumer for Sender<'_> {
    fn entry(&mut self, item: Item) -> bool {
        // Directories stay, as with rsync: others may put files into them at any time.
        (matches!(item.letter, b'd' | b's') || self.0.send(item).is_ok()) && !self.1.is_stopped()
    }

    fn flush(&mut self) -> bool {
        !self.1.is_stopped()
    }
}

impl Job for RemoveJob {
    const NAME: &'static str = "remove";

    fn state(&self) -> &CopyState<CopyError> {
        &self.state
    }

    fn run(&self) -> Result<(), CopyError> {
        if !self.options.dry_run {
            // What is in memory alone is no copy yet.
            let root = self.destination.directory(b"").and_then(syncfs);
            root.map_err(|errno| {
                CopyError::Failed(format!("{}: sync: {errno}", self.options.destination.display()))
            })?;
        }
        let selection = Selection {
            names: self.options.names.as_ref(),
            exclude: self.options.exclude.clone(),
            include: self.options.include.as_ref(),
            limits: self.options.limits,
            one_file_system: self.options.one_file_system,
            walkers: WALKERS,
            ..Selection::default()
        };
        let (sender, receiver) = sync_channel(WAITING);
        let receiver = Mutex::new(receiver);
        let produced = std::thread::scope(|scope| {
            for number in 0..self.options.workers.max(1) {
                let builder = std::thread::Builder::new().name(format!("remove-{number}"));
                let spawned = builder.spawn_scoped(scope, || self.work(&receiver));
                if let (0, Err(error)) = (number, spawned) {
                    return Err(error);
                }
            }
            produce(&self.source, &selection, &self.state, &mut Sender(sender, &self.state))
        });
        match produced.map_err(|error| CopyError::Failed(error.to_string()))? {
            true if !self.state.is_stopped() => Ok(()),
            _ => Err(self.state.verdict()),
        }
    }
}

impl RemoveJob {
    fn work(&self, items: &Mutex<Receiver<Item>>) {
        let mut open = (LastDirectory::default(), LastDirectory::default());
        loop {
            let Ok(item) = items.lock().recv() else { return };
            if self.state.is_stopped() {
                continue; // The walk is not left waiting.
            }
            if let Err(failure) = self.remove(&mut open, &item) {
                self.state.failed(&item.path(), &failure);
            }
        }
    }

    fn remove(
        &self,
        (here, there): &mut (LastDirectory, LastDirectory),
        item: &Item,
    ) -> Result<(), Failure> {
        let report = &self.state.report;
        if self.options.dry_run {
            add(&report.tally.removed, 1);
            return Ok(());
        }
        let name = match &self.options.single {
            Some((_, other)) => &other[..],
            None => &item.name[..],
        };
        let source =
            here.of(&self.source.root, &item.directory).at(End::Source, "open directory")?;
        let copy =
            there.of(&self.destination, &item.directory).at(End::Destination, "open directory")?;
        let seen = stat_at(source, &item.name).at(End::Source, "stat")?;
        if letter(seen.stx_mode) != item.letter || !self.is_same(source, copy, item, name)? {
            let text = "stays at the source: the destination holds other contents";
            self.state.problem(&item.path(), ProblemKind::Changed, text);
            return Ok(());
        }
        let now = stat_at(source, &item.name).at(End::Source, "stat")?;
        if !is_unchanged(&FileState::of(&seen), &FileState::of(&now), seen.stx_nlink) {
            return Err(Failure::Changed(
                "stays at the source: it was changed while it was compared",
            ));
        }
        match unlinkat(source, &item.name[..], AtFlags::empty()) {
            Ok(()) => {
                add(&report.tally.removed, 1);
                report.done("removed", &item.path(), item.letter, item.seen.size);
                Ok(())
            }
            Err(Errno::NOENT) => Ok(()),
            Err(errno) => Err(errno).at(End::Source, "remove"),
        }
    }

    /// Whether the destination has the same under this name.
    fn is_same(
        &self,
        source: BorrowedFd<'_>,
        copy: BorrowedFd<'_>,
        item: &Item,
        name: &[u8],
    ) -> Result<bool, Failure> {
        let there = match stat_at(copy, name) {
            Err(Errno::NOENT) => return Ok(false),
            other => other.at(End::Destination, "stat")?,
        };
        if letter(there.stx_mode) != item.letter {
            return Ok(false);
        }
        match item.letter {
            b'f' => {
                let one = open_file(source, &item.name, End::Source)?;
                let other = open_file(copy, name, End::Destination)?;
                let (a, b) = (
                    stat_fd(one.as_fd()).at(End::Source, "stat")?,
                    stat_fd(other.as_fd()).at(End::Destination, "stat")?,
                );
                if (a.stx_ino, a.stx_dev_major, a.stx_dev_minor)
                    == (b.stx_ino, b.stx_dev_major, b.stx_dev_minor)
                {
                    return Ok(false); // One file under two names: no copy of it.
                }
                Ok(a.stx_size == b.stx_size
                    && same_contents(one.as_fd(), other.as_fd(), &self.state.stop_flag())?)
            }
            b'l' => {
                let one =
                    readlinkat(source, &item.name[..], Vec::new()).at(End::Source, "read link")?;
                let other = readlinkat(copy, name, Vec::new()).at(End::Destination, "read link")?;
                Ok(one == other)
            }
            _ => {
                let here = stat_at(source, &item.name).at(End::Source, "stat")?;
                Ok((here.stx_rdev_major, here.stx_rdev_minor)
                    == (there.stx_rdev_major, there.stx_rdev_minor))
            }
        }
    }
}

/// Another of its names may have been removed meanwhile, which changes the inode and not the file.
fn is_unchanged(before: &FileState, now: &FileState, links: u32) -> bool {
    if links > 1 {
        return FileState { ctime: before.ctime, ..*now } == *before;
    }
    now == before
}
