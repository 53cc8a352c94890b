//! What earlier runs left, folded from their records.

use std::collections::HashMap;

use super::format::Record;
use crate::part_set::{PartSet, RUN_BYTES};
use crate::time::Time;

/// A large file that was begun and has not got its name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PartialFile {
    /// Its number, by which records call it.
    pub id: u32,
    /// The random number in its temporary name.
    pub key: u64,
    /// Path of its directory at the destination.
    pub directory: Vec<u8>,
    /// What it was at the source, as [`FileState::numbers`](crate::stat::FileState::numbers) says it.
    pub seen: [u64; 7],
    /// Bytes of an extent.
    pub extent_bytes: u64,
    /// Extents that are written.
    pub written: PartSet,
}

/// What earlier runs left.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Recovered {
    /// Where the copy was from; None where there was none.
    pub source: Option<Vec<u8>>,
    /// When the first run began.
    pub since: Time,
    /// The boot of the last run.
    pub boot: [u8; 16],
    /// Whether all that names tell is on the disk even after a power failure.
    pub durable: bool,
    /// Large files in progress, by path at the source.
    pub partial_files: HashMap<Vec<u8>, PartialFile>,
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
/// Large files and extents beyond the bound are forgotten: the extents are copied again, the temporary files removed
/// at the end.
pub(super) struct Fold {
    pub(super) recovered: Recovered,
    /// Of large files in progress, by number.
    paths: HashMap<u32, Vec<u8>>,
    /// Bytes of memory that all of it takes, about.
    pub(super) held_bytes: usize,
    most_bytes: usize,
}

impl Fold {
    /// An empty state that keeps at most `most_bytes`.
    pub(super) fn new(most_bytes: usize) -> Self {
        let recovered = Recovered { durable: true, ..Recovered::default() };
        Self { recovered, paths: HashMap::new(), held_bytes: 0, most_bytes }
    }

    /// What all records say together.
    pub(super) fn end(self) -> Recovered {
        self.recovered
    }

    fn has_room(&self, bytes: usize) -> bool {
        self.held_bytes + bytes <= self.most_bytes
    }

    fn forget(&mut self, path: &[u8]) {
        if let Some(partial) = self.recovered.partial_files.remove(path) {
            self.paths.remove(&partial.id);
            self.held_bytes -= cost(path, &partial.directory) + partial.written.runs() * RUN_BYTES;
        }
    }

    /// One more.
    pub(super) fn add(&mut self, record: Record) {
        match record {
            Record::Run { source, boot, time, durable } => {
                let recovered = &mut self.recovered;
                if recovered.source.is_none() {
                    recovered.since = time;
                } else if boot != recovered.boot && !recovered.durable {
                    // Between the two runs memory was lost, and with it perhaps what had been written.
                    for partial in recovered.partial_files.values_mut() {
                        self.held_bytes -= partial.written.runs() * RUN_BYTES;
                        partial.written = PartSet::default();
                    }
                }
                recovered.durable &= durable;
                recovered.source = Some(source);
                recovered.boot = boot;
            }
            Record::Entered { worker, directory } => {
                let bytes = HELD_BYTES + directory.len();
                let before = self.recovered.entered.remove(&worker);
                self.held_bytes -= before.map_or(0, |before| HELD_BYTES + before.len());
                if self.has_room(bytes) {
                    self.held_bytes += bytes;
                    self.recovered.entered.insert(worker, directory);
                }
            }
            Record::Begun { id, key, directory, path, seen, extent_bytes } => {
                self.recovered.next_id = self.recovered.next_id.max(id.saturating_add(1));
                self.forget(&path);
                if let Some(other) = self.paths.remove(&id) {
                    self.forget(&other);
                }
                let bytes = cost(&path, &directory);
                if self.has_room(bytes) {
                    self.held_bytes += bytes;
                    self.paths.insert(id, path.clone());
                    let written = PartSet::default();
                    let partial = PartialFile { id, key, directory, seen, extent_bytes, written };
                    self.recovered.partial_files.insert(path, partial);
                }
            }
            Record::Extent { id, index, .. } => {
                let has_room = self.has_room(RUN_BYTES);
                let partial =
                    self.paths.get(&id).and_then(|path| self.recovered.partial_files.get_mut(path));
                if let Some(partial) = partial {
                    let before = partial.written.runs();
                    if partial.written.insert(index) && partial.written.runs() > before && !has_room
                    {
                        partial.written.remove(index);
                    }
                    self.held_bytes += partial.written.runs() * RUN_BYTES;
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
