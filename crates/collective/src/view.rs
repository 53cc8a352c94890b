//! File views: the bytes of a shared file that a rank sees, as one contiguous stream of data (MPI 4.0, section 14.3).
//!
//! Since displacements of a filetype increase, the data of a view inside any window of the file are one contiguous
//! range: finding it takes two searches for any number of extents.

use std::ops::Range;

use crate::datatype::{Datatype, Runs};
use crate::error::{DecodeError, ViewError};
use crate::wire::{put_number, put_signed, Reader};

const VERSION: u8 = 1;

/// Contiguous bytes of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Extent {
    /// Offset in the file.
    pub offset: u64,
    /// At least 1.
    pub length: u64,
}

impl Extent {
    /// Past the last byte.
    #[must_use]
    pub fn end(&self) -> u64 {
        self.offset + self.length
    }
}

/// A displacement and a filetype that repeats for ever. Offsets of data count bytes, not etypes.
#[derive(Debug, Clone)]
pub struct View {
    displacement: i64,
    etype: i64,
    filetype: Datatype,
    /// The filetype as often as it fits before the largest file offset, as one type.
    repeated: Datatype,
}

/// Equal where they show the same bytes by the same filetype.
impl PartialEq for View {
    fn eq(&self, other: &Self) -> bool {
        (self.displacement, self.etype) == (other.displacement, other.etype)
            && self.filetype == other.filetype
    }
}

impl Eq for View {}

impl View {
    /// A view of a filetype that has a whole number of etypes of `etype` bytes. One without bytes sees nothing.
    pub fn new(displacement: i64, etype: i64, filetype: Datatype) -> Result<Self, ViewError> {
        if displacement < 0 {
            return Err(ViewError::Displacement(displacement));
        }
        let size = filetype.size();
        if etype < 0
            || (etype == 0 && size > 0)
            || (etype > 0 && !size.is_multiple_of(etype.cast_unsigned()))
        {
            return Err(ViewError::Etype { etype, filetype: size });
        }
        if size == 0 {
            return Ok(Self { displacement, etype, repeated: filetype.clone(), filetype });
        }
        let bounds = filetype.true_bounds();
        if bounds.start < 0 {
            return Err(ViewError::BeforeOrigin(-bounds.start));
        }
        if !filetype.is_monotone() {
            return Err(ViewError::NotMonotone);
        }
        let (span, extent) = (bounds.end - bounds.start, filetype.extent());
        if span > extent {
            return Err(ViewError::Interleaves { span: span.cast_unsigned(), extent });
        }
        let too_far = || ViewError::TooFar { begin: 0, end: size };
        let last = i64::MAX.checked_sub(displacement).and_then(|room| room.checked_sub(bounds.end));
        let last = last.filter(|&last| last >= 0).ok_or_else(too_far)?;
        // Every repetition ends before the largest offset, and so do the bounds of all together.
        let room = last.saturating_sub(filetype.lower().max(0)).saturating_sub(extent) / extent;
        let repeated = Datatype::contiguous(room.max(0) + 1, &filetype).map_err(|_| too_far())?;
        Ok(Self { displacement, etype, filetype, repeated })
    }

    /// A stream of bytes from `displacement`: MPI's default view.
    pub fn stream(displacement: i64) -> Result<Self, ViewError> {
        let byte = Datatype::bytes(1).map_err(|_| ViewError::NotMonotone)?;
        Self::new(displacement, 1, byte)
    }

    /// Bytes before the first filetype.
    #[must_use]
    pub fn displacement(&self) -> i64 {
        self.displacement
    }

    /// Bytes of an etype.
    #[must_use]
    pub fn etype(&self) -> i64 {
        self.etype
    }

    /// One filetype.
    #[must_use]
    pub fn filetype(&self) -> &Datatype {
        &self.filetype
    }

    /// Bytes of data that the view can hold.
    #[must_use]
    pub fn limit(&self) -> u64 {
        self.repeated.size()
    }

    /// Whether the view is one run: extents are as long as ranges of data.
    #[must_use]
    pub fn is_contiguous(&self) -> bool {
        self.repeated.run_count() <= 1
    }

    /// Bytes of data of an average extent; 0 where the view has none.
    #[must_use]
    pub fn mean_extent(&self) -> u64 {
        self.repeated.size().checked_div(self.repeated.run_count()).unwrap_or(0)
    }

    /// Number of file extents of `data`, estimated from the mean; at least 1 where there are bytes.
    #[must_use]
    pub fn extent_count(&self, data: &Range<u64>) -> u64 {
        let length = data.end.saturating_sub(data.start);
        length.div_ceil(self.mean_extent().max(1))
    }

    /// From the first to past the last byte of the file that `data` covers; None where `data` is empty.
    pub fn hull(&self, data: &Range<u64>) -> Result<Option<Range<u64>>, ViewError> {
        if data.start >= data.end {
            return Ok(None);
        }
        let too_far = ViewError::TooFar { begin: data.start, end: data.end };
        let last = self.position(data.end - 1).ok_or(too_far)?;
        Ok(self.position(data.start).map(|first| first..last + 1))
    }

    /// File offset of the byte of data at `offset`. None past the limit.
    #[must_use]
    pub fn position(&self, offset: u64) -> Option<u64> {
        Some((self.repeated.position(offset)? + self.displacement).cast_unsigned())
    }

    /// Bytes of data of the view that are before file offset `offset`.
    #[must_use]
    pub fn below(&self, offset: u64) -> u64 {
        let offset = i64::try_from(offset).unwrap_or(i64::MAX);
        self.repeated.below(offset - self.displacement)
    }

    /// The part of `data` in `window` of the file: one range, empty where there is none.
    #[must_use]
    pub fn within(&self, data: &Range<u64>, window: &Range<u64>) -> Range<u64> {
        let inside = |offset: u64| self.below(offset).min(data.end).max(data.start);
        let begin = inside(window.start);
        begin..inside(window.end).max(begin)
    }

    /// File offset of the first byte of `data` at or after `offset`.
    #[must_use]
    pub fn next(&self, data: &Range<u64>, offset: u64) -> Option<u64> {
        let first = self.below(offset).max(data.start);
        if first >= data.end {
            return None;
        }
        self.position(first)
    }

    /// The file extents of `data`, in order; touching ones are one. Cut at the view's limit.
    #[must_use]
    pub fn extents(&self, data: Range<u64>) -> Extents<'_> {
        Extents { runs: self.repeated.runs(data), displacement: self.displacement }
    }

    /// The view as a message of at most `limit` bytes; None where it would be longer.
    /// Views built by the same calls give equal messages.
    #[must_use]
    pub fn encode(&self, limit: usize) -> Option<Vec<u8>> {
        let mut message = vec![VERSION];
        put_signed(&mut message, self.displacement);
        put_number(&mut message, self.etype.cast_unsigned());
        let filetype = self.filetype.encode(limit.checked_sub(message.len())?)?;
        message.extend_from_slice(&filetype);
        Some(message)
    }

    /// Reads what [`Self::encode`] wrote, with all checks of [`Self::new`].
    pub fn decode(message: &[u8]) -> Result<Self, DecodeError> {
        let mut reader = Reader::new(message);
        let version = reader.byte()?;
        if version != VERSION {
            return Err(DecodeError::Version(version, VERSION));
        }
        let displacement = reader.signed()?;
        let etype = i64::try_from(reader.number()?)
            .map_err(|_| DecodeError::Value("etype is too large"))?;
        let filetype = Datatype::read(&mut reader)?;
        reader.end()?;
        Ok(Self::new(displacement, etype, filetype)?)
    }

    /// Bytes of memory that describe it.
    #[must_use]
    pub fn footprint(&self) -> usize {
        self.filetype.footprint() + self.repeated.footprint() + size_of::<Self>()
    }
}

/// File extents of a range of data, in order.
#[derive(Debug, Clone)]
pub struct Extents<'a> {
    runs: Runs<'a>,
    displacement: i64,
}

impl Iterator for Extents<'_> {
    type Item = Extent;

    #[inline]
    fn next(&mut self) -> Option<Extent> {
        let run = self.runs.next()?;
        Some(Extent {
            offset: (run.offset + self.displacement).cast_unsigned(),
            length: run.length,
        })
    }
}
