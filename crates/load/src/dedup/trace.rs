//! A part of a profile on disk: the fingerprints of its chunks and files, to be joined with other parts.
//!
//! Arrives: chunks and files as they are read, in any order; or the bytes of a part from another node.
//! Leaves: a complete file, or none; or the same chunks and files, and an error for anything else.
//!
//! The format is in docs/reference/dedup-part.md. A chunk takes 22 bytes, 0.2 % of its data.

use std::collections::HashMap;
use std::fs::{self, File};
use std::io::{self, BufReader, BufWriter, Read, Write};
use std::path::{Path, PathBuf};

use crate::chunking::Method;
use crate::digest::{Digest, Fingerprint};

use super::tally::{Files, Group, BINS, NO_TYPE};
use crate::error::LoadError;

const MAGIC: &[u8; 8] = b"WSDEDUP\x01";
const CHECK: usize = 32;

/// Entries of a block, at most: what a reader must hold.
pub(super) const MOST_ENTRIES: usize = 1 << 16;

const TYPE: u8 = b'T';
const CHUNKS: u8 = b'C';
const ZEROS: u8 = b'Z';
const WHOLE: u8 = b'W';
const END: u8 = b'E';

/// The parameters of a part. Parts are joined if these are equal, except for `part`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Parameters {
    /// The chunking method.
    pub method: Method,
    /// The fingerprint of chunks.
    pub digest: Digest,
    /// How many parts there are.
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

    fn encoded(&self) -> Vec<u8> {
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

/// A part in progress. Dropped before [`Writer::finish`], it is removed.
pub(super) struct Writer {
    to: BufWriter<File>,
    check: blake3::Hasher,
    unfinished: PathBuf,
    path: PathBuf,
    finished: bool,
    types: HashMap<String, u16>,
    whole: Vec<Whole>,
}

impl Writer {
    pub(super) fn create(path: &Path, parameters: &Parameters) -> io::Result<Self> {
        let mut name = path.file_name().unwrap_or_default().to_owned();
        name.push(".unfinished");
        let unfinished = path.with_file_name(name);
        let mut writer = Self {
            to: BufWriter::with_capacity(1 << 18, File::create(&unfinished)?),
            check: blake3::Hasher::new(),
            unfinished,
            path: path.to_owned(),
            finished: false,
            types: HashMap::from([(NO_TYPE.to_owned(), 0)]),
            whole: Vec::new(),
        };
        writer.put(&parameters.encoded())?;
        Ok(writer)
    }

    /// The number of a type in this part.
    pub(super) fn kind(&mut self, name: &str) -> io::Result<u16> {
        if let Some(number) = self.types.get(name) {
            return Ok(*number);
        }
        let (Ok(number), Ok(length)) = (u16::try_from(self.types.len()), u8::try_from(name.len()))
        else {
            return Ok(0);
        };
        self.types.insert(name.to_owned(), number);
        self.put(&[TYPE])?;
        self.put(&number.to_le_bytes())?;
        self.put(&[length])?;
        self.put(name.as_bytes())?;
        Ok(number)
    }

    pub(super) fn chunks(&mut self, group: Group, zeros: bool, chunks: &[Chunk]) -> io::Result<()> {
        for chunks in chunks.chunks(MOST_ENTRIES) {
            self.put(&[if zeros { ZEROS } else { CHUNKS }])?;
            self.group(group)?;
            self.count(chunks.len())?;
            for (fingerprint, bytes) in chunks {
                let less = u16::try_from(bytes.saturating_sub(1)).unwrap_or(u16::MAX);
                self.put(&less.to_le_bytes())?;
                self.put(fingerprint)?;
            }
        }
        Ok(())
    }

    pub(super) fn whole(&mut self, file: Whole) -> io::Result<()> {
        self.whole.push(file);
        if self.whole.len() == MOST_ENTRIES {
            self.put_whole()?;
        }
        Ok(())
    }

    /// Write what is left; the part has its name when this returns.
    pub(super) fn finish(mut self, files: Files) -> io::Result<()> {
        self.put_whole()?;
        self.put(&[END])?;
        for number in files.numbers() {
            self.put(&number.to_le_bytes())?;
        }
        let check = self.check.finalize();
        self.to.write_all(check.as_bytes())?;
        self.to.flush()?;
        self.to.get_ref().sync_all()?;
        fs::rename(&self.unfinished, &self.path)?;
        self.finished = true;
        Ok(())
    }

    fn put_whole(&mut self) -> io::Result<()> {
        let whole = std::mem::take(&mut self.whole);
        if whole.is_empty() {
            return Ok(());
        }
        self.put(&[WHOLE])?;
        self.count(whole.len())?;
        for (fingerprint, size, group) in whole {
            self.put(&fingerprint)?;
            self.put(&size.to_le_bytes())?;
            self.group(group)?;
        }
        Ok(())
    }

    fn group(&mut self, group: Group) -> io::Result<()> {
        self.put(&group.kind.to_le_bytes())?;
        self.put(&[group.bin])
    }

    fn count(&mut self, count: usize) -> io::Result<()> {
        self.put(&u32::try_from(count).unwrap_or(u32::MAX).to_le_bytes())
    }

    fn put(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.check.update(bytes);
        self.to.write_all(bytes)
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

/// What a part holds, block by block.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Block {
    /// A type and its number in this part.
    Type(u16, String),
    /// Chunks of one group, and whether they hold zeros alone.
    Chunks(Group, bool, Vec<Chunk>),
    /// Files.
    Whole(Vec<Whole>),
    /// The end, with what became of the files.
    End(Files),
}

/// A part being read. Nothing of it is to be trusted before [`Block::End`] has come.
pub(super) struct Reader<R> {
    from: R,
    check: blake3::Hasher,
    /// What to call it in an error.
    name: String,
    pub(super) parameters: Parameters,
    types: usize,
}

impl Reader<BufReader<File>> {
    pub(super) fn open(path: &Path) -> Result<Self, LoadError> {
        let name = path.display().to_string();
        let file =
            File::open(path).map_err(|error| LoadError::Part(name.clone(), error.to_string()))?;
        Self::new(BufReader::with_capacity(1 << 18, file), name)
    }
}

impl<R: Read> Reader<R> {
    pub(super) fn new(from: R, name: String) -> Result<Self, LoadError> {
        let parameters = Parameters {
            method: Method::Fast,
            digest: Digest::Blake3,
            parts: 0,
            part: 0,
            label: String::new(),
        };
        let mut reader = Self { from, check: blake3::Hasher::new(), name, parameters, types: 1 };
        if reader.array()? != *MAGIC {
            return Err(reader.bad("it is no part of a deduplication profile of this version"));
        }
        let [method] = reader.array()?;
        let size = reader.number32()?;
        reader.parameters.method = match (method, size) {
            (0, 0) => Method::FscCdc8,
            (1, 0) => Method::Fast,
            (2, 1..=65_536) => Method::Fixed(size as usize),
            _ => return Err(reader.bad("its method is unknown")),
        };
        reader.parameters.digest = match reader.array()? {
            [0] => Digest::Sha1,
            [1] => Digest::Blake3,
            _ => return Err(reader.bad("its digest is unknown")),
        };
        reader.parameters.parts = reader.number32()?;
        reader.parameters.part = reader.number32()?;
        if reader.parameters.part >= reader.parameters.parts {
            return Err(reader.bad("its number is not below the number of parts"));
        }
        let length = u16::from_le_bytes(reader.array()?);
        reader.parameters.label = reader.text(usize::from(length))?;
        Ok(reader)
    }

    /// The next block.
    pub(super) fn next(&mut self) -> Result<Block, LoadError> {
        let [tag] = self.array()?;
        match tag {
            TYPE => {
                let number = u16::from_le_bytes(self.array()?);
                if usize::from(number) != self.types {
                    return Err(self.bad("a type is out of turn"));
                }
                self.types += 1;
                let [length] = self.array()?;
                Ok(Block::Type(number, self.text(usize::from(length))?))
            }
            CHUNKS | ZEROS => {
                let group = self.group()?;
                let most = self.parameters.method.most();
                let count = self.count()?;
                let mut chunks = Vec::new();
                for _ in 0..count {
                    let bytes = u32::from(u16::from_le_bytes(self.array()?)) + 1;
                    if bytes as usize > most {
                        return Err(self.bad("a chunk is larger than its method makes any"));
                    }
                    chunks.push((self.array()?, bytes));
                }
                Ok(Block::Chunks(group, tag == ZEROS, chunks))
            }
            WHOLE => {
                let mut files = Vec::new();
                for _ in 0..self.count()? {
                    let fingerprint = self.array()?;
                    let size = u64::from_le_bytes(self.array()?);
                    files.push((fingerprint, size, self.group()?));
                }
                Ok(Block::Whole(files))
            }
            END => self.end(),
            _ => Err(self.bad("a block is of no known sort")),
        }
    }

    fn end(&mut self) -> Result<Block, LoadError> {
        let mut numbers = [0; 9];
        for number in &mut numbers {
            *number = u64::from_le_bytes(self.array()?);
        }
        let expected = self.check.finalize();
        let found: [u8; CHECK] = self.array()?;
        if expected != found {
            return Err(self.bad("its checksum is wrong"));
        }
        match self.from.read(&mut [0]) {
            Ok(0) => Ok(Block::End(Files::from_numbers(numbers))),
            Ok(_) => Err(self.bad("something follows its end")),
            Err(error) => Err(self.bad(&error.to_string())),
        }
    }

    fn group(&mut self) -> Result<Group, LoadError> {
        let kind = u16::from_le_bytes(self.array()?);
        let [bin] = self.array()?;
        if usize::from(kind) >= self.types || usize::from(bin) >= BINS {
            return Err(self.bad("a type or size bin is of none"));
        }
        Ok(Group { kind, bin })
    }

    fn count(&mut self) -> Result<usize, LoadError> {
        let count = self.number32()? as usize;
        if count > MOST_ENTRIES {
            return Err(self.bad("a block is too large"));
        }
        Ok(count)
    }

    fn number32(&mut self) -> Result<u32, LoadError> {
        Ok(u32::from_le_bytes(self.array()?))
    }

    fn text(&mut self, length: usize) -> Result<String, LoadError> {
        let mut bytes = vec![0; length];
        self.fill(&mut bytes)?;
        String::from_utf8(bytes).map_err(|_| self.bad("a name in it is no text"))
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], LoadError> {
        let mut bytes = [0; N];
        self.fill(&mut bytes)?;
        Ok(bytes)
    }

    fn fill(&mut self, bytes: &mut [u8]) -> Result<(), LoadError> {
        match self.from.read_exact(bytes) {
            Ok(()) => {
                self.check.update(bytes);
                Ok(())
            }
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => {
                Err(self.bad("it ends early"))
            }
            Err(error) => Err(self.bad(&error.to_string())),
        }
    }

    fn bad(&self, what: &str) -> LoadError {
        LoadError::Part(self.name.clone(), what.to_owned())
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU64, Ordering};

    use proptest::prelude::*;

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
        let group = Group { kind: writer.kind("txt").unwrap(), bin: 14 };
        writer.chunks(group, false, &[([7; 20], 9000), ([8; 20], 1)]).unwrap();
        writer.chunks(Group::default(), true, &[([9; 20], 32768)]).unwrap();
        writer.whole(([1; 20], 9001, group)).unwrap();
        writer.finish(Files { read: 1, bytes: 9001, ..Files::default() }).unwrap();
        fs::read(&path).unwrap()
    }

    fn read(bytes: &[u8]) -> Result<(Parameters, Vec<Block>), LoadError> {
        let mut reader = Reader::new(bytes, "part".to_owned())?;
        let mut blocks = Vec::new();
        loop {
            let block = reader.next()?;
            let end = matches!(block, Block::End(_));
            blocks.push(block);
            if end {
                return Ok((reader.parameters, blocks));
            }
        }
    }

    #[test]
    fn what_was_written_is_read() {
        let (asked, blocks) = read(&written()).unwrap();
        assert_eq!(asked, parameters());
        assert_eq!(blocks.len(), 5);
        let group = Group { kind: 1, bin: 14 };
        assert_eq!(blocks[1], Block::Chunks(group, false, vec![([7; 20], 9000), ([8; 20], 1)]));
        assert_eq!(blocks[3], Block::Whole(vec![([1; 20], 9001, group)]));
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
