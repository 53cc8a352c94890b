//! What earlier runs left, folded from their records.

use std::collections::{BTreeSet, HashMap};

use super::format::Record;

/// A large file that was begun and has not got its name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Half {
    /// Its number, in the draft's name.
    pub id: u32,
    /// Path of its directory at the destination.
    pub directory: Vec<u8>,
    /// What it was at the source: device, inode, size, times.
    pub seen: [u64; 5],
    /// Bytes of an extent.
    pub extent_bytes: u64,
    /// Extents that are written.
    pub written: BTreeSet<u32>,
}

/// What earlier runs left.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Past {
    /// Where the copy was from; None where there was none.
    pub source: Option<Vec<u8>>,
    /// When the first run began, ns since 1970.
    pub since: i64,
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
}

impl Past {
    /// Fold records.
    #[must_use]
    pub fn of(records: Vec<Record>) -> Self {
        let mut past = Self { durable: true, ..Self::default() };
        let mut paths: HashMap<u32, Vec<u8>> = HashMap::new();
        for record in records {
            match record {
                Record::Run { source, boot, time, durable } => {
                    if past.source.is_none() {
                        past.since = time;
                    } else if boot != past.boot && !past.durable {
                        // Between the two runs memory was lost, and with it perhaps what had been written.
                        past.halves.values_mut().for_each(|half| half.written.clear());
                    }
                    past.durable &= durable;
                    past.source = Some(source);
                    past.boot = boot;
                }
                Record::Entered { worker, directory } => {
                    past.entered.insert(worker, directory);
                }
                Record::Begun { id, directory, path, seen, extent_bytes } => {
                    past.next_id = past.next_id.max(id.saturating_add(1));
                    paths.insert(id, path.clone());
                    let written = BTreeSet::new();
                    past.halves.insert(path, Half { id, directory, seen, extent_bytes, written });
                }
                Record::Extent { id, index, .. } => {
                    let half = paths.get(&id).and_then(|path| past.halves.get_mut(path));
                    if let Some(half) = half.filter(|half| half.id == id) {
                        half.written.insert(index);
                    }
                }
                Record::Ended { id } => {
                    if let Some(path) = paths.remove(&id) {
                        if past.halves.get(&path).is_some_and(|half| half.id == id) {
                            past.halves.remove(&path);
                        }
                    }
                }
            }
        }
        past
    }
}
