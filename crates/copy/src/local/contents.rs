//! Bytes of one file into another: holes left out, hashed on the way where they are read back later.

use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::Arc;

use rustix::fs::{copy_file_range, ioctl_ficlone};
use rustix::io::Errno;
use twox_hash::XxHash3_128;

use super::direct::{DualFile, IoModeChooser};
use super::rate::RateLimiter;
use crate::error::{At, End, Failure};
use crate::file_io::{for_data, PIECE_BYTES, SHRUNK};

/// Bytes that the kernel copies by itself between two checks for a stop.
const KERNEL_PIECE_BYTES: usize = 8 << 20;

/// How bytes move, the same for all workers.
pub(super) struct ContentMover {
    pub(super) limiter: RateLimiter,
    /// Whether requests bypass the page cache.
    pub(super) modes: IoModeChooser,
    pub(super) stop: Arc<AtomicBool>,
    /// Whether the kernel still may be asked to share blocks; no longer once it has refused.
    clones: AtomicBool,
    /// Whether the kernel still may be asked to copy by itself.
    kernel: AtomicBool,
}

/// What a copy of a range was.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Moved {
    /// Bytes written.
    pub(super) bytes: u64,
    /// XXH3, 128 bits, of them; 0 where none was asked for.
    pub(super) digest: u128,
}

impl ContentMover {
    pub(super) fn new(limiter: RateLimiter, workers: usize, stop: Arc<AtomicBool>) -> Self {
        Self {
            // A limit on the rate is a limit on what is read and written: shared blocks and copies in the kernel
            // escape it.
            clones: AtomicBool::new(!limiter.limited()),
            kernel: AtomicBool::new(!limiter.limited()),
            limiter,
            modes: IoModeChooser::new(workers),
            stop,
        }
    }

    pub(super) fn is_stopped(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }

    /// Let `to` share the blocks of `from`; whether that could be done.
    pub(super) fn clone_file(
        &self,
        from: BorrowedFd<'_>,
        to: BorrowedFd<'_>,
    ) -> Result<bool, Failure> {
        if !self.clones.load(Ordering::Relaxed) {
            return Ok(false);
        }
        match ioctl_ficlone(to, from) {
            Ok(()) => Ok(true),
            Err(errno @ (Errno::NOSPC | Errno::DQUOT)) => Err(errno).at(End::Destination, "clone"),
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
    pub(super) fn copy(
        &self,
        buffer: &mut [u8],
        from: DualFile<'_>,
        to: DualFile<'_>,
        range: (u64, u64),
        sparse: bool,
        hashed: bool,
    ) -> Result<Moved, Failure> {
        let mut hasher = hashed.then(XxHash3_128::new);
        let mut bytes = 0;
        let kernel = hasher.is_none() && from.direct.is_none() && to.direct.is_none();
        for_data(from.cached, range, sparse, |start, end| {
            bytes += end - start;
            if kernel && self.in_kernel(from.cached, to.cached, start, end)? {
                return Ok(());
            }
            self.through_memory(buffer, from, to, start, end, hasher.as_mut())
        })?;
        Ok(Moved { bytes, digest: hasher.map_or(0, |hasher| hasher.finish_128()) })
    }

    /// The digest that [`ContentMover::copy`] gave, of what `file` holds now where `like` has data.
    pub(super) fn digest(
        &self,
        buffer: &mut [u8],
        file: DualFile<'_>,
        like: BorrowedFd<'_>,
        range: (u64, u64),
        sparse: bool,
    ) -> Result<u128, Failure> {
        let mut hasher = XxHash3_128::new();
        for_data(like, range, sparse, |start, end| {
            let mut at = start;
            while at < end {
                if self.is_stopped() {
                    return Err(Failure::Stopped);
                }
                let most = piece(buffer.len(), end - at);
                let count = file.read(buffer, most, at).at(End::Destination, "read back")?;
                if count == 0 {
                    return Err(Failure::Damaged);
                }
                hasher.write(&buffer[..count]);
                at += count as u64;
            }
            Ok(())
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
            let mut at = start;
            while at < end {
                if self.is_stopped() {
                    return Err(Failure::Stopped);
                }
                let most = piece(buffer.len(), end - at);
                self.limiter.take(most, &self.stop)?;
                match DualFile::from(from).read(buffer, most, at).at(End::Source, "read")? {
                    0 => return Err(SHRUNK),
                    count => at += count as u64,
                }
            }
            Ok(())
        })
    }

    fn in_kernel(
        &self,
        from: BorrowedFd<'_>,
        to: BorrowedFd<'_>,
        start: u64,
        end: u64,
    ) -> Result<bool, Failure> {
        // A small file is in and out of memory before the kernel has set up its pipe.
        if end - start <= PIECE_BYTES as u64 || !self.kernel.load(Ordering::Relaxed) {
            return Ok(false);
        }
        let (mut read, mut written) = (start, start);
        while read < end {
            if self.is_stopped() {
                return Err(Failure::Stopped);
            }
            let most = piece(KERNEL_PIECE_BYTES, end - read);
            match copy_file_range(from, Some(&mut read), to, Some(&mut written), most) {
                Ok(0) => return Err(SHRUNK),
                Ok(_) | Err(Errno::INTR) => {}
                Err(Errno::XDEV | Errno::INVAL | Errno::NOSYS | Errno::OPNOTSUPP | Errno::PERM)
                    if read == start =>
                {
                    self.kernel.store(false, Ordering::Relaxed);
                    return Ok(false);
                }
                Err(errno) => return Err(errno).at(End::Destination, "copy"),
            }
        }
        Ok(true)
    }

    fn through_memory(
        &self,
        buffer: &mut [u8],
        from: DualFile<'_>,
        to: DualFile<'_>,
        start: u64,
        end: u64,
        mut hasher: Option<&mut XxHash3_128>,
    ) -> Result<(), Failure> {
        let mut at = start;
        while at < end {
            if self.is_stopped() {
                return Err(Failure::Stopped);
            }
            let most = piece(buffer.len(), end - at);
            self.limiter.take(most, &self.stop)?;
            let count = from.read(buffer, most, at).at(End::Source, "read")?;
            if count == 0 {
                return Err(SHRUNK);
            }
            if let Some(hasher) = &mut hasher {
                hasher.write(&buffer[..count]);
            }
            to.write(&buffer[..count], at)?;
            at += count as u64;
        }
        Ok(())
    }
}

fn piece(most: usize, left: u64) -> usize {
    usize::try_from(left).map_or(most, |left| left.min(most))
}
