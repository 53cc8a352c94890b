//! A part of a profile on disk: the fingerprints of its chunks and files, to be joined with other parts.
//!
//! Arrives: the bytes of a part, perhaps from another node.
//! Leaves: its chunks and files, slice by slice, and an error for anything else.
//!
//! The format is in docs/reference/dedup-part.md. A chunk takes 22 bytes, 0.2 % of its data. A slice is the
//! fingerprints with one first byte: parts can be joined slice by slice, by several nodes, in the memory that one slice
//! takes.

use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::ops::Range;
use std::path::Path;

use crate::chunking::Method;
use crate::digest::{Digest, Fingerprint};

use super::tally::{Files, Group, BINS, NO_TYPE};
use crate::error::LoadError;

const MAGIC: &[u8; 8] = b"WSDEDUP\x02";
pub(super) const MAGIC_END: &[u8; 8] = b"WSDEDEND";
const CHECK: usize = 32;

/// Bytes of a section's check, which tells damage, not malice, apart.
pub(super) const SHORT_CHECK: usize = 16;

/// The length of the trailer, its check, the mark of the end.
const ENDING: usize = 8 + CHECK + MAGIC_END.len();

/// Bytes of a header, with the longest label.
const MOST_HEADER: usize = 24 + (1 << 16);

/// Slices of fingerprints, by the first byte.
pub const SLICES: usize = 256;

/// Entries of a block, at most: what a reader must hold.
pub(super) const MOST_ENTRIES: usize = 1 << 16;

pub(super) const TYPE: u8 = b'T';
pub(super) const CHUNKS: u8 = b'C';
pub(super) const ZEROS: u8 = b'Z';
pub(super) const WHOLE: u8 = b'W';
pub(super) const END: u8 = b'E';

/// The slice of a fingerprint.
pub(super) fn slice_of(fingerprint: &Fingerprint) -> usize {
    usize::from(fingerprint[0])
}

/// The parameters of a part. Parts are joined if these are equal, except for `part`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Parameters {
    /// The chunking method.
    pub method: Method,
    /// The fingerprint of chunks.
    pub digest: Digest,
    /// How many parts there are; 0 where only those who join them know.
    pub parts: u32,
    /// Which of them this is, from 0.
    pub part: u32,
    /// The tree and the patterns, as text.
    pub label: String,
}

impl Parameters {
    /// Whether both are parts of one profile.
    #[must_use]
    pub fn joins(&self, other: &Self) -> bool {
        *self == Self { part: self.part, ..other.clone() }
    }

    pub(super) fn encoded(&self) -> Vec<u8> {
        let (method, size) = match self.method {
            Method::FscCdc8 => (0_u8, 0),
            Method::Fast => (1, 0),
            Method::Fixed(size) => (2, size),
        };
        let mut bytes = MAGIC.to_vec();
        bytes.push(method);
        bytes.extend(u32::try_from(size).unwrap_or(u32::MAX).to_le_bytes());
        bytes.push(match self.digest {
            Digest::Sha1 => 0,
            Digest::Blake3 => 1,
        });
        bytes.extend(self.parts.to_le_bytes());
        bytes.extend(self.part.to_le_bytes());
        let label = &self.label.as_bytes()[..self.label.len().min(usize::from(u16::MAX))];
        bytes.extend(u16::try_from(label.len()).unwrap_or(u16::MAX).to_le_bytes());
        bytes.extend(label);
        bytes
    }
}

/// One chunk: its fingerprint and its bytes.
pub(super) type Chunk = (Fingerprint, u32);

/// One file: the fingerprint of its content, its size and its group.
pub(super) type Whole = (Fingerprint, u64, Group);

/// What a part holds, block by block.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Block {
    /// Chunks of one group, and whether they hold zeros alone.
    Chunks(Group, bool, Vec<Chunk>),
    /// Files of one group.
    Whole(Vec<Whole>),
}

/// A part whose header and trailer have been read and checked.
pub(super) struct Reader<R> {
    from: R,
    /// What to call it in an error.
    name: String,
    pub(super) parameters: Parameters,
    /// Names of types by their number, the first of which is [`NO_TYPE`].
    pub(super) types: Vec<String>,
    /// What became of the files.
    pub(super) files: Files,
    /// Where the section of each slice of each spill begins, and its check; then the end of the last one.
    sections: Vec<(u64, [u8; SHORT_CHECK])>,
}

impl Reader<File> {
    pub(super) fn open(path: &Path) -> Result<Self, LoadError> {
        let (file, name) = opened(path)?;
        Self::new(file, name)
    }
}

fn opened(path: &Path) -> Result<(File, String), LoadError> {
    let name = path.display().to_string();
    match File::open(path) {
        Ok(file) => Ok((file, name)),
        Err(error) => Err(LoadError::Part(name, error.to_string())),
    }
}

/// What a part asks, from its header. The rest is not looked at.
pub(super) fn parameters_of(path: &Path) -> Result<Parameters, LoadError> {
    let (file, name) = opened(path)?;
    let mut header = Vec::new();
    file.take(MOST_HEADER as u64)
        .read_to_end(&mut header)
        .map_err(|error| LoadError::Part(name.clone(), error.to_string()))?;
    Bytes { rest: &header, name: &name }.header()
}

impl<R: Read + Seek> Reader<R> {
    pub(super) fn new(mut from: R, name: String) -> Result<Self, LoadError> {
        let bad = |what: &str| LoadError::Part(name.clone(), what.to_owned());
        let io = |error: io::Error| LoadError::Part(name.clone(), error.to_string());
        let size = from.seek(SeekFrom::End(0)).map_err(io)?;
        from.rewind().map_err(io)?;
        let mut header = Vec::new();
        from.by_ref().take(MOST_HEADER as u64).read_to_end(&mut header).map_err(io)?;
        let mut bytes = Bytes { rest: &header, name: &name };
        let parameters = bytes.header()?;
        let header_length = header.len() - bytes.rest.len();
        let least = header_length as u64 + ENDING as u64;
        let Some(at) = size.checked_sub(ENDING as u64).filter(|_| size >= least) else {
            return Err(bad("it ends early"));
        };
        let mut ending = [0; ENDING];
        from.seek(SeekFrom::Start(at)).map_err(io)?;
        from.read_exact(&mut ending).map_err(io)?;
        let (length, rest) = ending.split_at(8);
        let (found, magic) = rest.split_at(CHECK);
        if magic != MAGIC_END {
            return Err(bad("it ends early"));
        }
        let mut number = [0; 8];
        number.copy_from_slice(length);
        let length = u64::from_le_bytes(number);
        let start = at.checked_sub(length).filter(|start| *start >= header_length as u64);
        let (Some(start), Ok(room)) = (start, usize::try_from(length)) else {
            return Err(bad("its checksum is wrong"));
        };
        let mut trailer = vec![0; room];
        from.seek(SeekFrom::Start(start)).map_err(io)?;
        from.read_exact(&mut trailer).map_err(io)?;
        let mut check = blake3::Hasher::new();
        check.update(&header[..header_length]).update(&trailer).update(&number);
        if check.finalize().as_bytes() != found {
            return Err(bad("its checksum is wrong"));
        }
        let (types, files, mut sections) = Bytes { rest: &trailer, name: &name }.trailer()?;
        let begins = sections.first().map_or(start, |(at, _)| *at);
        sections.push((start, [0; SHORT_CHECK]));
        if begins != header_length as u64 || !sections.is_sorted_by_key(|(at, _)| *at) {
            return Err(bad("its sections are out of place"));
        }
        Ok(Self { from, name, parameters, types, files, sections })
    }

    /// Go through some slices, block by block; those of a section only after its check.
    pub(super) fn slices(
        &mut self,
        slices: Range<usize>,
        mut take: impl FnMut(Block) -> Result<(), LoadError>,
    ) -> Result<(), LoadError> {
        let spills = self.sections.len() / SLICES;
        let (types, most) = (self.types.len(), self.parameters.method.most());
        let mut section = Vec::new();
        for slice in slices {
            for spill in 0..spills {
                let at = spill * SLICES + slice;
                let (start, check) = self.sections[at];
                let length = self.sections[at + 1].0 - start;
                let io = |error: io::Error| LoadError::Part(self.name.clone(), error.to_string());
                self.from.seek(SeekFrom::Start(start)).map_err(io)?;
                section.clear();
                self.from.by_ref().take(length).read_to_end(&mut section).map_err(io)?;
                if blake3::hash(&section).as_bytes()[..SHORT_CHECK] != check {
                    let text = "its checksum is wrong".to_owned();
                    return Err(LoadError::Part(self.name.clone(), text));
                }
                let mut bytes = Bytes { rest: &section, name: &self.name };
                while !bytes.rest.is_empty() {
                    take(bytes.block(slice, types, most)?)?;
                }
            }
        }
        Ok(())
    }
}

/// What is left of some bytes of a part.
struct Bytes<'a> {
    rest: &'a [u8],
    name: &'a str,
}

/// Names of types, what became of the files, the beginnings and checks of sections.
type Trailer = (Vec<String>, Files, Vec<(u64, [u8; SHORT_CHECK])>);

impl Bytes<'_> {
    fn header(&mut self) -> Result<Parameters, LoadError> {
        if self.array().ok() != Some(*MAGIC) {
            return Err(self.bad("it is no part of a deduplication profile of this version"));
        }
        let [method] = self.array()?;
        let size = self.number32()?;
        let method = match (method, size) {
            (0, 0) => Method::FscCdc8,
            (1, 0) => Method::Fast,
            (2, 1..=65_536) => Method::Fixed(size as usize),
            _ => return Err(self.bad("its method is unknown")),
        };
        let digest = match self.array()? {
            [0] => Digest::Sha1,
            [1] => Digest::Blake3,
            _ => return Err(self.bad("its digest is unknown")),
        };
        let (parts, part) = (self.number32()?, self.number32()?);
        if parts != 0 && part >= parts {
            return Err(self.bad("its number is not below the number of parts"));
        }
        let length = u16::from_le_bytes(self.array()?);
        let label = self.text(usize::from(length))?;
        Ok(Parameters { method, digest, parts, part, label })
    }

    fn trailer(&mut self) -> Result<Trailer, LoadError> {
        let mut types = vec![NO_TYPE.to_owned()];
        loop {
            match self.array()? {
                [TYPE] => {
                    let number = u16::from_le_bytes(self.array()?);
                    if usize::from(number) != types.len() {
                        return Err(self.bad("a type is out of turn"));
                    }
                    let [length] = self.array()?;
                    types.push(self.text(usize::from(length))?);
                }
                [END] => break,
                _ => return Err(self.bad("its trailer is of no known form")),
            }
        }
        let mut numbers = [0; 9];
        for number in &mut numbers {
            *number = u64::from_le_bytes(self.array()?);
        }
        let mut sections = Vec::with_capacity(self.rest.len() / (8 + SHORT_CHECK) + 1);
        while !self.rest.is_empty() {
            sections.push((u64::from_le_bytes(self.array()?), self.array()?));
        }
        if sections.len() % SLICES != 0 {
            return Err(self.bad("its sections are not those of all slices"));
        }
        Ok((types, Files::from_numbers(numbers), sections))
    }

    /// The next block of a section of `slice`, in a part with this number of types and chunks of at most `most` bytes.
    fn block(&mut self, slice: usize, types: usize, most: usize) -> Result<Block, LoadError> {
        let [tag] = self.array()?;
        let kind = u16::from_le_bytes(self.array()?);
        let [bin] = self.array()?;
        if usize::from(kind) >= types || usize::from(bin) >= BINS {
            return Err(self.bad("a type or size bin is of none"));
        }
        let group = Group { kind, bin };
        let count = self.number32()? as usize;
        if count > MOST_ENTRIES {
            return Err(self.bad("a block is too large"));
        }
        let foreign = |fingerprint: &Fingerprint| slice_of(fingerprint) != slice;
        match tag {
            CHUNKS | ZEROS => {
                let mut chunks = Vec::new();
                for _ in 0..count {
                    let bytes = u32::from(u16::from_le_bytes(self.array()?)) + 1;
                    if bytes as usize > most {
                        return Err(self.bad("a chunk is larger than its method makes any"));
                    }
                    chunks.push((self.array()?, bytes));
                }
                if chunks.iter().any(|(fingerprint, _)| foreign(fingerprint)) {
                    return Err(self.bad("a fingerprint is of another slice"));
                }
                Ok(Block::Chunks(group, tag == ZEROS, chunks))
            }
            WHOLE => {
                let mut files = Vec::new();
                for _ in 0..count {
                    let size = u64::from_le_bytes(self.array()?);
                    files.push((self.array()?, size, group));
                }
                if files.iter().any(|(fingerprint, ..)| foreign(fingerprint)) {
                    return Err(self.bad("a fingerprint is of another slice"));
                }
                Ok(Block::Whole(files))
            }
            _ => Err(self.bad("a block is of no known sort")),
        }
    }

    fn number32(&mut self) -> Result<u32, LoadError> {
        Ok(u32::from_le_bytes(self.array()?))
    }

    fn text(&mut self, length: usize) -> Result<String, LoadError> {
        let bytes = self.take(length)?.to_vec();
        String::from_utf8(bytes).map_err(|_| self.bad("a name in it is no text"))
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], LoadError> {
        let mut bytes = [0; N];
        bytes.copy_from_slice(self.take(N)?);
        Ok(bytes)
    }

    fn take(&mut self, count: usize) -> Result<&[u8], LoadError> {
        let Some((taken, rest)) = self.rest.split_at_checked(count) else {
            return Err(self.bad("it ends early"));
        };
        self.rest = rest;
        Ok(taken)
    }

    fn bad(&self, what: &str) -> LoadError {
        LoadError::Part(self.name.to_owned(), what.to_owned())
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::io::Cursor;
    use std::path::PathBuf;
    use std::sync::atomic::{AtomicU64, Ordering};

    use proptest::prelude::*;

    use super::super::writer::Writer;
    use super::*;

    fn parameters() -> Parameters {
        Parameters {
            method: Method::FscCdc8,
            digest: Digest::Sha1,
            parts: 3,
            part: 1,
            label: "/tree".to_owned(),
        }
    }

    /// A folder of this call's own, which goes with it.
    struct Folder(PathBuf);

    impl Folder {
        fn new() -> Self {
            static NEXT: AtomicU64 = AtomicU64::new(0);
            let number = NEXT.fetch_add(1, Ordering::Relaxed);
            let name = format!("waystage-trace-{}-{number}", std::process::id());
            let folder = std::env::temp_dir().join(name);
            fs::create_dir_all(&folder).unwrap();
            Self(folder)
        }
    }

    impl Drop for Folder {
        fn drop(&mut self) {
            fs::remove_dir_all(&self.0).ok();
        }
    }

    fn written() -> Vec<u8> {
        let folder = Folder::new();
        let path = folder.0.join("part");
        let mut writer = Writer::create(&path, &parameters()).unwrap();
        let group = Group { kind: writer.kind("txt"), bin: 14 };
        writer.chunks(group, false, &[([7; 20], 9000), ([8; 20], 1)]).unwrap();
        writer.chunks(Group::default(), true, &[([9; 20], 32768)]).unwrap();
        writer.whole(([1; 20], 9001, group)).unwrap();
        writer.finish(Files { read: 1, bytes: 9001, ..Files::default() }).unwrap();
        fs::read(&path).unwrap()
    }

    fn read(bytes: &[u8]) -> Result<(Parameters, Files, Vec<Block>), LoadError> {
        let mut reader = Reader::new(Cursor::new(bytes), "part".to_owned())?;
        let mut blocks = Vec::new();
        reader.slices(0..SLICES, |block| {
            blocks.push(block);
            Ok(())
        })?;
        Ok((reader.parameters.clone(), reader.files, blocks))
    }

    #[test]
    fn what_was_written_is_read() {
        let (asked, files, blocks) = read(&written()).unwrap();
        assert_eq!(asked, parameters());
        assert_eq!((files.read, files.bytes), (1, 9001));
        let group = Group { kind: 1, bin: 14 };
        let none = Group::default();
        assert_eq!(
            blocks,
            [
                Block::Whole(vec![([1; 20], 9001, group)]),
                Block::Chunks(group, false, vec![([7; 20], 9000)]),
                Block::Chunks(group, false, vec![([8; 20], 1)]),
                Block::Chunks(none, true, vec![([9; 20], 32768)]),
            ]
        );
    }

    #[test]
    fn a_slice_is_read_alone() {
        let bytes = written();
        let mut reader = Reader::new(Cursor::new(&bytes), "part".to_owned()).unwrap();
        let mut count = 0;
        reader
            .slices(7..9, |_| {
                count += 1;
                Ok(())
            })
            .unwrap();
        assert_eq!(count, 2);
    }

    #[test]
    fn a_part_that_is_not_finished_leaves_nothing() {
        let folder = Folder::new();
        drop(Writer::create(&folder.0.join("part"), &parameters()).unwrap());
        assert_eq!(fs::read_dir(&folder.0).unwrap().count(), 0);
    }

    proptest! {
        #[test]
        fn damage_is_noticed(at in 0..10_000_usize, byte in any::<u8>(), cut in 0..10_000_usize) {
            let whole = written();
            let mut damaged = whole.clone();
            let at = at % damaged.len();
            damaged[at] = byte;
            prop_assert_eq!(read(&damaged).is_ok(), damaged == whole);
            prop_assert!(read(&whole[..cut % whole.len()]).is_err());
        }

        #[test]
        fn foreign_bytes_are_an_error(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
            let mut made = MAGIC.to_vec();
            made.extend(&bytes);
            prop_assert!(read(&bytes).is_err());
            prop_assert!(read(&made).is_err());
        }
    }
}
