//! A large file of a copy on one machine: extents that any worker takes.

use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::atomic::AtomicU32;
use std::sync::{Arc, OnceLock};

use parking_lot::Mutex;
use rustix::fs::{openat, Mode, OFlags, CWD};

use super::direct::{DirectEnds, IoMode};
use super::striped::StripedFile;
use crate::part_set::PartSet;
use crate::sink::{Expected, Folder, LargeFile};
use crate::source::Item;

/// A large file in progress.
pub(super) struct Large {
    pub(super) item: Item,
    pub(super) file: LargeFile,
    /// Where it is read target by target.
    pub(super) striped: Option<StripedFile>,
    todo: Mutex<PartSet>,
    /// Extents not yet written.
    pub(super) left: AtomicU32,
    pub(super) phase: Mutex<Phase>,
}

pub(super) enum Phase {
    /// No worker has begun it. What an earlier run made of it is open.
    Waiting(Option<(Folder, OwnedFd)>),
    Open(Arc<Opened>),
    /// It is complete, or failed and was reported.
    Over,
}

pub(super) struct Opened {
    pub(super) source: OwnedFd,
    pub(super) folder: Folder,
    pub(super) temporary: OwnedFd,
    /// It shares the source's blocks: no extent is left to write.
    pub(super) cloned: bool,
    /// Opened when an extent is first to go past the cache; None where that cannot be.
    direct: OnceLock<Option<DirectEnds>>,
}

impl Large {
    /// `by_target` where the targets that the item names decide who reads what.
    pub(super) fn new(item: Item, expected: Expected, extent_bytes: u64, by_target: bool) -> Self {
        let Expected { file, mut missing, opened } = expected;
        if missing.is_empty() {
            // Only its name is missing. Writing one extent again costs little and needs no case for it.
            missing.insert(0);
        }
        let left = AtomicU32::new(u32::try_from(missing.len()).unwrap_or(u32::MAX));
        let objects: Vec<_> = item
            .objects
            .iter()
            .map(|object| (object.target, object.offset, object.length))
            .collect();
        let striped = by_target
            .then(|| StripedFile::new(&objects, &missing, extent_bytes, item.seen.size))
            .flatten();
        let (todo, phase) = (Mutex::new(missing), Mutex::new(Phase::Waiting(opened)));
        Self { item, file, striped, todo, left, phase }
    }

    /// Whether there are extents that no worker has taken.
    pub(super) fn has_more(&self) -> bool {
        !self.todo.lock().is_empty()
    }

    /// Take one.
    pub(super) fn claim(&self) -> Option<u32> {
        self.todo.lock().pop_first()
    }

    /// Nothing more is done of it.
    pub(super) fn end(&self) {
        *self.todo.lock() = PartSet::default();
        if let Some(striped) = &self.striped {
            striped.end();
        }
        *self.phase.lock() = Phase::Over;
    }
}

impl Opened {
    pub(super) fn new(source: OwnedFd, folder: Folder, temporary: OwnedFd, cloned: bool) -> Self {
        Self { source, folder, temporary, cloned, direct: OnceLock::new() }
    }

    /// Both files for direct requests, if this mode needs any; None where they cannot be had.
    pub(super) fn directly(&self, mode: IoMode) -> Option<&DirectEnds> {
        if mode == IoMode::Cached {
            return None;
        }
        self.direct.get_or_init(|| self.open_direct()).as_ref()
    }

    fn open_direct(&self) -> Option<DirectEnds> {
        let again = |fd: &OwnedFd, access| {
            // By way of /proc it is the very file that is open, whatever has its name by now.
            let path = format!("/proc/self/fd/{}", fd.as_raw_fd());
            openat(CWD, path, access | OFlags::DIRECT | OFlags::CLOEXEC, Mode::empty()).ok()
        };
        let source = again(&self.source, OFlags::RDONLY)?;
        Some(DirectEnds { source, temporary: again(&self.temporary, OFlags::RDWR)? })
    }
}
