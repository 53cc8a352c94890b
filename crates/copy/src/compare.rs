//! Files set side by side: are their contents and extended attributes alike?

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;

use rustix::fs::{openat, Mode, OFlags};
use rustix::io::{pread, Errno};
use twox_hash::XxHash3_128;
use waystage_catalog::Root;

use crate::attributes::xattrs_differ;
use crate::error::{said, Failure};
use crate::error::{At, End};
use crate::item::split;

const PIECE_BYTES: usize = 256 << 10;

/// Two entries to be held against each other, by their path below either root.
#[derive(Debug, Clone)]
pub struct Pair {
    /// The path, in both trees.
    pub path: Vec<u8>,
    /// Whether contents are read; directories have none.
    pub contents: bool,
}

/// The first byte that differs, and both digests (XXH3, 128 bits) of the whole.
pub type Differing = (u64, u128, u128);

/// What a pair differs in.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Unlike {
    /// Which pair.
    pub index: usize,
    /// How contents differ; None where they are alike.
    pub contents: Option<Differing>,
    /// Whether extended attributes differ.
    pub xattrs: bool,
    /// Why it could not be told; empty where it could.
    pub error: String,
}

struct Work {
    roots: (Root, Root),
    pairs: Vec<Pair>,
    xattrs: bool,
    next: AtomicUsize,
    bytes: AtomicU64,
    stop: AtomicBool,
    found: Mutex<Vec<Unlike>>,
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
            bytes: AtomicU64::new(0),
            stop: AtomicBool::new(false),
            found: Mutex::default(),
        });
        let comparison = Self { work, threads: Mutex::default() };
        for number in 0..threads.max(1) {
            let work = Arc::clone(&comparison.work);
            let builder = std::thread::Builder::new().name(format!("compare-{number}"));
            let handle = builder.spawn(move || work.run())?;
            comparison.threads.lock().unwrap_or_else(PoisonError::into_inner).push(handle);
        }
        Ok(comparison)
    }

    /// Pairs taken up so far, and bytes read of each side.
    pub fn progress(&self) -> (usize, u64) {
        let taken = self.work.next.load(Ordering::Relaxed).min(self.work.pairs.len());
        (taken, self.work.bytes.load(Ordering::Relaxed))
    }

    /// Whether all threads have ended.
    pub fn ended(&self) -> bool {
        let threads = self.threads.lock().unwrap_or_else(PoisonError::into_inner);
        threads.iter().all(JoinHandle::is_finished)
    }

    /// What differs, in order; complete once it has ended.
    pub fn unlike(&self) -> Vec<Unlike> {
        let mut found = self.work.found.lock().unwrap_or_else(PoisonError::into_inner).clone();
        found.sort_by_key(|unlike| unlike.index);
        found
    }

    /// End it; its threads are gone when this returns.
    pub fn stop(&self) {
        self.work.stop.store(true, Ordering::Relaxed);
        let threads =
            std::mem::take(&mut *self.threads.lock().unwrap_or_else(PoisonError::into_inner));
        for thread in threads {
            // A panicked thread has told the process's stderr; there is nobody to tell here.
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
            let unlike = match self.compare(pair, &mut buffers) {
                Ok((contents, xattrs)) if contents.is_some() || xattrs => {
                    Unlike { index, contents, xattrs, error: String::new() }
                }
                Ok(_) | Err(Failure::Stopped) => continue,
                Err(failure) => {
                    let error = match failure {
                        Failure::Call { end: End::Source, doing, errno } => {
                            format!("first tree: {doing}: {}", said(errno))
                        }
                        Failure::Call { doing, errno, .. } => {
                            format!("second tree: {doing}: {}", said(errno))
                        }
                        other => other.to_string(),
                    };
                    Unlike { index, contents: None, xattrs: false, error }
                }
            };
            self.found.lock().unwrap_or_else(PoisonError::into_inner).push(unlike);
        }
    }

    fn compare(
        &self,
        pair: &Pair,
        buffers: &mut (Vec<u8>, Vec<u8>),
    ) -> Result<(Option<Differing>, bool), Failure> {
        let one = open(&self.roots.0, &pair.path, End::Source)?;
        let other = open(&self.roots.1, &pair.path, End::Destination)?;
        let xattrs = self.xattrs && xattrs_differ(one.as_fd(), other.as_fd())?;
        if !pair.contents {
            return Ok((None, xattrs));
        }
        let mut digests = (XxHash3_128::new(), XxHash3_128::new());
        let (mut first, mut at) = (None, 0u64);
        let mut ended = (false, false);
        while !(ended.0 && ended.1) {
            let left = full(one.as_fd(), &mut buffers.0, at, ended.0, &self.stop, End::Source)?;
            let right =
                full(other.as_fd(), &mut buffers.1, at, ended.1, &self.stop, End::Destination)?;
            let (left, right) = (&buffers.0[..left], &buffers.1[..right]);
            ended = (left.len() < PIECE_BYTES, right.len() < PIECE_BYTES);
            digests.0.write(left);
            digests.1.write(right);
            if first.is_none() && left != right {
                let same = left.iter().zip(right).take_while(|(one, other)| one == other).count();
                first = Some(at + same as u64);
            }
            at += left.len().max(right.len()) as u64;
            self.bytes.fetch_add(left.len() as u64, Ordering::Relaxed);
        }
        let digests = (digests.0.finish_128(), digests.1.finish_128());
        Ok((first.map(|first| (first, digests.0, digests.1)), xattrs))
    }
}

/// Whether two open files hold the same bytes.
pub(crate) fn same_contents(
    one: BorrowedFd<'_>,
    other: BorrowedFd<'_>,
    stop: &AtomicBool,
) -> Result<bool, Failure> {
    let mut buffers = (vec![0; PIECE_BYTES], vec![0; PIECE_BYTES]);
    let mut at = 0;
    loop {
        let left = full(one, &mut buffers.0, at, false, stop, End::Source)?;
        let right = full(other, &mut buffers.1, at, false, stop, End::Destination)?;
        if buffers.0[..left] != buffers.1[..right] {
            return Ok(false);
        }
        if left < PIECE_BYTES {
            return Ok(true);
        }
        at += left as u64;
    }
}

/// Read until the buffer is full or the file ends.
fn full(
    file: BorrowedFd<'_>,
    buffer: &mut [u8],
    at: u64,
    ended: bool,
    stop: &AtomicBool,
    end: End,
) -> Result<usize, Failure> {
    let mut filled = 0;
    while !ended && filled < buffer.len() {
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

fn open(root: &Root, path: &[u8], end: End) -> Result<OwnedFd, Failure> {
    let (directory, name) = split(path);
    let directory = root.directory(directory).at(end, "open directory")?;
    let name = if name.is_empty() { b"." } else { name };
    let how = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    openat(&directory, name, how, Mode::empty()).at(end, "open")
}
