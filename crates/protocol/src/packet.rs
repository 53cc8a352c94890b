//! The packet header: in the clear, and authenticated.
//!
//! Arrives: a datagram, the packet number expected next. Leaves: the header.
//! Must not know: keys, frames, connections.
//!
//! Twelve bytes, big-endian:
//!
//! ```text
//! 0        0001 vvvv    version 1; QUIC packets have bit 0x40 set, so both can share a port (RFC 9443)
//! 1..5     connection   chosen by the side that receives
//! 5..9     number       the low 32 bits of the packet number
//! 9..12    sent at      the sender's clock in units of 8 us, modulo 2^24
//! ```

use crate::error::Error;
use crate::varint::Reader;

/// The only version so far.
pub const VERSION: u8 = 1;

/// Bytes of the header.
pub const HEADER_SIZE: usize = 12;

/// Bytes of the authentication tag after the sealed frames.
pub const TAG_SIZE: usize = 16;

/// One unit of the time stamps in packets.
pub const TICK_NS: u64 = 8_000;

const FIRST_BYTE: u8 = 0x10;
const STAMP_MASK: u64 = (1 << 24) - 1;

/// The largest packet number; a connection at 10 Gbit/s reaches it after years.
pub const MAX_NUMBER: u64 = (1 << 48) - 1;

/// The header before the sealed frames.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// The connection of the receiver.
    pub connection: u32,
    /// The complete packet number.
    pub number: u64,
    /// When it was sent.
    pub stamp: Stamp,
}

/// A time stamp of one side's clock, modulo 134 s, in units of 8 us.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stamp(u32);

impl Stamp {
    /// The stamp of a time.
    #[must_use]
    pub fn of(now_ns: u64) -> Self {
        Self(((now_ns / TICK_NS) & STAMP_MASK) as u32)
    }

    /// The stamp with these low 24 bits.
    #[must_use]
    pub fn from_bits(bits: u64) -> Self {
        Self((bits & STAMP_MASK) as u32)
    }

    /// Its 24 bits.
    #[must_use]
    pub fn bits(self) -> u32 {
        self.0
    }

    /// Nanoseconds from this stamp until `now_ns` of the same clock; with another clock, a difference that only
    /// compares with others.
    #[must_use]
    pub fn age_ns(self, now_ns: u64) -> u64 {
        let now = Self::of(now_ns).0;
        u64::from(now.wrapping_sub(self.0)) % (STAMP_MASK + 1) * TICK_NS
    }

    /// Appends its three bytes.
    pub fn put(self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.0.to_be_bytes()[1..]);
    }
}

/// The connection number of a datagram of this protocol: what a socket needs to dispatch it.
pub fn connection_of(datagram: &[u8]) -> Result<u32, Error> {
    let mut reader = Reader::new(datagram);
    match reader.fixed(1)? as u8 {
        first if first & 0xf0 != FIRST_BYTE => Err(Error::Malformed("it is of another protocol")),
        first if first & 0x0f != VERSION => Err(Error::Malformed("it is of another version")),
        _ => Ok(reader.fixed(4)? as u32),
    }
}

impl Header {
    /// Appends the header.
    pub fn put(&self, out: &mut Vec<u8>) {
        out.push(FIRST_BYTE | VERSION);
        out.extend_from_slice(&self.connection.to_be_bytes());
        out.extend_from_slice(&(self.number as u32).to_be_bytes());
        self.stamp.put(out);
    }

    /// Reads the header of `datagram`; `expected` is one more than the largest number received so far.
    pub fn read(datagram: &[u8], expected: u64) -> Result<Self, Error> {
        let connection = connection_of(datagram)?;
        if datagram.len() < HEADER_SIZE + TAG_SIZE {
            return Err(Error::Malformed("it is too short"));
        }
        let mut reader = Reader::new(&datagram[5..HEADER_SIZE]);
        let number = expand(reader.fixed(4)?, expected);
        let stamp = Stamp::from_bits(reader.fixed(3)?);
        Ok(Self { connection, number, stamp })
    }
}

/// The number nearest to `expected` that ends in these 32 bits (RFC 9000, appendix A.3).
fn expand(low_bits: u64, expected: u64) -> u64 {
    const WINDOW: u64 = 1 << 32;
    let candidate = (expected & !(WINDOW - 1)) | low_bits;
    if candidate + WINDOW / 2 <= expected && candidate + WINDOW <= MAX_NUMBER {
        candidate + WINDOW
    } else if candidate > expected + WINDOW / 2 && candidate >= WINDOW {
        candidate - WINDOW
    } else {
        candidate
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_is_expanded_near_the_expected_one() {
        for number in [0, 5, (1 << 32) - 2, 1 << 32, (1 << 33) + 77, MAX_NUMBER - 3] {
            for distance in [0_i64, 1, -1, 1000, -1000] {
                let expected = number.saturating_add_signed(distance).min(MAX_NUMBER);
                assert_eq!(expand(number & 0xffff_ffff, expected), number, "expected {expected}");
            }
        }
    }

    #[test]
    fn a_stamp_has_its_age_across_the_wrap() {
        let wrap_ns = (STAMP_MASK + 1) * TICK_NS;
        for sent_ns in [0, 3 * TICK_NS, wrap_ns - TICK_NS, wrap_ns, 5 * wrap_ns - 2 * TICK_NS] {
            assert_eq!(Stamp::of(sent_ns).age_ns(sent_ns + 100 * TICK_NS), 100 * TICK_NS);
        }
    }

    #[test]
    fn other_protocols_and_versions_are_distinguished() {
        let mut datagram = Vec::new();
        Header { connection: 7, number: 9, stamp: Stamp::of(0) }.put(&mut datagram);
        datagram.resize(60, 0);
        assert_eq!(connection_of(&datagram), Ok(7));
        datagram[0] = 0x12;
        assert_eq!(connection_of(&datagram), Err(Error::Malformed("it is of another version")));
        datagram[0] = 0xc0;
        assert_eq!(connection_of(&datagram), Err(Error::Malformed("it is of another protocol")));
    }
}
