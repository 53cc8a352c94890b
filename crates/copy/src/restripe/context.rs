//! What all threads of a restriping share.

use std::collections::HashMap;
use std::os::fd::AsFd;
use std::sync::Arc;

use parking_lot::Mutex;

use super::journal::Journal;
use super::stripes::Shape;
use super::temporary::Live;
use super::RestripeOptions;
use crate::attributes::AttributePreserver;
use crate::error::{At, CopyError, End, Failure};
use crate::local::ContentMover;
use crate::source::{Item, Source};
use crate::stat::{stat_fd, Metadata};
use crate::state::CopyState;
use crate::time::Time;

/// A directory in which names were exchanged.
#[derive(Debug, Clone, Copy)]
pub(super) struct DirectoryTimes {
    /// Before that.
    pub(super) was: Metadata,
    /// When this process last changed it.
    pub(super) ours: Time,
}

/// What all threads share.
pub(super) struct Context {
    pub(super) options: RestripeOptions,
    pub(super) source: Source,
    pub(super) classes: Vec<Class>,
    pub(super) state: Arc<CopyState<CopyError>>,
    pub(super) mover: ContentMover,
    pub(super) preserver: AttributePreserver,
    pub(super) live: Live,
    pub(super) times: Mutex<HashMap<Arc<[u8]>, DirectoryTimes>>,
    /// Held by the worker whose file is copied by several threads.
    pub(super) large: Mutex<()>,
    pub(super) journal: Option<Journal>,
}

impl Context {
    pub(super) fn class_of(&self, size: u64) -> Option<&Class> {
        self.classes.iter().find(|class| size <= class.most_bytes)
    }

    /// The journal; a dry run has none, and asks for none.
    pub(super) fn journal(&self) -> Result<&Journal, Failure> {
        self.journal.as_ref().ok_or(Failure::Stopped)
    }
}

/// A layout with what it comes to on this file system.
#[derive(Debug)]
pub(super) struct Class {
    pub(super) most_bytes: u64,
    /// The value of `lustre.lov` that asks for it.
    pub(super) request: Vec<u8>,
    /// What files have that were given it.
    pub(super) shape: Shape,
}

impl Class {
    pub(super) fn is_of(&self, shape: &Shape) -> bool {
        self.shape.agrees(shape)
    }
}

impl Context {
    /// Remember the times of the directory of this entry, before a temporary file changes them.
    pub(super) fn before_change(&self, item: &Item) -> Result<(), Failure> {
        let mut times = self.times.lock();
        if !times.contains_key(&item.directory) {
            let folder =
                self.source.root.directory(&item.directory).at(End::Source, "open directory")?;
            let stat = stat_fd(folder.as_fd()).at(End::Source, "stat")?;
            let was = Metadata::of(&stat);
            times.insert(item.directory.clone(), DirectoryTimes { was, ours: was.mtime });
        }
        Ok(())
    }

    /// The last change of the directory of this entry is this process's.
    pub(super) fn after_change(&self, item: &Item) {
        let stat =
            self.source.root.directory(&item.directory).and_then(|folder| stat_fd(folder.as_fd()));
        if let (Ok(stat), Some(times)) = (stat, self.times.lock().get_mut(&item.directory)) {
            times.ours = times.ours.max(Metadata::of(&stat).mtime);
        }
    }
}
