//! What earlier runs left, folded from their records.

use std::collections::HashMap;

use super::format::Record;
use crate::extents::{Parts, RUN_BYTES};
use crate::time::Time;

/// A large file that was begun and has not got its name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Half {
    /// Its number, by which records call it.
    pub id: u32,
    /// The random number in its draft's name.
    pub key: u64,
    /// Path of its directory at the destination.
    pub directory: Vec<u8>,
    /// What it was at the source, as [`Seen::numbers`](crate::parts::Seen::numbers) says it.
    pub seen: [u64; 7],
    /// Bytes of an extent.
    pub extent_bytes: u64,
    /// Extents that are written.
    pub written: Parts,
}

/// What earlier runs left.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Past {
    /// Where the copy was from; None where there was none.
    pub source: Option<Vec<u8>>,
    /// When the first run began.
    pub since: Time,
    /// The boot of the last run.
    pub boot: [u8; 16],
    /// Whether all that names tell is on the disk even after a power failure.
    pub durable: bool,
    /// Large files under way, by path at the source.
    pub halves: HashMap<Vec<u8>, Half>,
    /// Where each worker made files last.
    pub entered: HashMap<u32, Vec<u8>>,
    /// Above all numbers of large files so far.
    pub next_id: u32,
    /// It is no journal that can be read.
    pub foreign: bool,
    /// There was a journal: what it no longer says may have left files as well.
    pub found: bool,
}

/// What a large file or a worker takes in memory beside its paths, about.
pub(super) const HELD_BYTES: usize = 512;

/// Records as they are read, folded into what they say in bounded memory.
///
/// Large files and extents beyond the bound are forgotten: the extents are copied again, the drafts swept away at the end.
pub(super) struct Fold {
    pub(super) past: Past,
    /// Of large files under way, by number.
    paths: HashMap<u32, Vec<u8>>,
    /// Bytes of memory that all of it takes, about.
    pub(super) held_bytes: usize,
    most_bytes: usize,
}

impl Fold {
    /// An empty state that keeps at most `most_bytes`.
    pub(super) fn new(most_bytes: usize) -> Self {
        let past = Past { durable: true, ..Past::default() };
        Self { past, paths: HashMap::new(), held_bytes: 0, most_bytes }
    }

    /// What all records say together.
    pub(super) fn end(self) -> Past {
        self.past
    }

    fn has_room(&self, bytes: usize) -> bool {
        self.held_bytes + bytes <= self.most_bytes
    }

    fn forget(&mut self, path: &[u8]) {
        if let Some(half) = self.past.halves.remove(path) {
            self.paths.remove(&half.id);
            self.held_bytes -= cost(path, &half.directory) + half.written.runs() * RUN_BYTES;
        }
    }

    /// One more.
    pub(super) fn add(&mut self, record: Record) {
        match record {
            Record::Run { source, boot, time, durable } => {
                let past = &mut self.past;
                if past.source.is_none() {
                    past.since = time;
                } else if boot != past.boot && !past.durable {
                    // Between the two runs memory was lost, and with it perhaps what had been written.
                    for half in past.halves.values_mut() {
                        self.held_bytes -= half.written.runs() * RUN_BYTES;
                        half.written = Parts::default();
                    }
                }
                past.durable &= durable;
                past.source = Some(source);
                past.boot = boot;
            }
            Record::Entered { worker, directory } => {
                let bytes = HELD_BYTES + directory.len();
                let before = self.past.entered.remove(&worker);
                self.held_bytes -= before.map_or(0, |before| HELD_BYTES + before.len());
                if self.has_room(bytes) {
                    self.held_bytes += bytes;
                    self.past.entered.insert(worker, directory);
                }
            }
            Record::Begun { id, key, directory, path, seen, extent_bytes } => {
                self.past.next_id = self.past.next_id.max(id.saturating_add(1));
                self.forget(&path);
                if let Some(other) = self.paths.remove(&id) {
                    self.forget(&other);
                }
                let bytes = cost(&path, &directory);
                if self.has_room(bytes) {
                    self.held_bytes += bytes;
                    self.paths.insert(id, path.clone());
                    let written = Parts::default();
                    let half = Half { id, key, directory, seen, extent_bytes, written };
                    self.past.halves.insert(path, half);
                }
            }
            Record::Extent { id, index, .. } => {
                let has_room = self.has_room(RUN_BYTES);
                let half = self.paths.get(&id).and_then(|path| self.past.halves.get_mut(path));
                if let Some(half) = half {
                    let before = half.written.runs();
                    if half.written.insert(index) && half.written.runs() > before && !has_room {
                        half.written.remove(index);
                    }
                    self.held_bytes += half.written.runs() * RUN_BYTES;
                    self.held_bytes -= before * RUN_BYTES;
                }
            }
            Record::Ended { id } => {
                if let Some(path) = self.paths.remove(&id) {
                    self.forget(&path);
                }
            }
        }
    }
}

/// Bytes that a large file takes: its path is kept twice.
fn cost(path: &[u8], directory: &[u8]) -> usize {
    HELD_BYTES + 2 * path.len() + directory.len()
}
