//! Units in order, cut into items: made as they are wanted, so that an epoch of
//! millions of files costs nothing before it is read.

use crate::files::{Extent, Extents, Files};
use crate::plan::Delivery;
use crate::progress::Progress;

/// What is delivered at once: a whole file, or a piece of an object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Item {
    /// The position of its unit in the epoch.
    pub position: u32,
    /// Which part of the unit it is.
    pub part: u32,
    /// How many the unit has.
    pub parts: u32,
    /// The file.
    pub file: u32,
    /// What is to be read first. Most items are this alone, which then takes no memory elsewhere.
    first: Extent,
    others: Vec<Extent>,
}

impl Item {
    /// How many bytes it has, as far as is known before reading.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.extents().map(|extent| extent.length).sum()
    }

    /// What is to be read, each from one target.
    pub fn extents(&self) -> impl Iterator<Item = Extent> + '_ {
        std::iter::once(self.first).chain(self.others.iter().copied())
    }

    /// The extent of this number.
    #[must_use]
    pub fn extent(&self, number: usize) -> Extent {
        number.checked_sub(1).map_or(self.first, |at| self.others[at])
    }

    /// How many extents it has, at least one.
    #[must_use]
    pub fn count(&self) -> usize {
        1 + self.others.len()
    }
}

/// An object in progress.
#[derive(Clone, Copy, Debug)]
struct Inside {
    position: u32,
    file: u32,
    extents: Extents,
    part: u32,
    parts: u32,
}

/// The items of some units, in the order of their positions.
#[derive(Debug)]
pub(crate) struct Stream {
    positions: Vec<u32>,
    next: usize,
    inside: Option<Inside>,
    ready: Option<Item>,
}

/// What a stream is of: constant while it runs.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Source<'a> {
    pub(crate) files: &'a Files,
    pub(crate) units: &'a [u32],
    pub(crate) delivery: Delivery,
    pub(crate) piece_bytes: u64,
    pub(crate) delivered: &'a Progress,
}

impl Stream {
    pub(crate) fn new(positions: Vec<u32>) -> Self {
        Self { positions, next: 0, inside: None, ready: None }
    }

    /// The item whose turn it is.
    pub(crate) fn peek(&mut self, source: Source<'_>) -> Option<&Item> {
        if self.ready.is_none() {
            self.ready = self.make(source);
        }
        self.ready.as_ref()
    }

    /// Take the item that was seen.
    pub(crate) fn take(&mut self) -> Option<Item> {
        self.ready.take()
    }

    fn make(&mut self, source: Source<'_>) -> Option<Item> {
        loop {
            if let Some(inside) = &mut self.inside {
                if let Some(extent) = inside.extents.next() {
                    let Inside { position, file, part, parts, .. } = *inside;
                    inside.part += 1;
                    if source.delivered.has_part(position, part) {
                        continue;
                    }
                    let (first, others) = (extent, Vec::new());
                    return Some(Item { position, part, parts, file, first, others });
                }
                self.inside = None;
            }
            let position = *self.positions.get(self.next)?;
            self.next += 1;
            if source.delivered.has(position) {
                continue;
            }
            let unit = source.units[position as usize];
            match source.delivery {
                Delivery::Files => {
                    // A file beyond all measure is not to be listed piece by piece before anyone sees that it is.
                    let most = source.piece_bytes.max(source.files.size(unit) >> 12);
                    let mut extents = source.files.extents(unit, most);
                    let nothing =
                        || Extent { target: source.files.first_target(unit), offset: 0, length: 0 };
                    let first = extents.next().unwrap_or_else(nothing);
                    let others = extents.collect();
                    return Some(Item { position, part: 0, parts: 1, file: unit, first, others });
                }
                Delivery::Objects => {
                    let extents = source.files.extents_of(unit, source.piece_bytes);
                    let parts = u32::try_from(extents.total()).unwrap_or(u32::MAX);
                    let file = source.files.file_of(unit);
                    self.inside = Some(Inside { position, file, extents, part: 0, parts });
                }
            }
        }
    }
}
