//! What a rank knows of a version that it has open as a file.
//!
//! Arrives: slabs, bytes that are on their way. Leaves: the same. Must not know: connections.

use std::collections::{BTreeMap, HashMap};
use std::ops::Range;

use crate::slabs::UNIT;

/// Bytes of a slab of another host that are fetched at once, where a reader needs less.
pub(crate) const BLOCK: u64 = 256 << 10;

/// Most blocks that a reader keeps.
const BLOCKS_MOST: usize = 256;

/// Where a slab is.
#[derive(Clone, Debug)]
pub(crate) enum Place {
    /// In a segment of this rank, by its number.
    Own(usize),
    /// In memory of this host.
    Near(String, u64),
    /// In memory of another host.
    Far(String, u64),
}

/// A part of a slab.
#[derive(Clone, Debug)]
pub(crate) struct Part {
    /// The slab's.
    pub(crate) place: Place,
    /// Bytes of the slab from this one on.
    pub(crate) offset: u64,
    /// Bytes of the caller's buffer.
    pub(crate) buffer: Range<usize>,
    /// Bytes of the slab.
    pub(crate) slab: u64,
}

/// Bytes for a slab of another host that have not been sent.
#[derive(Debug, Default)]
pub(crate) struct Outgoing {
    pub(crate) runs: Vec<(u64, u64)>,
    pub(crate) bytes: Vec<u8>,
}

/// A version that is open as a file.
#[derive(Debug)]
pub(crate) struct OpenFile {
    pub(crate) version: u64,
    /// Bytes of the file, as far as this rank knows.
    pub(crate) bytes: u64,
    /// Slabs that stay where they are, by the first unit.
    slabs: BTreeMap<u64, (u64, Place)>,
    pub(crate) outgoing: HashMap<(String, u64), Outgoing>,
    blocks: HashMap<(String, u64, u64), Vec<u8>>,
}

impl OpenFile {
    /// A version of which nothing is known.
    pub(crate) fn new(version: u64) -> Self {
        let (slabs, outgoing, blocks) = Default::default();
        Self { version, bytes: 0, slabs, outgoing, blocks }
    }

    /// Takes note of a slab.
    pub(crate) fn insert(&mut self, first: u64, units: u64, place: Place) {
        self.slabs.insert(first, (units, place));
    }

    /// Forgets all slabs.
    pub(crate) fn clear(&mut self) {
        self.slabs.clear();
        self.outgoing.clear();
    }

    /// The slab of a unit: its first unit, how many, where.
    pub(crate) fn of(&self, unit: u64) -> Option<(u64, u64, &Place)> {
        let (first, (units, place)) = self.slabs.range(..=unit).next_back()?;
        (first + units > unit).then_some((*first, *units, place))
    }

    /// Whether all units of a range are known.
    pub(crate) fn knows(&self, units: Range<u64>) -> bool {
        let mut at = units.start;
        while at < units.end {
            let Some((first, count, _)) = self.of(at) else { return false };
            at = first + count;
        }
        true
    }

    /// The parts of slabs that hold `bytes` bytes from `offset` on. What none holds is 0.
    pub(crate) fn parts(&self, offset: u64, bytes: usize) -> Vec<Part> {
        let end = offset + bytes as u64;
        let from = self.of(offset / UNIT).map_or(offset / UNIT, |(first, ..)| first);
        let slabs = self.slabs.range(from..end.div_ceil(UNIT));
        slabs
            .map(|(first, (units, place))| part(*first, *units, place.clone(), offset..end))
            .collect()
    }

    /// A block of a slab that has been fetched.
    pub(crate) fn block(&self, owner: &str, key: u64, block: u64) -> Option<&[u8]> {
        self.blocks.get(&(owner.to_owned(), key, block)).map(Vec::as_slice)
    }

    /// Keeps a block.
    pub(crate) fn keep(&mut self, owner: &str, key: u64, block: u64, bytes: Vec<u8>) {
        if self.blocks.len() >= BLOCKS_MOST {
            self.blocks.clear();
        }
        self.blocks.insert((owner.to_owned(), key, block), bytes);
    }
}

/// The part of a slab that is in a range of the file, which meets it.
pub(crate) fn part(first: u64, units: u64, place: Place, range: Range<u64>) -> Part {
    let (start, slab) = (first * UNIT, units * UNIT);
    let (from, to) = (range.start.max(start), range.end.min(start + slab));
    let buffer = (from - range.start) as usize..(to.max(from) - range.start) as usize;
    Part { place, offset: from - start, buffer, slab }
}
