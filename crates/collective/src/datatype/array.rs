//! Subarrays and distributed arrays (MPI 4.0, sections 5.1.3 and 5.1.4).

use super::bounds::{Bounds, Marks};
use super::shape::{Item, Placed, Shape};
use super::{same_length, Datatype};
use crate::error::DatatypeError;

/// Which dimension of an array is contiguous.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Order {
    /// The last: MPI_ORDER_C.
    C,
    /// The first: MPI_ORDER_FORTRAN.
    Fortran,
}

/// How a dimension is dealt to processes; None as the argument is MPI_DISTRIBUTE_DFLT_DARG.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Distribution {
    /// One block for each process.
    Block(Option<i64>),
    /// Blocks in turn.
    Cyclic(Option<i64>),
    /// Not distributed.
    None,
}

impl Datatype {
    /// MPI_Type_create_subarray.
    pub fn subarray(
        sizes: &[i64],
        subsizes: &[i64],
        starts: &[i64],
        order: Order,
        of: &Self,
    ) -> Result<Self, DatatypeError> {
        same_length("sizes of the subarray", subsizes.len(), sizes.len())?;
        same_length("starts of the subarray", starts.len(), sizes.len())?;
        if sizes.is_empty() {
            return Err(DatatypeError::Argument("a subarray needs at least one dimension".into()));
        }
        let mut array = Array::of(of);
        for dimension in innermost_first(sizes.len(), order) {
            let (size, length, start) = (sizes[dimension], subsizes[dimension], starts[dimension]);
            if size < 1 || length < 1 || length > size || start < 0 || start > size - length {
                let what =
                    format!("{length} elements from {start} are no part of an array of {size}");
                return Err(DatatypeError::Dimension { dimension, what });
            }
            array = array.part(size, start, length, 1, length)?;
        }
        array.datatype()
    }

    /// MPI_Type_create_darray: the part of process `rank` in a grid of `processes`, which is in C order.
    pub fn darray(
        rank: i64,
        sizes: &[i64],
        distributions: &[Distribution],
        processes: &[i64],
        order: Order,
        of: &Self,
    ) -> Result<Self, DatatypeError> {
        same_length("distributions", distributions.len(), sizes.len())?;
        same_length("processes", processes.len(), sizes.len())?;
        if sizes.is_empty() {
            return Err(DatatypeError::Argument(
                "a distributed array needs at least one dimension".into(),
            ));
        }
        let coordinates = coordinates(rank, processes)?;
        let mut array = Array::of(of);
        for dimension in innermost_first(sizes.len(), order) {
            let (size, grid) = (sizes[dimension], processes[dimension]);
            let block = block_length(distributions[dimension], size, grid)
                .map_err(|what| DatatypeError::Dimension { dimension, what })?;
            array = array.dealt(size, coordinates[dimension], grid, block)?;
        }
        array.datatype()
    }
}

/// An array of some dimensions: bytes of data and how far it reaches.
struct Array {
    placed: Placed,
    extent: i64,
    lower: i64,
}

impl Array {
    fn of(of: &Datatype) -> Self {
        Self { placed: of.placed.clone(), extent: of.extent(), lower: of.lower() }
    }

    /// `count` blocks of `length` elements, the first at `start`, each `length` elements wide, of `size` in all.
    fn part(
        self,
        size: i64,
        start: i64,
        length: i64,
        count: i64,
        stride: i64,
    ) -> Result<Self, DatatypeError> {
        let shape = self.blocks(length, count, stride)?;
        let at = self.position(start)?;
        self.with(size, Placed { at, shape })
    }

    /// Every `grid`-th block of `block` elements, from the one with index `own`; the last may be shorter.
    fn dealt(self, size: i64, own: i64, grid: i64, block: i64) -> Result<Self, DatatypeError> {
        let blocks = size / block + i64::from(size % block > 0);
        let count = (blocks - own + grid - 1).max(0) / grid;
        let start = own.checked_mul(block).ok_or(DatatypeError::Overflow)?;
        let stride = grid.checked_mul(block).ok_or(DatatypeError::Overflow)?;
        if count == 0 {
            return self.with(size, Placed { at: 0, shape: Shape::empty() });
        }
        let last = start + (count - 1) * stride;
        let rest = (size - last).min(block);
        let whole = if rest < block { count - 1 } else { count };
        let mut items = vec![self.item(start, self.blocks(block, whole, stride)?)?];
        if rest < block {
            items.push(self.item(last, self.blocks(rest, 1, stride)?)?);
        }
        let placed = Shape::sequence(items)?;
        self.with(size, placed)
    }

    fn blocks(
        &self,
        length: i64,
        count: i64,
        stride: i64,
    ) -> Result<std::sync::Arc<Shape>, DatatypeError> {
        let inner = Shape::repeat(length.cast_unsigned(), self.extent, &self.placed.shape)?;
        let stride = stride.checked_mul(self.extent).ok_or(DatatypeError::Overflow)?;
        Shape::repeat(count.cast_unsigned(), stride, &inner)
    }

    fn item(&self, index: i64, shape: std::sync::Arc<Shape>) -> Result<Item, DatatypeError> {
        Ok(Item::Shape(Placed { at: self.position(index)?, shape }))
    }

    /// Where the first byte of data of element `index` is.
    fn position(&self, index: i64) -> Result<i64, DatatypeError> {
        let begin = index.checked_mul(self.extent).ok_or(DatatypeError::Overflow)?;
        self.placed.at.checked_add(begin).ok_or(DatatypeError::Overflow)
    }

    fn with(&self, size: i64, placed: Placed) -> Result<Self, DatatypeError> {
        let extent = size.checked_mul(self.extent).ok_or(DatatypeError::Overflow)?;
        Ok(Self { placed, extent, lower: self.lower })
    }

    /// Both bounds are marked, as in the standard's equivalent struct with MPI_LB and MPI_UB.
    fn datatype(self) -> Result<Datatype, DatatypeError> {
        let marks = Marks { lower: true, upper: true, any: true };
        Datatype::checked(self.placed, Bounds { lower: 0, upper: self.extent, marks })
    }
}

fn innermost_first(dimensions: usize, order: Order) -> Vec<usize> {
    match order {
        Order::C => (0..dimensions).rev().collect(),
        Order::Fortran => (0..dimensions).collect(),
    }
}

/// The place of `rank` in the grid: row-major, for both orders of the array (MPI 4.0, section 5.1.4).
fn coordinates(rank: i64, processes: &[i64]) -> Result<Vec<i64>, DatatypeError> {
    let mut total = 1i64;
    for (dimension, &count) in processes.iter().enumerate() {
        if count < 1 {
            let what = format!("{count} processes; a dimension needs at least one");
            return Err(DatatypeError::Dimension { dimension, what });
        }
        total = total.checked_mul(count).ok_or(DatatypeError::Overflow)?;
    }
    if rank < 0 || rank >= total {
        return Err(DatatypeError::Argument(format!(
            "rank {rank} is not in a grid of {total} processes"
        )));
    }
    let mut left = rank;
    let mut own = vec![0; processes.len()];
    for (dimension, &count) in processes.iter().enumerate().rev() {
        own[dimension] = left % count;
        left /= count;
    }
    Ok(own)
}

fn block_length(distribution: Distribution, size: i64, grid: i64) -> Result<i64, String> {
    if size < 1 {
        return Err(format!("an array of {size} elements"));
    }
    match distribution {
        Distribution::None if grid != 1 => Err(format!("not distributed, but {grid} processes")),
        Distribution::None => Ok(size),
        Distribution::Block(None) => Ok(size / grid + i64::from(size % grid > 0)),
        Distribution::Block(Some(block))
            if block < 1 || block.checked_mul(grid).is_some_and(|all| all < size) =>
        {
            Err(format!("{grid} blocks of {block} elements do not hold an array of {size}"))
        }
        Distribution::Cyclic(None) => Ok(1),
        Distribution::Cyclic(Some(block)) if block < 1 => {
            Err(format!("cyclic blocks of {block} elements"))
        }
        Distribution::Block(Some(block)) | Distribution::Cyclic(Some(block)) => Ok(block),
    }
}
