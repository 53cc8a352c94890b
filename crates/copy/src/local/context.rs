//! What all threads of a copy on one machine share.

use std::sync::Arc;

use parking_lot::Mutex;

use super::contents::ContentMover;
use super::queue::Queue;
use crate::backup::OpenBackup;
use crate::error::{CopyError, Failure};
use crate::options::Options;
use crate::plan::Policy;
use crate::sink::{DividedFile, Sink};
use crate::source::{Item, Source};
use crate::stat::Metadata;
use crate::state::CopyState;

pub(super) struct Context {
    pub(super) options: Options,
    pub(super) source: Source,
    pub(super) sink: Sink,
    pub(super) backup: Option<OpenBackup>,
    pub(super) state: Arc<CopyState<CopyError>>,
    pub(super) queue: Queue,
    /// Whether contents are read target by target, where targets are known.
    pub(super) by_target: bool,
    pub(super) mover: ContentMover,
    pub(super) policy: Policy,
    /// Directories, whose attributes come last.
    pub(super) directories: Mutex<Vec<(Vec<u8>, Metadata)>>,
    /// Large files that were prepared for other processes.
    pub(super) divided: Mutex<Vec<DividedFile>>,
    pub(super) root_metadata: Metadata,
}

impl Context {
    pub(super) fn remember_directory(&self, item: &Item) {
        self.directories.lock().push((item.path(), item.metadata));
    }

    /// Report the failure of an entry; end the copy where going on is pointless.
    pub(super) fn failed(&self, path: &[u8], failure: &Failure) {
        self.state.failed(path, failure);
        if self.state.is_stopped() {
            self.queue.stop();
        }
    }

    pub(super) fn stop(&self) {
        self.state.stop();
        self.queue.stop();
    }
}
