//! Which window of its file domains an aggregator pulls next, and what it reads ahead.
//!
//! Arrives: an operation. Leaves: windows. Must not know: images.

use std::collections::HashSet;
use std::ops::Range;

use waystage_collective::{Domains, Placement, ServerMap};
use waystage_collective_wire::{FileId, Window};

use super::state::{Op, Part};
use crate::effect::{Effect, LinkId, OWN};

/// Windows of an aggregator's part of an operation that there are at least, where it is large enough: one is filled
/// while another is written.
const WINDOWS: u64 = 4;

/// A window has at least this, whole units of it: smaller ones cost more in messages than they gain by overlap.
const SMALL_WINDOW: u64 = 2 << 20;

/// Bytes of storage requests: what clients of parallel file systems send at once, and what is worth a request.
const PIECES: (u64, u64) = (256 << 10, 1 << 20);

/// Requests of a window that there are at least, where it is large enough, so that several targets work for it.
const REQUESTS: u64 = 4;

/// Where storage requests of a window with this number of bytes are cut. All requests of one size begin at another
/// target; larger ones would meet at one target after the other.
pub(super) fn piece_of(unit: u64, bytes: u64) -> u64 {
    let piece = (bytes / REQUESTS).next_power_of_two().clamp(PIECES.0, PIECES.1);
    if unit >= piece {
        return if unit.is_multiple_of(piece) { piece } else { unit };
    }
    piece / unit * unit
}

/// Bytes of a window of a part of this length.
fn window_of(most: u64, part: u64, unit: u64) -> u64 {
    let wanted = (part / WINDOWS).max(SMALL_WINDOW).checked_next_multiple_of(unit);
    wanted.unwrap_or(most).min(most)
}

/// The next window of what the own node keeps to this aggregator.
pub(super) fn next_kept(op: &Op, most: u64) -> Option<(Window, HashSet<LinkId>)> {
    let part = op.kept.as_ref().filter(|part| part.reach < part.hull.end)?;
    let first = op.kept_at.max(part.reach);
    if first >= part.hull.end {
        return None;
    }
    let bytes = window_of(most, part.hull.end - part.hull.start, op.map.unit);
    // It ends with a unit, unless it is smaller.
    let end = first.saturating_add(bytes);
    let aligned = end / op.map.unit * op.map.unit;
    let end = if aligned > first { aligned } else { end };
    Some((Window::range(first, end.min(part.hull.end))?, HashSet::from([OWN])))
}

/// The next window in which any node may have bytes, and those nodes.
pub(super) fn next_window(op: &mut Op, most: u64) -> Option<(Window, HashSet<LinkId>)> {
    let domains = op.domains.as_ref()?;
    let hull = domains.hull();
    let part = (hull.end - hull.start) / op.map.aggregators.len().max(1) as u64;
    let window_bytes = window_of(most, part, op.map.unit);
    loop {
        let with_bytes = op.parts.values().filter(|part| part.reach < part.hull.end);
        let first = with_bytes.map(|part| part.reach).min()?;
        let window = cyclic(&op.map, domains, op.index, op.at.max(first), window_bytes)?;
        let inside = |part: &Part| {
            part.reach < window.hi && part.hull.end > window.lo && part.reach < part.hull.end
        };
        let links: HashSet<LinkId> =
            op.parts.iter().filter(|(_, part)| inside(part)).map(|(link, _)| *link).collect();
        if !links.is_empty() {
            return Some((window, links));
        }
        op.at = window.hi;
    }
}

/// The aggregator's next window at or after `from`. Units that it has in turn are taken together, as many as fit.
pub(super) fn cyclic(
    map: &ServerMap,
    domains: &Domains,
    index: usize,
    from: u64,
    window_bytes: u64,
) -> Option<Window> {
    let range = domains.window(index, from, window_bytes)?;
    let units = window_bytes / map.unit;
    let aggregators = map.aggregators.len() as u64;
    if map.placement != Placement::Cyclic || units < 2 || aggregators < 2 {
        return Window::range(range.start, range.end);
    }
    let lo = range.start / map.unit * map.unit;
    let stride = map.unit.checked_mul(aggregators)?;
    let hi = lo.saturating_add(stride.saturating_mul(units)).min(domains.hull().end);
    Window::new(lo, hi, map.unit, stride)
}

/// Reads that go on at equal distances are expected to do so once more (collective prefetch).
pub(super) fn prefetch(
    file: FileId,
    hull: Range<u64>,
    last: &mut Option<Range<u64>>,
    out: &mut Vec<Effect>,
) {
    if let Some(before) = last {
        let step = hull.start.saturating_sub(before.start);
        let same_size = hull.end - hull.start == before.end - before.start;
        if step > 0 && same_size {
            out.push(Effect::Prefetch {
                file,
                lo: hull.start + step,
                hi: hull.end.saturating_add(step),
            });
        }
    }
    *last = Some(hull);
}
