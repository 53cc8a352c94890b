//! Extents of large files past the page cache (`O_DIRECT`), where that turns out to be quicker.
//!
//! Through the cache each byte is copied into a page that has to be found first, and written out later; past it the
//! storage takes bytes from the worker's own buffer. Which is quicker depends on the storage, on free memory and on
//! what of the source is cached, so that the user is not asked: each mode has a turn of a few extents, the quickest
//! goes on, and the others get a turn now and then. A copy of a few extents never leaves the cache.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use parking_lot::Mutex;

use rustix::io::{pread, pwrite, Errno};

use crate::error::{At, End, Failure};
use crate::file_io::write_all;

/// Bytes that are read and written at a time: the storage sees long requests, and memory for all workers stays small.
const DIRECT_PIECE_BYTES: usize = 2 << 20;

/// Places and lengths of direct requests are multiples of it: what storage and file systems ask for at most, as a rule.
/// Those that ask for more refuse, and then the cache is used.
const ALIGNMENT: usize = 4096;

/// Of this many turns of the quickest mode, one is another's.
const TURNS_OF_THE_BEST: u64 = 16;

/// How much a new measurement counts against all before.
const NEW: f64 = 0.5;

/// How the bytes of an extent move.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum IoMode {
    /// Both files through the cache, or all within the kernel.
    Cached,
    /// Read through the cache, written past it.
    WrittenDirect,
    /// Both past it.
    Direct,
}

const IO_MODES: [IoMode; 3] = [IoMode::Cached, IoMode::WrittenDirect, IoMode::Direct];

/// Which way was quickest of late.
pub(super) struct IoModeChooser {
    /// Extents of a turn: one for each worker.
    turn: u64,
    state: Mutex<ModeCosts>,
}

#[derive(Default)]
struct ModeCosts {
    picked: u64,
    /// Nanoseconds a byte, by way.
    cost: [Option<f64>; IO_MODES.len()],
    refused: bool,
}

impl IoModeChooser {
    pub(super) fn new(workers: usize) -> Self {
        Self { turn: workers as u64, state: Mutex::default() }
    }

    /// The way of the next extent.
    pub(super) fn pick(&self) -> IoMode {
        let mut state = self.state.lock();
        if state.refused {
            return IoMode::Cached;
        }
        let turn = state.picked / self.turn.max(1);
        state.picked += 1;
        let all = IO_MODES.len() as u64;
        if turn < all {
            return IO_MODES[turn as usize];
        }
        let since = turn - all;
        if since % TURNS_OF_THE_BEST == TURNS_OF_THE_BEST - 1 {
            return IO_MODES[(since / TURNS_OF_THE_BEST % all) as usize];
        }
        let cost = |mode: &IoMode| state.cost[*mode as usize].unwrap_or(f64::INFINITY);
        IO_MODES
            .into_iter()
            .min_by(|one, other| cost(one).total_cmp(&cost(other)))
            .unwrap_or(IoMode::Cached)
    }

    /// How long an extent took.
    pub(super) fn took(&self, mode: IoMode, bytes: u64, time: Duration) {
        if bytes == 0 {
            return;
        }
        let now = time.as_nanos() as f64 / bytes as f64;
        let mut state = self.state.lock();
        let cost = &mut state.cost[mode as usize];
        *cost = Some(cost.map_or(now, |before| before + NEW * (now - before)));
    }

    /// These file systems do not do it.
    pub(super) fn refuse(&self) {
        self.state.lock().refused = true;
    }
}

/// A file that is read or written, and where that is to go past the cache the same file open for it. What does not
/// fit into blocks goes through the cache.
#[derive(Clone, Copy)]
pub(crate) struct DualFile<'a> {
    pub(super) cached: BorrowedFd<'a>,
    pub(super) direct: Option<BorrowedFd<'a>>,
}

impl<'a> From<BorrowedFd<'a>> for DualFile<'a> {
    fn from(cached: BorrowedFd<'a>) -> Self {
        Self { cached, direct: None }
    }
}

impl DualFile<'_> {
    fn direct_at(&self, at: u64) -> Option<BorrowedFd<'_>> {
        self.direct.filter(|_| at.is_multiple_of(ALIGNMENT as u64))
    }

    /// At most `most` bytes at `at`; 0 at the end.
    pub(super) fn read(&self, buffer: &mut [u8], most: usize, at: u64) -> Result<usize, Errno> {
        let whole = most.next_multiple_of(ALIGNMENT).min(buffer.len());
        if let Some(direct) = self.direct_at(at) {
            match pread(direct, &mut buffer[..whole], at) {
                // The last block of a file may be read past what is wanted.
                Ok(count) => return Ok(count.min(most)),
                Err(Errno::INTR | Errno::INVAL) => {}
                Err(errno) => return Err(errno),
            }
        }
        loop {
            match pread(self.cached, &mut buffer[..most], at) {
                Err(Errno::INTR) => {}
                done => return done,
            }
        }
    }

    /// All of `bytes` at `at`.
    pub(super) fn write(&self, bytes: &[u8], at: u64) -> Result<(), Failure> {
        let mut done = 0;
        if let Some(direct) = self.direct_at(at) {
            let whole = bytes.len() / ALIGNMENT * ALIGNMENT;
            while done < whole {
                match pwrite(direct, &bytes[done..whole], at + done as u64) {
                    // What was written in part goes on from a whole block.
                    Ok(count) if count >= ALIGNMENT => done += count / ALIGNMENT * ALIGNMENT,
                    Ok(_) | Err(Errno::INVAL) => break,
                    Err(Errno::INTR) => {}
                    Err(errno) => return Err(errno).at(End::Destination, "write"),
                }
            }
        }
        write_all(self.cached, &bytes[done..], at + done as u64)
    }
}

/// A worker's memory for direct requests, made when first needed.
#[derive(Default)]
pub(super) struct Aligned(Vec<u8>);

impl Aligned {
    pub(super) fn bytes(&mut self) -> &mut [u8] {
        if self.0.is_empty() {
            self.0 = vec![0; DIRECT_PIECE_BYTES + ALIGNMENT];
        }
        let start = self.0.as_ptr().align_offset(ALIGNMENT);
        &mut self.0[start..start + DIRECT_PIECE_BYTES]
    }
}

/// Both ends of a large file, open for direct requests.
pub(super) struct DirectEnds {
    pub(super) source: OwnedFd,
    pub(super) temporary: OwnedFd,
}

impl DirectEnds {
    pub(super) fn source_for(&self, mode: IoMode) -> Option<BorrowedFd<'_>> {
        (mode == IoMode::Direct).then(|| self.source.as_fd())
    }
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::os::fd::AsRawFd;
    use std::path::Path;
    use std::sync::Arc;

    use proptest::prelude::*;
    use rustix::fs::{openat, Mode, OFlags, CWD};

    use super::*;
    use crate::local::contents::ContentMover;

    const SECOND: Duration = Duration::from_secs(1);

    fn directly(file: &File) -> Option<OwnedFd> {
        let path = format!("/proc/self/fd/{}", file.as_raw_fd());
        openat(CWD, path, OFlags::RDWR | OFlags::DIRECT, Mode::empty()).ok()
    }

    fn file(folder: &Path, name: &str) -> File {
        let mut options = File::options();
        options.read(true).write(true).create(true).truncate(true);
        options.open(folder.join(name)).expect("a file")
    }

    #[test]
    fn each_way_has_a_turn_and_the_quickest_goes_on() {
        let choice = IoModeChooser::new(2);
        let first: Vec<IoMode> = (0..6).map(|_| choice.pick()).collect();
        let turns = [IoMode::Cached, IoMode::WrittenDirect, IoMode::Direct];
        assert_eq!(first, turns.map(|mode| [mode, mode]).concat());
        for (mode, time) in turns.into_iter().zip([3, 1, 2]) {
            choice.took(mode, 1000, SECOND * time);
        }
        let then: Vec<IoMode> = (0..200).map(|_| choice.pick()).collect();
        let others = then.iter().filter(|mode| **mode != IoMode::WrittenDirect).count();
        assert_eq!(then[..2], [IoMode::WrittenDirect; 2]);
        assert!((2..20).contains(&others), "the others have a turn now and then: {others}");
        // Memory is full by now: what was quickest no longer is.
        for _ in 0..8 {
            choice.took(IoMode::WrittenDirect, 1000, SECOND * 9);
        }
        let best = (0..30).map(|_| choice.pick()).filter(|mode| *mode == IoMode::Direct).count();
        assert!(best > 20, "{best} of 30");
        choice.refuse();
        assert!((0..50).all(|_| choice.pick() == IoMode::Cached));
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(40))]
        #[test]
        fn any_range_arrives_as_it_is(
            bytes in proptest::collection::vec(any::<u8>(), 1..40_000),
            repeated in 1usize..120,
            from in 0usize..5,
            mode in 0usize..3,
        ) {
            let folder = std::env::temp_dir().join(format!("waystage-direct-{}", std::process::id()));
            std::fs::create_dir_all(&folder).expect("a folder");
            let (source, temporary) = (file(&folder, "source"), file(&folder, "temporary"));
            let all = bytes.repeat(repeated);
            write_all(source.as_fd(), &all, 0).expect("written");
            temporary.set_len(all.len() as u64).expect("its size");
            let ends = directly(&source).zip(directly(&temporary));
            // Where the folder's file system refuses, this is the way through the cache.
            let (read, written) = ends.as_ref().map_or((None, None), |(one, other)| {
                ((mode == 2).then(|| one.as_fd()), (mode > 0).then(|| other.as_fd()))
            });
            let mover = ContentMover::new(Arc::default(), 1, Arc::default());
            let mut buffer = Aligned::default();
            let start = (from * ALIGNMENT / 2).min(all.len());
            let range = (start as u64, all.len() as u64);
            let one = DualFile { cached: source.as_fd(), direct: read };
            let other = DualFile { cached: temporary.as_fd(), direct: written };
            let moved = mover.copy(buffer.bytes(), one, other, range, false, true).expect("copied");
            prop_assert_eq!(moved.bytes, range.1 - range.0);
            let found = std::fs::read(folder.join("temporary")).expect("read");
            prop_assert!(found[start..] == all[start..]);
            prop_assert!(found[..start].iter().all(|byte| *byte == 0));
            let digest = mover.digest(buffer.bytes(), other, source.as_fd(), range, false);
            prop_assert_eq!(digest.expect("read back"), moved.digest);
            // Another byte on the storage is seen.
            write_all(temporary.as_fd(), &[all[all.len() - 1] ^ 1], all.len() as u64 - 1).expect("written");
            let digest = mover.digest(buffer.bytes(), other, source.as_fd(), range, false);
            prop_assert!(start == all.len() || digest.expect("read back") != moved.digest);
            std::fs::remove_dir_all(&folder).expect("removed");
        }
    }
}
