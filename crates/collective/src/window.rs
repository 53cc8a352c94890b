//! A part of a file that an aggregator assembles from the data of many ranks.
//!
//! Memory: the window's bytes and one bit for each, whatever the number of ranks and extents. Only covered bytes are
//! written, so that no read-modify-write and no lock is needed.

use std::ops::Range;

use crate::exchange::ListMessage;
use crate::view::{Extent, View};

/// Why data were not taken into a window.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PlaceError {
    /// An extent is outside.
    #[error("bytes {begin} to {end} of the file lie outside the window")]
    Outside {
        /// First byte.
        begin: u64,
        /// Past the last byte.
        end: u64,
    },
    /// A range of a view and its data differ in length.
    #[error("{found} bytes of data for {expected} bytes of the view")]
    Length {
        /// Bytes of data.
        found: u64,
        /// Bytes of the range.
        expected: u64,
    },
    /// A window longer than its buffer.
    #[error("a window of {0} bytes does not fit its buffer")]
    TooLong(u64),
}

/// Bytes of a file, and which of them are covered.
///
/// Where ranks overlap, the data of the highest rank win, whatever the order of arrival: see [`Self::is_disordered`].
#[derive(Debug)]
pub struct Window {
    range: Range<u64>,
    buffer: Vec<u8>,
    /// A bit for each byte.
    covered: Vec<u64>,
    count: u64,
    /// The highest rank placed so far.
    last_rank: u32,
    disordered: bool,
}

impl Window {
    /// A window of at most `bytes`, to be used again and again with [`Self::start`].
    #[must_use]
    pub fn new(bytes: usize) -> Self {
        let covered = vec![0; bytes.div_ceil(64)];
        Self {
            range: 0..0,
            buffer: vec![0; bytes],
            covered,
            count: 0,
            last_rank: 0,
            disordered: false,
        }
    }

    /// Forgets what was placed, and stands for `range` of the file from now on.
    pub fn start(&mut self, range: Range<u64>) -> Result<(), PlaceError> {
        let length = range.end.saturating_sub(range.start);
        if length > self.buffer.len() as u64 {
            return Err(PlaceError::TooLong(length));
        }
        self.range = range.start..range.start + length;
        self.covered[..(length as usize).div_ceil(64)].fill(0);
        (self.count, self.last_rank, self.disordered) = (0, 0, false);
        Ok(())
    }

    /// The part of the file.
    #[must_use]
    pub fn range(&self) -> &Range<u64> {
        &self.range
    }

    /// Bytes covered.
    #[must_use]
    pub fn covered_bytes(&self) -> u64 {
        self.count
    }

    /// Whether data of a lower rank came after those of a higher one and overlapped covered bytes. The result would
    /// depend on the order of arrival: start the window again, and place the ranks in ascending order.
    #[must_use]
    pub fn is_disordered(&self) -> bool {
        self.disordered
    }

    /// Takes the data of one extent.
    pub fn place(&mut self, rank: u32, extent: Extent, data: &[u8]) -> Result<(), PlaceError> {
        let length = data.len() as u64;
        if length != extent.length {
            return Err(PlaceError::Length { found: length, expected: extent.length });
        }
        let part = self.part(extent)?;
        self.buffer[part.clone()].copy_from_slice(data);
        self.cover(rank, part);
        Ok(())
    }

    /// Takes the data of a range of a view.
    pub fn place_view(
        &mut self,
        rank: u32,
        view: &View,
        data: Range<u64>,
        bytes: &[u8],
    ) -> Result<(), PlaceError> {
        self.check_view(view, &data, bytes.len())?;
        let mut rest = bytes;
        for extent in view.extents(data) {
            let (piece, after) = rest.split_at(extent.length as usize);
            self.place(rank, extent, piece)?;
            rest = after;
        }
        Ok(())
    }

    /// Takes a list message that was decoded for this window.
    pub fn place_list(&mut self, rank: u32, list: &ListMessage<'_>) -> Result<(), PlaceError> {
        list.extents().try_for_each(|(extent, data)| self.place(rank, extent, data))
    }

    /// Marks an extent as wanted by a read.
    pub fn want(&mut self, extent: Extent) -> Result<(), PlaceError> {
        let part = self.part(extent)?;
        self.cover(u32::MAX, part);
        Ok(())
    }

    /// Marks the extents of a range of a view as wanted by a read.
    pub fn want_view(&mut self, view: &View, data: Range<u64>) -> Result<(), PlaceError> {
        view.extents(data).try_for_each(|extent| self.want(extent))
    }

    /// The covered or wanted extents in order; those at most `gap` bytes apart are one. For writes, `gap` must be 0.
    #[must_use]
    pub fn extents(&self, gap: u64) -> CoveredExtents<'_> {
        CoveredExtents { window: self, at: 0, gap }
    }

    /// The bytes of an extent.
    pub fn bytes(&self, extent: Extent) -> Result<&[u8], PlaceError> {
        Ok(&self.buffer[self.part(extent)?])
    }

    /// The bytes of an extent, to be read into.
    pub fn bytes_mut(&mut self, extent: Extent) -> Result<&mut [u8], PlaceError> {
        let part = self.part(extent)?;
        Ok(&mut self.buffer[part])
    }

    /// Writes the bytes of a range of a view, one after another, into `out`, which has just their length.
    pub fn copy_view(
        &self,
        view: &View,
        data: Range<u64>,
        out: &mut [u8],
    ) -> Result<(), PlaceError> {
        self.check_view(view, &data, out.len())?;
        let mut rest = out;
        for extent in view.extents(data) {
            let (piece, after) = rest.split_at_mut(extent.length as usize);
            piece.copy_from_slice(self.bytes(extent)?);
            rest = after;
        }
        Ok(())
    }

    /// Bytes of memory that the window holds.
    #[must_use]
    pub fn footprint(&self) -> usize {
        self.buffer.capacity() + self.covered.capacity() * 8 + size_of::<Self>()
    }

    /// Refuses a range whose length is not that of its data, or that is not all in the window.
    fn check_view(&self, view: &View, data: &Range<u64>, found: usize) -> Result<(), PlaceError> {
        let expected = data.end.min(view.limit()).saturating_sub(data.start);
        if found as u64 != expected {
            return Err(PlaceError::Length { found: found as u64, expected });
        }
        match view.hull(data) {
            Ok(Some(hull)) if hull.start < self.range.start || hull.end > self.range.end => {
                Err(PlaceError::Outside { begin: hull.start, end: hull.end })
            }
            Err(_) => Err(PlaceError::Outside { begin: data.start, end: data.end }),
            Ok(_) => Ok(()),
        }
    }

    /// The extent's place in the buffer.
    fn part(&self, extent: Extent) -> Result<Range<usize>, PlaceError> {
        let end = extent.offset.saturating_add(extent.length);
        if extent.offset < self.range.start || end > self.range.end {
            return Err(PlaceError::Outside { begin: extent.offset, end });
        }
        // Both are at most the buffer's length.
        Ok((extent.offset - self.range.start) as usize..(end - self.range.start) as usize)
    }

    fn cover(&mut self, rank: u32, part: Range<usize>) {
        if part.is_empty() {
            return;
        }
        let (first, last) = (part.start / 64, (part.end - 1) / 64);
        let mut before = 0u64;
        for (index, word) in self.covered[first..=last].iter_mut().enumerate() {
            let mut mask = u64::MAX;
            if index == 0 {
                mask &= u64::MAX << (part.start % 64);
            }
            if first + index == last {
                mask &= u64::MAX >> (63 - (part.end - 1) % 64);
            }
            before += u64::from((*word & mask).count_ones());
            *word |= mask;
        }
        self.count += part.len() as u64 - before;
        self.disordered |= before > 0 && rank < self.last_rank;
        self.last_rank = self.last_rank.max(rank);
    }

    /// The first byte at or after `at` that is covered, or not.
    fn find(&self, at: usize, covered: bool) -> usize {
        let length = (self.range.end - self.range.start) as usize;
        let mut index = at / 64;
        let mut mask = u64::MAX << (at % 64);
        while index * 64 < length {
            let word = if covered { self.covered[index] } else { !self.covered[index] } & mask;
            if word != 0 {
                return (index * 64 + word.trailing_zeros() as usize).min(length);
            }
            index += 1;
            mask = u64::MAX;
        }
        length
    }
}

/// The covered extents of a window.
#[derive(Debug, Clone)]
pub struct CoveredExtents<'a> {
    window: &'a Window,
    at: usize,
    gap: u64,
}

impl Iterator for CoveredExtents<'_> {
    type Item = Extent;

    fn next(&mut self) -> Option<Extent> {
        let window = self.window;
        let length = (window.range.end - window.range.start) as usize;
        let begin = window.find(self.at, true);
        if begin >= length {
            return None;
        }
        let mut end = window.find(begin, false);
        loop {
            let next = window.find(end, true);
            if next >= length || (next - end) as u64 > self.gap {
                break;
            }
            end = window.find(next, false);
        }
        self.at = end;
        Some(Extent { offset: window.range.start + begin as u64, length: (end - begin) as u64 })
    }
}
