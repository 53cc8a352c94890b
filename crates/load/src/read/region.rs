//! Memory that several loaders fill, each another range, and reading into uninitialised memory.

use std::mem::MaybeUninit;
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicPtr, Ordering};

use rustix::io::{pread, Errno};
use waystage_sync::Mutex;

use crate::buffer::Buffer;

/// Fill `into` from `offset` of a file; how many bytes there were, fewer only at its end.
pub(super) fn fill(
    file: impl AsFd,
    into: &mut [MaybeUninit<u8>],
    offset: u64,
) -> Result<usize, Errno> {
    let enough = into.len();
    fill_until(file, into, offset, enough)
}

/// The same, done with the read after which there are `enough` bytes.
fn fill_until(
    file: impl AsFd,
    into: &mut [MaybeUninit<u8>],
    offset: u64,
    enough: usize,
) -> Result<usize, Errno> {
    let mut done = 0;
    while done < enough {
        match pread(&file, &mut into[done..], offset + done as u64) {
            Ok(([], _)) => break,
            Ok((read, _)) => done += read.len(),
            Err(Errno::INTR) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(done)
}

/// Append a file of `length` bytes to an empty buffer that has room for one byte more; whether the file has this
/// length. A read that ends at it is taken for the end of the file: it was asked for more.
pub(super) fn append_to_end(
    file: impl AsFd,
    buffer: &mut Vec<u8>,
    length: usize,
) -> Result<bool, Errno> {
    let into = &mut buffer.spare_capacity_mut()[..=length];
    let read = fill_until(file, into, 0, length)?;
    // SAFETY: the buffer was empty, and `fill_until` has written its first `read` bytes, which are within its capacity.
    #[allow(unsafe_code)]
    unsafe {
        buffer.set_len(read);
    }
    Ok(read == length)
}

/// Append at most `length` bytes of a file to an empty buffer that has room for them.
pub(super) fn append(
    file: impl AsFd,
    buffer: &mut Vec<u8>,
    length: usize,
    offset: u64,
) -> Result<(), Errno> {
    let read = fill(file, &mut buffer.spare_capacity_mut()[..length], offset)?;
    // SAFETY: the buffer was empty, and `fill` has written its first `read` bytes, which are within its capacity.
    #[allow(unsafe_code)]
    unsafe {
        buffer.set_len(read);
    }
    Ok(())
}

/// A buffer being filled in ranges.
#[derive(Debug)]
pub(super) struct Region {
    /// Holds the memory; taken when it is full.
    buffer: Mutex<Option<Buffer>>,
    start: AtomicPtr<u8>,
    length: usize,
}

impl Region {
    /// Room for `length` bytes in an empty buffer.
    pub(super) fn new(mut buffer: Buffer, length: usize) -> Self {
        let room = buffer.bytes.spare_capacity_mut();
        let length = length.min(room.len());
        let start = AtomicPtr::new(room.as_mut_ptr().cast());
        Self { buffer: Mutex::new(Some(buffer)), start, length }
    }

    /// Fill a range from the same range of a file; whether all of it was there.
    ///
    /// The scheduler hands out each extent of an item once, and extents of an item do not overlap.
    pub(super) fn fill(&self, file: impl AsFd, offset: u64, length: u64) -> Result<bool, Errno> {
        let (Ok(at), Ok(length)) = (usize::try_from(offset), usize::try_from(length)) else {
            return Err(Errno::FBIG);
        };
        if at.checked_add(length).is_none_or(|end| end > self.length) {
            return Err(Errno::FBIG);
        }
        // SAFETY: the range is within the buffer's capacity, checked above, and the buffer is neither moved nor read
        // before every loader is done with its range. No other reference covers the range: ranges do not overlap.
        #[allow(unsafe_code)]
        let range = unsafe {
            let start = self.start.load(Ordering::Relaxed).add(at).cast::<MaybeUninit<u8>>();
            std::slice::from_raw_parts_mut(start, length)
        };
        Ok(fill(file, range, offset)? == length)
    }

    /// The buffer, after every range that together make it up was filled.
    pub(super) fn filled(&self) -> Option<Buffer> {
        let mut buffer = self.buffer.lock().take()?;
        // SAFETY: ranges that cover all `length` bytes were written, as the caller says; they are within the
        // capacity.
        #[allow(unsafe_code)]
        unsafe {
            buffer.bytes.set_len(self.length);
        }
        Some(buffer)
    }
}
