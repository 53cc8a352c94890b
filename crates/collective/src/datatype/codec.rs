//! Datatypes in messages: a table of shapes, each after those that it contains, so that shared inner types are sent
//! once and reading needs no recursion.

use std::collections::HashMap;
use std::sync::Arc;

use super::bounds::{Bounds, Marks};
use super::shape::{Form, Item, Part, Placed, Shape};
use super::Datatype;
use crate::error::DecodeError;
use crate::wire::{put_number, put_signed, Reader};

const EMPTY: u8 = 0;
const RUN: u8 = 1;
const LOOP: u8 = 2;
const INDEXED: u8 = 3;
const MANY: u8 = 4;

impl Datatype {
    /// The datatype as a message of at most `limit` bytes; None where it would be longer.
    #[must_use]
    pub fn encode(&self, limit: usize) -> Option<Vec<u8>> {
        let mut table = Table { places: HashMap::new(), out: Vec::new(), limit };
        table.add(&self.placed.shape)?;
        let mut message = Vec::with_capacity(table.out.len() + 32);
        put_number(&mut message, table.places.len() as u64);
        message.extend_from_slice(&table.out);
        let Bounds { lower, upper, marks } = self.bounds;
        for value in [self.placed.at, lower, upper] {
            put_signed(&mut message, value);
        }
        message.push(u8::from(marks.lower) | u8::from(marks.upper) << 1 | u8::from(marks.any) << 2);
        (message.len() <= limit).then_some(message)
    }

    /// Reads what [`Self::encode`] wrote. Memory is bounded by a small multiple of the message's bytes.
    pub fn decode(message: &[u8]) -> Result<Self, DecodeError> {
        let mut reader = Reader::new(message);
        let datatype = Self::read(&mut reader)?;
        reader.end()?;
        Ok(datatype)
    }

    pub(crate) fn read(reader: &mut Reader<'_>) -> Result<Self, DecodeError> {
        let count = reader.number()?;
        if count == 0 || count > reader.left() as u64 {
            return Err(DecodeError::Value("number of shapes cannot be right"));
        }
        let mut shapes: Vec<Arc<Shape>> = Vec::new();
        for _ in 0..count {
            let shape = read_shape(reader, &shapes)?;
            shapes.push(shape);
        }
        let shape = shapes.pop().ok_or(DecodeError::Value("number of shapes cannot be right"))?;
        let (at, lower, upper) = (reader.signed()?, reader.signed()?, reader.signed()?);
        let flags = reader.byte()?;
        if flags > 7 {
            return Err(DecodeError::Value("markers of bounds are unknown"));
        }
        let marks = Marks { lower: flags & 1 > 0, upper: flags & 2 > 0, any: flags & 4 > 0 };
        Ok(Self::checked(Placed { at, shape }, Bounds { lower, upper, marks })?)
    }
}

struct Table {
    places: HashMap<*const Shape, u64>,
    out: Vec<u8>,
    limit: usize,
}

impl Table {
    /// Writes a shape after its children and returns its index. The depth of shapes bounds the recursion.
    fn add(&mut self, shape: &Arc<Shape>) -> Option<u64> {
        if let Some(&index) = self.places.get(&Arc::as_ptr(shape)) {
            return Some(index);
        }
        match &shape.form {
            Form::Empty => self.out.push(EMPTY),
            Form::Run => {
                self.out.push(RUN);
                put_number(&mut self.out, shape.size);
            }
            Form::Loop { count, stride, child } => {
                let child = self.add(child)?;
                self.out.push(LOOP);
                put_number(&mut self.out, *count);
                put_signed(&mut self.out, *stride);
                put_number(&mut self.out, child);
            }
            Form::Indexed { at, ends } => self.put_indexed(at, ends)?,
            Form::Many(parts) => self.put_many(parts)?,
        }
        let index = self.places.len() as u64;
        self.places.insert(Arc::as_ptr(shape), index);
        (self.out.len() <= self.limit).then_some(index)
    }

    fn put_indexed(&mut self, at: &[i64], ends: &[u64]) -> Option<()> {
        self.out.push(INDEXED);
        put_number(&mut self.out, at.len() as u64);
        let (mut last, mut begin) = (0i64, 0);
        for (&at, &end) in at.iter().zip(ends) {
            // The difference may wrap; adding it back wraps again.
            put_signed(&mut self.out, at.wrapping_sub(last));
            put_number(&mut self.out, end - begin);
            (last, begin) = (at, end);
            if self.out.len() > self.limit {
                return None;
            }
        }
        Some(())
    }

    fn put_many(&mut self, parts: &[Part]) -> Option<()> {
        let children =
            parts.iter().map(|part| self.add(&part.shape)).collect::<Option<Vec<_>>>()?;
        self.out.push(MANY);
        put_number(&mut self.out, parts.len() as u64);
        let mut last = 0i64;
        for (part, child) in parts.iter().zip(children) {
            put_signed(&mut self.out, part.at.wrapping_sub(last));
            put_number(&mut self.out, child);
            last = part.at;
            if self.out.len() > self.limit {
                return None;
            }
        }
        Some(())
    }
}

fn read_shape(reader: &mut Reader<'_>, shapes: &[Arc<Shape>]) -> Result<Arc<Shape>, DecodeError> {
    let child = |index: u64| {
        let index = usize::try_from(index).ok();
        index
            .and_then(|index| shapes.get(index))
            .ok_or(DecodeError::Value("inner shape does not exist"))
    };
    match reader.byte()? {
        EMPTY => Ok(Shape::empty()),
        RUN => Ok(Shape::run(reader.number()?)?),
        LOOP => {
            let (count, stride) = (reader.number()?, reader.signed()?);
            Ok(Shape::repeat(count, stride, child(reader.number()?)?)?)
        }
        kind @ (INDEXED | MANY) => {
            let count = reader.number()?;
            // An entry has at least two bytes: a count beyond that is refused before memory is taken.
            if count > reader.left() as u64 / 2 {
                return Err(DecodeError::Value("number of entries cannot be right"));
            }
            let mut items = Vec::with_capacity(count as usize);
            let mut at = 0i64;
            for index in 0..count {
                at = at.wrapping_add(reader.signed()?);
                if index == 0 && at != 0 {
                    return Err(DecodeError::Value("first entry is not at 0"));
                }
                let value = reader.number()?;
                items.push(match kind {
                    INDEXED => Item::Run { at, length: value },
                    _ => Item::Shape(Placed { at, shape: child(value)?.clone() }),
                });
            }
            Ok(Shape::sequence(items)?.shape)
        }
        _ => Err(DecodeError::Value("kind of shape is unknown")),
    }
}
