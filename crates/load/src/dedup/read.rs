//! One file, from its first byte to its last, as chunks.

use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd};

use rustix::fs::{seek, SeekFrom, Statx};
use rustix::io::{pread, Errno};

use crate::chunking::{Method, LARGEST};
use crate::digest::{Digest, Fingerprint};

/// Bytes read at once.
pub(super) const PIECE: usize = 1 << 20;

/// Room of one thread to read and cut in.
pub(super) struct Room {
    buffer: Vec<u8>,
    marks: Vec<u32>,
    ends: Vec<usize>,
    method: Method,
    digest: Digest,
    /// The fingerprint of the largest chunk of zeros.
    zero: Fingerprint,
}

/// What a file was.
pub(super) struct Done {
    pub(super) fingerprint: Fingerprint,
    pub(super) bytes: u64,
    pub(super) hole_chunks: u64,
}

/// Why a file was not read to its end.
pub(super) enum Ended {
    Failed(Errno),
    Stopped,
}

/// Whether chunks are to go on being read, and who takes them: fingerprint, bytes, whether all are zero.
pub(super) trait Taker {
    fn chunk(&mut self, fingerprint: Fingerprint, bytes: u32, zeros: bool) -> Result<(), Ended>;
    /// Called when this number of bytes has been read.
    fn read(&mut self, bytes: usize) -> Result<(), Ended>;
}

impl Room {
    pub(super) fn new(method: Method, digest: Digest) -> Self {
        Self {
            buffer: vec![0; PIECE + LARGEST],
            marks: Vec::new(),
            ends: Vec::new(),
            method,
            digest,
            zero: digest.of(&vec![0; method.most()]),
        }
    }

    /// Read a file. Its holes are not read: their chunks of zeros are computed.
    pub(super) fn file(
        &mut self,
        fd: impl AsFd,
        stat: &Statx,
        taker: &mut impl Taker,
    ) -> Result<Done, Ended> {
        let sparse = stat.stx_blocks.saturating_mul(512) < stat.stx_size;
        let mut source = Source::new(fd.as_fd(), sparse.then_some(stat.stx_size));
        let most = self.method.most() as u64;
        let mut whole = Whole::default();
        let mut hole_chunks = 0;
        let mut held = 0;
        loop {
            let hole = source.hole().map_err(Ended::Failed)?;
            // Bytes held that belong to this hole need not be held: they are zeros again.
            let inside = held as u64 <= hole.passed && hole.left + held as u64 >= most;
            if hole.left > 0 && inside {
                let chunks = (hole.left + held as u64) / most;
                source.at = source.at - held as u64 + chunks * most;
                held = 0;
                hole_chunks += chunks;
                whole.zeros(chunks);
                continue;
            }
            let room = (self.buffer.len() - held).min(PIECE);
            let into = &mut self.buffer[held..held + room];
            let read = source.read(into, hole.left, 2 * most).map_err(Ended::Failed)?;
            taker.read(read)?;
            held += read;
            self.ends.clear();
            let data = &self.buffer[..held];
            let last = read == 0;
            let cut = self.method.cut(data, last, &mut self.marks, &mut self.ends);
            let mut start = 0;
            for end in &self.ends {
                let chunk = &data[start..*end];
                let zeros = is_zero(chunk);
                let full = zeros && chunk.len() as u64 == most;
                let fingerprint = if full { self.zero } else { self.digest.of(chunk) };
                if full {
                    whole.zeros(1);
                } else {
                    whole.chunk(&fingerprint);
                }
                taker.chunk(fingerprint, u32::try_from(chunk.len()).unwrap_or(u32::MAX), zeros)?;
                start = *end;
            }
            self.buffer.copy_within(cut..held, 0);
            held -= cut;
            if last {
                let fingerprint = whole.finish();
                return Ok(Done { fingerprint, bytes: source.at, hole_chunks });
            }
        }
    }
}

/// Whether every byte is 0; the first byte decides for most chunks.
fn is_zero(chunk: &[u8]) -> bool {
    chunk.first() == Some(&0) && chunk.last() == Some(&0) && chunk.iter().all(|byte| *byte == 0)
}

/// Where the source stands in a hole: bytes of it passed, bytes of it left; none left outside of holes.
#[derive(Clone, Copy, Default)]
struct Hole {
    passed: u64,
    left: u64,
}

/// A file's bytes in order.
struct Source<'a> {
    fd: BorrowedFd<'a>,
    at: u64,
    /// Known where the file has holes; another file ends where reading ends.
    size: Option<u64>,
    /// Where the data or the hole that was found last begins and ends.
    segment: Range<u64>,
    in_hole: bool,
}

impl<'a> Source<'a> {
    fn new(fd: BorrowedFd<'a>, size: Option<u64>) -> Self {
        Self { fd, at: 0, size, segment: 0..0, in_hole: false }
    }

    fn hole(&mut self) -> Result<Hole, Errno> {
        let Some(size) = self.size.filter(|size| self.at < *size) else {
            return Ok(Hole::default());
        };
        if !self.segment.contains(&self.at) {
            self.find(size)?;
        }
        Ok(if self.in_hole {
            Hole { passed: self.at - self.segment.start, left: self.segment.end - self.at }
        } else {
            Hole::default()
        })
    }

    fn find(&mut self, size: u64) -> Result<(), Errno> {
        let data = match seek(self.fd, SeekFrom::Data(self.at)) {
            Ok(data) => data.clamp(self.at, size),
            // No data follows.
            Err(Errno::NXIO) => size,
            // A file system that cannot say has no holes to tell of.
            Err(Errno::INVAL | Errno::OPNOTSUPP) => self.at,
            Err(error) => return Err(error),
        };
        self.in_hole = data > self.at;
        let end = if self.in_hole {
            data
        } else {
            seek(self.fd, SeekFrom::Hole(self.at)).unwrap_or(size).clamp(self.at + 1, size)
        };
        self.segment = self.at..end;
        Ok(())
    }

    /// Fill with what follows; 0 bytes at the end.
    fn read(&mut self, into: &mut [u8], hole_left: u64, most_zeros: u64) -> Result<usize, Errno> {
        if hole_left > 0 {
            let zeros = hole_left.min(most_zeros).min(into.len() as u64);
            let zeros = usize::try_from(zeros).unwrap_or(0);
            into[..zeros].fill(0);
            self.at += zeros as u64;
            return Ok(zeros);
        }
        let most = match self.size {
            Some(size) if self.at >= size => 0,
            Some(_) => self.segment.end - self.at,
            None => u64::MAX,
        };
        let room = into.len().min(usize::try_from(most).unwrap_or(usize::MAX));
        loop {
            match pread(self.fd, &mut into[..room], self.at) {
                Err(Errno::INTR) => {}
                Ok(read) => {
                    self.at += read as u64;
                    return Ok(read);
                }
                Err(error) => return Err(error),
            }
        }
    }
}

/// The fingerprint of a whole file: of its chunks' fingerprints, runs of the largest chunk of zeros by their number,
/// so that a file and its copy without holes have the same.
#[derive(Default)]
struct Whole {
    hasher: blake3::Hasher,
    zeros: u64,
}

impl Whole {
    fn zeros(&mut self, chunks: u64) {
        self.zeros += chunks;
    }

    fn chunk(&mut self, fingerprint: &Fingerprint) {
        self.flush();
        self.hasher.update(b"c");
        self.hasher.update(fingerprint);
    }

    fn flush(&mut self) {
        if self.zeros > 0 {
            self.hasher.update(b"z");
            self.hasher.update(&self.zeros.to_le_bytes());
            self.zeros = 0;
        }
    }

    fn finish(mut self) -> Fingerprint {
        self.flush();
        let mut fingerprint = [0; 20];
        fingerprint.copy_from_slice(&self.hasher.finalize().as_bytes()[..20]);
        fingerprint
    }
}
