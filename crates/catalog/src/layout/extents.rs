//! The extents of a file, in order, computed one at a time.

use super::{Component, Flags, Layout, Target};

/// Which copies to go through.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mirrors {
    /// Every copy, one after the other.
    All,
    /// One copy, by its number.
    One(u32),
    /// At each place the copy to read: a current one before a stale, one with data before one that
    /// is archived or elsewhere, a preferred one before others. Each byte of the file comes once.
    Best,
}

/// Bytes that follow one another in the file and in an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Extent<'a> {
    /// Their target; None where `flags` say why there is none.
    pub target: Option<&'a Target>,
    /// The number of the object in its component.
    pub object: u64,
    /// The index of the component; None where no component covers these bytes.
    pub component: Option<usize>,
    /// The copy they belong to.
    pub mirror: u32,
    /// Where they start in the file.
    pub file_offset: u64,
    /// Where they start in the object.
    pub object_offset: u64,
    /// How many they are, at least one.
    pub length: u64,
    /// What is the matter with them.
    pub flags: Flags,
}

/// A range that one component covers, or none.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Segment {
    pub start: u64,
    pub end: u64,
    pub mirror: u32,
    pub component: Option<usize>,
}

/// Iterator over the extents of a file: see [`Layout::extents`].
#[derive(Clone, Debug)]
pub struct Extents<'a> {
    components: &'a [Component],
    segments: std::vec::IntoIter<Segment>,
    segment: Segment,
}

impl<'a> Extents<'a> {
    pub(crate) fn new(layout: &'a Layout, size: u64, mirrors: Mirrors) -> Self {
        let done = Segment { start: 0, end: 0, mirror: 0, component: None };
        Self {
            components: layout.components(),
            segments: segments(layout, size, mirrors).into_iter(),
            segment: done,
        }
    }

    /// How many are left, without going through them.
    #[must_use]
    pub fn left(&self) -> u64 {
        let rest = self.segments.as_slice().iter().chain([&self.segment]);
        rest.fold(0, |sum, segment| {
            let Segment { start, end, .. } = *segment;
            sum.saturating_add(match segment.component.map(|index| &self.components[index]) {
                Some(component) if component.has_objects() => {
                    component.striping.extents_between(start, end)
                }
                _ => u64::from(start < end),
            })
        })
    }
}

impl Layout {
    /// The extents of a file of `size` bytes: they cover each byte once in every mirror asked for,
    /// in the order of the file. Computed as they are taken.
    #[must_use]
    pub fn extents(&self, size: u64, mirrors: Mirrors) -> Extents<'_> {
        Extents::new(self, size, mirrors)
    }
}

impl<'a> Iterator for Extents<'a> {
    type Item = Extent<'a>;

    fn next(&mut self) -> Option<Extent<'a>> {
        while self.segment.start >= self.segment.end {
            self.segment = self.segments.next()?;
        }
        let Segment { start, end, mirror, component: index } = self.segment;
        let mut extent = Extent {
            target: None,
            object: 0,
            component: index,
            mirror,
            file_offset: start,
            object_offset: start,
            length: end - start,
            flags: Flags::UNWRITTEN,
        };
        if let Some(component) = index.map(|index| &self.components[index]) {
            extent.flags = component.flags;
            if component.has_objects() {
                let place = component.striping.place(start);
                extent.length = place.run.min(end - start);
                extent.object = place.object;
                extent.object_offset = place.offset;
                (extent.target, extent.flags) = component.target_of(place.object);
            }
        }
        self.segment.start += extent.length;
        Some(extent)
    }
}

impl Component {
    /// The target of object `number`, and what is to be said of its bytes.
    pub(crate) fn target_of(&self, number: u64) -> (Option<&Target>, Flags) {
        let listed = usize::try_from(number).ok().and_then(|number| self.objects.get(number));
        match (listed, &self.rest) {
            (Some(object), _) => (object.target.as_ref(), self.flags | object.flags),
            (None, Some(target)) => (Some(target), self.flags),
            (None, None) => (None, self.flags | Flags::UNLOCATED),
        }
    }

    /// The lower, the sooner to be read.
    fn rank(&self) -> (bool, bool, bool, bool, bool, u32) {
        let elsewhere = Flags::FOREIGN | Flags::EXTENSION | Flags::LOST;
        (
            self.flags.contains(Flags::STALE),
            self.flags.intersects(elsewhere),
            self.flags.contains(Flags::RELEASED),
            self.flags.contains(Flags::OFFLINE),
            !self.flags.contains(Flags::PREFERRED),
            self.mirror,
        )
    }
}

/// The ranges of a file of `size` bytes, each covered by one component. At most two for every
/// component and one for every mirror.
pub(crate) fn segments(layout: &Layout, size: u64, mirrors: Mirrors) -> Vec<Segment> {
    let mut found = Vec::new();
    let by_mirror = layout.components().chunk_by(|a, b| a.mirror == b.mirror);
    let mut first = 0;
    let mut ways = Vec::new();
    for components in by_mirror {
        ways.push((first, components));
        first += components.len();
    }
    match mirrors {
        Mirrors::Best => best(layout.components(), &ways, size, &mut found),
        Mirrors::All => ways.iter().for_each(|way| one(*way, size, &mut found)),
        Mirrors::One(number) => {
            let way = ways.iter().find(|(_, components)| components[0].mirror == number);
            way.into_iter().for_each(|way| one(*way, size, &mut found));
        }
    }
    found
}

/// The ranges of one mirror, gaps among them.
fn one((first, components): (usize, &[Component]), size: u64, found: &mut Vec<Segment>) {
    let mirror = components[0].mirror;
    let mut at = 0;
    for (index, component) in components.iter().enumerate() {
        let (start, end) = (component.start.min(size), component.end.min(size));
        if at < start {
            found.push(Segment { start: at, end: start, mirror, component: None });
        }
        if start < end {
            found.push(Segment { start, end, mirror, component: Some(first + index) });
        }
        at = at.max(end);
    }
    if at < size {
        found.push(Segment { start: at, end: size, mirror, component: None });
    }
}

/// The ranges between any two borders of any mirror, with the best component of each.
fn best(all: &[Component], ways: &[(usize, &[Component])], size: u64, found: &mut Vec<Segment>) {
    let mut borders: Vec<u64> =
        all.iter().flat_map(|c| [c.start.min(size), c.end.min(size)]).collect();
    borders.extend([0, size]);
    borders.sort_unstable();
    borders.dedup();
    // How far each mirror has been gone through: borders ascend, so none is looked at twice.
    let mut reached = vec![0; ways.len()];
    for border in borders.windows(2) {
        let (start, end) = (border[0], border[1]);
        let mut chosen: Option<usize> = None;
        for ((first, components), reached) in ways.iter().zip(&mut reached) {
            while components.get(*reached).is_some_and(|c| c.end <= start) {
                *reached += 1;
            }
            let here = components.get(*reached).filter(|c| c.start <= start);
            if here.is_some_and(|c| chosen.is_none_or(|other| c.rank() < all[other].rank())) {
                chosen = Some(first + *reached);
            }
        }
        let mirror = chosen.map_or(0, |index| all[index].mirror);
        match found.last_mut() {
            Some(last) if last.component == chosen => last.end = end,
            _ => found.push(Segment { start, end, mirror, component: chosen }),
        }
    }
}
