//! The data and the holes of a file, by lseek(2) with SEEK_DATA and SEEK_HOLE.
//!
//! Arrives: an open file.
//! Leaves: runs of data and of holes. A file system that does not report holes has none.
//! Must not know: what is done with the data.

use std::os::fd::BorrowedFd;

use rustix::fs::{fstat, seek, SeekFrom};
use rustix::io::Errno;

/// Some bytes of a file that follow one another.
#[derive(Debug, Clone, Copy)]
pub enum Run<'a> {
    /// What was read.
    Data(&'a [u8]),
    /// Zeros that are not stored, by their number.
    Hole(u64),
}

impl Run<'_> {
    /// How many bytes they are.
    #[must_use]
    pub fn length(&self) -> u64 {
        match self {
            Self::Data(bytes) => bytes.len() as u64,
            Self::Hole(length) => *length,
        }
    }
}

/// The extents of an open file. The last answer is kept, so that neighbouring offsets cost no call.
#[derive(Debug)]
pub struct Extents<'a> {
    file: BorrowedFd<'a>,
    /// Bytes from the first to the second are a hole, from there to the third data.
    known: (u64, u64, u64),
}

impl<'a> Extents<'a> {
    /// Of this file, whose offset is moved.
    #[must_use]
    pub fn new(file: BorrowedFd<'a>) -> Self {
        Self { file, known: (0, 0, 0) }
    }

    /// Of a file that has none, as its number of blocks says: nothing is asked.
    #[must_use]
    pub fn without_holes(file: BorrowedFd<'a>) -> Self {
        Self { file, known: (0, 0, u64::MAX) }
    }

    /// The file.
    #[must_use]
    pub fn file(&self) -> BorrowedFd<'a> {
        self.file
    }

    /// How many bytes from `at` on are a hole: 0 where there are data, or the file has ended.
    ///
    /// # Errors
    /// Where the file system fails.
    pub fn hole_at(&mut self, at: u64) -> Result<u64, Errno> {
        Ok(self.next_data(at)?.saturating_sub(at))
    }

    /// The first byte from `at` on that is no hole; the file's end counts as such.
    ///
    /// # Errors
    /// Where the file system fails.
    pub fn next_data(&mut self, at: u64) -> Result<u64, Errno> {
        let (from, data, end) = self.known;
        if at < from || at >= end {
            self.known = self.ask(at)?;
            return Ok(self.known.1);
        }
        Ok(data.max(at))
    }

    /// Where the hole begins that [`Extents::next_data`] was last asked in, as far as it is known.
    #[must_use]
    pub fn hole_start(&self) -> u64 {
        self.known.0
    }

    /// Where the data end that `at`, which is no hole, is in. [`Extents::next_data`] has been asked before.
    #[must_use]
    pub fn data_end(&self, at: u64) -> u64 {
        let (_, data, end) = self.known;
        if (data..end).contains(&at) {
            end
        } else {
            u64::MAX
        }
    }

    fn ask(&self, at: u64) -> Result<(u64, u64, u64), Errno> {
        let data = match seek(self.file, SeekFrom::Data(at)) {
            Ok(data) => data,
            // No data from here to the end, or behind it.
            Err(Errno::NXIO) => {
                let size = u64::try_from(fstat(self.file)?.st_size).unwrap_or(0);
                return Ok((at, size.max(at), u64::MAX));
            }
            // A file system that does not tell its holes, or a file that has no offsets.
            Err(Errno::INVAL | Errno::OPNOTSUPP | Errno::SPIPE | Errno::NOSYS) => {
                return Ok((at, at, u64::MAX))
            }
            Err(error) => return Err(error),
        };
        let hole = match seek(self.file, SeekFrom::Hole(data)) {
            Ok(hole) => hole,
            // It became shorter between the two calls.
            Err(Errno::NXIO) => u64::MAX,
            Err(error) => return Err(error),
        };
        // It changed between the two calls: all of it is read as data.
        Ok((at, data, if hole > data { hole } else { u64::MAX }))
    }
}
