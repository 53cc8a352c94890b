//! The two ways in which data and their places reach an aggregator (CLARISSE, section III.A).
//!
//! View-based: the aggregator keeps a rank's view, and a message holds only data of a range of it. List-based: a
//! message holds data and the offset-length pairs of their places, which the aggregator drops after use.

use crate::view::View;

/// A view of at most this length is sent with any fragmentation: less than what a list costs in one operation.
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
