//! Bytes of one file into another: holes left out, hashed on the way where they are read back later.

use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::fs::{copy_file_range, fadvise, fdatasync, ioctl_ficlone, seek, Advice, SeekFrom};
use rustix::io::{pwrite, Errno};
use twox_hash::XxHash3_128;

use crate::direct::{Choice, Doubly};
use crate::error::{At, End, Failure};
use crate::pace::Pace;

/// Bytes that are read and written at a time: they fit into a core's second-level cache, so that what is read is hashed
/// and written from there.
pub(crate) const PIECE_BYTES: usize = 256 << 10;

/// Bytes that the kernel copies by itself before anyone looks whether to stop.
const KERNEL_PIECE_BYTES: usize = 8 << 20;

/// How bytes move, the same for all workers.
pub(crate) struct Ways {
    pub(crate) pace: Pace,
    /// Past the cache or through it.
    pub(crate) choice: Choice,
    pub(crate) stop: AtomicBool,
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
    /// XXH3, 128 bits, of them; 0 where nobody asked.
    pub(crate) digest: u128,
}

impl Ways {
    pub(crate) fn new(pace: Pace, workers: usize) -> Self {
        Self {
            // A limit on the rate is a limit on what is read and written: shared blocks and copies in the kernel escape it.
            clones: AtomicBool::new(!pace.limited()),
            kernel: AtomicBool::new(!pace.limited()),
            pace,
            choice: Choice::new(workers),
            stop: AtomicBool::new(false),
        }
    }

    pub(crate) fn is_stopped(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }

    /// Let `to` share the blocks of `from`; whether that could be done.
    pub(crate) fn clone_whole(
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
    /// for direct requests `buffer` is to be an [`Aligned`](crate::direct::Aligned) one.
    pub(crate) fn copy(
        &self,
        buffer: &mut [u8],
        from: Doubly<'_>,
        to: Doubly<'_>,
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

    /// The digest that [`Ways::copy`] gave, of what `file` holds now where `like` has data.
    pub(crate) fn digest(
        &self,
        buffer: &mut [u8],
        file: Doubly<'_>,
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
    pub(crate) fn read(
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
                self.pace.take(most, &self.stop)?;
                match Doubly::from(from).read(buffer, most, at).at(End::Source, "read")? {
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
        from: Doubly<'_>,
        to: Doubly<'_>,
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
            self.pace.take(most, &self.stop)?;
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

/// The source is shorter than it was.
pub const SHRUNK: Failure = Failure::Changed("it became shorter while it was copied");

/// Have `file` written out and dropped from memory, so that the next reading is from storage.
pub fn forget(file: BorrowedFd<'_>) -> Result<(), Failure> {
    fdatasync(file).at(End::Destination, "sync")?;
    fadvise(file, 0, None, Advice::DontNeed).at(End::Destination, "drop from memory")
}

/// Write all of `bytes` at this place.
pub fn write_all(to: BorrowedFd<'_>, mut bytes: &[u8], mut at: u64) -> Result<(), Failure> {
    while !bytes.is_empty() {
        match pwrite(to, bytes, at) {
            Ok(0) => return Err(Errno::IO).at(End::Destination, "write"),
            Ok(count) => {
                bytes = &bytes[count..];
                at += count as u64;
            }
            Err(Errno::INTR) => {}
            Err(errno) => return Err(errno).at(End::Destination, "write"),
        }
    }
    Ok(())
}

/// Call `visit` with each run of data in a range: the whole range, where it has no holes.
pub fn for_data(
    file: BorrowedFd<'_>,
    (start, end): (u64, u64),
    sparse: bool,
    mut visit: impl FnMut(u64, u64) -> Result<(), Failure>,
) -> Result<(), Failure> {
    if !sparse {
        return visit(start, end);
    }
    let mut at = start;
    while at < end {
        let data = match seek(file, SeekFrom::Data(at)) {
            Ok(data) => data,
            // No data from here to the end.
            Err(Errno::NXIO) => return Ok(()),
            // A file system that does not tell its holes.
            Err(Errno::INVAL | Errno::OPNOTSUPP) => return visit(at, end),
            Err(errno) => return Err(errno).at(End::Source, "find holes"),
        };
        if data >= end {
            return Ok(());
        }
        let hole = seek(file, SeekFrom::Hole(data)).at(End::Source, "find holes")?.min(end);
        // It changed between the two calls: all of it is read as data.
        let hole = if hole > data { hole } else { end };
        visit(data, hole)?;
        at = hole;
    }
    Ok(())
}

fn piece(most: usize, left: u64) -> usize {
    usize::try_from(left).map_or(most, |left| left.min(most))
}
