//! A large file: a draft of its full size, filled by extents that any worker writes and the journal remembers.

use std::collections::VecDeque;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Instant;

use rustix::fs::{fdatasync, ftruncate, openat, renameat, unlinkat, AtFlags, Mode, OFlags, CWD};

use crate::attributes::both;
use crate::contents::forget;
use crate::counts::{add, ProblemKind};
use crate::destination::Folder;
use crate::direct::{DirectEnds, Doubly, Way};
use crate::error::{At, End, Failure};
use crate::item::{look_at, Item, Seen};
use crate::journal::{Half, Record};
use crate::options::{Fsync, Verify};
use crate::own::{create, large_name, reopen};
use crate::small::open_file;
use crate::worker::Worker;

/// A large file under way.
pub(crate) struct Large {
    item: Item,
    name: Vec<u8>,
    id: u32,
    /// In its draft's name: that of what an earlier run left, while it is gone on with.
    key: AtomicU64,
    fresh_key: u64,
    session: u64,
    /// What an earlier run left of it.
    half: Option<Half>,
    todo: Mutex<VecDeque<u32>>,
    /// Extents not yet written.
    left: AtomicU32,
    open: Mutex<Phase>,
}

enum Phase {
    Waiting,
    Open(Arc<Opened>),
    /// It failed, and that has been said.
    Over,
}

struct Opened {
    source: OwnedFd,
    folder: Folder,
    draft: OwnedFd,
    /// Opened when an extent is first to go past the cache; None where that cannot be.
    direct: OnceLock<Option<DirectEnds>>,
}

impl Large {
    /// A file of more than one extent. `half` is what an earlier run left of the very same file: see [`is_half_of`].
    pub(crate) fn new(
        item: Item,
        name: Vec<u8>,
        fresh: (u32, u64),
        session: u64,
        extent_bytes: u64,
        half: Option<Half>,
    ) -> Self {
        let (id, key) = half.as_ref().map_or(fresh, |half| (half.id, half.key));
        let extents = u32::try_from(item.seen.size.div_ceil(extent_bytes)).unwrap_or(u32::MAX);
        let is_written =
            |index: &u32| half.as_ref().is_some_and(|half| half.written.contains(*index));
        let mut todo: VecDeque<u32> = (0..extents).filter(|index| !is_written(index)).collect();
        if todo.is_empty() {
            // Only its name is lacking. One extent more costs nothing and makes this no case of its own.
            todo.push_back(0);
        }
        let left = AtomicU32::new(u32::try_from(todo.len()).unwrap_or(u32::MAX));
        Self {
            item,
            name,
            id,
            fresh_key: fresh.1,
            session,
            key: AtomicU64::new(key),
            half,
            todo: Mutex::new(todo),
            left,
            open: Mutex::new(Phase::Waiting),
        }
    }

    /// Whether there are extents that nobody has taken.
    pub(crate) fn has_more(&self) -> bool {
        !self.todo.lock().unwrap_or_else(PoisonError::into_inner).is_empty()
    }

    /// Take one.
    pub(crate) fn claim(&self) -> Option<u32> {
        self.todo.lock().unwrap_or_else(PoisonError::into_inner).pop_front()
    }

    fn draft_name(&self) -> Vec<u8> {
        large_name(self.session, self.key.load(Ordering::SeqCst))
    }

    fn give_up(&self) {
        self.todo.lock().unwrap_or_else(PoisonError::into_inner).clear();
        *self.open.lock().unwrap_or_else(PoisonError::into_inner) = Phase::Over;
    }
}

/// Whether what an earlier run left is of this very file, cut into extents as now.
pub(crate) fn is_half_of(half: &Half, item: &Item, extent_bytes: u64) -> bool {
    half.seen == item.seen.numbers() && half.extent_bytes == extent_bytes
}

impl Worker<'_> {
    /// Write one extent; after the last one the file gets its name.
    pub(crate) fn extent(&mut self, large: &Arc<Large>, index: u32) {
        let done = self.opened(large).and_then(|opened| match opened {
            Some(opened) => self.extent_of(large, &opened, index),
            None => Ok(()),
        });
        if let Err(failure) = done {
            // A copy that was stopped goes on with the draft.
            let resumable = failure == Failure::Stopped || failure.fatal().is_some();
            if !resumable {
                self.drop_draft(large);
            }
            large.give_up();
            self.failed(&large.item.path(), &failure);
        }
    }

    fn opened(&mut self, large: &Large) -> Result<Option<Arc<Opened>>, Failure> {
        let mut phase = large.open.lock().unwrap_or_else(PoisonError::into_inner);
        match &*phase {
            Phase::Open(opened) => return Ok(Some(Arc::clone(opened))),
            Phase::Over => return Ok(None),
            Phase::Waiting => {}
        }
        let opened = Arc::new(self.begin(large)?);
        *phase = Phase::Open(Arc::clone(&opened));
        Ok(Some(opened))
    }

    fn begin(&mut self, large: &Large) -> Result<Opened, Failure> {
        let shared = self.shared;
        let item = &large.item;
        let directory =
            shared.source.directory(&item.directory).at(End::Source, "open directory")?;
        let source = open_file(directory.as_fd(), &item.name, End::Source)?;
        let now = look_at(source.as_fd()).at(End::Source, "look at")?;
        if Seen::of(&now) != item.seen {
            return Err(Failure::Changed("it was changed before it could be copied"));
        }
        let folder = shared.destination.make(&item.directory)?;
        let resumed = large
            .half
            .as_ref()
            .and_then(|_| reopen(folder.fd(), &large.draft_name(), item.seen.size));
        if let Some(draft) = resumed {
            let written = large.half.as_ref().map_or(0, |half| half.written.len());
            let bytes = written.saturating_mul(shared.extent_bytes).min(item.seen.size);
            add(&shared.report.tally.resumed_bytes, bytes);
            return Ok(Opened { source, folder, draft, direct: OnceLock::new() });
        }
        if large.half.is_some() {
            // Its draft is gone or not ours: all extents are to be written after all, those taken already once more.
            let _ = unlinkat(folder.fd(), &large.draft_name()[..], AtFlags::empty());
            large.key.store(large.fresh_key, Ordering::SeqCst);
            let extents =
                u32::try_from(item.seen.size.div_ceil(shared.extent_bytes)).unwrap_or(u32::MAX);
            let mut todo = large.todo.lock().unwrap_or_else(PoisonError::into_inner);
            let claimed = large.left.load(Ordering::SeqCst) - todo.len() as u32;
            *todo = (0..extents).collect();
            large.left.store(extents + claimed, Ordering::SeqCst);
        }
        let record = Record::Begun {
            id: large.id,
            key: large.key.load(Ordering::SeqCst),
            directory: item.directory.to_vec(),
            path: item.path(),
            seen: item.seen.numbers(),
            extent_bytes: shared.extent_bytes,
        };
        self.record(&record)?;
        let draft = create(folder.fd(), &large.draft_name()).at(End::Destination, "make file")?;
        ftruncate(&draft, item.seen.size).at(End::Destination, "set size")?;
        Ok(Opened { source, folder, draft, direct: OnceLock::new() })
    }

    fn extent_of(&mut self, large: &Large, opened: &Opened, index: u32) -> Result<(), Failure> {
        let shared = self.shared;
        let (source, draft) = (opened.source.as_fd(), opened.draft.as_fd());
        let verified = shared.options.verify != Verify::None;
        let start = u64::from(index) * shared.extent_bytes;
        let range = (start, (start + shared.extent_bytes).min(large.item.seen.size));
        let sparse = large.item.sparse;
        let ways = &shared.ways;
        let began = Instant::now();
        let mut way = ways.choice.pick();
        let direct = opened.directly(way);
        if direct.is_none() && way != Way::Cached {
            ways.choice.refuse();
            way = Way::Cached;
        }
        let from = Doubly { cached: source, direct: direct.and_then(|ends| ends.source_for(way)) };
        let to = Doubly { cached: draft, direct: direct.map(|ends| ends.draft.as_fd()) };
        let buffer = match direct {
            Some(_) => self.aligned.bytes(),
            None => &mut self.buffer,
        };
        let moved = ways.copy(buffer, from, to, range, sparse, verified)?;
        if shared.options.verify == Verify::Storage {
            forget(draft)?;
        } else if shared.options.fsync == Fsync::Each {
            fdatasync(draft).at(End::Destination, "sync")?;
        }
        if verified && ways.digest(buffer, to, source, range, sparse)? != moved.digest {
            return Err(Failure::Damaged);
        }
        ways.choice.took(way, moved.bytes, began.elapsed());
        self.record(&Record::Extent { id: large.id, index, digest: moved.digest })?;
        add(&shared.report.tally.bytes, moved.bytes);
        add(&shared.report.tally.objects, 1);
        if large.left.fetch_sub(1, Ordering::SeqCst) > 1 {
            return Ok(());
        }
        self.finish(large, opened, verified)
    }

    fn finish(&mut self, large: &Large, opened: &Opened, verified: bool) -> Result<(), Failure> {
        let shared = self.shared;
        let item = &large.item;
        let (source, draft) = (opened.source.as_fd(), opened.draft.as_fd());
        let now = look_at(source).at(End::Source, "look at")?;
        if now.stx_size < item.seen.size {
            return Err(crate::contents::SHRUNK);
        }
        let lost = shared.keeper.give(source, draft, &item.about, false)?;
        let lost = both(lost, shared.keeper.times(draft, &item.about)?);
        if shared.options.fsync == Fsync::Each {
            fdatasync(draft).at(End::Destination, "sync")?;
        }
        let folder = opened.folder.fd();
        renameat(folder, &large.draft_name()[..], folder, &large.name[..])
            .at(End::Destination, "give name")?;
        self.record(&Record::Ended { id: large.id })?;
        large.give_up();
        add(&shared.report.tally.files, 1);
        if verified {
            add(&shared.report.tally.verified, 1);
        }
        self.lost(item, lost);
        if Seen::of(&now) != item.seen {
            // Its name bears the time of before, so that the next copy does not take it for done.
            let text = "it was changed while it was copied".to_owned();
            shared.report.problem(item.path(), ProblemKind::Changed, text);
        }
        Ok(())
    }

    fn drop_draft(&mut self, large: &Large) {
        if let Ok(Some(folder)) = self.shared.destination.find(&large.item.directory) {
            // Where it was never made there is nothing to remove.
            let _ = unlinkat(folder.fd(), &large.draft_name()[..], AtFlags::empty());
            let _ = self.record(&Record::Ended { id: large.id });
        }
    }
}

impl Opened {
    /// Both ends for direct requests, if this way needs any; None where they cannot be had.
    fn directly(&self, way: Way) -> Option<&DirectEnds> {
        if way == Way::Cached {
            return None;
        }
        self.direct.get_or_init(|| self.open_direct()).as_ref()
    }

    fn open_direct(&self) -> Option<DirectEnds> {
        let again = |fd: &OwnedFd, access| {
            // By way of /proc it is the very file that is open, whatever its name says by now.
            let path = format!("/proc/self/fd/{}", fd.as_raw_fd());
            openat(CWD, path, access | OFlags::DIRECT | OFlags::CLOEXEC, Mode::empty()).ok()
        };
        let source = again(&self.source, OFlags::RDONLY)?;
        Some(DirectEnds { source, draft: again(&self.draft, OFlags::RDWR)? })
    }
}
