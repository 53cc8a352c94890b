//! Boxes of an array: intersection, coverage, and copying what two of them share.
//!
//! Arrives: boxes, buffers that hold their cells in C order (the last dimension is contiguous).
//! Leaves: boxes, copied bytes. Must not know: variables, versions, where buffers are.

use std::fmt;

/// Most dimensions of an array: NumPy 1.x has 32, MPI subarrays are rarely above 7 (Fortran's bound before 2008).
pub const DIMENSIONS_MOST: usize = 16;

/// A box of cells: `starts[d] .. starts[d] + counts[d]` in each dimension `d`.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Region {
    starts: Vec<u64>,
    counts: Vec<u64>,
}

impl Region {
    /// A box; None where the numbers of dimensions differ, exceed [`DIMENSIONS_MOST`], or an end or the number of
    /// cells overflows. An array of no dimension has one cell.
    #[must_use]
    pub fn new(starts: &[u64], counts: &[u64]) -> Option<Self> {
        if starts.len() != counts.len() || starts.len() > DIMENSIONS_MOST {
            return None;
        }
        for (start, count) in starts.iter().zip(counts) {
            start.checked_add(*count)?;
        }
        let region = Self { starts: starts.to_vec(), counts: counts.to_vec() };
        product(counts).map(|_| region)
    }

    /// The box of a whole array.
    #[must_use]
    pub fn whole(shape: &[u64]) -> Option<Self> {
        Self::new(&vec![0; shape.len()], shape)
    }

    /// First cell in each dimension.
    #[must_use]
    pub fn starts(&self) -> &[u64] {
        &self.starts
    }

    /// Cells in each dimension.
    #[must_use]
    pub fn counts(&self) -> &[u64] {
        &self.counts
    }

    /// Number of dimensions.
    #[must_use]
    pub fn dimensions(&self) -> usize {
        self.starts.len()
    }

    /// Number of cells.
    #[must_use]
    pub fn cells(&self) -> u64 {
        // `new` checked it.
        product(&self.counts).unwrap_or(u64::MAX)
    }

    /// Whether all its cells are of an array of `shape`.
    #[must_use]
    pub fn within(&self, shape: &[u64]) -> bool {
        shape.len() == self.dimensions()
            && (0..shape.len()).all(|d| self.starts[d] + self.counts[d] <= shape[d])
    }

    /// The cells of both boxes; None where there are none, or the numbers of dimensions differ.
    #[must_use]
    pub fn intersection(&self, other: &Self) -> Option<Self> {
        if self.dimensions() != other.dimensions() {
            return None;
        }
        let mut starts = Vec::with_capacity(self.dimensions());
        let mut counts = Vec::with_capacity(self.dimensions());
        for d in 0..self.dimensions() {
            let start = self.starts[d].max(other.starts[d]);
            let end = (self.starts[d] + self.counts[d]).min(other.starts[d] + other.counts[d]);
            if end <= start {
                return None;
            }
            starts.push(start);
            counts.push(end - start);
        }
        Some(Self { starts, counts })
    }

    /// The cells of this box that are in none of `pieces`, as disjoint boxes.
    #[must_use]
    pub fn without<'a>(&self, pieces: impl IntoIterator<Item = &'a Self>) -> Vec<Self> {
        let mut left = if self.cells() == 0 { Vec::new() } else { vec![self.clone()] };
        for piece in pieces {
            if left.is_empty() {
                break;
            }
            left = left.into_iter().flat_map(|part| part.minus(piece)).collect();
        }
        left
    }

    /// This box without the cells of `other`: at most two boxes a dimension.
    fn minus(self, other: &Self) -> Vec<Self> {
        let Some(shared) = self.intersection(other) else { return vec![self] };
        let mut parts = Vec::new();
        let mut rest = self;
        for d in 0..rest.dimensions() {
            let (start, end) = (rest.starts[d], rest.starts[d] + rest.counts[d]);
            let (inner, inner_end) = (shared.starts[d], shared.starts[d] + shared.counts[d]);
            for (from, to) in [(start, inner), (inner_end, end)] {
                if from < to {
                    let mut part = rest.clone();
                    part.starts[d] = from;
                    part.counts[d] = to - from;
                    parts.push(part);
                }
            }
            rest.starts[d] = inner;
            rest.counts[d] = inner_end - inner;
        }
        parts
    }

    /// Calls `each(offset in self, offset in other, length)` for every run of cells that is contiguous in both boxes,
    /// where each holds its cells in C order; offsets and lengths in cells. `cut` is within both.
    pub fn shared_runs(&self, other: &Self, cut: &Self, mut each: impl FnMut(u64, u64, u64)) {
        let dimensions = self.dimensions();
        if cut.cells() == 0 || [other.dimensions(), cut.dimensions()] != [dimensions; 2] {
            return;
        }
        // Trailing dimensions that the cut has in full, of both boxes, are one run with the dimension before them.
        let mut run = 1;
        let mut outer = dimensions;
        while outer > 0 {
            outer -= 1;
            run *= cut.counts[outer];
            if cut.counts[outer] != self.counts[outer] || cut.counts[outer] != other.counts[outer] {
                break;
            }
        }
        let (own, others) = (strides(&self.counts), strides(&other.counts));
        let mut at = cut.starts.clone();
        loop {
            let (mut from, mut to) = (0, 0);
            for d in 0..dimensions {
                from += (at[d] - self.starts[d]) * own[d];
                to += (at[d] - other.starts[d]) * others[d];
            }
            each(from, to, run);
            let mut d = outer;
            loop {
                if d == 0 {
                    return;
                }
                d -= 1;
                at[d] += 1;
                if at[d] < cut.starts[d] + cut.counts[d] {
                    break;
                }
                at[d] = cut.starts[d];
            }
        }
    }
}

impl fmt::Display for Region {
    /// As NumPy's slices: `[0:4, 8:16]`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("[")?;
        for d in 0..self.dimensions() {
            let comma = if d == 0 { "" } else { ", " };
            write!(f, "{comma}{}:{}", self.starts[d], self.starts[d] + self.counts[d])?;
        }
        f.write_str("]")
    }
}

fn product(counts: &[u64]) -> Option<u64> {
    if counts.contains(&0) {
        return Some(0);
    }
    counts.iter().try_fold(1_u64, |all, count| all.checked_mul(*count))
}

/// Cells between neighbours in each dimension, in C order.
fn strides(counts: &[u64]) -> Vec<u64> {
    let mut strides = vec![1_u64; counts.len()];
    for d in (1..counts.len()).rev() {
        strides[d - 1] = strides[d].saturating_mul(counts[d]);
    }
    strides
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn region(dimensions: usize) -> impl Strategy<Value = Region> {
        proptest::collection::vec((0_u64..5, 0_u64..5), dimensions).prop_map(|sides| {
            let (starts, counts): (Vec<_>, Vec<_>) = sides.into_iter().unzip();
            Region::new(&starts, &counts).unwrap()
        })
    }

    /// Every cell, as its indices, in C order.
    fn cells(region: &Region) -> Vec<Vec<u64>> {
        let mut all = vec![Vec::new()];
        for d in 0..region.dimensions() {
            let (start, end) = (region.starts[d], region.starts[d] + region.counts[d]);
            all = all
                .into_iter()
                .flat_map(|cell| {
                    (start..end).map(move |i| cell.iter().copied().chain([i]).collect())
                })
                .collect();
        }
        all
    }

    proptest! {
        #[test]
        fn what_two_boxes_share_is_copied_cell_by_cell(
            (a, b) in (0_usize..4).prop_flat_map(|d| (region(d), region(d)))
        ) {
            let (own, others) = (cells(&a), cells(&b));
            let both: Vec<_> = own.iter().filter(|cell| others.contains(cell)).cloned().collect();
            let Some(cut) = a.intersection(&b) else { prop_assert!(both.is_empty()); return Ok(()) };
            prop_assert_eq!(&cells(&cut), &both);
            let mut copied = Vec::new();
            a.shared_runs(&b, &cut, |from, to, run| {
                for i in 0..run {
                    let cell = &own[usize::try_from(from + i).unwrap()];
                    assert_eq!(cell, &others[usize::try_from(to + i).unwrap()]);
                    copied.push(cell.clone());
                }
            });
            prop_assert_eq!(copied, both);
        }

        #[test]
        fn what_pieces_leave_uncovered_is_found_cell_by_cell(
            (all, pieces) in (1_usize..4)
                .prop_flat_map(|d| (region(d), proptest::collection::vec(region(d), 0..5)))
        ) {
            let left = all.without(&pieces);
            let mut found: Vec<_> = left.iter().flat_map(cells).collect();
            found.sort();
            let covered: Vec<_> = pieces.iter().flat_map(cells).collect();
            let expected: Vec<_> =
                cells(&all).into_iter().filter(|cell| !covered.contains(cell)).collect();
            prop_assert_eq!(found, expected);
        }
    }

    #[test]
    fn full_trailing_dimensions_are_one_run() {
        let (a, b) = (Region::whole(&[4, 3, 5]), Region::new(&[1, 0, 0], &[2, 3, 5]));
        let (a, b) = (a.unwrap(), b.unwrap());
        let mut runs = Vec::new();
        a.shared_runs(&b, &b, |from, to, run| runs.push((from, to, run)));
        assert_eq!(runs, [(15, 0, 30)]);
    }

    #[test]
    fn a_box_that_overflows_is_none() {
        assert!(Region::new(&[u64::MAX], &[1]).is_none());
        assert!(Region::new(&[0, 0], &[u64::MAX, 2]).is_none());
        assert!(Region::new(&[0], &[1, 1]).is_none());
    }
}
