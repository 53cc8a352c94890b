//! Bytes of one file into another: holes left out, hashed on the way where they are read back later.

use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::Arc;
use std::time::Duration;

use rustix::fs::{copy_file_range, ioctl_ficlone};
use rustix::io::Errno;
use twox_hash::XxHash3_128;
use waystage_pacing::{during, Cause, Pace, Stopped};

use super::direct::{DualFile, IoModeChooser};
use crate::error::{At, End, Failure};
use crate::file_io::{for_data, for_pieces, PIECE_BYTES, SHRUNK};
use crate::options::Reflink;

/// Bytes that the kernel copies by itself between two checks for a stop.
const KERNEL_PIECE_BYTES: usize = 8 << 20;

/// How bytes move, the same for all workers.
pub(crate) struct ContentMover {
    pace: Arc<Pace>,
    /// Whether requests bypass the page cache.
    pub(super) modes: IoModeChooser,
    pub(super) stop: Arc<AtomicBool>,
    /// Whether each file has to share the blocks of its source.
    must_clone: bool,
    /// Whether the kernel still may be asked to share blocks; no longer once it has refused.
    clones: AtomicBool,
    /// Whether the kernel still may be asked to copy by itself.
    kernel: AtomicBool,
}

/// What a copy of a range was.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Moved {
    /// Bytes written.
    pub(crate) bytes: u64,
    /// XXH3, 128 bits, of them; 0 where none was asked for.
    pub(crate) digest: u128,
    /// Time in which it was held by a limit or a pause.
    pub(super) held: Duration,
}

impl ContentMover {
    pub(crate) fn new(pace: Arc<Pace>, workers: usize, stop: Arc<AtomicBool>) -> Self {
        Self {
            pace,
            must_clone: false,
            clones: AtomicBool::new(true),
            kernel: AtomicBool::new(true),
            modes: IoModeChooser::new(workers),
            stop,
        }
    }

    /// The same, that does not let the kernel copy by itself: it makes requests of 64 KiB, and may share blocks.
    pub(crate) fn through_own_memory(self) -> Self {
        self.clones.store(false, Ordering::Relaxed);
        self.kernel.store(false, Ordering::Relaxed);
        self
    }

    /// The same, that shares blocks with the source as asked.
    pub(super) fn sharing(self, reflink: Reflink) -> Self {
        match reflink {
            Reflink::Auto => self,
            Reflink::Always => Self { must_clone: true, ..self },
            Reflink::Never => self.through_own_memory(),
        }
    }

    pub(super) fn is_stopped(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }

    /// Let `to` share the blocks of `from`; whether that could be done. What is to be `verified` has to be read.
    pub(super) fn clone_file(
        &self,
        from: BorrowedFd<'_>,
        to: BorrowedFd<'_>,
        verified: bool,
    ) -> Result<bool, Failure> {
        // A limit on the rate is a limit on what is read and written: shared blocks and copies in the kernel escape it.
        let refused = verified || !self.clones.load(Ordering::Relaxed);
        if !self.must_clone && (refused || self.pace.gate.is_limited()) {
            return Ok(false);
        }
        match during(Cause::Destination, || ioctl_ficlone(to, from)) {
            Ok(()) => Ok(true),
            Err(errno @ (Errno::NOSPC | Errno::DQUOT)) => Err(errno).at(End::Destination, "clone"),
            Err(errno) if self.must_clone => {
                Err(errno).at(End::Destination, "share the source's blocks")
            }
            Err(errno) => {
                // TXTBSY and PERM are of this file alone; all else is of the file systems.
                if !matches!(errno, Errno::TXTBSY | Errno::PERM) {
                    self.clones.store(false, Ordering::Relaxed);
                }
                Ok(false)
            }
        }
    }

    /// Copy bytes `start..end`, those of holes left out. The source ending early is a change. For files that are open
    /// for direct requests `buffer` is to be an [`Aligned`](crate::local::direct::Aligned) one.
    pub(crate) fn copy(
        &self,
        buffer: &mut [u8],
        from: DualFile<'_>,
        to: DualFile<'_>,
        range: (u64, u64),
        sparse: bool,
        hashed: bool,
    ) -> Result<Moved, Failure> {
        let mut hasher = hashed.then(XxHash3_128::new);
        let (mut bytes, mut held) = (0, Duration::ZERO);
        let kernel = hasher.is_none() && from.direct.is_none() && to.direct.is_none();
        for_data(from.cached, range, sparse, |start, end| {
            bytes += end - start;
            let mut start = start;
            if kernel {
                start = self.in_kernel(from.cached, to.cached, (start, end), &mut held)?;
            }
            self.through_memory(buffer, from, to, (start, end), hasher.as_mut(), &mut held)
        })?;
        Ok(Moved { bytes, digest: hasher.map_or(0, |hasher| hasher.finish_128()), held })
    }

    /// The digest that [`ContentMover::copy`] gave, of what `file` holds now where `like` has data.
    pub(crate) fn digest(
        &self,
        buffer: &mut [u8],
        file: DualFile<'_>,
        like: BorrowedFd<'_>,
        range: (u64, u64),
        sparse: bool,
    ) -> Result<u128, Failure> {
        let mut hasher = XxHash3_128::new();
        for_data(like, range, sparse, |start, end| {
            let read = |buffer: &mut [u8], most, at| {
                if self.is_stopped() {
                    return Err(Failure::Stopped);
                }
                self.wait(0)?;
                let count = during(Cause::Destination, || file.read(buffer, most, at));
                count.at(End::Destination, "read back")
            };
            for_pieces(buffer, (start, end), Failure::Damaged, read, |bytes, _| {
                hasher.write(bytes);
                Ok(())
            })
        })?;
        Ok(hasher.finish_128())
    }

    /// Read bytes `start..end` and do nothing with them.
    pub(super) fn read(
        &self,
        buffer: &mut [u8],
        from: BorrowedFd<'_>,
        range: (u64, u64),
        sparse: bool,
    ) -> Result<(), Failure> {
        for_data(from, range, sparse, |start, end| {
            let read = |buffer: &mut [u8], most, at| {
                if self.is_stopped() {
                    return Err(Failure::Stopped);
                }
                self.wait(most as u64)?;
                let count = during(Cause::Source, || DualFile::from(from).read(buffer, most, at));
                count.at(End::Source, "read")
            };
            for_pieces(buffer, (start, end), SHRUNK, read, |bytes, _| {
                self.pace.moved(bytes.len() as u64);
                Ok(())
            })
        })
    }

    /// Wait for the turn of `bytes`, or with 0 for the end of a pause.
    fn wait(&self, bytes: u64) -> Result<Duration, Failure> {
        self.pace.gate.pass(bytes).map_err(|Stopped| Failure::Stopped)
    }

    /// Let the kernel copy as much as it can and as no limit forbids; where the rest begins.
    fn in_kernel(
        &self,
        from: BorrowedFd<'_>,
        to: BorrowedFd<'_>,
        (start, end): (u64, u64),
        held: &mut Duration,
    ) -> Result<u64, Failure> {
        // A small file is in and out of memory before the kernel has set up its pipe.
        if end - start <= PIECE_BYTES as u64 || !self.kernel.load(Ordering::Relaxed) {
            return Ok(start);
        }
        let (mut read, mut written) = (start, start);
        while read < end && !self.pace.gate.is_limited() {
            *held += self.wait(0)?;
            let most = piece(KERNEL_PIECE_BYTES, end - read);
            // The kernel does not say which side it waits for: both are of one file system.
            let copied = during(Cause::Destination, || {
                copy_file_range(from, Some(&mut read), to, Some(&mut written), most)
            });
            match copied {
                Ok(0) => return Err(SHRUNK),
                Ok(count) => self.pace.moved(count as u64),
                Err(Errno::INTR) => {}
                Err(Errno::XDEV | Errno::INVAL | Errno::NOSYS | Errno::OPNOTSUPP | Errno::PERM)
                    if read == start =>
                {
                    self.kernel.store(false, Ordering::Relaxed);
                    return Ok(start);
                }
                Err(errno) => return Err(errno).at(End::Destination, "copy"),
            }
        }
        Ok(read)
    }

    fn through_memory(
        &self,
        buffer: &mut [u8],
        from: DualFile<'_>,
        to: DualFile<'_>,
        range: (u64, u64),
        mut hasher: Option<&mut XxHash3_128>,
        held: &mut Duration,
    ) -> Result<(), Failure> {
        let read = |buffer: &mut [u8], most, at| {
            *held += self.wait(most as u64)?;
            let count = during(Cause::Source, || from.read(buffer, most, at));
            count.at(End::Source, "read")
        };
        for_pieces(buffer, range, SHRUNK, read, |bytes, at| {
            if let Some(hasher) = &mut hasher {
                hasher.write(bytes);
            }
            during(Cause::Destination, || to.write(bytes, at))?;
            self.pace.moved(bytes.len() as u64);
            Ok(())
        })
    }
}

fn piece(most: usize, left: u64) -> usize {
    usize::try_from(left).map_or(most, |left| left.min(most))
}
