//! The set of chunks seen so far, in little memory.
//!
//! An entry takes 20 bytes: 128 bits of the fingerprint, the type and the size bin it was first seen in. Tables are
//! between 58 % and 88 % full, so that a distinct chunk takes 23 to 35 bytes; one that is met in further types or
//! bins takes as much again for each. Two different chunks among 10^12 share 128 bits with a probability of 10^-15.

use waystage_sync::{Mutex, MutexGuard};

use crate::digest::Fingerprint;

use super::tally::{Distinct, Group, BINS};

/// Parts of the index that are locked, and grow, each for itself: growing one copies a 64th.
const SHARDS: usize = 64;

/// The first room of a shard that holds anything.
const FIRST_ROOM: usize = 64;

#[derive(Clone, Copy, Default)]
#[repr(C, packed(4))]
struct Entry {
    key: u128,
    kind: u16,
    bin: u8,
    used: bool,
}

/// Entries by key: open addressing, from a key's place on to the right.
#[derive(Default)]
struct Table {
    entries: Vec<Entry>,
    used: usize,
}

impl Table {
    /// The entry of a key, and whether it was put in by this call.
    fn insert(&mut self, key: u128, kind: u16, bin: u8) -> (Entry, bool) {
        if 8 * (self.used + 1) > 7 * self.entries.len() {
            self.grow();
        }
        let mut at = self.place(key);
        loop {
            let entry = self.entries[at];
            if !entry.used {
                let entry = Entry { key, kind, bin, used: true };
                self.entries[at] = entry;
                self.used += 1;
                return (entry, true);
            }
            if entry.key == key {
                return (entry, false);
            }
            at += 1;
            if at == self.entries.len() {
                at = 0;
            }
        }
    }

    fn contains(&self, key: u128) -> bool {
        if self.entries.is_empty() {
            return false;
        }
        let mut at = self.place(key);
        while self.entries[at].used {
            if { self.entries[at].key } == key {
                return true;
            }
            at = (at + 1) % self.entries.len();
        }
        false
    }

    /// Where to begin to look: a share of the room as the key's lower half is of 2^64.
    fn place(&self, key: u128) -> usize {
        let low = u128::from(key as u64);
        ((low * self.entries.len() as u128) >> 64) as usize
    }

    fn grow(&mut self) {
        let room = FIRST_ROOM.max(self.entries.len() / 2 * 3);
        let old = std::mem::replace(&mut self.entries, vec![Entry::default(); room]);
        self.used = 0;
        for entry in old {
            if entry.used {
                self.insert(entry.key, entry.kind, entry.bin);
            }
        }
    }

    fn bytes(&self) -> usize {
        self.entries.len() * size_of::<Entry>()
    }
}

#[derive(Default)]
struct Shard {
    chunks: Table,
    /// Chunks in a type or bin other than the one they were first seen in.
    elsewhere: Table,
    /// Fingerprints of whole files.
    files: Table,
    distinct: Distinct,
}

/// Everything seen so far; threads put in at once.
pub(super) struct Index {
    shards: Vec<Mutex<Shard>>,
}

impl Index {
    pub(super) fn new() -> Self {
        Self { shards: (0..SHARDS).map(|_| Mutex::default()).collect() }
    }

    /// Count a chunk of `bytes` bytes in a file of a type and a size bin.
    pub(super) fn add_chunk(&self, fingerprint: &Fingerprint, bytes: u64, group: Group) {
        let key = key(fingerprint);
        let mut shard = self.shard(key);
        let Shard { chunks, elsewhere, distinct, .. } = &mut *shard;
        let (first, new) = chunks.insert(key, group.kind, group.bin);
        if new {
            distinct.all.add(bytes);
        }
        let kind_new = new
            || first.kind != group.kind
                && elsewhere.insert(key ^ mixed(u64::from(group.kind)), 0, 0).1;
        if kind_new {
            distinct.kind(group.kind).add(bytes);
        }
        let bin_new = new
            || first.bin != group.bin
                && elsewhere.insert(key ^ mixed((1 << 32) | u64::from(group.bin)), 0, 0).1;
        if bin_new {
            distinct.bins[usize::from(group.bin).min(BINS - 1)].add(bytes);
        }
    }

    /// Whether a file of this content was not seen before.
    pub(super) fn add_file(&self, fingerprint: &Fingerprint) -> bool {
        let key = key(fingerprint);
        self.shard(key).files.insert(key, 0, 0).1
    }

    pub(super) fn has_chunk(&self, fingerprint: &Fingerprint) -> bool {
        let key = key(fingerprint);
        self.shard(key).chunks.contains(key)
    }

    /// What is distinct, over all shards.
    pub(super) fn distinct(&self) -> Distinct {
        let mut sum = Distinct::default();
        for shard in &self.shards {
            sum.merge(&shard.lock().distinct);
        }
        sum
    }

    /// Bytes of memory that all tables take.
    pub(super) fn bytes(&self) -> usize {
        let of =
            |shard: &Shard| shard.chunks.bytes() + shard.elsewhere.bytes() + shard.files.bytes();
        self.shards.iter().map(|shard| of(&shard.lock())).sum()
    }

    fn shard(&self, key: u128) -> MutexGuard<'_, Shard> {
        // The upper half says which shard, the lower where in it.
        self.shards[(key >> 122) as usize % SHARDS].lock()
    }
}

fn key(fingerprint: &Fingerprint) -> u128 {
    let mut bytes = [0; 16];
    bytes.copy_from_slice(&fingerprint[..16]);
    u128::from_le_bytes(bytes)
}

/// 128 bits that differ in half of all places between any two tags.
///
/// The shard of the sum is not used: the rest of a chunk's entry is in the chunk's own shard.
fn mixed(tag: u64) -> u128 {
    let half = |seed: u64| {
        let mut value = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15);
        value = (value ^ (value >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        value = (value ^ (value >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        value ^ (value >> 31)
    };
    (u128::from(half(2 * tag + 1)) << 64) | u128::from(half(2 * tag + 2))
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use proptest::prelude::*;

    use super::*;
    use crate::digest::Digest;

    proptest! {
        /// Held against sets of tuples, whatever comes in whichever order.
        #[test]
        fn what_is_distinct_is_what_sets_say(seen in prop::collection::vec((0..60_u32, 0..4_u16, 0..4_u8), 0..400)) {
            let index = Index::new();
            for (number, kind, bin) in &seen {
                let fingerprint = Digest::Sha1.of(&number.to_le_bytes());
                index.add_chunk(&fingerprint, u64::from(*number) + 1, Group { kind: *kind, bin: *bin });
            }
            let all: HashSet<_> = seen.iter().map(|(number, ..)| number).collect();
            let kinds: HashSet<_> = seen.iter().map(|(number, kind, _)| (number, kind)).collect();
            let bins: HashSet<_> = seen.iter().map(|(number, _, bin)| (number, bin)).collect();
            let distinct = index.distinct();
            prop_assert_eq!(distinct.all.chunks, all.len() as u64);
            prop_assert_eq!(distinct.all.bytes, all.iter().map(|n| u64::from(**n) + 1).sum::<u64>());
            for kind in 0..4 {
                let here: Vec<_> = kinds.iter().filter(|(_, k)| **k == kind).collect();
                let found = distinct.kinds.get(usize::from(kind)).copied().unwrap_or_default();
                prop_assert_eq!(found.chunks, here.len() as u64);
                prop_assert_eq!(found.bytes, here.iter().map(|(n, _)| u64::from(**n) + 1).sum::<u64>());
            }
            for bin in 0..4 {
                let here = bins.iter().filter(|(_, b)| **b == bin).count();
                prop_assert_eq!(distinct.bins[usize::from(bin)].chunks, here as u64);
            }
        }
    }

    #[test]
    fn a_chunk_takes_as_little_memory_as_is_promised() {
        assert_eq!(size_of::<Entry>(), 20);
        let index = Index::new();
        for number in 0..200_000_u32 {
            index.add_chunk(&Digest::Blake3.of(&number.to_le_bytes()), 1, Group::default());
        }
        assert!(index.bytes() <= 200_000 * 36, "{} bytes a chunk", index.bytes() / 200_000);
        assert!(index.has_chunk(&Digest::Blake3.of(&7_u32.to_le_bytes())));
        assert!(!index.has_chunk(&Digest::Blake3.of(&200_000_u32.to_le_bytes())));
    }
}
