//! Numbers in packets: fixed-width ones, and QUIC's variable-length integers (RFC 9000, section 16).
//!
//! Arrives: bytes of a packet. Leaves: numbers and slices, or an error; never a panic. Must not know: the meaning of
//! the numbers.

use crate::error::Error;

/// The largest variable-length integer.
pub const MAX: u64 = (1 << 62) - 1;

/// The encoded size of `value` in bytes.
#[must_use]
pub fn size(value: u64) -> usize {
    match value {
        0..=0x3f => 1,
        0x40..=0x3fff => 2,
        0x4000..=0x3fff_ffff => 4,
        _ => 8,
    }
}

/// Appends `value`, which must not be above [`MAX`].
pub fn put(out: &mut Vec<u8>, value: u64) {
    debug_assert!(value <= MAX, "{value} does not fit a variable-length integer");
    match size(value) {
        1 => out.push(value as u8),
        2 => out.extend_from_slice(&(value as u16 | 0x4000).to_be_bytes()),
        4 => out.extend_from_slice(&(value as u32 | 0x8000_0000).to_be_bytes()),
        _ => out.extend_from_slice(&(value | 0xc000_0000_0000_0000).to_be_bytes()),
    }
}

/// Reads a packet from its front.
#[derive(Clone, Copy, Debug)]
pub struct Reader<'a> {
    bytes: &'a [u8],
}

impl<'a> Reader<'a> {
    /// Reads `bytes`.
    #[must_use]
    pub fn new(bytes: &'a [u8]) -> Self {
        Self { bytes }
    }

    /// Whether everything has been read.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    /// The next `count` bytes.
    pub fn take(&mut self, count: usize) -> Result<&'a [u8], Error> {
        if count > self.bytes.len() {
            return Err(Error::Malformed("it ends too early"));
        }
        let (taken, rest) = self.bytes.split_at(count);
        self.bytes = rest;
        Ok(taken)
    }

    /// The remaining bytes.
    pub fn rest(&mut self) -> &'a [u8] {
        std::mem::take(&mut self.bytes)
    }

    /// A big-endian number of `count` bytes, at most eight.
    pub fn fixed(&mut self, count: usize) -> Result<u64, Error> {
        Ok(self.take(count)?.iter().fold(0, |value, &byte| value << 8 | u64::from(byte)))
    }

    /// A variable-length integer.
    pub fn varint(&mut self) -> Result<u64, Error> {
        let first = *self.bytes.first().ok_or(Error::Malformed("it ends too early"))?;
        let length = 1 << (first >> 6);
        let all_bits = self.fixed(length)?;
        Ok(all_bits & (MAX >> (62 - (8 * length - 2))))
    }

    /// Bytes after their length.
    pub fn prefixed(&mut self) -> Result<&'a [u8], Error> {
        let length = self.varint()?;
        self.take(usize::try_from(length).map_err(|_| Error::Malformed("a length is too large"))?)
    }
}

/// Appends the length of `bytes`, then the bytes.
pub fn put_prefixed(out: &mut Vec<u8>, bytes: &[u8]) {
    put(out, bytes.len() as u64);
    out.extend_from_slice(bytes);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_examples_of_rfc_9000_are_read() {
        for (bytes, value) in [
            (&[0xc2, 0x19, 0x7c, 0x5e, 0xff, 0x14, 0xe8, 0x8c][..], 151_288_809_941_952_652),
            (&[0x9d, 0x7f, 0x3e, 0x7d], 494_878_333),
            (&[0x7b, 0xbd], 15_293),
            (&[0x25], 37),
            (&[0x40, 0x25], 37),
        ] {
            assert_eq!(Reader::new(bytes).varint(), Ok(value));
        }
    }

    #[test]
    fn every_size_is_read_back() {
        for value in [0, 63, 64, 16_383, 16_384, (1 << 30) - 1, 1 << 30, MAX] {
            let mut out = Vec::new();
            put(&mut out, value);
            assert_eq!(out.len(), size(value));
            let mut reader = Reader::new(&out);
            assert_eq!(reader.varint(), Ok(value));
            assert!(reader.is_empty());
        }
    }
}
