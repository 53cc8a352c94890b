//! Entries set side by side: are their contents, extended attributes and device numbers alike?
//!
//! Where both files have holes nothing is read. Digests are made of files that differ, in a second reading, and only
//! of those whose zeros are worth hashing.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use parking_lot::{Condvar, Mutex};
use rustix::fs::{openat, Mode, OFlags, Statx};
use rustix::io::{pread, Errno};
use twox_hash::XxHash3_128;
use waystage_catalog::holes::Extents;
use waystage_catalog::Root;

use crate::attributes::{xattrs_differ, Handle, Xattr};
use crate::error::{describe, At, End, Failure};
use crate::file_io::PIECE_BYTES;
use crate::stat::{has_holes, letter, split, stat_fd};

/// Two entries to be held against each other, by their path below either root.
#[derive(Debug, Clone)]
pub struct Pair {
    /// The path, in both trees.
    pub path: Vec<u8>,
    /// Whether contents are read, of regular files.
    pub contents: bool,
}

/// The first byte that differs, and both digests (XXH3, 128 bits) of the whole; None of a file with holes of more than
/// [`HASHED_HOLES`] altogether, whose zeros would take longer to hash than its data to read.
pub type Differing = (u64, Option<u128>, Option<u128>);

/// Zeros in holes that are hashed for a digest.
const HASHED_HOLES: u64 = 1 << 30;

/// What a pair differs in.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Unlike {
    /// Which pair.
    pub index: usize,
    /// How contents differ; None where they are alike.
    pub contents: Option<Differing>,
    /// Whether extended attributes differ.
    pub xattrs: bool,
    /// Whether they are other devices.
    pub device: bool,
    /// Why that is unknown; empty where it is known.
    pub error: String,
}

struct Work {
    roots: (Root, Root),
    pairs: Vec<Pair>,
    xattrs: bool,
    next: AtomicUsize,
    read: AtomicU64,
    compared: AtomicU64,
    stop: AtomicBool,
    found: Mutex<Vec<Unlike>>,
    /// Threads that have not ended.
    running: Mutex<usize>,
    ended: Condvar,
}

/// Counts a thread until it ends, by a panic too.
struct Running<'a>(&'a Work);

impl Drop for Running<'_> {
    fn drop(&mut self) {
        *self.0.running.lock() -= 1;
        self.0.ended.notify_all();
    }
}

/// Pairs being compared by several threads. Dropping it ends it.
pub struct Comparison {
    work: Arc<Work>,
    threads: Mutex<Vec<JoinHandle<()>>>,
}

impl Comparison {
    /// Start. Fails where a root cannot be opened.
    pub fn start(
        one: &Path,
        other: &Path,
        pairs: Vec<Pair>,
        xattrs: bool,
        threads: usize,
    ) -> std::io::Result<Self> {
        let work = Arc::new(Work {
            roots: (Root::open(one)?, Root::open(other)?),
            pairs,
            xattrs,
            next: AtomicUsize::new(0),
            read: AtomicU64::new(0),
            compared: AtomicU64::new(0),
            stop: AtomicBool::new(false),
            found: Mutex::default(),
            running: Mutex::new(threads.max(1)),
            ended: Condvar::new(),
        });
        let comparison = Self { work, threads: Mutex::default() };
        for number in 0..threads.max(1) {
            let work = Arc::clone(&comparison.work);
            let builder = std::thread::Builder::new().name(format!("compare-{number}"));
            let handle = builder.spawn(move || {
                let _running = Running(&work);
                work.run();
            })?;
            comparison.threads.lock().push(handle);
        }
        Ok(comparison)
    }

    /// Pairs taken up so far, bytes read of each side, and bytes compared, holes among them.
    pub fn progress(&self) -> (usize, u64, u64) {
        let taken = self.work.next.load(Ordering::Relaxed).min(self.work.pairs.len());
        let count = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        (taken, count(&self.work.read), count(&self.work.compared))
    }

    /// Whether all threads have ended, after at most `timeout`.
    pub fn wait(&self, timeout: Duration) -> bool {
        let mut running = self.work.running.lock();
        self.work.ended.wait_while_for(&mut running, |count| *count > 0, timeout);
        *running == 0
    }

    /// What differs, in order; complete once it has ended.
    pub fn unlike(&self) -> Vec<Unlike> {
        let mut found = self.work.found.lock().clone();
        found.sort_by_key(|unlike| unlike.index);
        found
    }

    /// End it; its threads are gone when this returns.
    pub fn stop(&self) {
        self.work.stop.store(true, Ordering::Relaxed);
        let threads = std::mem::take(&mut *self.threads.lock());
        for thread in threads {
            // A thread that panicked has written to the process's stderr.
            let _ = thread.join();
        }
    }
}

impl Drop for Comparison {
    fn drop(&mut self) {
        self.stop();
    }
}

impl Work {
    fn run(&self) {
        let mut buffers = (vec![0; PIECE_BYTES], vec![0; PIECE_BYTES]);
        while !self.stop.load(Ordering::Relaxed) {
            let index = self.next.fetch_add(1, Ordering::Relaxed);
            let Some(pair) = self.pairs.get(index) else { return };
            let nothing = Unlike {
                index,
                contents: None,
                xattrs: false,
                device: false,
                error: String::new(),
            };
            let unlike = match self.compare(pair, &mut buffers, nothing.clone()) {
                Ok(unlike) if unlike == nothing => continue,
                Ok(unlike) => unlike,
                Err(Failure::Stopped) => continue,
                Err(failure) => {
                    let error = match failure {
                        Failure::Call { end: End::Source, doing, errno } => {
                            format!("first tree: {doing}: {}", describe(errno))
                        }
                        Failure::Call { doing, errno, .. } => {
                            format!("second tree: {doing}: {}", describe(errno))
                        }
                        other => other.to_string(),
                    };
                    Unlike { error, ..nothing }
                }
            };
            self.found.lock().push(unlike);
        }
    }

    fn compare(
        &self,
        pair: &Pair,
        buffers: &mut (Vec<u8>, Vec<u8>),
        mut unlike: Unlike,
    ) -> Result<Unlike, Failure> {
        let one = Entry::open(&self.roots.0, pair, End::Source)?;
        let other = Entry::open(&self.roots.1, pair, End::Destination)?;
        let devices = |entry: &Entry| (entry.stat.stx_rdev_major, entry.stat.stx_rdev_minor);
        unlike.device = one.is_device() && other.is_device() && devices(&one) != devices(&other);
        if self.xattrs {
            unlike.xattrs = match (one.readable(), other.readable()) {
                (Some(one), Some(other)) => xattrs_differ(one, other)?,
                _ => one.xattrs(End::Source)? != other.xattrs(End::Destination)?,
            };
        }
        let extents = (one.extents(), other.extents());
        if let (true, Some(one), Some(other)) = (pair.contents, one.readable(), other.readable()) {
            let compared = |bytes| {
                self.compared.fetch_add(bytes, Ordering::Relaxed);
            };
            let read = |bytes| {
                self.read.fetch_add(bytes, Ordering::Relaxed);
            };
            let first = first_difference(extents, buffers, &self.stop, (&compared, &read))?;
            if let Some(first) = first {
                let buffer = &mut buffers.0;
                let left = digest(one, buffer, &self.stop, End::Source)?;
                let right = digest(other, buffer, &self.stop, End::Destination)?;
                unlike.contents = Some((first, left, right));
            }
        }
        Ok(unlike)
    }
}

/// An entry of a tree, which is never followed, and never opened where opening it would do something.
struct Entry {
    opened: OwnedFd,
    stat: Statx,
    /// Whether it is a regular file or directory, and open for reading.
    is_readable: bool,
}

impl Entry {
    fn open(root: &Root, pair: &Pair, end: End) -> Result<Self, Failure> {
        let (directory, name) = split(&pair.path);
        let directory = root.directory(directory).at(end, "open directory")?;
        let name = if name.is_empty() { b"." } else { name };
        let reading = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let naming = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        // The walk has just seen that it is a regular file.
        let how = if pair.contents { reading } else { naming };
        let mut opened = openat(&directory, name, how, Mode::empty()).at(end, "open")?;
        let stat = stat_fd(opened.as_fd()).at(end, "stat")?;
        let is_readable = matches!(letter(stat.stx_mode), b'f' | b'd');
        if is_readable && !pair.contents {
            opened = openat(&directory, name, reading, Mode::empty()).at(end, "open")?;
        }
        Ok(Self { opened, stat, is_readable })
    }

    fn readable(&self) -> Option<BorrowedFd<'_>> {
        self.is_readable.then(|| self.opened.as_fd())
    }

    fn extents(&self) -> Extents<'_> {
        let is_small = self.stat.stx_size <= PIECE_BYTES as u64;
        if is_small && !has_holes(self.stat.stx_size, self.stat.stx_blocks) {
            Extents::without_holes(self.opened.as_fd())
        } else {
            Extents::new(self.opened.as_fd())
        }
    }

    fn is_device(&self) -> bool {
        matches!(letter(self.stat.stx_mode), b'b' | b'c')
    }

    /// Extended attributes that are kept, sorted, of what cannot be opened for reading without doing something.
    fn xattrs(&self, end: End) -> Result<Vec<Xattr>, Failure> {
        Handle::special(self.opened.as_fd()).all(end).map(|(found, _)| found)
    }
}

/// Told of bytes compared, and of bytes read of each side.
type Told<'a> = (&'a dyn Fn(u64), &'a dyn Fn(u64));

/// The first byte in which two open files differ; None where they hold the same bytes. What is a hole in both is not
/// read.
fn first_difference(
    mut extents: (Extents<'_>, Extents<'_>),
    buffers: &mut (Vec<u8>, Vec<u8>),
    stop: &AtomicBool,
    (compared, read): Told<'_>,
) -> Result<Option<u64>, Failure> {
    let (one, other) = (extents.0.file(), extents.1.file());
    let mut at = 0_u64;
    loop {
        let left = extents.0.next_data(at).at(End::Source, "find holes")?;
        let right = extents.1.next_data(at).at(End::Destination, "find holes")?;
        let next = left.min(right);
        compared(next - at);
        at = next;
        // Where only one has data, no further than they reach: behind them both may have a hole again.
        let end = match (left == at, right == at) {
            (true, true) => extents.0.data_end(at).max(extents.1.data_end(at)),
            (true, false) => extents.0.data_end(at),
            _ => extents.1.data_end(at),
        };
        let most = usize::try_from(end - at).unwrap_or(PIECE_BYTES).min(PIECE_BYTES);
        let left = full(one, &mut buffers.0[..most], at, stop, End::Source)?;
        let right = full(other, &mut buffers.1[..most], at, stop, End::Destination)?;
        let (one, other) = (&buffers.0[..left], &buffers.1[..right]);
        read(left.max(right) as u64);
        if one != other {
            let same = one.iter().zip(other).take_while(|(one, other)| one == other).count();
            return Ok(Some(at + same as u64));
        }
        if left < most {
            return Ok(None);
        }
        compared(left as u64);
        at += left as u64;
    }
}

/// The digest of all of an open file, its holes as the zeros they read as.
fn digest(
    file: BorrowedFd<'_>,
    buffer: &mut [u8],
    stop: &AtomicBool,
    end: End,
) -> Result<Option<u128>, Failure> {
    let mut hash = XxHash3_128::new();
    let mut extents = Extents::new(file);
    let (mut at, mut holes) = (0_u64, 0_u64);
    loop {
        let mut hole = extents.hole_at(at).at(end, "find holes")?;
        holes = holes.saturating_add(hole);
        if holes > HASHED_HOLES {
            return Ok(None);
        }
        at += hole;
        if hole > 0 {
            buffer.fill(0);
        }
        while hole > 0 {
            let some = usize::try_from(hole).unwrap_or(PIECE_BYTES).min(buffer.len());
            hash.write(&buffer[..some]);
            hole -= some as u64;
        }
        let length = extents.data_end(at) - at;
        let most = usize::try_from(length).unwrap_or(PIECE_BYTES).min(buffer.len());
        let count = full(file, &mut buffer[..most], at, stop, end)?;
        hash.write(&buffer[..count]);
        at += count as u64;
        if count < most {
            return Ok(Some(hash.finish_128()));
        }
    }
}

/// Whether two open files hold the same bytes.
pub(crate) fn same_contents(
    one: BorrowedFd<'_>,
    other: BorrowedFd<'_>,
    stop: &AtomicBool,
) -> Result<bool, Failure> {
    let mut buffers = (vec![0; PIECE_BYTES], vec![0; PIECE_BYTES]);
    let nothing = |_| ();
    let extents = (Extents::new(one), Extents::new(other));
    Ok(first_difference(extents, &mut buffers, stop, (&nothing, &nothing))?.is_none())
}

/// Read until the buffer is full or the file ends.
fn full(
    file: BorrowedFd<'_>,
    buffer: &mut [u8],
    at: u64,
    stop: &AtomicBool,
    end: End,
) -> Result<usize, Failure> {
    let mut filled = 0;
    while filled < buffer.len() {
        if stop.load(Ordering::Relaxed) {
            return Err(Failure::Stopped);
        }
        match pread(file, &mut buffer[filled..], at + filled as u64) {
            Ok(0) => break,
            Ok(count) => filled += count,
            Err(Errno::INTR) => {}
            Err(errno) => return Err(errno).at(end, "read"),
        }
    }
    Ok(filled)
}
