//! The loaders' threads that were started, and the numbers of those that were not yet.

use std::ops::Range;
use std::thread::JoinHandle;

#[derive(Debug, Default)]
pub(super) struct Started {
    pub(super) handles: Vec<JoinHandle<()>>,
    pub(super) left: Range<u32>,
}

impl Started {
    /// All handles, after which no others are started.
    pub(super) fn end(&mut self) -> Vec<JoinHandle<()>> {
        self.left = 0..0;
        std::mem::take(&mut self.handles)
    }
}
