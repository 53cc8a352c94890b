//! Room in the pool: which parts are taken; ranges of bytes.
//!
//! Arrives: sizes wanted, parts given back. Leaves: offsets. Must not know: memory.

use std::collections::BTreeMap;
use std::ops::Range;

/// Parts begin at multiples of a page, so that images are aligned for direct I/O.
const PAGE: u64 = 4096;

/// A part of the pool, given out first-fit.
pub struct Room {
    free: BTreeMap<u64, u64>,
    taken: BTreeMap<u64, u64>,
    bytes: u64,
}

impl Room {
    /// The part `[begin, begin + bytes)`, of whole pages.
    pub fn new(begin: u64, bytes: u64) -> Self {
        let bytes = bytes / PAGE * PAGE;
        Self { free: BTreeMap::from([(begin, bytes)]), taken: BTreeMap::new(), bytes }
    }

    /// Bytes in all.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Bytes taken.
    pub fn taken_bytes(&self) -> u64 {
        self.taken.values().sum()
    }

    /// Take `bytes`; None where no free part is as large.
    pub fn take(&mut self, bytes: u64) -> Option<u64> {
        let bytes = bytes.max(1).checked_next_multiple_of(PAGE)?;
        let (begin, size) =
            self.free.iter().map(|(b, s)| (*b, *s)).find(|(_, size)| *size >= bytes)?;
        self.free.remove(&begin);
        if size > bytes {
            self.free.insert(begin + bytes, size - bytes);
        }
        self.taken.insert(begin, bytes);
        Some(begin)
    }

    /// Give back what was taken.
    pub fn give(&mut self, begin: u64) {
        let Some(mut bytes) = self.taken.remove(&begin) else {
            return;
        };
        if let Some(after) = self.free.remove(&(begin + bytes)) {
            bytes += after;
        }
        match self.free.range_mut(..begin).next_back() {
            Some((before, size)) if before + *size == begin => *size += bytes,
            _ => {
                self.free.insert(begin, bytes);
            }
        }
    }
}

/// The smallest range around ranges that are not empty; None where all are.
pub fn union_of<'a>(ranges: impl Iterator<Item = &'a Range<u64>>) -> Option<Range<u64>> {
    let with_bytes = ranges.filter(|range| range.start < range.end).cloned();
    with_bytes.reduce(|a, b| a.start.min(b.start)..a.end.max(b.end))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn parts_never_overlap_and_all_comes_back(steps in prop::collection::vec((any::<bool>(), 1..30_000_u64), 0..200)) {
            let mut room = Room::new(4096, 1 << 18);
            let mut held: Vec<(u64, u64)> = Vec::new();
            for (take, size) in steps {
                if take || held.is_empty() {
                    if let Some(begin) = room.take(size) {
                        prop_assert!(begin >= 4096 && begin + size <= 4096 + (1 << 18));
                        prop_assert!(held.iter().all(|(b, s)| begin + size <= *b || b + s <= begin));
                        held.push((begin, size));
                    }
                } else {
                    let (begin, _) = held.swap_remove((size as usize) % held.len());
                    room.give(begin);
                }
            }
            for (begin, _) in held {
                room.give(begin);
            }
            prop_assert_eq!(room.taken_bytes(), 0);
            prop_assert_eq!(room.take(1 << 18), Some(4096));
        }
    }
}
