//! Yields the runs of a range of data, one at a time, in O(depth) memory.

use std::iter::FusedIterator;
use std::ops::Range;

use super::shape::{Form, Part, Shape};

/// Contiguous bytes: where they begin, counted from the origin of the datatype, and how many.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Run {
    /// Bytes after the origin; negative in types with negative displacements.
    pub offset: i64,
    /// At least 1.
    pub length: u64,
}

/// The runs of a range of data in the order of the data; touching runs are one.
///
/// It is created in O(depth × log entries) and holds O(depth) memory.
#[derive(Debug, Clone)]
pub struct Runs<'a> {
    frames: Vec<Frame<'a>>,
    leaf: Leaf<'a>,
    /// Bytes of data that no run has been made of.
    left: u64,
    pending: Option<Run>,
}

#[derive(Debug, Clone)]
struct Frame<'a> {
    base: i64,
    next: u64,
    kind: Kind<'a>,
}

#[derive(Debug, Clone, Copy)]
enum Kind<'a> {
    Loop { count: u64, stride: i64, child: &'a Shape },
    Many(&'a [Part]),
}

#[derive(Debug, Clone)]
enum Leaf<'a> {
    Strided { at: i64, count: u64, stride: i64, length: u64, skip: u64 },
    Indexed { base: i64, at: &'a [i64], ends: &'a [u64], index: usize, skip: u64 },
}

impl<'a> Runs<'a> {
    /// `data` must lie within the size of `shape`.
    pub(crate) fn new(at: i64, shape: &'a Shape, data: Range<u64>) -> Self {
        let left = data.end.min(shape.size).saturating_sub(data.start);
        let leaf = Leaf::Strided { at: 0, count: 0, stride: 0, length: 0, skip: 0 };
        let mut runs = Self { frames: Vec::new(), leaf, left, pending: None };
        if left > 0 {
            runs.descend(shape, at, data.start);
        }
        runs
    }

    /// Goes to the run that holds the byte of data at `offset` of `shape`.
    fn descend(&mut self, mut shape: &'a Shape, mut base: i64, mut offset: u64) {
        loop {
            match &shape.form {
                Form::Empty => return,
                Form::Run => {
                    self.leaf = Leaf::Strided {
                        at: base,
                        count: 1,
                        stride: 0,
                        length: shape.size,
                        skip: offset,
                    };
                    return;
                }
                Form::Loop { count, stride, child } => {
                    let index = offset / child.size;
                    offset %= child.size;
                    let at = base + index.cast_signed() * stride;
                    if matches!(child.form, Form::Run) {
                        let (count, stride, length) = (count - index, *stride, child.size);
                        self.leaf = Leaf::Strided { at, count, stride, length, skip: offset };
                        return;
                    }
                    let kind = Kind::Loop { count: *count, stride: *stride, child };
                    self.frames.push(Frame { base, next: index + 1, kind });
                    (shape, base) = (child, at);
                }
                Form::Indexed { at, ends } => {
                    let index = ends.partition_point(|&end| end <= offset);
                    let begin = if index == 0 { 0 } else { ends[index - 1] };
                    self.leaf = Leaf::Indexed { base, at, ends, index, skip: offset - begin };
                    return;
                }
                Form::Many(parts) => {
                    let index = parts.partition_point(|part| part.end <= offset);
                    offset -= if index == 0 { 0 } else { parts[index - 1].end };
                    self.frames.push(Frame {
                        base,
                        next: index as u64 + 1,
                        kind: Kind::Many(parts),
                    });
                    base += parts[index].at;
                    shape = &parts[index].shape;
                }
            }
        }
    }

    /// Goes to the first run of the next leaf; false after the last.
    fn advance(&mut self) -> bool {
        while let Some(frame) = self.frames.last_mut() {
            let index = frame.next;
            frame.next += 1;
            match frame.kind {
                Kind::Loop { count, stride, child } if index < count => {
                    let base = frame.base + index.cast_signed() * stride;
                    self.descend(child, base, 0);
                    return true;
                }
                Kind::Many(parts) if (index as usize) < parts.len() => {
                    let part = &parts[index as usize];
                    let base = frame.base + part.at;
                    self.descend(&part.shape, base, 0);
                    return true;
                }
                _ => {
                    self.frames.pop();
                }
            }
        }
        false
    }

    #[inline]
    fn next_of_leaf(&mut self) -> Option<Run> {
        let (offset, length) = match &mut self.leaf {
            Leaf::Strided { count: 0, .. } => return None,
            Leaf::Strided { at, count, stride, length, skip } => {
                let run = (*at + skip.cast_signed(), *length - *skip);
                *skip = 0;
                *count -= 1;
                // The position after the last run may not fit; it is never used.
                *at = at.wrapping_add(*stride);
                run
            }
            Leaf::Indexed { base, at, ends, index, skip } => {
                let begin = if *index == 0 { 0 } else { ends[*index - 1] };
                let position = *at.get(*index)?;
                let run = (*base + position + skip.cast_signed(), ends[*index] - begin - *skip);
                *skip = 0;
                *index += 1;
                run
            }
        };
        let length = length.min(self.left);
        self.left -= length;
        Some(Run { offset, length })
    }

    #[inline]
    fn next_unmerged(&mut self) -> Option<Run> {
        if self.left == 0 {
            return None;
        }
        loop {
            if let Some(run) = self.next_of_leaf() {
                return Some(run);
            }
            if !self.advance() {
                return None;
            }
        }
    }
}

impl Iterator for Runs<'_> {
    type Item = Run;

    #[inline]
    fn next(&mut self) -> Option<Run> {
        let mut run = match self.pending.take() {
            Some(run) => run,
            None => self.next_unmerged()?,
        };
        while let Some(next) = self.next_unmerged() {
            if run.offset.wrapping_add_unsigned(run.length) != next.offset {
                self.pending = Some(next);
                break;
            }
            run.length += next.length;
        }
        Some(run)
    }
}

impl FusedIterator for Runs<'_> {}
