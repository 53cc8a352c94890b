//! Where the bytes of a datatype are, in the order of its data, as nested loops in normal form.
//!
//! Positions count from the first byte of data, which is at 0. A shape holds no lower and upper bound: those belong
//! to [`super::Datatype`]. Loops are merged when they are built, as TEMPI does (Pearson et al., "TEMPI: An Interposed
//! MPI Library with a Canonical Representation of CUDA-aware Datatypes", HPDC 2021, section 3).

use std::collections::HashSet;
use std::sync::Arc;

use crate::error::DatatypeError;

/// Nested loops of a datatype, at most. Deeper ones would make each seek slow; programs have fewer than ten.
pub const MAX_DEPTH: u8 = 64;

#[derive(Debug)]
pub(crate) struct Shape {
    /// Bytes of data; 0 only in `Form::Empty`.
    pub(crate) size: u64,
    /// Lowest position, at most 0.
    pub(crate) low: i64,
    /// Past the highest position.
    pub(crate) high: i64,
    /// Runs of contiguous bytes, at most: neighbours of different loops may touch.
    pub(crate) runs: u64,
    /// Positions increase with the data, and no byte occurs twice.
    pub(crate) monotone: bool,
    pub(crate) depth: u8,
    pub(crate) form: Form,
}

#[derive(Debug)]
pub(crate) enum Form {
    Empty,
    /// `size` contiguous bytes.
    Run,
    /// `count` ≥ 2 times the child, each `stride` bytes after the last.
    Loop {
        count: u64,
        stride: i64,
        child: Arc<Shape>,
    },
    /// Runs at irregular positions: where each begins, and the data offset at which it ends.
    Indexed {
        at: Box<[i64]>,
        ends: Box<[u64]>,
    },
    /// Different shapes, one after another.
    Many(Box<[Part]>),
}

#[derive(Debug)]
pub(crate) struct Part {
    pub(crate) at: i64,
    /// The data offset at which it ends.
    pub(crate) end: u64,
    pub(crate) shape: Arc<Shape>,
}

/// A shape whose first byte of data is at `at`.
#[derive(Debug, Clone)]
pub(crate) struct Placed {
    pub(crate) at: i64,
    pub(crate) shape: Arc<Shape>,
}

/// A part of a sequence that is being built. Runs need no allocation.
pub(crate) enum Item {
    Run { at: i64, length: u64 },
    Shape(Placed),
}

impl Shape {
    pub(crate) fn empty() -> Arc<Self> {
        Arc::new(Self {
            size: 0,
            low: 0,
            high: 0,
            runs: 0,
            monotone: true,
            depth: 0,
            form: Form::Empty,
        })
    }

    pub(crate) fn run(length: u64) -> Result<Arc<Self>, DatatypeError> {
        if length == 0 {
            return Ok(Self::empty());
        }
        let high = i64::try_from(length).map_err(|_| DatatypeError::Overflow)?;
        Ok(Arc::new(Self {
            size: length,
            low: 0,
            high,
            runs: 1,
            monotone: true,
            depth: 1,
            form: Form::Run,
        }))
    }

    /// `count` times `child`, each `stride` after the last.
    pub(crate) fn repeat(
        count: u64,
        stride: i64,
        child: &Arc<Self>,
    ) -> Result<Arc<Self>, DatatypeError> {
        if count == 0 || child.size == 0 {
            return Ok(Self::empty());
        }
        if count == 1 {
            return Ok(child.clone());
        }
        let (mut count, mut stride, mut child) = (count, stride, child.clone());
        let span_of = |count: u64, stride: i64| {
            i64::try_from(count).ok().and_then(|count| count.checked_mul(stride))
        };
        match &child.form {
            Form::Run if stride == child.high => {
                let size = count.checked_mul(child.size).ok_or(DatatypeError::Overflow)?;
                return Self::run(size);
            }
            Form::Loop { count: inner, stride: step, child: grandchild }
                if span_of(*inner, *step) == Some(stride) =>
            {
                count = count.checked_mul(*inner).ok_or(DatatypeError::Overflow)?;
                stride = *step;
                let grandchild = grandchild.clone();
                child = grandchild;
            }
            _ => {}
        }
        let size = count.checked_mul(child.size).filter(|&size| size <= i64::MAX.cast_unsigned());
        let last = span_of(count - 1, stride).ok_or(DatatypeError::Overflow)?;
        let low = child.low.checked_add(last.min(0)).ok_or(DatatypeError::Overflow)?;
        let high = child.high.checked_add(last.max(0)).ok_or(DatatypeError::Overflow)?;
        high.checked_sub(low).ok_or(DatatypeError::Overflow)?;
        Ok(Arc::new(Self {
            size: size.ok_or(DatatypeError::Overflow)?,
            low,
            high,
            runs: count.saturating_mul(child.runs),
            monotone: child.monotone && stride >= child.high,
            depth: deeper(child.depth)?,
            form: Form::Loop { count, stride, child },
        }))
    }

    /// One item after another, in the order of the data. Neighbouring runs are merged, equal strides become a loop.
    pub(crate) fn sequence(items: impl IntoIterator<Item = Item>) -> Result<Placed, DatatypeError> {
        let mut merged: Vec<Item> = Vec::new();
        for item in items {
            let item = match item {
                Item::Run { length: 0, .. } => continue,
                Item::Shape(placed) => match placed.shape.form {
                    Form::Empty => continue,
                    Form::Run => Item::Run { at: placed.at, length: placed.shape.size },
                    _ => Item::Shape(placed),
                },
                run @ Item::Run { .. } => run,
            };
            if let (Some(Item::Run { at, length }), Item::Run { at: next, length: more }) =
                (merged.last_mut(), &item)
            {
                if end_of(*at, *length)? == *next {
                    *length = length.checked_add(*more).ok_or(DatatypeError::Overflow)?;
                    continue;
                }
            }
            merged.push(item);
        }
        let Some(first) = merged.first() else {
            return Ok(Placed { at: 0, shape: Self::empty() });
        };
        let origin = first.at();
        if let Some((stride, child)) = regular(&merged)? {
            let shape = Self::repeat(merged.len() as u64, stride, &child)?;
            return Ok(Placed { at: origin, shape });
        }
        let shape = if merged.iter().all(|item| matches!(item, Item::Run { .. })) {
            Self::indexed(&merged, origin)?
        } else {
            Self::many(&merged, origin)?
        };
        Ok(Placed { at: origin, shape: Arc::new(shape) })
    }

    fn indexed(items: &[Item], origin: i64) -> Result<Self, DatatypeError> {
        let mut bounds = Bounds::default();
        let mut at = Vec::with_capacity(items.len());
        let mut ends = Vec::with_capacity(items.len());
        for item in items {
            let Item::Run { at: begin, length } = *item else { continue };
            let begin = begin.checked_sub(origin).ok_or(DatatypeError::Overflow)?;
            bounds.add(
                begin,
                0,
                i64::try_from(length).map_err(|_| DatatypeError::Overflow)?,
                length,
                true,
            )?;
            at.push(begin);
            ends.push(bounds.size);
        }
        let runs = items.len() as u64;
        Ok(bounds.shape(runs, 2, Form::Indexed { at: at.into(), ends: ends.into() }))
    }

    fn many(items: &[Item], origin: i64) -> Result<Self, DatatypeError> {
        let mut bounds = Bounds::default();
        let mut parts = Vec::with_capacity(items.len());
        let (mut runs, mut depth) = (0u64, 0);
        for item in items {
            let (at, shape) = match item {
                Item::Run { at, length } => (*at, Self::run(*length)?),
                Item::Shape(placed) => (placed.at, placed.shape.clone()),
            };
            let at = at.checked_sub(origin).ok_or(DatatypeError::Overflow)?;
            bounds.add(at, shape.low, shape.high, shape.size, shape.monotone)?;
            runs = runs.saturating_add(shape.runs);
            depth = depth.max(shape.depth);
            parts.push(Part { at, end: bounds.size, shape });
        }
        Ok(bounds.shape(runs, deeper(depth)?, Form::Many(parts.into())))
    }

    /// Bytes of data before position `x`. Only for monotone shapes.
    pub(crate) fn below(&self, x: i64) -> u64 {
        let (mut shape, mut x, mut before) = (self, x, 0);
        loop {
            if x <= 0 {
                return before;
            }
            if x >= shape.high {
                return before + shape.size;
            }
            match &shape.form {
                Form::Empty => return before,
                Form::Run => return before + x.cast_unsigned(),
                Form::Loop { count, stride, child } => {
                    let index = (x / stride).min(count.cast_signed() - 1);
                    before += index.cast_unsigned() * child.size;
                    x -= index * stride;
                    shape = child;
                }
                Form::Indexed { at, ends } => {
                    let index = at.partition_point(|&begin| begin < x) - 1;
                    let begin = if index == 0 { 0 } else { ends[index - 1] };
                    return before + ends[index].min(begin + (x - at[index]).cast_unsigned());
                }
                Form::Many(parts) => {
                    let index = parts.partition_point(|part| part.at < x) - 1;
                    before += if index == 0 { 0 } else { parts[index - 1].end };
                    x -= parts[index].at;
                    shape = &parts[index].shape;
                }
            }
        }
    }

    /// Position of the byte of data at `offset`, which must be less than `size`.
    pub(crate) fn position(&self, offset: u64) -> i64 {
        let (mut shape, mut offset, mut base) = (self, offset, 0);
        loop {
            match &shape.form {
                Form::Empty | Form::Run => return base + offset.cast_signed(),
                Form::Loop { stride, child, .. } => {
                    base += (offset / child.size).cast_signed() * stride;
                    offset %= child.size;
                    shape = child;
                }
                Form::Indexed { at, ends } => {
                    let index = ends.partition_point(|&end| end <= offset);
                    let begin = if index == 0 { 0 } else { ends[index - 1] };
                    return base + at[index] + (offset - begin).cast_signed();
                }
                Form::Many(parts) => {
                    let index = parts.partition_point(|part| part.end <= offset);
                    offset -= if index == 0 { 0 } else { parts[index - 1].end };
                    base += parts[index].at;
                    shape = &parts[index].shape;
                }
            }
        }
    }
}

impl Item {
    fn at(&self) -> i64 {
        match self {
            Self::Run { at, .. } => *at,
            Self::Shape(placed) => placed.at,
        }
    }
}

/// Bytes of a shape and of those that it contains, each counted once.
pub(crate) fn footprint(shape: &Arc<Shape>) -> usize {
    count_bytes(shape, &mut HashSet::new())
}

fn count_bytes(shape: &Arc<Shape>, seen: &mut HashSet<*const Shape>) -> usize {
    if !seen.insert(Arc::as_ptr(shape)) {
        return 0;
    }
    size_of::<Shape>()
        + match &shape.form {
            Form::Empty | Form::Run => 0,
            Form::Loop { child, .. } => count_bytes(child, seen),
            Form::Indexed { at, .. } => at.len() * 16,
            Form::Many(parts) => {
                let inner: usize = parts.iter().map(|part| count_bytes(&part.shape, seen)).sum();
                inner + size_of_val(&parts[..])
            }
        }
}

/// Whether two shapes are equal. Each pair of inner shapes is compared once: shared ones may stand for many runs.
pub(crate) fn same(one: &Arc<Shape>, other: &Arc<Shape>) -> bool {
    compare(one, other, &mut HashSet::new())
}

fn compare(one: &Arc<Shape>, other: &Arc<Shape>, seen: &mut HashSet<[*const Shape; 2]>) -> bool {
    // A pair that was seen is equal, or the comparison would have ended.
    if Arc::ptr_eq(one, other) || !seen.insert([Arc::as_ptr(one), Arc::as_ptr(other)]) {
        return true;
    }
    let alike = (one.size, one.low, one.high) == (other.size, other.low, other.high);
    alike
        && match (&one.form, &other.form) {
            (Form::Empty, Form::Empty) | (Form::Run, Form::Run) => true,
            (
                Form::Loop { count, stride, child },
                Form::Loop { count: counted, stride: strode, child: grandchild },
            ) => count == counted && stride == strode && compare(child, grandchild, seen),
            (Form::Indexed { at, ends }, Form::Indexed { at: places, ends: stops }) => {
                at == places && ends == stops
            }
            (Form::Many(parts), Form::Many(others)) => {
                parts.len() == others.len()
                    && parts.iter().zip(others).all(|(part, other)| {
                        (part.at, part.end) == (other.at, other.end)
                            && compare(&part.shape, &other.shape, seen)
                    })
            }
            _ => false,
        }
}

fn deeper(depth: u8) -> Result<u8, DatatypeError> {
    if depth >= MAX_DEPTH {
        return Err(DatatypeError::TooDeep(MAX_DEPTH));
    }
    Ok(depth + 1)
}

fn end_of(at: i64, length: u64) -> Result<i64, DatatypeError> {
    at.checked_add_unsigned(length).ok_or(DatatypeError::Overflow)
}

/// The stride and the child where all items are equal and equally far apart.
fn regular(items: &[Item]) -> Result<Option<(i64, Arc<Shape>)>, DatatypeError> {
    let [first, rest @ ..] = items else { return Ok(None) };
    let stride = match rest.first() {
        None => 0,
        Some(second) => second.at().checked_sub(first.at()).ok_or(DatatypeError::Overflow)?,
    };
    let mut last = first.at();
    for item in rest {
        let equal = match (first, item) {
            (Item::Run { length, .. }, Item::Run { length: other, .. }) => length == other,
            (Item::Shape(placed), Item::Shape(other)) => Arc::ptr_eq(&placed.shape, &other.shape),
            _ => false,
        };
        if !equal || item.at().checked_sub(last) != Some(stride) {
            return Ok(None);
        }
        last = item.at();
    }
    let child = match first {
        Item::Run { length, .. } => Shape::run(*length)?,
        Item::Shape(placed) => placed.shape.clone(),
    };
    Ok(Some((stride, child)))
}

/// Size, span and order of parts as they are added.
struct Bounds {
    size: u64,
    low: i64,
    high: i64,
    monotone: bool,
}

impl Default for Bounds {
    fn default() -> Self {
        Self { size: 0, low: i64::MAX, high: i64::MIN, monotone: true }
    }
}

impl Bounds {
    fn add(
        &mut self,
        at: i64,
        low: i64,
        high: i64,
        size: u64,
        monotone: bool,
    ) -> Result<(), DatatypeError> {
        let low = at.checked_add(low).ok_or(DatatypeError::Overflow)?;
        let high = at.checked_add(high).ok_or(DatatypeError::Overflow)?;
        self.monotone = self.monotone && monotone && (self.size == 0 || low >= self.high);
        self.low = self.low.min(low);
        self.high = self.high.max(high);
        self.high.checked_sub(self.low).ok_or(DatatypeError::Overflow)?;
        let size = self.size.checked_add(size).filter(|&size| size <= i64::MAX.cast_unsigned());
        self.size = size.ok_or(DatatypeError::Overflow)?;
        Ok(())
    }

    fn shape(self, runs: u64, depth: u8, form: Form) -> Shape {
        let Self { size, low, high, monotone } = self;
        Shape { size, low, high, runs, monotone, depth, form }
    }
}
