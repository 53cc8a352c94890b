//! The part of a file in each object, in closed form: the cost grows with the objects, not with the stripes.

use super::extents::{segments, Segment};
use super::{Component, Flags, Layout, Mirrors, Striping, Target, EOF};

/// The part of a file in one object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Share<'a> {
    /// Its target; None where `flags` say why there is none.
    pub target: Option<&'a Target>,
    /// The number of the object in its component.
    pub object: u64,
    /// The index of the component; None where no component covers these bytes.
    pub component: Option<usize>,
    /// The copy it belongs to.
    pub mirror: u32,
    /// The first byte of the file in it.
    pub file_offset: u64,
    /// Where that byte is in the object.
    pub object_offset: u64,
    /// Bytes of the file in it. They follow one another in the object; in the file, only where
    /// the striping has one object.
    pub bytes: u64,
    /// What is the matter with them.
    pub flags: Flags,
}

/// Iterator over what objects hold: see [`Layout::shares`].
#[derive(Clone, Debug)]
pub struct Shares<'a> {
    components: &'a [Component],
    segments: std::vec::IntoIter<Segment>,
    turns: Option<Turns>,
}

impl<'a> Shares<'a> {
    pub(crate) fn new(layout: &'a Layout, size: u64, mirrors: Mirrors) -> Self {
        let segments = segments(layout, size, mirrors).into_iter();
        Self { components: layout.components(), segments, turns: None }
    }
}

impl Layout {
    /// What each object holds of a file of `size` bytes; objects that hold nothing of it are left out.
    #[must_use]
    pub fn shares(&self, size: u64, mirrors: Mirrors) -> Shares<'_> {
        Shares::new(self, size, mirrors)
    }
}

impl<'a> Iterator for Shares<'a> {
    type Item = Share<'a>;

    fn next(&mut self) -> Option<Share<'a>> {
        loop {
            if let Some(turns) = &mut self.turns {
                let component = &self.components[turns.component];
                if let Some((object, file_offset, bytes)) = turns.next(&component.striping) {
                    let (target, flags) = component.target_of(object);
                    return Some(Share {
                        target,
                        object,
                        component: Some(turns.component),
                        mirror: component.mirror,
                        file_offset,
                        object_offset: component.striping.place(file_offset).offset,
                        bytes,
                        flags,
                    });
                }
                self.turns = None;
            }
            let Segment { start, end, mirror, component } = self.segments.next()?;
            let whole = component.map(|index| &self.components[index]);
            if let (Some(component), true) = (component, whole.is_some_and(Component::has_objects))
            {
                self.turns = Some(Turns { component, at: start, end, turn: 0 });
                continue;
            }
            return Some(Share {
                target: None,
                object: 0,
                component,
                mirror,
                file_offset: start,
                object_offset: start,
                bytes: end - start,
                flags: whole.map_or(Flags::UNWRITTEN, |component| component.flags),
            });
        }
    }
}

/// The objects of one segment, set after set; within a set by whose turn comes first.
#[derive(Clone, Copy, Debug)]
struct Turns {
    component: usize,
    /// Where the segment, or its part in the current set, begins.
    at: u64,
    end: u64,
    /// How many objects of the current set have been seen.
    turn: u64,
}

impl Turns {
    /// The next object: its number, the first byte of the file in it, and how many there are.
    fn next(&mut self, striping: &Striping) -> Option<(u64, u64, u64)> {
        let Striping { unit, count, object_size } = *striping;
        while self.at < self.end {
            // A set without limit reaches past any file; products are of 128 bits for its sake.
            let limited = object_size != EOF;
            let set_bytes =
                if limited { u128::from(object_size) * u128::from(count) } else { u128::MAX };
            let set = u128::from(self.at) / set_bytes;
            let set_start = if limited { set * set_bytes } else { 0 };
            let from = u128::from(self.at) - set_start;
            let to = (u128::from(self.end) - set_start).min(set_bytes);
            let (unit, count) = (u128::from(unit), u128::from(count));
            let (first, last) = (from / unit, (to - 1) / unit);
            if u128::from(self.turn) < count.min(last - first + 1) {
                let block = first + u128::from(self.turn);
                let place = block % count;
                let bytes = held(unit, count, place, to) - held(unit, count, place, from);
                let start = set_start + from.max(block * unit);
                self.turn += 1;
                return Some((narrow(set * count + place), narrow(start), narrow(bytes)));
            }
            self.at = narrow(set_start + to);
            self.turn = 0;
        }
        None
    }
}

/// Bytes that the object whose turn is `place` holds of the first `length` bytes of a set.
fn held(unit: u128, count: u128, place: u128, length: u128) -> u128 {
    let round = unit * count;
    let rest = (length % round).saturating_sub(place * unit).min(unit);
    length / round * unit + rest
}

/// All results lie below the end of a file, which is of 64 bits.
fn narrow(number: u128) -> u64 {
    u64::try_from(number).unwrap_or(EOF)
}
