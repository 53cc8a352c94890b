//! The bytes of a file on each target: objects in round robin, from two numbers of each.

/// Bytes of a file that one target holds, and that follow one another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Extent {
    /// The target, by its index in [`Files::targets`].
    pub target: u16,
    /// Where they begin in the file.
    pub offset: u64,
    /// How many.
    pub length: u64,
}

/// Bytes of a file on one target, as one of `count` objects that take turns, `unit` bytes each time.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Object {
    pub(crate) offset: u64,
    pub(crate) length: u64,
    pub(crate) unit: u64,
    pub(crate) count: usize,
}

impl Object {
    /// Its extents on a target, cut to at most `most` bytes each.
    pub(super) fn extents(&self, target: u16, most: u64) -> Extents {
        let Self { offset, length, unit, count } = *self;
        Extents {
            target,
            offset,
            left: length,
            unit,
            skip: unit.saturating_mul(count as u64 - 1),
            within: 0,
            most: most.max(1),
            empty: offset == 0 && length == 0,
        }
    }

    /// Its runs between `start` and `end`, as first byte and end.
    pub(crate) fn runs(self, start: u64, end: u64) -> impl Iterator<Item = (u64, u64)> {
        let Self { offset, length, unit, count } = self;
        let unit = unit.max(1);
        let round = unit.saturating_mul(count as u64);
        let first = start.saturating_sub(offset) / round;
        (first..length.div_ceil(unit))
            .map_while(move |turn| {
                let from = offset.saturating_add(turn.saturating_mul(round));
                let to = from.saturating_add(unit.min(length - turn * unit));
                (from < end).then_some((from.max(start), to.min(end)))
            })
            .filter(|(from, to)| from < to)
    }
}

/// Objects that take turns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Group {
    pub(crate) first: usize,
    pub(crate) count: usize,
    pub(crate) unit: u64,
}

/// How the objects of a file of `size` bytes take turns, from the first byte and the length of each; None where they
/// do not cover the file.
///
/// A catalog keeps two numbers of an object, and they suffice: the objects of a group are those whose lengths add up
/// to where the next one begins. A smaller number of them never does, because the first holds more than one run
/// wherever a second round has begun.
pub(crate) fn groups(offsets: &[i64], lengths: &[i64], size: u64) -> Option<Vec<Group>> {
    let mut found = Vec::new();
    let mut first = 0;
    let mut start = 0;
    while first < offsets.len() {
        if offsets[first].unsigned_abs() != start {
            return None;
        }
        let mut total = 0_u64;
        let mut count = 0;
        loop {
            total = total.checked_add(lengths.get(first + count)?.unsigned_abs())?;
            count += 1;
            let next = offsets.get(first + count).map_or(size, |offset| offset.unsigned_abs());
            if start.checked_add(total)? == next {
                break;
            }
        }
        let at = |i: usize| offsets[first + i].unsigned_abs();
        let unit = if count == 1 { total } else { at(1).checked_sub(start)? };
        let even = |i: usize| unit.checked_mul(i as u64).map(|past| start + past) == Some(at(i));
        if count > 1 && (unit == 0 || !(0..count).all(even)) {
            return None;
        }
        found.push(Group { first, count, unit });
        start += total;
        first += count;
    }
    (start == size && !found.is_empty()).then_some(found)
}

/// The extents of one object, first to last. That of an empty file has one, of no bytes.
#[derive(Clone, Copy, Debug)]
pub struct Extents {
    target: u16,
    offset: u64,
    left: u64,
    unit: u64,
    skip: u64,
    /// Bytes of the present run that have been given.
    within: u64,
    most: u64,
    /// Whether the one extent of an empty file is still to be given.
    empty: bool,
}

impl Extents {
    /// How many there are, at the start; counted without going through them.
    #[must_use]
    pub fn total(&self) -> u64 {
        if self.left == 0 {
            return u64::from(self.empty);
        }
        self.left / self.unit * self.unit.div_ceil(self.most)
            + (self.left % self.unit).div_ceil(self.most)
    }
}

impl Iterator for Extents {
    type Item = Extent;

    fn next(&mut self) -> Option<Extent> {
        if self.left == 0 {
            let extent = Extent { target: self.target, offset: self.offset, length: 0 };
            return std::mem::take(&mut self.empty).then_some(extent);
        }
        let length = self.left.min(self.unit - self.within).min(self.most);
        let extent = Extent { target: self.target, offset: self.offset, length };
        self.left -= length;
        self.within += length;
        self.offset += length;
        if self.within == self.unit {
            self.within = 0;
            self.offset += self.skip;
        }
        Some(extent)
    }
}
