//! Candidate boundaries of FS-C's method: Rabin's fingerprint of the last 48 bytes, as FS-C computes it.
//!
//! The polynomial, the window and the mask are those of FS-C's sources (github.com/dmeister/fs-c: `Rabin.scala`,
//! `RabinWindow.scala`, `RabinChunker.scala`); the polynomial is LBFS's. This code is not theirs: a fingerprint
//! depends on its window alone, and is linear over bits, so that many places are computed at once.

use super::lanes::{self, Rolling};
use super::matrices::{Matrices, BITS};

/// x^63 + ..., the 64 coefficients as bits: FS-C's 13827942727904890243.
const POLYNOMIAL: u64 = 0xBFE6_B8A5_BF37_8D83;

/// Bytes that a fingerprint is of.
pub(super) const WINDOW: usize = 48;

/// A chunk may end where these bits of the fingerprint are all set: one place in 8192.
const BREAKMARK: u64 = (1 << BITS) - 1;

/// What each byte changes: the one that is pushed out at the top, and the one that leaves the window.
struct Tables {
    /// As many entries as `fingerprint >> 55` has values, so that no index needs a check.
    top: [u64; 512],
    /// With the constant that turns the test for all ones into one for zero.
    leaving: [u64; 256],
}

static TABLES: Tables = tables();

/// `value` times x^`times`, modulo the polynomial.
const fn times_x(mut value: u64, times: usize) -> u64 {
    let mut done = 0;
    while done < times {
        value <<= 1;
        if value >> 63 == 1 {
            value ^= POLYNOMIAL;
        }
        done += 1;
    }
    value
}

const fn tables() -> Tables {
    let mut tables = Tables { top: [0; 512], leaving: [0; 256] };
    let mut byte = 0;
    while byte < 256 {
        // Shifted by 8, a fingerprint of 63 bits loses its top 8; the lowest of them stays as bit 63 and is taken
        // away.
        tables.top[byte] = times_x(byte as u64, 63) ^ ((byte as u64) << 63);
        tables.leaving[byte] = times_x(byte as u64, 8 * WINDOW) ^ BREAKMARK ^ (BREAKMARK << 8);
        byte += 1;
    }
    tables
}

/// The fingerprint of what was seen and one more byte, nothing leaving.
pub(super) fn append(fingerprint: u64, byte: u8) -> u64 {
    ((fingerprint << 8) | u64::from(byte)) ^ TABLES.top[(fingerprint >> 55) as usize]
}

/// Whether a chunk may end here.
pub(super) fn is_mark(fingerprint: u64) -> bool {
    fingerprint & BREAKMARK == BREAKMARK
}

static MATRICES: Matrices<WINDOW> = matrices();

const fn matrices() -> Matrices<WINDOW> {
    let mut given = [[0; 8]; WINDOW];
    let mut byte = 0;
    while byte < WINDOW {
        let mut bit = 0;
        while bit < 8 {
            given[byte][bit] = (times_x(1 << bit, 8 * byte) & BREAKMARK) as u16;
            bit += 1;
        }
        byte += 1;
    }
    Matrices::new(&given)
}

/// Append to `marks` every place `p` where a chunk may end by the window `data[p - 48..p]`, beyond the first, in
/// rising order.
pub(super) fn marks(data: &[u8], marks: &mut Vec<u32>) {
    let done = MATRICES.marks(data, marks);
    lanes::marks::<WINDOW, Rabin>(&data[done..], done, marks);
}

/// By tables, one byte after the other. The state is a fingerprint, the bits of the mask inverted.
pub(super) struct Rabin;

impl Rolling<WINDOW> for Rabin {
    type State = u64;

    fn first(window: &[u8]) -> u64 {
        window.iter().fold(0, |fingerprint, byte| append(fingerprint, *byte)) ^ BREAKMARK
    }

    #[inline(always)]
    fn step(state: u64, leaving: u8, entering: u8) -> u64 {
        let top = TABLES.top[(state >> 55) as usize];
        let below = TABLES.leaving[usize::from(leaving)] ^ u64::from(entering);
        (state << 8) ^ below ^ top
    }

    #[inline(always)]
    fn is_mark(state: u64) -> bool {
        state & BREAKMARK == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// From FS-C's own tests: `RabinChunkerTest.scala`, "table calcuation" and "invert table calculation".
    #[test]
    fn the_tables_hold_what_those_of_fs_c_hold() {
        let signed = |value: u64| i64::from_ne_bytes(value.to_ne_bytes());
        assert_eq!(signed(POLYNOMIAL), -4_618_801_345_804_661_373);
        let top = |byte: usize| signed(TABLES.top[byte]);
        assert_eq!(top(0), 0);
        assert_eq!(top(1), -4_618_801_345_804_661_373);
        assert_eq!(top(2), 9_209_141_382_100_228_870);
        assert_eq!(top(10), 4_671_215_262_765_932_955);
        assert_eq!(top(11), -56_922_619_018_187_752);
        // FS-C takes the oldest byte out before it shifts; here the shift is in the table.
        let leaving = |byte: usize| TABLES.leaving[byte] ^ BREAKMARK ^ (BREAKMARK << 8);
        assert_eq!(leaving(1), append(3_516_854_836_665_139_219, 0));
        assert_eq!(leaving(131), append(846_774_551_824_259_960, 0));
    }

    #[test]
    fn a_fingerprint_depends_on_its_window_alone() {
        let data: Vec<u8> = (0..400_u32).map(|i| (i * i % 251) as u8).collect();
        let mut state = Rabin::first(&data[..WINDOW]);
        for end in WINDOW + 1..=data.len() {
            state = Rabin::step(state, data[end - WINDOW - 1], data[end - 1]);
            assert_eq!(state, Rabin::first(&data[end - WINDOW..end]), "at {end}");
        }
    }
}
