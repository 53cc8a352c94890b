//! Which window of its file domains an aggregator pulls next, and what it reads ahead.
//!
//! Arrives: an operation. Leaves: windows. Must not know: images.

use std::collections::HashSet;
use std::ops::Range;

use waystage_collective::{Domains, Placement, ServerMap};
use waystage_collective_wire::{FileId, Window};

use super::state::{Op, Part};
use crate::effect::{Effect, LinkId};

/// The next window in which any node may have bytes, and those nodes.
pub(super) fn next_window(op: &mut Op, window_bytes: u64) -> Option<(Window, HashSet<LinkId>)> {
    let domains = op.domains.as_ref()?;
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
