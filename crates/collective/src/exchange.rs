//! The two ways in which data and their places reach an aggregator (CLARISSE, section III.A).
//!
//! View-based: the aggregator keeps a rank's view, and a message holds only data of a range of it. List-based: a
//! message holds data and the offset-length pairs of their places, which the aggregator drops after use.

use std::ops::Range;

use crate::error::DecodeError;
use crate::view::{Extent, View};
use crate::wire::{number_bytes, put_number, Reader};

/// A view of at most this length is sent whatever its fragmentation: less than what a list costs in one operation.
pub const SMALL_VIEW_BYTES: usize = 64 * 1024;

/// A view of more bytes than this is never kept at an aggregator.
pub const MAX_VIEW_BYTES: usize = 64 * 1024 * 1024;

/// Extents below a page make a file highly fragmented: a pair in a kept view takes 16 bytes of an aggregator's memory,
/// one in a list about 4 bytes of a message.
pub const SMALL_EXTENT_BYTES: u64 = 4096;

/// How places reach aggregators.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Exchange {
    /// The view is kept at aggregators.
    View,
    /// Offset-length pairs are packed with the data.
    List,
}

/// Chooses the exchange for a view by its fragmentation; `wanted` overrides it. Returns the encoded view where it is to
/// be kept. A view too long to be kept is never view-based. Ranks may choose differently: messages say which it is.
#[must_use]
pub fn choose(view: &View, wanted: Option<Exchange>) -> (Exchange, Option<Vec<u8>>) {
    let limit = match wanted {
        Some(Exchange::List) => return (Exchange::List, None),
        Some(Exchange::View) => MAX_VIEW_BYTES,
        None if view.mean_extent() >= SMALL_EXTENT_BYTES => MAX_VIEW_BYTES,
        None => SMALL_VIEW_BYTES,
    };
    match view.encode(limit) {
        Some(message) => (Exchange::View, Some(message)),
        None => (Exchange::List, None),
    }
}

/// The end of a list message: number of pairs and bytes of data, both 32 bits, little endian.
const FOOTER_BYTES: usize = 8;

/// Packs data and their offset-length pairs into one message of bounded length.
///
/// The message is: data, pairs, footer. A pair is the gap since the last extent's end, counted from the window's
/// begin, and the length; extents ascend.
#[derive(Debug)]
pub struct ListPacker {
    data: Vec<u8>,
    pairs: Vec<u8>,
    count: u32,
    capacity: usize,
    /// Past the last extent.
    end: u64,
    /// Bytes of data that the pairs promise.
    promised: usize,
}

impl ListPacker {
    /// A message of at most `capacity` bytes for the part of a file from `window_start`. `buffer` is reused.
    #[must_use]
    pub fn new(mut buffer: Vec<u8>, window_start: u64, capacity: usize) -> Self {
        buffer.clear();
        let capacity = capacity.min(u32::MAX as usize);
        Self { data: buffer, pairs: Vec::new(), count: 0, capacity, end: window_start, promised: 0 }
    }

    /// Adds a pair for as many bytes from the extent's begin as still fit, and returns their number; [`Self::append`]
    /// must add just as many. 0: the message is full. Extents ascend and do not overlap, or nothing is taken.
    pub fn begin(&mut self, extent: Extent) -> u64 {
        let Some(gap) = extent.offset.checked_sub(self.end) else { return 0 };
        let used = self.promised
            + self.pairs.len()
            + FOOTER_BYTES
            + number_bytes(gap)
            + number_bytes(extent.length);
        let taken = extent.length.min(self.capacity.saturating_sub(used) as u64);
        if taken > 0 {
            put_number(&mut self.pairs, gap);
            put_number(&mut self.pairs, taken);
            self.count += 1;
            self.end = extent.offset + taken;
            self.promised += taken as usize;
        }
        taken
    }

    /// Adds data of the extents begun, in their order.
    pub fn append(&mut self, data: &[u8]) {
        debug_assert!(self.data.len() + data.len() <= self.promised, "more data than extents");
        self.data.extend_from_slice(data);
    }

    /// Whether nothing was packed.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// The message. Data that were promised and not appended are zeros.
    #[must_use]
    pub fn finish(self) -> Vec<u8> {
        let Self { mut data, pairs, count, promised, .. } = self;
        data.resize(promised, 0);
        data.extend_from_slice(&pairs);
        data.extend_from_slice(&count.to_le_bytes());
        // The capacity is at most 32 bits.
        data.extend_from_slice(&(promised as u32).to_le_bytes());
        data
    }
}

/// A list message whose pairs were all checked.
#[derive(Debug, Clone, Copy)]
pub struct ListMessage<'a> {
    data: &'a [u8],
    pairs: &'a [u8],
    start: u64,
}

impl<'a> ListMessage<'a> {
    /// Checks a message for `window`: extents ascend inside it, and their lengths sum up to the data.
    pub fn decode(message: &'a [u8], window: &Range<u64>) -> Result<Self, DecodeError> {
        let (rest, footer) = message
            .split_last_chunk::<FOOTER_BYTES>()
            .ok_or(DecodeError::Truncated(message.len()))?;
        let [a, b, c, d, e, f, g, h] = *footer;
        let (count, length) = (u32::from_le_bytes([a, b, c, d]), u32::from_le_bytes([e, f, g, h]));
        let (data, pairs) =
            rest.split_at_checked(length as usize).ok_or(DecodeError::Truncated(message.len()))?;
        let mut reader = Reader::new(pairs);
        let (mut end, mut total) = (window.start, 0u64);
        for _ in 0..count {
            let (gap, length) = (reader.number()?, reader.number()?);
            if length == 0 {
                return Err(DecodeError::Value("list has an extent without bytes"));
            }
            end = end.checked_add(gap).and_then(|end| end.checked_add(length)).unwrap_or(u64::MAX);
            if end > window.end {
                return Err(DecodeError::Value("list has an extent outside the window"));
            }
            total += length;
        }
        reader.end()?;
        if total != data.len() as u64 {
            return Err(DecodeError::Value("list promises other than its data"));
        }
        Ok(Self { data, pairs, start: window.start })
    }

    /// The extents with their data.
    pub fn extents(&self) -> impl Iterator<Item = (Extent, &'a [u8])> + use<'a> {
        let (mut reader, mut end, mut data) = (Reader::new(self.pairs), self.start, self.data);
        std::iter::from_fn(move || {
            let (gap, length) = (reader.number().ok()?, reader.number().ok()?);
            let offset = end + gap;
            end = offset + length;
            let (piece, rest) = data.split_at_checked(length as usize)?;
            data = rest;
            Some((Extent { offset, length }, piece))
        })
    }
}
