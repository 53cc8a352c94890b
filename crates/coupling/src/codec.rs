//! How the fields of messages are written: integers, texts, lists, boxes.
//!
//! Arrives: fields; bytes of a peer. Leaves: bytes; fields, within bounds. Must not know: messages.

use crate::region::{Region, DIMENSIONS_MOST};
use crate::request::{Piece, Slab, Variable, Why};

/// Most bytes of a text: a name, a path, an error.
pub const TEXT_MOST: usize = 4096;

/// Bytes of a token, of a nonce and of a proof.
pub const TOKEN_BYTES: usize = 32;

/// A secret, a nonce, or a proof of knowing a secret.
pub type Token = [u8; TOKEN_BYTES];

/// Bytes that are no message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a message of another program, or a damaged one")]
pub struct Malformed;

pub(crate) fn why_code(why: Why) -> u8 {
    match why {
        Why::Argument => 1,
        Why::Lost => 2,
        Why::NoSuchVariable => 3,
        Why::Ended => 4,
        Why::Memory => 5,
    }
}

pub(crate) struct Out(pub(crate) Vec<u8>);

impl Out {
    pub(crate) fn u8(&mut self, value: u8) -> &mut Self {
        self.0.push(value);
        self
    }

    pub(crate) fn u32(&mut self, value: u32) -> &mut Self {
        self.raw(&value.to_le_bytes())
    }

    pub(crate) fn u64(&mut self, value: u64) -> &mut Self {
        self.raw(&value.to_le_bytes())
    }

    pub(crate) fn raw(&mut self, bytes: &[u8]) -> &mut Self {
        self.0.extend_from_slice(bytes);
        self
    }

    pub(crate) fn count(&mut self, count: usize) -> &mut Self {
        self.u32(u32::try_from(count).unwrap_or(u32::MAX))
    }

    /// A text, cut where it is longer than a peer accepts.
    pub(crate) fn text(&mut self, text: &str) -> &mut Self {
        let mut end = text.len().min(TEXT_MOST);
        while !text.is_char_boundary(end) {
            end -= 1;
        }
        self.count(end).raw(&text.as_bytes()[..end])
    }

    pub(crate) fn u64s(&mut self, values: &[u64]) -> &mut Self {
        self.list(values, |out, value| {
            out.u64(*value);
        })
    }

    pub(crate) fn list<T>(&mut self, items: &[T], put: impl Fn(&mut Self, &T)) -> &mut Self {
        self.count(items.len());
        for item in items {
            put(self, item);
        }
        self
    }

    pub(crate) fn region(&mut self, region: &Region) -> &mut Self {
        self.u8(u8::try_from(region.dimensions()).unwrap_or(u8::MAX));
        for value in region.starts().iter().chain(region.counts()) {
            self.u64(*value);
        }
        self
    }

    pub(crate) fn variable(&mut self, variable: &Variable) -> &mut Self {
        self.text(&variable.name).text(&variable.element).u32(variable.element_bytes);
        self.u8(u8::try_from(variable.shape.len()).unwrap_or(u8::MAX));
        for side in &variable.shape {
            self.u64(*side);
        }
        self
    }

    pub(crate) fn variables(&mut self, variables: &[Variable]) -> &mut Self {
        self.list(variables, |out, variable| {
            out.variable(variable);
        })
    }

    pub(crate) fn pieces(&mut self, pieces: &[Piece]) -> &mut Self {
        self.list(pieces, |out, piece| {
            out.piece(piece);
        })
    }

    pub(crate) fn place(&mut self, place: Option<&(String, u64)>) -> &mut Self {
        match place {
            Some((owner, key)) => self.u8(1).text(owner).u64(*key),
            None => self.u8(0),
        }
    }

    pub(crate) fn slab(&mut self, slab: &Slab) -> &mut Self {
        let out = self.u64(slab.first).u64(slab.units).u8(slab.shared.into());
        out.place(slab.place.as_ref()).place(slab.base.as_ref())
    }

    pub(crate) fn piece(&mut self, piece: &Piece) -> &mut Self {
        self.u32(piece.variable).region(&piece.region).text(&piece.owner).u64(piece.key)
    }
}

pub(crate) struct In<'a>(pub(crate) &'a [u8]);

impl<'a> In<'a> {
    pub(crate) fn take(&mut self, bytes: usize) -> Result<&'a [u8], Malformed> {
        let (taken, rest) = self.0.split_at_checked(bytes).ok_or(Malformed)?;
        self.0 = rest;
        Ok(taken)
    }

    pub(crate) fn array<const N: usize>(&mut self) -> Result<[u8; N], Malformed> {
        self.take(N)?.try_into().map_err(|_| Malformed)
    }

    pub(crate) fn u8(&mut self) -> Result<u8, Malformed> {
        Ok(self.array::<1>()?[0])
    }

    pub(crate) fn bool(&mut self) -> Result<bool, Malformed> {
        match self.u8()? {
            0 => Ok(false),
            1 => Ok(true),
            _ => Err(Malformed),
        }
    }

    pub(crate) fn u32(&mut self) -> Result<u32, Malformed> {
        self.array().map(u32::from_le_bytes)
    }

    pub(crate) fn u64(&mut self) -> Result<u64, Malformed> {
        self.array().map(u64::from_le_bytes)
    }

    pub(crate) fn token(&mut self) -> Result<Token, Malformed> {
        self.array()
    }

    pub(crate) fn text(&mut self) -> Result<String, Malformed> {
        let bytes = self.u32()? as usize;
        if bytes > TEXT_MOST {
            return Err(Malformed);
        }
        String::from_utf8(self.take(bytes)?.to_vec()).map_err(|_| Malformed)
    }

    /// Items of at least `least` bytes each, so that a count cannot ask for more memory than the frame has.
    pub(crate) fn list<T>(
        &mut self,
        most: usize,
        least: usize,
        get: impl Fn(&mut Self) -> Result<T, Malformed>,
    ) -> Result<Vec<T>, Malformed> {
        let count = self.u32()? as usize;
        if count > most || count.saturating_mul(least) > self.0.len() {
            return Err(Malformed);
        }
        (0..count).map(|_| get(self)).collect()
    }

    pub(crate) fn sides(&mut self, count: usize) -> Result<Vec<u64>, Malformed> {
        (0..count).map(|_| self.u64()).collect()
    }

    pub(crate) fn dimensions(&mut self) -> Result<usize, Malformed> {
        Some(usize::from(self.u8()?)).filter(|count| *count <= DIMENSIONS_MOST).ok_or(Malformed)
    }

    pub(crate) fn region(&mut self) -> Result<Region, Malformed> {
        let dimensions = self.dimensions()?;
        let starts = self.sides(dimensions)?;
        Region::new(&starts, &self.sides(dimensions)?).ok_or(Malformed)
    }

    pub(crate) fn variable(&mut self) -> Result<Variable, Malformed> {
        let (name, element, element_bytes) = (self.text()?, self.text()?, self.u32()?);
        let dimensions = self.dimensions()?;
        Ok(Variable { name, element, element_bytes, shape: self.sides(dimensions)? })
    }

    pub(crate) fn piece(&mut self) -> Result<Piece, Malformed> {
        Ok(Piece {
            variable: self.u32()?,
            region: self.region()?,
            owner: self.text()?,
            key: self.u64()?,
        })
    }

    pub(crate) fn place(&mut self) -> Result<Option<(String, u64)>, Malformed> {
        Ok(if self.bool()? { Some((self.text()?, self.u64()?)) } else { None })
    }

    /// The units of a slab do not overflow.
    pub(crate) fn slab(&mut self) -> Result<Slab, Malformed> {
        let (first, units, shared) = (self.u64()?, self.u64()?, self.bool()?);
        first.checked_add(units).ok_or(Malformed)?;
        Ok(Slab { first, units, shared, place: self.place()?, base: self.place()? })
    }

    pub(crate) fn why(&mut self) -> Result<Why, Malformed> {
        Ok(match self.u8()? {
            1 => Why::Argument,
            2 => Why::Lost,
            3 => Why::NoSuchVariable,
            4 => Why::Ended,
            5 => Why::Memory,
            _ => return Err(Malformed),
        })
    }
}
