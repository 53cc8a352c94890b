//! Counts of bytes and chunks, by type and by size of their files.

use std::collections::HashMap;

use waystage_sync::Mutex;

/// Bins of file sizes: of no byte, of 1, of 2 to 3, of 4 to 7, and so on to 2^63.
pub const BINS: usize = 65;

/// What FS-C calls the type of a file that has none.
pub const NO_TYPE: &str = "---";

/// The most characters of an ending that is a type.
const LONGEST_TYPE: usize = 5;

/// The bin of a file of `size` bytes.
#[must_use]
pub fn bin_of(size: u64) -> u8 {
    // At most 64, so that it fits.
    (u64::BITS - size.leading_zeros()) as u8
}

/// The least size of a bin's files.
#[must_use]
pub fn bin_floor(bin: u8) -> u64 {
    if bin == 0 {
        0
    } else {
        1 << (u32::from(bin) - 1).min(63)
    }
}

/// The type of a file by its name, as FS-C takes it: what follows the last dot, lower case, at most 5 characters.
#[must_use]
pub fn type_of(path: &[u8]) -> String {
    let name = path.rsplit(|byte| *byte == b'/').next().unwrap_or(path);
    let Some(dot) = name.iter().rposition(|byte| *byte == b'.') else {
        return NO_TYPE.to_owned();
    };
    let ending = String::from_utf8_lossy(&name[dot + 1..]);
    if ending.is_empty() || ending.chars().count() > LONGEST_TYPE {
        return NO_TYPE.to_owned();
    }
    let normal = ending.to_lowercase().replace(':', "-");
    normal.strip_suffix('~').map_or(normal.clone(), str::to_owned)
}

/// Numbers for types, the same for every thread of a run.
pub(super) struct Types {
    held: Mutex<(HashMap<String, u16>, Vec<String>)>,
}

impl Types {
    pub(super) fn new() -> Self {
        Self { held: Mutex::default() }
    }

    /// The number of a type, given now if it has none. From the 65,535th on they share one: [`NO_TYPE`]'s.
    pub(super) fn number(&self, name: &str) -> u16 {
        let mut held = self.held.lock();
        let (numbers, names) = &mut *held;
        if names.is_empty() {
            names.push(NO_TYPE.to_owned());
            numbers.insert(NO_TYPE.to_owned(), 0);
        }
        if let Some(number) = numbers.get(name) {
            return *number;
        }
        let Ok(number) = u16::try_from(names.len()) else {
            return 0;
        };
        names.push(name.to_owned());
        numbers.insert(name.to_owned(), number);
        number
    }

    pub(super) fn names(&self) -> Vec<String> {
        self.held.lock().1.clone()
    }
}

/// Which type and size bin a chunk's file has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Group {
    /// A number of a type.
    pub kind: u16,
    /// A bin of sizes.
    pub bin: u8,
}

/// Chunks and their bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Count {
    /// How many.
    pub chunks: u64,
    /// All of them together.
    pub bytes: u64,
}

impl Count {
    pub(super) fn add(&mut self, bytes: u64) {
        self.chunks += 1;
        self.bytes = self.bytes.saturating_add(bytes);
    }

    fn merge(&mut self, other: Self) {
        self.chunks += other.chunks;
        self.bytes = self.bytes.saturating_add(other.bytes);
    }
}

/// Counts of everything, of each type by its number, and of each bin.
#[derive(Clone, Debug)]
pub struct Distinct {
    /// Everything.
    pub all: Count,
    /// By number of type, as far as any was met.
    pub kinds: Vec<Count>,
    /// By size bin.
    pub bins: [Count; BINS],
}

impl Default for Distinct {
    fn default() -> Self {
        Self { all: Count::default(), kinds: Vec::new(), bins: [Count::default(); BINS] }
    }
}

impl Distinct {
    pub(super) fn kind(&mut self, kind: u16) -> &mut Count {
        let kind = usize::from(kind);
        if self.kinds.len() <= kind {
            self.kinds.resize(kind + 1, Count::default());
        }
        &mut self.kinds[kind]
    }

    pub(super) fn merge(&mut self, other: &Self) {
        self.all.merge(other.all);
        for (kind, count) in (0..).zip(&other.kinds) {
            self.kind(kind).merge(*count);
        }
        for (bin, count) in self.bins.iter_mut().zip(&other.bins) {
            bin.merge(*count);
        }
    }

    /// Count a chunk in all three.
    pub(super) fn add(&mut self, bytes: u64, group: Group) {
        self.all.add(bytes);
        self.kind(group.kind).add(bytes);
        self.bins[usize::from(group.bin).min(BINS - 1)].add(bytes);
    }
}

/// What became of the files of a run, or of one part of it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Files {
    /// Read to their end.
    pub read: u64,
    /// Bytes of these, holes included.
    pub bytes: u64,
    /// Of these, files of no byte.
    pub empty: u64,
    /// Further names of a file that was read.
    pub links: u64,
    /// No longer there.
    pub vanished: u64,
    /// There, and could not be read.
    pub unreadable: u64,
    /// Of another size, time or inode than the catalog says; read as they are.
    pub changed: u64,
    /// Chunks that lie in holes altogether: not read, and not counted elsewhere.
    pub hole_chunks: u64,
    /// Bytes of these.
    pub hole_bytes: u64,
}

impl Files {
    pub(super) fn merge(&mut self, other: Self) {
        self.read += other.read;
        self.bytes = self.bytes.saturating_add(other.bytes);
        self.empty += other.empty;
        self.links += other.links;
        self.vanished += other.vanished;
        self.unreadable += other.unreadable;
        self.changed += other.changed;
        self.hole_chunks = self.hole_chunks.saturating_add(other.hole_chunks);
        self.hole_bytes = self.hole_bytes.saturating_add(other.hole_bytes);
    }

    /// As numbers in the order of the trace's format.
    pub(super) fn numbers(self) -> [u64; 9] {
        [
            self.read,
            self.bytes,
            self.empty,
            self.links,
            self.vanished,
            self.unreadable,
            self.changed,
            self.hole_chunks,
            self.hole_bytes,
        ]
    }

    pub(super) fn from_numbers(numbers: [u64; 9]) -> Self {
        let [read, bytes, empty, links, vanished, unreadable, changed, hole_chunks, hole_bytes] =
            numbers;
        Self { read, bytes, empty, links, vanished, unreadable, changed, hole_chunks, hole_bytes }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn types_are_those_of_fs_c() {
        for (path, kind) in [
            ("a/b.TXT", "txt"),
            ("a.b/c", "---"),
            ("x.tar.gz", "gz"),
            ("x.longer", "---"),
            ("x.", "---"),
            (".git", "git"),
            ("notes.txt~", "txt"),
            ("a.b:c", "b-c"),
        ] {
            assert_eq!(type_of(path.as_bytes()), kind, "{path}");
        }
        assert_eq!(type_of(b"x.\xff\xff"), "\u{fffd}\u{fffd}");
    }

    #[test]
    fn bins_are_powers_of_two() {
        for (size, bin, floor) in
            [(0, 0, 0), (1, 1, 1), (2, 2, 2), (3, 2, 2), (4, 3, 4), (1023, 10, 512)]
        {
            assert_eq!((bin_of(size), bin_floor(bin)), (bin, floor), "{size}");
        }
        assert_eq!(bin_floor(bin_of(u64::MAX)), 1 << 63);
    }
}
