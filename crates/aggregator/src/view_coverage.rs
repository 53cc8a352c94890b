//! What a view has in a window.
//!
//! Arrives: a view, a range of its data, a window. Leaves: coverage. Must not know: who asks.

use std::ops::Range;

use waystage_collective::View;
use waystage_collective_wire::Window;

use crate::coverage::Coverage;

/// Add the bytes of the data that are in the window.
pub fn add_view(into: &mut Coverage, view: &View, data: &Range<u64>, window: &Window) {
    for (offset, bytes) in window.ranges(0, window.bytes()) {
        let part = view.within(data, &(offset..offset + bytes));
        if part.start >= part.end {
            continue;
        }
        for extent in view.extents(part) {
            into.add(window.position(extent.offset), extent.length);
        }
    }
}
