//! Lower and upper bounds with MPI's markers (MPI 4.0, section 5.1.6).

use crate::error::DatatypeError;

/// Which bounds were set by MPI_Type_create_resized: inside a struct they outweigh those of the data.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Marks {
    pub(crate) lower: bool,
    pub(crate) upper: bool,
    /// Whether the type map has any entry, data or marker.
    pub(crate) any: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Bounds {
    pub(crate) lower: i64,
    pub(crate) upper: i64,
    pub(crate) marks: Marks,
}

impl Bounds {
    /// Of an empty type map.
    pub(crate) fn none() -> Self {
        Self { lower: 0, upper: 0, marks: Marks { lower: false, upper: false, any: false } }
    }

    /// Of data.
    pub(crate) fn natural(lower: i64, upper: i64) -> Self {
        Self { lower, upper, marks: Marks { lower: false, upper: false, any: upper > lower } }
    }

    /// Takes in `count` elements with the bounds `of`, the first at `at`.
    pub(crate) fn add_blocks(
        &mut self,
        at: i64,
        count: i64,
        of: Self,
    ) -> Result<(), DatatypeError> {
        if count == 0 || !of.marks.any {
            return Ok(());
        }
        let reach = || {
            let last = (count - 1).checked_mul(of.upper.checked_sub(of.lower)?)?;
            let lower = at.checked_add(of.lower)?.checked_add(last.min(0))?;
            let upper = at.checked_add(of.upper)?.checked_add(last.max(0))?;
            Some((lower, upper))
        };
        let (lower, upper) = reach().ok_or(DatatypeError::Overflow)?;
        let first = !self.marks.any;
        take(&mut self.lower, lower, &mut self.marks.lower, of.marks.lower, first, i64::min);
        take(&mut self.upper, upper, &mut self.marks.upper, of.marks.upper, first, i64::max);
        self.marks.any = true;
        Ok(())
    }
}

/// A marked bound replaces one of data, and one of data never moves a marked one.
fn take(
    own: &mut i64,
    new: i64,
    marked: &mut bool,
    marks: bool,
    first: bool,
    outer: fn(i64, i64) -> i64,
) {
    match (*marked, marks) {
        _ if first => *own = new,
        (true, false) => return,
        (false, true) => *own = new,
        _ => *own = outer(*own, new),
    }
    *marked |= marks;
}
