//! Digests of files as programs read them: holes are zeros, so that what is alike is so wherever its holes are.
//!
//! Arrives: an open file, a range. Leaves: its digest. Must not know: why somebody asks.

use std::os::fd::BorrowedFd;

use rustix::io::Errno;
use twox_hash::XxHash3_128;
use waystage_copy::parts::{At, End, Failure, SHRUNK};

/// Bytes that are read at a time: they fit into a core's second-level cache.
const PIECE_BYTES: usize = 256 << 10;

/// What was compared is no longer what it was.
pub(crate) const CHANGED_HERE: Failure =
    Failure::Clash("was changed at the destination while it was compared");

/// The digest of bytes `start..end` of the file at one end.
pub(crate) fn logical_digest(
    file: BorrowedFd<'_>,
    (start, end): (u64, u64),
    whose: End,
) -> Result<u128, Failure> {
    let mut hasher = XxHash3_128::new();
    let mut buffer = vec![0; PIECE_BYTES.min((end - start) as usize)];
    let mut at = start;
    while at < end {
        let most = buffer.len().min((end - at) as usize);
        read_full(file, at, &mut buffer[..most], whose)?;
        hasher.write(&buffer[..most]);
        at += most as u64;
    }
    Ok(hasher.finish_128())
}

/// Fill the buffer from this place of the file.
pub(crate) fn read_full(
    file: BorrowedFd<'_>,
    mut at: u64,
    mut buffer: &mut [u8],
    whose: End,
) -> Result<(), Failure> {
    while !buffer.is_empty() {
        match rustix::io::pread(file, &mut *buffer, at) {
            Ok(0) if whose == End::Source => return Err(SHRUNK),
            Ok(0) => return Err(CHANGED_HERE),
            Ok(count) => {
                buffer = &mut buffer[count..];
                at += count as u64;
            }
            Err(Errno::INTR) => {}
            Err(errno) => return Err(errno).at(whose, "read"),
        }
    }
    Ok(())
}
