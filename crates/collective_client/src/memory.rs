//! Moving data between a rank's memory and images of windows, as a view and a datatype say.
//!
//! Arrives: a view, a range of its data, a datatype at an address, a window with its image.
//! Leaves: copied bytes, runs of the window. Must not know: messages, sockets.
//!
//! Both the view and the datatype are walked lazily, together: a piece is contiguous in the file, in memory and in the
//! image. Nothing is flattened, for any number of runs.
#![allow(unsafe_code)]

use std::ops::Range;

use waystage_collective::{Datatype, View};
use waystage_collective_wire::local::INLINE_BYTES;
use waystage_collective_wire::{coverage, Window};

use crate::error::{argument, Code, Error, Result};

/// The data of an operation in the rank's memory.
#[derive(Clone, Debug)]
pub struct Data {
    /// Address that displacements count from; 0 (MPI_BOTTOM) where they are addresses.
    base: usize,
    /// All elements as one type; None where they are contiguous.
    layout: Option<Datatype>,
    bytes: u64,
}

impl Data {
    /// `count` elements of `memory` at `base`; None: bytes.
    ///
    /// # Safety
    /// All bytes that the datatype covers are this process's memory until the operation has ended, and, where data
    /// are read into it, no other reference to them is used.
    ///
    /// # Errors
    /// [`Code::Argument`] where the count is negative, the sizes overflow, or bytes are at NULL.
    pub unsafe fn new(base: *mut u8, count: i64, memory: Option<&Datatype>) -> Result<Self> {
        let elements = u64::try_from(count)
            .map_err(|_| argument(format!("the count is {count}; it must not be negative")))?;
        let base = base as usize;
        let Some(memory) = memory else {
            if base == 0 && elements > 0 {
                return Err(argument(format!("{elements} bytes at NULL")));
            }
            return Ok(Self { base, layout: None, bytes: elements });
        };
        let all =
            Datatype::contiguous(count, memory).map_err(|error| argument(error.to_string()))?;
        let bytes = all.size();
        let bounds = all.true_bounds();
        if all.run_count() <= 1 {
            let base = base.wrapping_add_signed(signed(bounds.start)?);
            if base == 0 && bytes > 0 {
                return Err(argument(format!("{bytes} bytes at NULL")));
            }
            return Ok(Self { base, layout: None, bytes });
        }
        Ok(Self { base, layout: Some(all), bytes })
    }

    /// No data.
    #[must_use]
    pub fn none() -> Self {
        Self { base: 0, layout: None, bytes: 0 }
    }

    /// Bytes of data.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Copies all of it to `to`, one byte after the other.
    pub fn gather(&self, to: &mut [u8]) {
        let mut at = 0;
        self.runs(0..self.bytes, |address, bytes| {
            let bytes = usize::try_from(bytes).unwrap_or(usize::MAX);
            let Some(part) = to.get_mut(at..).and_then(|rest| rest.get_mut(..bytes)) else {
                return false;
            };
            // SAFETY: the caller of `new` vouches for the address.
            unsafe {
                std::ptr::copy_nonoverlapping(address as *const u8, part.as_mut_ptr(), bytes);
            }
            at += bytes;
            true
        });
    }

    /// Lets `fill` write all bytes, one after the other, and puts them in their places.
    ///
    /// # Errors
    /// Those of `fill`; then nothing is promised of the memory. [`Code::Memory`].
    pub fn scattered<T>(&self, fill: impl FnOnce(&mut [u8]) -> Result<T>) -> Result<T> {
        let size = usize::try_from(self.bytes)
            .map_err(|_| Error::new(Code::Memory, "more bytes than the address space has"))?;
        if self.layout.is_none() {
            if size == 0 {
                return fill(&mut []);
            }
            // SAFETY: the caller of `new` vouches for the memory, and for no other use of it.
            return fill(unsafe { std::slice::from_raw_parts_mut(self.base as *mut u8, size) });
        }
        let mut buffer = Vec::new();
        buffer
            .try_reserve_exact(size)
            .map_err(|_| Error::new(Code::Memory, format!("no memory for {size} bytes")))?;
        buffer.resize(size, 0);
        let result = fill(&mut buffer)?;
        let mut at = 0;
        self.runs(0..self.bytes, |address, bytes| {
            let bytes = usize::try_from(bytes).unwrap_or(usize::MAX);
            let Some(part) = buffer.get(at..).and_then(|rest| rest.get(..bytes)) else {
                return false;
            };
            // SAFETY: the caller of `new` vouches for the address.
            unsafe { std::ptr::copy_nonoverlapping(part.as_ptr(), address as *mut u8, bytes) };
            at += bytes;
            true
        });
        Ok(result)
    }

    /// Calls `each(address, bytes)` for the runs of a range of the data, in order, until it returns false.
    pub fn runs(&self, data: Range<u64>, mut each: impl FnMut(usize, u64) -> bool) {
        match &self.layout {
            None => {
                let end = data.end.min(self.bytes);
                if data.start < end {
                    let start = usize::try_from(data.start).unwrap_or(usize::MAX);
                    each(self.base.wrapping_add(start), end - data.start);
                }
            }
            Some(layout) => {
                for run in layout.runs(data) {
                    let Ok(offset) = signed(run.offset) else { return };
                    if !each(self.base.wrapping_add_signed(offset), run.length) {
                        return;
                    }
                }
            }
        }
    }
}

fn signed(offset: i64) -> Result<isize> {
    isize::try_from(offset)
        .map_err(|_| Error::new(Code::Argument, "a displacement above the address space"))
}

/// Data of an operation and their place in the file.
#[derive(Debug)]
pub struct Transfer<'a> {
    /// The rank's view.
    pub view: &'a View,
    /// Range of the view's data.
    pub range: Range<u64>,
    /// The same bytes in memory.
    pub data: &'a Data,
}

/// Bytes that are contiguous in the file and in memory.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Piece {
    pub(crate) offset: u64,
    pub(crate) address: usize,
    pub(crate) bytes: u64,
}

impl Transfer<'_> {
    /// Calls `each` for pieces of a part of the data, in order, until it returns false.
    pub(crate) fn pieces(&self, part: Range<u64>, mut each: impl FnMut(Piece) -> bool) {
        let own = part.start - self.range.start..part.end - self.range.start;
        let mut extents = self.view.extents(part);
        let mut extent = None;
        self.data.runs(own, |mut address, mut left| {
            while left > 0 {
                let (offset, length) = match extent.take() {
                    Some(rest) => rest,
                    None => match extents.next() {
                        Some(found) => (found.offset, found.length),
                        None => return false,
                    },
                };
                let bytes = left.min(length);
                if bytes < length {
                    extent = Some((offset + bytes, length - bytes));
                }
                if !each(Piece { offset, address, bytes }) {
                    return false;
                }
                address = address.wrapping_add(usize::try_from(bytes).unwrap_or(usize::MAX));
                left -= bytes;
            }
            true
        });
    }

    /// Pieces in a window from position `from` of its image on, each with its position.
    fn in_window(&self, window: &Window, from: u64, mut each: impl FnMut(u64, Piece) -> bool) {
        let first = if from == 0 { window.lo } else { window.offset(from) };
        let part = self.view.within(&self.range, &(first..window.hi));
        if part.is_empty() {
            return;
        }
        self.pieces(part, |piece| {
            let mut piece = piece;
            // A run of the file may cross blocks of the window, with bytes between them that belong to others.
            while piece.bytes > 0 {
                let inside = (piece.offset - window.lo) % window.stride;
                let skip = if inside < window.block { 0 } else { window.stride - inside };
                let bytes = if skip > 0 { skip } else { window.block - inside }.min(piece.bytes);
                if skip == 0 && !each(window.position(piece.offset), Piece { bytes, ..piece }) {
                    return false;
                }
                piece.offset += bytes;
                piece.address =
                    piece.address.wrapping_add(usize::try_from(bytes).unwrap_or(usize::MAX));
                piece.bytes -= bytes;
            }
            true
        });
    }

    /// Copies this rank's bytes of a window into its image, and lists their runs; the list, and the position reached.
    ///
    /// `image` is None where only the list is wanted; `capacity` of 0 means no list.
    pub fn pack(
        &self,
        window: &Window,
        image: Option<Image>,
        capacity: usize,
        from: u64,
    ) -> (Vec<u8>, u64) {
        let mut list = coverage::Writer::new(capacity);
        let mut upto = window.bytes();
        self.in_window(window, from, |position, piece| {
            if capacity > 0 && !list.push(position, piece.bytes) {
                upto = position;
                return false;
            }
            if let Some(image) = image {
                image.fill(position, piece);
            }
            true
        });
        (list.finish(), upto)
    }

    /// All data, where they are few enough to go with the announcement and `may_be` says so; else nothing.
    pub(crate) fn inline(&self, may_be: bool) -> Vec<u8> {
        let bytes = self.range.end - self.range.start;
        if !may_be || bytes > INLINE_BYTES {
            return Vec::new();
        }
        let mut found = vec![0; usize::try_from(bytes).unwrap_or(0)];
        self.data.gather(&mut found);
        found
    }

    /// Copies this rank's bytes of a window out of its image.
    pub fn unpack(&self, window: &Window, image: Image) {
        self.in_window(window, 0, |position, piece| {
            image.take(position, piece);
            true
        });
    }

    /// File offset of the first byte at or after `offset`; [`u64::MAX`] for none.
    #[must_use]
    pub fn next(&self, offset: u64) -> u64 {
        self.view.next(&self.range, offset).unwrap_or(u64::MAX)
    }
}

/// The image of a window in shared memory.
#[derive(Clone, Copy, Debug)]
pub struct Image {
    start: *mut u8,
    bytes: u64,
}

impl Image {
    /// `bytes` of memory at `start`.
    ///
    /// # Safety
    /// They are mapped and writable while the image is used.
    #[must_use]
    pub unsafe fn new(start: *mut u8, bytes: u64) -> Self {
        Self { start, bytes }
    }

    /// Where a piece is; None where it does not fit: the window is the process's, and could be wrong.
    fn at(&self, position: u64, bytes: u64) -> Option<(*mut u8, usize)> {
        let end = position.checked_add(bytes).filter(|end| *end <= self.bytes)?;
        let position = usize::try_from(end - bytes).ok()?;
        // SAFETY: `position` is inside the image.
        Some((unsafe { self.start.add(position) }, usize::try_from(bytes).ok()?))
    }

    fn fill(&self, position: u64, piece: Piece) {
        if let Some((to, bytes)) = self.at(position, piece.bytes) {
            // SAFETY: the caller of `Data::new` vouches for the address, `at` for the image.
            unsafe { std::ptr::copy_nonoverlapping(piece.address as *const u8, to, bytes) };
        }
    }

    fn take(&self, position: u64, piece: Piece) {
        if let Some((from, bytes)) = self.at(position, piece.bytes) {
            // SAFETY: as in `fill`.
            unsafe { std::ptr::copy_nonoverlapping(from, piece.address as *mut u8, bytes) };
        }
    }
}

#[cfg(test)]
#[path = "memory_tests.rs"]
mod tests;
