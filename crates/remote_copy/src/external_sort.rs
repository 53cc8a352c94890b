//! What has to wait until a copy's end, in bounded memory: kept on storage where there is much of it, and given back
//! in order.
//!
//! Arrives: records, each a key and a body, in any order. Leaves: the same, sorted by their keys, as often as they
//! are asked for. Must not know: what they say.
//!
//! How many directories, links and names a tree has is for the peer to decide, so that they must not be held in
//! memory. Records are sorted in memory up to a bound, written out as runs, and merged when they are read (external
//! merge sort: Knuth, volume 3, 5.4).

use std::cmp::Ordering;
use std::collections::BinaryHeap;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::path::Path;

use rustix::fs::{openat, unlinkat, AtFlags, Mode, OFlags, CWD};
use rustix::io::Errno;
use waystage_transport::tls::random;

/// What a record takes in memory beside its bytes, about.
const RECORD_BYTES: usize = 96;

/// Bytes that are read of a record at first: most records are no longer.
const HEAD_BYTES: usize = 1 << 10;

/// Lengths of key and body before each record.
const LENGTHS: usize = 8;

/// Where files lie that only hold what memory should not.
#[derive(Debug)]
pub(crate) enum SpillDirectory {
    /// In this directory.
    In(OwnedFd),
    /// Where this machine has room for such files.
    Anywhere,
}

impl SpillDirectory {
    /// A new file without a name, which is gone when it is closed.
    pub(crate) fn file(&self) -> io::Result<File> {
        match self {
            Self::In(folder) => nameless(folder),
            Self::Anywhere => {
                let own = std::env::var_os("TMPDIR").filter(|path| Path::new(path).is_absolute());
                // /tmp often is memory.
                let usual = ["/var/tmp", "/tmp"].map(Into::into);
                let mut failed = Errno::NOENT.into();
                for path in own.into_iter().chain(usual) {
                    let how = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
                    let made = openat(CWD, &path, how, Mode::empty());
                    match made.map_err(io::Error::from).and_then(|folder| nameless(&folder)) {
                        Ok(file) => return Ok(file),
                        Err(error) => failed = error,
                    }
                }
                Err(failed)
            }
        }
    }
}

fn nameless(folder: &OwnedFd) -> io::Result<File> {
    let (how, mode) = (OFlags::RDWR | OFlags::CLOEXEC, Mode::from_raw_mode(0o600));
    match openat(folder, c".", how | OFlags::TMPFILE | OFlags::EXCL, mode) {
        Ok(fd) => return Ok(fd.into()),
        // What file systems and kernels say that cannot do this.
        Err(Errno::OPNOTSUPP | Errno::ISDIR | Errno::INVAL) => {}
        Err(errno) => return Err(errno.into()),
    }
    let prefix = String::from_utf8_lossy(waystage_copy::sink::OWN_PREFIX);
    let name = format!("{prefix}-sort-{:032x}", u128::from_le_bytes(random()));
    let new = how | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW;
    let fd = openat(folder.as_fd(), &*name, new, mode)?;
    unlinkat(folder, &*name, AtFlags::empty())?;
    Ok(fd.into())
}

/// The key and the body of a record.
pub(crate) type Record = (Vec<u8>, Vec<u8>);

/// Records that wait.
pub(crate) struct ExternalSort {
    place: SpillDirectory,
    most_bytes: usize,
    /// Whether the greatest keys come first.
    descending: bool,
    held: Vec<Record>,
    held_bytes: usize,
    file: Option<File>,
    /// Where runs begin and end in the file.
    runs: Vec<(u64, u64)>,
}

impl ExternalSort {
    /// An empty one that takes no more memory than about `most_bytes`.
    pub(crate) fn new(place: SpillDirectory, most_bytes: usize, descending: bool) -> Self {
        let (held, runs) = (Vec::new(), Vec::new());
        Self { place, most_bytes, descending, held, held_bytes: 0, file: None, runs }
    }

    pub(crate) fn put(&mut self, key: Vec<u8>, body: Vec<u8>) -> io::Result<()> {
        self.held_bytes += key.len() + body.len() + RECORD_BYTES;
        self.held.push((key, body));
        if self.held_bytes > self.most_bytes {
            self.write_out()?;
        }
        Ok(())
    }

    fn sort(&mut self) {
        let descending = self.descending;
        self.held.sort_by(|one, other| in_order(&one.0, &other.0, descending));
    }

    /// What is in memory becomes a run.
    fn write_out(&mut self) -> io::Result<()> {
        self.sort();
        let file = match &self.file {
            Some(file) => file,
            None => self.file.insert(self.place.file()?),
        };
        let begin = self.runs.last().map_or(0, |run| run.1);
        let (mut at, mut buffer) = (begin, Vec::with_capacity(1 << 16));
        for (key, body) in self.held.drain(..) {
            for length in [key.len(), body.len()] {
                let length = u32::try_from(length).map_err(|_| io::ErrorKind::InvalidInput)?;
                buffer.extend_from_slice(&length.to_le_bytes());
            }
            buffer.extend_from_slice(&key);
            buffer.extend_from_slice(&body);
            if buffer.len() >= 1 << 16 {
                file.write_all_at(&buffer, at)?;
                at += buffer.len() as u64;
                buffer.clear();
            }
        }
        file.write_all_at(&buffer, at)?;
        self.runs.push((begin, at + buffer.len() as u64));
        // Its room too: what comes may be few long records.
        (self.held, self.held_bytes) = (Vec::new(), 0);
        Ok(())
    }

    /// All records, in order of their keys.
    pub(crate) fn sorted(&mut self) -> io::Result<Sorted<'_>> {
        if self.file.is_some() && !self.held.is_empty() {
            self.write_out()?;
        }
        self.sort();
        let mut sorted = Sorted {
            held: self.held.iter(),
            file: self.file.as_ref(),
            heads: BinaryHeap::new(),
            descending: self.descending,
        };
        for run in &self.runs {
            sorted.read(*run)?;
        }
        Ok(sorted)
    }
}

fn in_order(one: &[u8], other: &[u8], descending: bool) -> Ordering {
    if descending {
        other.cmp(one)
    } else {
        one.cmp(other)
    }
}

/// The first record of a run that was not taken yet.
struct Head {
    key: Vec<u8>,
    body: Body,
    /// What follows it in its run.
    rest: (u64, u64),
    descending: bool,
}

enum Body {
    Read(Vec<u8>),
    /// Where it is: a long one is read when its turn comes.
    At(u64, usize),
}

impl Ord for Head {
    /// The greatest of a heap is to be the first in order.
    fn cmp(&self, other: &Self) -> Ordering {
        in_order(&other.key, &self.key, self.descending).then(other.rest.cmp(&self.rest))
    }
}

impl PartialOrd for Head {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Head {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other).is_eq()
    }
}

impl Eq for Head {}

/// Records of a sort in order. Those of one key come in any order.
pub(crate) struct Sorted<'a> {
    held: std::slice::Iter<'a, Record>,
    file: Option<&'a File>,
    heads: BinaryHeap<Head>,
    descending: bool,
}

impl Sorted<'_> {
    /// Put the run's next record among the heads.
    fn read(&mut self, (at, end): (u64, u64)) -> io::Result<()> {
        let Some(file) = self.file.filter(|_| at < end) else { return Ok(()) };
        let mut head = vec![0; HEAD_BYTES.min(usize::try_from(end - at).unwrap_or(HEAD_BYTES))];
        file.read_exact_at(&mut head, at)?;
        let length = |from: usize| -> io::Result<usize> {
            let bytes = head.get(from..from + 4).and_then(|bytes| bytes.try_into().ok());
            bytes.map(|bytes| u32::from_le_bytes(bytes) as usize).ok_or_else(cut_short)
        };
        let (key_length, body_length) = (length(0)?, length(4)?);
        let body_at = LENGTHS + key_length;
        let key = match head.get(LENGTHS..body_at) {
            Some(key) => key.to_vec(),
            None => {
                let mut key = vec![0; key_length];
                file.read_exact_at(&mut key, at + LENGTHS as u64)?;
                key
            }
        };
        let body = match head.get(body_at..body_at + body_length) {
            Some(body) => Body::Read(body.to_vec()),
            None => Body::At(at + body_at as u64, body_length),
        };
        let rest = (at + (body_at + body_length) as u64, end);
        self.heads.push(Head { key, body, rest, descending: self.descending });
        Ok(())
    }

    fn take(&mut self) -> io::Result<Option<Record>> {
        let Some(Head { key, body, rest, .. }) = self.heads.pop() else { return Ok(None) };
        let body = match (body, self.file) {
            (Body::Read(body), _) => body,
            (Body::At(at, length), Some(file)) => {
                let mut body = vec![0; length];
                file.read_exact_at(&mut body, at)?;
                body
            }
            (Body::At(..), None) => return Err(cut_short()),
        };
        self.read(rest)?;
        Ok(Some((key, body)))
    }
}

fn cut_short() -> io::Error {
    io::ErrorKind::UnexpectedEof.into()
}

impl Iterator for Sorted<'_> {
    type Item = io::Result<Record>;

    fn next(&mut self) -> Option<Self::Item> {
        if let Some(record) = self.held.next() {
            return Some(Ok(record.clone()));
        }
        self.take().transpose()
    }
}

/// Pieces of bytes that are kept out of memory until each is asked for, once.
pub(crate) struct SpillFile {
    place: SpillDirectory,
    file: Option<File>,
    end: u64,
}

/// Where a piece is on its spill.
#[derive(Debug, Clone, Copy)]
pub(crate) struct SpillRange(u64, usize);

impl SpillFile {
    pub(crate) fn new(place: SpillDirectory) -> Self {
        Self { place, file: None, end: 0 }
    }

    pub(crate) fn put(&mut self, piece: &[u8]) -> io::Result<SpillRange> {
        let file = match &self.file {
            Some(file) => file,
            None => self.file.insert(self.place.file()?),
        };
        file.write_all_at(piece, self.end)?;
        let range = SpillRange(self.end, piece.len());
        self.end += piece.len() as u64;
        Ok(range)
    }

    pub(crate) fn take(&mut self, SpillRange(at, length): SpillRange) -> io::Result<Vec<u8>> {
        let file = self.file.as_ref().ok_or_else(cut_short)?;
        let mut piece = vec![0; length];
        file.read_exact_at(&mut piece, at)?;
        // Where the file system cannot give its room back, the file grows until the copy's end.
        let flags = rustix::fs::FallocateFlags::PUNCH_HOLE | rustix::fs::FallocateFlags::KEEP_SIZE;
        let _ = rustix::fs::fallocate(file, flags, at, length as u64);
        Ok(piece)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn all(sort: &mut ExternalSort) -> Vec<Record> {
        sort.sorted().unwrap().collect::<io::Result<_>>().unwrap()
    }

    proptest! {
        #[test]
        fn what_was_put_comes_back_in_order_as_often_as_it_is_asked_for(
            records in prop::collection::vec(
                (prop::collection::vec(any::<u8>(), 0..6), prop::collection::vec(any::<u8>(), 0..2000)), 0..60),
            most in prop_oneof![Just(0), Just(700), Just(5000), Just(1 << 20)], descending: bool,
        ) {
            let mut sort = ExternalSort::new(SpillDirectory::Anywhere, most, descending);
            for (key, body) in &records {
                sort.put(key.clone(), body.clone()).unwrap();
                prop_assert!(sort.held_bytes <= most);
            }
            let mut wanted = records;
            wanted.sort();
            for _ in 0..2 {
                let mut found = all(&mut sort);
                prop_assert!(found.windows(2).all(|two| in_order(&two[0].0, &two[1].0, descending).is_le()));
                found.sort();
                prop_assert_eq!(&found, &wanted);
            }
        }
    }

    #[test]
    fn long_keys_are_read_whole() {
        let mut sort = ExternalSort::new(SpillDirectory::Anywhere, 0, true);
        for length in [5000, 10, 70_000] {
            sort.put(vec![b'k'; length], vec![b'b'; length]).unwrap();
        }
        let lengths: Vec<_> =
            all(&mut sort).iter().map(|(key, body)| (key.len(), body.len())).collect();
        assert_eq!(lengths, [(70_000, 70_000), (5000, 5000), (10, 10)]);
    }

    #[test]
    fn pieces_are_read_back_as_they_were_put() {
        let mut spill = SpillFile::new(SpillDirectory::Anywhere);
        let ranges: Vec<_> = (0..5_u8).map(|n| spill.put(&vec![n; 9000]).unwrap()).collect();
        for (n, range) in ranges.into_iter().enumerate().rev() {
            assert_eq!(spill.take(range).unwrap(), vec![n as u8; 9000]);
        }
    }
}
