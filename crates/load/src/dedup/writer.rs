//! Writes a part of a profile (docs/reference/dedup-part.md).
//!
//! Arrives: chunks and files as they are read, in any order.
//! Leaves: a complete part, sorted by slice of fingerprints, or none.
//! Must not know: how parts are joined.

use std::collections::HashMap;
use std::fs::{self, File};
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};

use super::tally::{Files, Group, NO_TYPE};
use super::trace::{
    slice_of, Chunk, Parameters, Whole, CHUNKS, END, MAGIC_END, MOST_ENTRIES, SHORT_CHECK, SLICES,
    TYPE, WHOLE, ZEROS,
};

/// Entries that are held and sorted before they are written: 40 MiB, the fingerprints of some 8 GB.
const HELD: usize = 1 << 20;

/// A chunk or a file to be written. Sorted by slice, kind of block and group.
#[derive(Clone, Copy)]
struct Entry {
    tag: u8,
    group: Group,
    fingerprint: [u8; 20],
    bytes: u64,
}

impl Entry {
    fn order(&self) -> (usize, u8, u16, u8) {
        (slice_of(&self.fingerprint), self.tag, self.group.kind, self.group.bin)
    }
}

/// A part in progress. Dropped before [`Writer::finish`], it is removed.
pub(super) struct Writer {
    to: BufWriter<File>,
    written: u64,
    check: blake3::Hasher,
    unfinished: PathBuf,
    path: PathBuf,
    finished: bool,
    types: HashMap<String, u16>,
    /// What comes after the sections: first the types, as they are met.
    trailer: Vec<u8>,
    held: Vec<Entry>,
    /// Of each spill, where the section of each slice begins and the check of its bytes.
    sections: Vec<(u64, [u8; SHORT_CHECK])>,
}

impl Writer {
    pub(super) fn create(path: &Path, parameters: &Parameters) -> io::Result<Self> {
        let mut name = path.file_name().unwrap_or_default().to_owned();
        name.push(".unfinished");
        let unfinished = path.with_file_name(name);
        let mut writer = Self {
            to: BufWriter::with_capacity(1 << 18, File::create(&unfinished)?),
            written: 0,
            check: blake3::Hasher::new(),
            unfinished,
            path: path.to_owned(),
            finished: false,
            types: HashMap::from([(NO_TYPE.to_owned(), 0)]),
            trailer: Vec::new(),
            held: Vec::new(),
            sections: Vec::new(),
        };
        let header = parameters.encoded();
        writer.check.update(&header);
        writer.put(&header)?;
        Ok(writer)
    }

    /// The number of a type in this part. From the 65,535th on they share that of [`NO_TYPE`].
    pub(super) fn kind(&mut self, name: &str) -> u16 {
        if let Some(number) = self.types.get(name) {
            return *number;
        }
        let (Ok(number), Ok(length)) = (u16::try_from(self.types.len()), u8::try_from(name.len()))
        else {
            return 0;
        };
        self.types.insert(name.to_owned(), number);
        self.trailer.push(TYPE);
        self.trailer.extend(number.to_le_bytes());
        self.trailer.push(length);
        self.trailer.extend(name.as_bytes());
        number
    }

    pub(super) fn chunks(&mut self, group: Group, zeros: bool, chunks: &[Chunk]) -> io::Result<()> {
        let tag = if zeros { ZEROS } else { CHUNKS };
        for (fingerprint, bytes) in chunks {
            let bytes = u64::from(*bytes);
            self.hold(Entry { tag, group, fingerprint: *fingerprint, bytes })?;
        }
        Ok(())
    }

    pub(super) fn whole(&mut self, (fingerprint, bytes, group): Whole) -> io::Result<()> {
        self.hold(Entry { tag: WHOLE, group, fingerprint, bytes })
    }

    /// Write what is left; the part has its name when this returns.
    pub(super) fn finish(mut self, files: Files) -> io::Result<()> {
        self.spill()?;
        let mut trailer = std::mem::take(&mut self.trailer);
        trailer.push(END);
        for number in files.numbers() {
            trailer.extend(number.to_le_bytes());
        }
        for (start, check) in &self.sections {
            trailer.extend(start.to_le_bytes());
            trailer.extend(check);
        }
        trailer.extend((trailer.len() as u64).to_le_bytes());
        self.check.update(&trailer);
        let check = self.check.finalize();
        self.put(&trailer)?;
        self.put(check.as_bytes())?;
        self.put(MAGIC_END)?;
        self.to.flush()?;
        self.to.get_ref().sync_all()?;
        fs::rename(&self.unfinished, &self.path)?;
        self.finished = true;
        Ok(())
    }

    fn hold(&mut self, entry: Entry) -> io::Result<()> {
        self.held.push(entry);
        if self.held.len() == HELD {
            self.spill()?;
        }
        Ok(())
    }

    /// Write what is held, a section for each slice.
    fn spill(&mut self) -> io::Result<()> {
        let mut held = std::mem::take(&mut self.held);
        if held.is_empty() {
            return Ok(());
        }
        held.sort_unstable_by_key(Entry::order);
        let mut rest = held.as_slice();
        let mut section = Vec::new();
        for slice in 0..SLICES {
            section.clear();
            let end = rest.partition_point(|entry| slice_of(&entry.fingerprint) <= slice);
            let (here, later) = rest.split_at(end);
            rest = later;
            let alike = |a: &Entry, b: &Entry| (a.tag, a.group) == (b.tag, b.group);
            for run in here.chunk_by(alike).flat_map(|run| run.chunks(MOST_ENTRIES)) {
                encode(run, &mut section);
            }
            let mut check = [0; SHORT_CHECK];
            check.copy_from_slice(&blake3::hash(&section).as_bytes()[..SHORT_CHECK]);
            self.sections.push((self.written, check));
            self.put(&section)?;
        }
        held.clear();
        self.held = held;
        Ok(())
    }

    fn put(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.written += bytes.len() as u64;
        self.to.write_all(bytes)
    }
}

/// A block of entries of one kind and group.
fn encode(run: &[Entry], to: &mut Vec<u8>) {
    let Some(first) = run.first() else {
        return;
    };
    to.push(first.tag);
    to.extend(first.group.kind.to_le_bytes());
    to.push(first.group.bin);
    to.extend(u32::try_from(run.len()).unwrap_or(u32::MAX).to_le_bytes());
    for entry in run {
        if entry.tag == WHOLE {
            to.extend(entry.bytes.to_le_bytes());
        } else {
            let less = u16::try_from(entry.bytes.saturating_sub(1)).unwrap_or(u16::MAX);
            to.extend(less.to_le_bytes());
        }
        to.extend(entry.fingerprint);
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        if !self.finished {
            // Nothing can be done where even this fails; the next run writes over it.
            let _ = fs::remove_file(&self.unfinished);
        }
    }
}
