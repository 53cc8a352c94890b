//! MPI datatypes as nested loops over bytes.
//!
//! Arrives: the arguments of MPI's constructors, displacements and strides in bytes.
//! Leaves: size, bounds, and the runs of contiguous bytes, lazily.
//!
//! A datatype is immutable and cheap to clone. A regular one has a few hundred bytes for any number of runs; an
//! irregular one (hindexed) has 16 bytes for each entry that differs from a loop.

mod array;
mod bounds;
mod codec;
mod cursor;
mod shape;
#[cfg(test)]
pub(crate) mod tests;

use std::ops::Range;

pub use array::{Distribution, Order};
pub use cursor::{Run, Runs};
pub use shape::MAX_DEPTH;

use crate::error::DatatypeError;
use bounds::{Bounds, Marks};
use shape::{Item, Placed, Shape};

/// A datatype: where bytes lie, in order, and how far apart repetitions are.
#[derive(Debug, Clone)]
pub struct Datatype {
    placed: Placed,
    bounds: Bounds,
}

/// Equal where bytes, order and bounds are.
impl PartialEq for Datatype {
    fn eq(&self, other: &Self) -> bool {
        self.bounds == other.bounds
            && (self.size() == 0 || self.placed.at == other.placed.at)
            && shape::same(&self.placed.shape, &other.placed.shape)
    }
}

impl Eq for Datatype {}

impl Datatype {
    /// `count` contiguous bytes: a basic type, or a dense one.
    pub fn bytes(count: i64) -> Result<Self, DatatypeError> {
        let length = not_negative("the number of bytes", count)?;
        let placed = Placed { at: 0, shape: Shape::run(length)? };
        Ok(Self { placed, bounds: Bounds::natural(0, count) })
    }

    /// MPI_Type_contiguous.
    pub fn contiguous(count: i64, of: &Self) -> Result<Self, DatatypeError> {
        Self::hvector(1, count, 0, of)
    }

    /// MPI_Type_create_hvector: `count` blocks of `block` elements, `stride` bytes apart.
    pub fn hvector(count: i64, block: i64, stride: i64, of: &Self) -> Result<Self, DatatypeError> {
        let blocks = not_negative("the count", count)?;
        let length = not_negative("the block length", block)?;
        let inner = Shape::repeat(length, of.extent(), &of.placed.shape)?;
        let shape = Shape::repeat(blocks, stride, &inner)?;
        let mut bounds = Bounds::none();
        if count > 0 && block > 0 {
            let last = (count - 1).checked_mul(stride).ok_or(DatatypeError::Overflow)?;
            bounds.add_blocks(0, block, of.bounds)?;
            bounds.add_blocks(last, block, of.bounds)?;
        }
        Self::checked(Placed { at: of.placed.at, shape }, bounds)
    }

    /// MPI_Type_create_hindexed: `blocks[i]` elements at `displacements[i]` bytes.
    pub fn hindexed(
        blocks: &[i64],
        displacements: &[i64],
        of: &Self,
    ) -> Result<Self, DatatypeError> {
        same_length("displacements", displacements.len(), blocks.len())?;
        let pairs = blocks.iter().copied().zip(displacements.iter().copied());
        Self::blocks(pairs, of)
    }

    /// MPI_Type_create_hindexed_block: `block` elements at each displacement.
    pub fn hindexed_block(
        block: i64,
        displacements: &[i64],
        of: &Self,
    ) -> Result<Self, DatatypeError> {
        Self::blocks(displacements.iter().map(|&displacement| (block, displacement)), of)
    }

    /// MPI_Type_create_struct. Bounds are not rounded up to an alignment, of which bytes know nothing: a caller whose
    /// MPI library does so sets its bounds with [`Self::resized`].
    pub fn structure(
        blocks: &[i64],
        displacements: &[i64],
        of: &[&Self],
    ) -> Result<Self, DatatypeError> {
        same_length("displacements", displacements.len(), blocks.len())?;
        same_length("types", of.len(), blocks.len())?;
        let mut bounds = Bounds::none();
        let mut items = Vec::with_capacity(blocks.len());
        for ((&block, &at), of) in blocks.iter().zip(displacements).zip(of) {
            let length = not_negative("a block length", block)?;
            bounds.add_blocks(at, block, of.bounds)?;
            items.push(of.block_at(length, at)?);
        }
        Self::checked(Shape::sequence(items)?, bounds)
    }

    /// MPI_Type_create_resized.
    pub fn resized(lower: i64, extent: i64, of: &Self) -> Result<Self, DatatypeError> {
        let upper = lower.checked_add(extent).ok_or(DatatypeError::Overflow)?;
        let bounds = Bounds { lower, upper, marks: Marks { lower: true, upper: true, any: true } };
        Ok(Self { placed: of.placed.clone(), bounds })
    }

    /// Bytes of data.
    #[must_use]
    pub fn size(&self) -> u64 {
        self.placed.shape.size
    }

    /// The lower bound.
    #[must_use]
    pub fn lower(&self) -> i64 {
        self.bounds.lower
    }

    /// Bytes between repetitions.
    #[must_use]
    pub fn extent(&self) -> i64 {
        self.bounds.upper - self.bounds.lower
    }

    /// From the first to past the last byte of data, counted from the origin; empty where there are none.
    #[must_use]
    pub fn true_bounds(&self) -> Range<i64> {
        let Placed { at, shape } = &self.placed;
        if shape.size == 0 {
            return 0..0;
        }
        at + shape.low..at + shape.high
    }

    /// Number of runs of contiguous bytes, at most: runs of different inner types may touch. Saturates.
    #[must_use]
    pub fn run_count(&self) -> u64 {
        self.placed.shape.runs
    }

    /// Whether positions increase with the data and no byte occurs twice, as a filetype must be.
    #[must_use]
    pub fn is_monotone(&self) -> bool {
        self.placed.shape.monotone
    }

    /// Whether it is one run without gaps between repetitions.
    #[must_use]
    pub fn is_dense(&self) -> bool {
        self.run_count() <= 1 && i64::try_from(self.size()) == Ok(self.extent())
    }

    /// The runs of the bytes of data in `data`, cut to those that exist.
    #[must_use]
    pub fn runs(&self, data: Range<u64>) -> Runs<'_> {
        Runs::new(self.placed.at, &self.placed.shape, data)
    }

    /// Bytes of memory that describe it.
    #[must_use]
    pub fn footprint(&self) -> usize {
        shape::footprint(&self.placed.shape) + size_of::<Self>()
    }

    /// Position of the byte of data at `offset`, counted from the origin. None past the last.
    #[must_use]
    pub fn position(&self, offset: u64) -> Option<i64> {
        (offset < self.size()).then(|| self.placed.at + self.placed.shape.position(offset))
    }

    /// Bytes of data before `position`. Only for monotone types.
    pub(crate) fn below(&self, position: i64) -> u64 {
        self.placed.shape.below(position.saturating_sub(self.placed.at))
    }

    fn blocks(pairs: impl Iterator<Item = (i64, i64)>, of: &Self) -> Result<Self, DatatypeError> {
        let mut bounds = Bounds::none();
        let items = pairs.map(|(block, at)| {
            let length = not_negative("a block length", block)?;
            bounds.add_blocks(at, block, of.bounds)?;
            of.block_at(length, at)
        });
        let items = items.collect::<Result<Vec<_>, _>>()?;
        Self::checked(Shape::sequence(items)?, bounds)
    }

    /// `length` elements of this type, whose origin is at `at`.
    fn block_at(&self, length: u64, at: i64) -> Result<Item, DatatypeError> {
        let at = at.checked_add(self.placed.at).ok_or(DatatypeError::Overflow)?;
        if self.is_dense() {
            let length = length.checked_mul(self.size()).ok_or(DatatypeError::Overflow)?;
            return Ok(Item::Run { at, length });
        }
        let shape = Shape::repeat(length, self.extent(), &self.placed.shape)?;
        Ok(Item::Shape(Placed { at, shape }))
    }

    /// With all positions within 63 bits, so that no later computation overflows.
    fn checked(placed: Placed, bounds: Bounds) -> Result<Self, DatatypeError> {
        let Placed { at, shape } = &placed;
        at.checked_add(shape.low).and(at.checked_add(shape.high)).ok_or(DatatypeError::Overflow)?;
        bounds.upper.checked_sub(bounds.lower).ok_or(DatatypeError::Overflow)?;
        Ok(Self { placed, bounds })
    }
}

fn not_negative(what: &'static str, value: i64) -> Result<u64, DatatypeError> {
    u64::try_from(value).map_err(|_| DatatypeError::Negative { what, value })
}

fn same_length(what: &'static str, found: usize, expected: usize) -> Result<(), DatatypeError> {
    if found == expected {
        return Ok(());
    }
    Err(DatatypeError::Lengths { what, found, expected })
}
