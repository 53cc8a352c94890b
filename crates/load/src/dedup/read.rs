//! Reads one file as chunks.

use std::os::fd::{AsFd, BorrowedFd};

use rustix::fs::Statx;
use rustix::io::{pread, Errno};
use waystage_catalog::holes::Extents;
use waystage_pacing::{during, Cause};

use crate::chunking::{Method, LARGEST};
use crate::digest::{Digest, Fingerprint};

/// Bytes read at once.
pub(super) const PIECE: usize = 1 << 20;

/// One thread's buffers for reading and cutting.
pub(super) struct ChunkReader {
    buffer: Vec<u8>,
    marks: Vec<u32>,
    ends: Vec<usize>,
    method: Method,
    digest: Digest,
    /// The fingerprint of the largest chunk of zeros.
    zero: Fingerprint,
}

/// A file that was read.
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

/// Takes chunks (fingerprint, bytes, whether all bytes are zero), and may stop the reading.
pub(super) trait ChunkSink {
    fn chunk(&mut self, fingerprint: Fingerprint, bytes: u32, zeros: bool) -> Result<(), Ended>;
    /// Called before at most this number of bytes is read; waits for their turn.
    fn before(&mut self, bytes: usize) -> Result<(), Ended>;
    /// Called when this number of bytes has been read.
    fn read(&mut self, bytes: usize);
}

impl ChunkReader {
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
        sink: &mut impl ChunkSink,
    ) -> Result<Done, Ended> {
        let sparse = stat.stx_blocks.saturating_mul(512) < stat.stx_size;
        let mut source = Source::new(fd.as_fd(), stat.stx_size, sparse);
        let most = self.method.most() as u64;
        let mut whole = Whole::default();
        let mut hole_chunks = 0;
        let mut held = 0;
        loop {
            let hole = source.hole().map_err(Ended::Failed)?;
            // Held bytes that belong to this hole need not be kept: they are zeros too.
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
            sink.before(source.expected(into.len()))?;
            let read = during(Cause::Source, || source.read(into, hole.left, 2 * most));
            let read = read.map_err(Ended::Failed)?;
            sink.read(read);
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
                sink.chunk(fingerprint, u32::try_from(chunk.len()).unwrap_or(u32::MAX), zeros)?;
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

/// The hole at the present offset: bytes of it passed and left; none left outside of holes.
#[derive(Clone, Copy, Default)]
struct Hole {
    passed: u64,
    left: u64,
}

/// A file's bytes in order.
struct Source<'a> {
    extents: Extents<'a>,
    at: u64,
    /// The size of the file when it was opened.
    recorded: u64,
    /// Known where the file has holes; another file ends where reading ends.
    size: Option<u64>,
}

impl<'a> Source<'a> {
    fn new(file: BorrowedFd<'a>, recorded: u64, sparse: bool) -> Self {
        let size = sparse.then_some(recorded);
        let extents =
            if size.is_some() { Extents::new(file) } else { Extents::without_holes(file) };
        Self { extents, at: 0, recorded, size }
    }

    /// How many of `room` bytes there probably are from here on.
    fn expected(&self, room: usize) -> usize {
        let left = self.recorded.saturating_sub(self.at);
        usize::try_from(left).map_or(room, |left| left.min(room))
    }

    fn hole(&mut self) -> Result<Hole, Errno> {
        let Some(size) = self.size.filter(|size| self.at < *size) else {
            return Ok(Hole::default());
        };
        let data = self.extents.next_data(self.at)?.min(size);
        if data <= self.at {
            return Ok(Hole::default());
        }
        Ok(Hole { passed: self.at - self.extents.hole_start(), left: data - self.at })
    }

    /// Fill with the bytes that follow; 0 bytes at the end.
    fn read(&mut self, into: &mut [u8], hole_left: u64, most_zeros: u64) -> Result<usize, Errno> {
        if hole_left > 0 {
            let zeros = hole_left.min(most_zeros).min(into.len() as u64);
            let zeros = usize::try_from(zeros).unwrap_or(0);
            into[..zeros].fill(0);
            self.at += zeros as u64;
            return Ok(zeros);
        }
        let most = self.size.map_or(u64::MAX, |size| {
            self.extents.data_end(self.at).min(size).saturating_sub(self.at)
        });
        let room = into.len().min(usize::try_from(most).unwrap_or(usize::MAX));
        loop {
            match pread(self.extents.file(), &mut into[..room], self.at) {
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

/// The fingerprint of a complete file: over its chunks' fingerprints, with runs of the largest chunk of zeros as a
/// count, so that a file and its copy without holes have the same.
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

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::File;
    use std::os::unix::fs::FileExt;

    #[derive(Default)]
    struct Lengths(Vec<u64>, u64);

    impl ChunkSink for Lengths {
        fn chunk(&mut self, _: Fingerprint, bytes: u32, zeros: bool) -> Result<(), Ended> {
            self.0.push(u64::from(bytes));
            self.1 += u64::from(zeros);
            Ok(())
        }

        fn before(&mut self, _: usize) -> Result<(), Ended> {
            Ok(())
        }

        fn read(&mut self, _: usize) {}
    }

    fn chunks(file: &File, sparse: bool) -> (Done, Lengths) {
        let mut stat = rustix::fs::statx(
            file,
            c"",
            rustix::fs::AtFlags::EMPTY_PATH,
            rustix::fs::StatxFlags::BASIC_STATS,
        )
        .unwrap();
        // Blocks decide whether holes are looked for.
        stat.stx_blocks = if sparse { 0 } else { u64::MAX / 512 };
        let mut sink = Lengths::default();
        let read = ChunkReader::new(Method::Fast, Digest::Blake3).file(file, &stat, &mut sink);
        match read {
            Ok(done) => (done, sink),
            Err(_) => panic!("not read to its end"),
        }
    }

    #[test]
    fn a_file_with_holes_has_the_fingerprint_of_its_full_copy() {
        let path = std::env::temp_dir().join(format!("waystage-holes-{}", std::process::id()));
        let file = File::options().read(true).write(true).create_new(true).open(&path).unwrap();
        std::fs::remove_file(&path).unwrap();
        let data: Vec<u8> =
            (0..50_000_u32).map(|i| (i.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
        for at in [0, 300_000, 2_000_123, 9_000_000] {
            file.write_all_at(&data, at).unwrap();
        }
        file.set_len(20_000_000).unwrap();
        let (full, all) = chunks(&file, false);
        let (done, found) = chunks(&file, true);
        assert_eq!((full.bytes, done.bytes), (20_000_000, 20_000_000));
        assert_eq!(done.fingerprint, full.fingerprint);
        let skipped = done.hole_chunks * Method::Fast.most() as u64;
        assert_eq!(found.0.iter().sum::<u64>() + skipped, all.0.iter().sum::<u64>());
        assert_eq!(found.1 + done.hole_chunks, all.1);
    }
}
