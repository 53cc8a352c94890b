//! How the bytes of a window come: from announcements that have them, else by pulls.
//!
//! Arrives: a window of an operation, what nodes announced. Leaves: pulls, bytes for the image. Must not know: which
//! window is the next.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use waystage_collective::View;
use waystage_collective_wire::peer::{Peer, RankRange};
use waystage_collective_wire::{FileId, Window};

use super::state::{Op, OpWindow, Part, Phase};
use crate::coverage::Coverage;
use crate::effect::{Effect, LinkId, OWN};

type Views = HashMap<(LinkId, u32), Arc<View>>;

/// Whether the data of an announcement are those of its ranges. None are, too.
pub(super) fn fits(inline: &[u8], views: Option<&[RankRange]>) -> bool {
    let bytes = |views: &[RankRange]| views.iter().map(|range| u128::from(range.bytes)).sum();
    inline.is_empty() || views.map(bytes) == Some(inline.len() as u128)
}

/// Begin a window that these nodes may have bytes of.
pub(super) fn begin_window(
    (id, op, views): (FileId, &mut Op, &Views),
    (window, mut links, kept): (Window, HashSet<LinkId>, bool),
    (pull, image): (u64, u64),
    out: &mut Vec<Effect>,
) -> OpWindow {
    let mut coverage = Coverage::new(window.bytes());
    if !kept {
        links.retain(|link| match op.parts.get_mut(link) {
            Some(part) if !part.inline.is_empty() => {
                let (runs, data) = inside(part, *link, views, &window);
                runs.iter().for_each(|(position, bytes)| coverage.add(*position, *bytes));
                out.push(Effect::Fill { image, runs, data });
                false
            }
            _ => true,
        });
    }
    for link in &links {
        out.push(if *link == OWN {
            Effect::PullOwn { file: id, op: op.number, pull, window, image }
        } else {
            Effect::ToNode(*link, Peer::Pull { file: id, op: op.number, pull, window })
        });
    }
    let (waiting, wanted, phase) = (links, HashMap::new(), Phase::Pulling);
    let receiving = HashSet::new();
    OpWindow { pull, window, kept, image, waiting, receiving, coverage, wanted, phase }
}

/// What an announcement has of a window: positions in the image with bytes, and the bytes.
fn inside(
    part: &mut Part,
    link: LinkId,
    views: &Views,
    window: &Window,
) -> (Vec<(u64, u64)>, Vec<u8>) {
    let (mut runs, mut data, mut begin, mut next) = (Vec::new(), Vec::new(), 0, u64::MAX);
    for range in part.views.iter().flatten() {
        let all = range.data_offset..range.data_offset.saturating_add(range.bytes);
        if let Some(view) = views.get(&(link, range.view)) {
            for (offset, bytes) in window.ranges(0, window.bytes()) {
                let found = view.within(&all, &(offset..offset + bytes));
                if found.start >= found.end {
                    continue;
                }
                let at = begin + (found.start - all.start);
                data.extend_from_slice(slice(&part.inline, at, found.end - found.start));
                let extents = view.extents(found);
                runs.extend(extents.map(|of| (window.position(of.offset), of.length)));
            }
            next = next.min(view.next(&all, window.hi).unwrap_or(u64::MAX));
        }
        begin += range.bytes;
    }
    part.reach = part.reach.max(next.max(window.hi));
    (runs, data)
}

fn slice(from: &[u8], at: u64, bytes: u64) -> &[u8] {
    let begin = usize::try_from(at).unwrap_or(usize::MAX);
    let end = usize::try_from(at.saturating_add(bytes)).unwrap_or(usize::MAX);
    from.get(begin..end).unwrap_or_default()
}
