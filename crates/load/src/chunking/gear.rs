//! Candidate boundaries of the fast method: a gear hash of the last 32 bytes.
//!
//! Gear hashing is of Xia et al., "Ddelta" (2014) and FastCDC (2016): each byte adds a number, and the sum moves up
//! by a bit. Here exclusive-or adds and the numbers of bytes are sums of the numbers of their bits, so that the hash
//! is linear over bits and many places can be computed at once. A hash of 32 bits has forgotten a byte after 32 more:
//! the place of a mark depends on content alone.

use super::lanes::{self, Rolling};
use super::matrices::{Matrices, BITS};

/// Bytes that a hash is of.
const WINDOW: usize = 32;

/// A chunk may end where these bits are all set: one place in 8192. The upper ones, because all 32 bytes reach them.
const MASK: u32 = !0 << SHIFT;
const SHIFT: u32 = 32 - BITS;

static GEAR: [u32; 256] = gear();

/// What each bit of a byte gives: numbers without a pattern, the same for ever: splitmix64 (Steele et al., 2014) from
/// 0.
const fn of_bits() -> [u32; 8] {
    let mut numbers = [0; 8];
    let mut seed: u64 = 0;
    let mut bit = 0;
    while bit < 8 {
        seed = seed.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut mixed = seed;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        numbers[bit] = ((mixed ^ (mixed >> 31)) >> 32) as u32;
        bit += 1;
    }
    numbers
}

const fn gear() -> [u32; 256] {
    let numbers = of_bits();
    let mut table = [0; 256];
    let mut byte = 1_usize;
    while byte < 256 {
        table[byte] = table[byte & (byte - 1)] ^ numbers[byte.trailing_zeros() as usize];
        byte += 1;
    }
    table
}

static MATRICES: Matrices<WINDOW> = matrices();

const fn matrices() -> Matrices<WINDOW> {
    let numbers = of_bits();
    let mut given = [[0; 8]; WINDOW];
    let mut byte = 0;
    while byte < WINDOW {
        let mut bit = 0;
        while bit < 8 {
            given[byte][bit] = ((numbers[bit] << byte) >> SHIFT) as u16;
            bit += 1;
        }
        byte += 1;
    }
    Matrices::new(&given)
}

/// Append to `marks` every place `p` where a chunk may end by the window `data[p - 32..p]`, beyond the first, in
/// rising order.
pub(super) fn marks(data: &[u8], marks: &mut Vec<u32>) {
    let done = MATRICES.marks(data, marks);
    lanes::marks::<WINDOW, Gear>(&data[done..], done, marks);
}

/// By a table, one byte after the other.
pub(super) struct Gear;

impl Rolling<WINDOW> for Gear {
    type State = u32;

    fn first(window: &[u8]) -> u32 {
        window.iter().fold(0, |hash, byte| Self::step(hash, 0, *byte))
    }

    #[inline(always)]
    fn step(hash: u32, _leaving: u8, entering: u8) -> u32 {
        (hash << 1) ^ GEAR[usize::from(entering)]
    }

    #[inline(always)]
    fn is_mark(hash: u32) -> bool {
        hash & MASK == MASK
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hash_depends_on_its_window_alone() {
        let data: Vec<u8> = (0..300_u32).map(|i| (i * i % 251) as u8).collect();
        for end in WINDOW..data.len() {
            assert_eq!(
                Gear::first(&data[..end]),
                Gear::first(&data[end - WINDOW..end]),
                "at {end}"
            );
        }
    }

    #[test]
    fn a_run_of_one_byte_has_no_mark() {
        for byte in 0..=255 {
            let mut found = Vec::new();
            marks(&[byte; 1000], &mut found);
            assert!(found.is_empty(), "{byte}");
        }
    }
}
