//! Numbers in messages: LEB128 in its shortest form, signed ones in zigzag order.

use crate::error::DecodeError;

/// Longest encoding of a 64-bit number.
pub(crate) const MAX_NUMBER_BYTES: usize = 10;

pub(crate) fn put_number(out: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        out.push((value & 0x7f) as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

pub(crate) fn put_signed(out: &mut Vec<u8>, value: i64) {
    put_number(out, ((value << 1) ^ (value >> 63)).cast_unsigned());
}

/// Reads a message from its beginning.
pub(crate) struct Reader<'a> {
    message: &'a [u8],
    at: usize,
}

impl<'a> Reader<'a> {
    pub(crate) fn new(message: &'a [u8]) -> Self {
        Self { message, at: 0 }
    }

    pub(crate) fn byte(&mut self) -> Result<u8, DecodeError> {
        let byte = *self.message.get(self.at).ok_or(DecodeError::Truncated(self.message.len()))?;
        self.at += 1;
        Ok(byte)
    }

    pub(crate) fn number(&mut self) -> Result<u64, DecodeError> {
        let start = self.at;
        let mut value = 0u64;
        for index in 0..MAX_NUMBER_BYTES {
            let byte = self.byte()?;
            if index == MAX_NUMBER_BYTES - 1 && byte > 1 {
                return Err(DecodeError::Number(start));
            }
            value |= u64::from(byte & 0x7f) << (7 * index);
            if byte & 0x80 == 0 {
                // A zero in the last byte could have been left out: one value, one encoding.
                if byte == 0 && index > 0 {
                    return Err(DecodeError::Number(start));
                }
                return Ok(value);
            }
        }
        Err(DecodeError::Number(start))
    }

    pub(crate) fn signed(&mut self) -> Result<i64, DecodeError> {
        let value = self.number()?;
        Ok((value >> 1).cast_signed() ^ -((value & 1).cast_signed()))
    }

    pub(crate) fn bytes(&mut self, length: usize) -> Result<&'a [u8], DecodeError> {
        let end = self.at.checked_add(length).filter(|&end| end <= self.message.len());
        let end = end.ok_or(DecodeError::Truncated(self.message.len()))?;
        let bytes = &self.message[self.at..end];
        self.at = end;
        Ok(bytes)
    }

    pub(crate) fn left(&self) -> usize {
        self.message.len() - self.at
    }

    pub(crate) fn end(&self) -> Result<(), DecodeError> {
        match self.left() {
            0 => Ok(()),
            left => Err(DecodeError::Trailing(left)),
        }
    }
}
