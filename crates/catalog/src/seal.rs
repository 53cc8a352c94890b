//! Digests of runs of a file's bytes. A catalog's manifest has those of its other files, so that damage is found
//! before it is read.
//!
//! Arrives: an open file and runs of its bytes.
//! Leaves: a digest of each, XXH3 of 64 bits: it finds accidents, not forgery.
//! Must not know: what the bytes mean, which digests are wanted.

use std::hash::Hasher;
use std::io;
use std::os::fd::BorrowedFd;

use rustix::io::{pread, Errno};
use twox_hash::XxHash3_64;

/// Bytes read at once: they fit into a core's second-level cache.
const PIECE: usize = 256 << 10;

/// The digest of bytes in memory.
#[must_use]
pub fn digest(bytes: &[u8]) -> u64 {
    XxHash3_64::oneshot(bytes)
}

/// The digest of each run, given as its first byte and its length.
///
/// # Errors
/// Where a run cannot be read; `UnexpectedEof` where the file ends before it does.
pub fn digests(file: BorrowedFd<'_>, ranges: &[(u64, u64)]) -> io::Result<Vec<u64>> {
    let mut buffer = vec![0; PIECE];
    ranges.iter().map(|range| one(file, *range, &mut buffer)).collect()
}

fn one(file: BorrowedFd<'_>, (mut at, mut left): (u64, u64), buffer: &mut [u8]) -> io::Result<u64> {
    let mut hash = XxHash3_64::with_seed(0);
    while left > 0 {
        let most = usize::try_from(left).unwrap_or(PIECE).min(PIECE);
        match pread(file, &mut buffer[..most], at) {
            Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(count) => {
                hash.write(&buffer[..count]);
                at = at.saturating_add(count as u64);
                left -= count as u64;
            }
            Err(Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(hash.finish())
}
