//! Reading and writing ranges of open files.
//!
//! Arrives: open files, ranges. Leaves: bytes, digests (XXH3, 128 bits), or the failure with its side. Must not know:
//! copies.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::fs::{fadvise, fdatasync, openat, seek, Advice, FileType, Mode, OFlags, SeekFrom};
use rustix::io::{pread, pwrite, Errno};
use twox_hash::XxHash3_128;

use crate::error::{At, End, Failure};
use crate::stat::stat_fd;

/// Bytes that are read and written at a time: they fit into a core's second-level cache, so that what is read is hashed
/// and written from there.
pub(crate) const PIECE_BYTES: usize = 256 << 10;

/// The source is shorter than it was.
pub const SHRUNK: Failure = Failure::Changed("it became shorter while it was copied");

/// What is being compared at the destination has changed.
pub const CHANGED_HERE: Failure =
    Failure::Clash("was changed at the destination while it was compared");

/// The entry of the source is no longer what the walk saw.
pub const ANOTHER_TYPE: Failure = Failure::Changed("it became something else while it was copied");

/// Open a regular file for reading: never through a link, never waiting at a FIFO.
///
/// # Errors
/// Those of open(2); [`ANOTHER_TYPE`] where a source is no longer a regular file.
pub fn open_file(folder: BorrowedFd<'_>, name: &[u8], end: End) -> Result<OwnedFd, Failure> {
    if end == End::Source {
        return open_source(folder, name, false);
    }
    openat(folder, name, HOW | OFlags::NOFOLLOW, Mode::empty()).at(end, "open")
}

const HOW: OFlags = OFlags::RDONLY.union(OFlags::NONBLOCK).union(OFlags::CLOEXEC);

/// The same at the source, also through a link where it is `followed`.
pub(crate) fn open_source(
    folder: BorrowedFd<'_>,
    name: &[u8],
    followed: bool,
) -> Result<OwnedFd, Failure> {
    let how = if followed { HOW } else { HOW | OFlags::NOFOLLOW };
    let file = match openat(folder, name, how, Mode::empty()) {
        Err(Errno::LOOP | Errno::NXIO) => return Err(ANOTHER_TYPE),
        other => other.at(End::Source, "open")?,
    };
    let stat = stat_fd(file.as_fd()).at(End::Source, "stat")?;
    if FileType::from_raw_mode(u32::from(stat.stx_mode)) != FileType::RegularFile {
        return Err(ANOTHER_TYPE);
    }
    Ok(file)
}

/// Have `file` written out and dropped from memory, so that the next reading is from storage.
///
/// # Errors
/// Those of fdatasync(2) and posix_fadvise(2).
pub fn forget(file: BorrowedFd<'_>) -> Result<(), Failure> {
    fdatasync(file).at(End::Destination, "sync")?;
    fadvise(file, 0, None, Advice::DontNeed).at(End::Destination, "drop from memory")
}

/// Write all of `bytes` at this place.
///
/// # Errors
/// Those of pwrite(2).
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

/// Fill the buffer from this place of the file.
///
/// # Errors
/// Those of pread(2); [`SHRUNK`] or [`CHANGED_HERE`] where the file ends before.
pub fn read_full(
    file: BorrowedFd<'_>,
    mut at: u64,
    mut buffer: &mut [u8],
    end: End,
) -> Result<(), Failure> {
    while !buffer.is_empty() {
        match pread(file, &mut *buffer, at) {
            Ok(0) if end == End::Source => return Err(SHRUNK),
            Ok(0) => return Err(CHANGED_HERE),
            Ok(count) => {
                buffer = &mut buffer[count..];
                at += count as u64;
            }
            Err(Errno::INTR) => {}
            Err(errno) => return Err(errno).at(end, "read"),
        }
    }
    Ok(())
}

/// Read bytes `start..end` in pieces of at most the buffer's size. `read` is given the buffer, the bytes wanted and
/// their place, and tells how many it read; `visit` is given each piece and its place. A file that ends before is an
/// error, `early`.
///
/// # Errors
/// Those of `read` and `visit`; `early`.
pub fn for_pieces(
    buffer: &mut [u8],
    (mut at, end): (u64, u64),
    early: Failure,
    mut read: impl FnMut(&mut [u8], usize, u64) -> Result<usize, Failure>,
    mut visit: impl FnMut(&[u8], u64) -> Result<(), Failure>,
) -> Result<(), Failure> {
    while at < end {
        let most = usize::try_from(end - at).map_or(buffer.len(), |left| left.min(buffer.len()));
        let count = read(buffer, most, at)?;
        if count == 0 {
            return Err(early);
        }
        visit(&buffer[..count], at)?;
        at += count as u64;
    }
    Ok(())
}

/// Whether what was written can be read again: the digest of these ranges of a file, one after the other.
///
/// # Errors
/// [`Failure::Damaged`] where it differs or the file is shorter; those of pread(2).
pub fn read_back(
    file: BorrowedFd<'_>,
    ranges: impl IntoIterator<Item = (u64, u64)>,
    digest: u128,
) -> Result<(), Failure> {
    let mut hasher = XxHash3_128::new();
    let mut buffer = vec![0; PIECE_BYTES];
    for range in ranges {
        let read = |buffer: &mut [u8], most: usize, at: u64| loop {
            match pread(file, &mut buffer[..most], at) {
                Err(Errno::INTR) => {}
                other => return other.at(End::Destination, "read back"),
            }
        };
        for_pieces(&mut buffer, range, Failure::Damaged, read, |bytes, _| {
            hasher.write(bytes);
            Ok(())
        })?;
    }
    if hasher.finish_128() == digest {
        Ok(())
    } else {
        Err(Failure::Damaged)
    }
}

/// The digest of bytes `start..end` of a file as programs read them: holes are zeros, so that files with the same bytes
/// have the same digest wherever their holes are.
///
/// # Errors
/// Those of [`read_full`].
pub fn logical_digest(
    file: BorrowedFd<'_>,
    (start, end): (u64, u64),
    side: End,
) -> Result<u128, Failure> {
    let mut hasher = XxHash3_128::new();
    let mut buffer = vec![0; PIECE_BYTES.min((end - start) as usize)];
    let mut at = start;
    while at < end {
        let most = buffer.len().min((end - at) as usize);
        read_full(file, at, &mut buffer[..most], side)?;
        hasher.write(&buffer[..most]);
        at += most as u64;
    }
    Ok(hasher.finish_128())
}

/// Call `visit` with each run of data in a range: the complete range, where it has no holes.
///
/// # Errors
/// Those of lseek(2) and of `visit`.
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
            // A file system that does not report holes.
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
