//! Where FS-C's chunks may end: Rabin's fingerprint of the last 48 bytes, as FS-C computes it.
//!
//! The polynomial, the window and the mask are those of FS-C's sources (github.com/dmeister/fs-c: `Rabin.scala`,
//! `RabinWindow.scala`, `RabinChunker.scala`); the polynomial is LBFS's. This code is not theirs: a fingerprint depends on its window
//! alone, so that four runs of the data are scanned at once, and what one addition must wait for is hidden by the others.

/// x^63 + ..., the 64 coefficients as bits: FS-C's 13827942727904890243.
const POLYNOMIAL: u64 = 0xBFE6_B8A5_BF37_8D83;

/// Bytes that a fingerprint is of.
pub(super) const WINDOW: usize = 48;

/// A chunk may end where these bits of the fingerprint are all set: one place in 8192.
const BREAKMARK: u64 = 0x1FFF;

/// Runs scanned at once.
const LANES: usize = 4;

/// Bytes of a run. No multiple of 4096, where all runs would share the lines of one set of the cache.
const LONG: usize = 4160;
/// The same for what is left at the end, and for small files.
const SHORT: usize = 544;

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
        // Shifted by 8, a fingerprint of 63 bits loses its top 8; the lowest of them stays as bit 63 and is taken away.
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

/// Append to `marks` every place `p` where a chunk may end by the window `data[p - 48..p]`, in rising order.
pub(super) fn marks(data: &[u8], marks: &mut Vec<u32>) {
    let mut at = scan_all::<LONG>(data, 0, marks);
    at = scan_all::<SHORT>(data, at, marks);
    let rest = &data[at..];
    if rest.len() < WINDOW {
        return;
    }
    let mut state = first(rest);
    for end in WINDOW..=rest.len() {
        if end > WINDOW {
            state = step(state, rest[end - WINDOW - 1], rest[end - 1]);
        }
        if state & BREAKMARK == 0 && end > WINDOW {
            marks.push(position(at + end));
        }
    }
}

/// Scan as many blocks of four runs as there are from `at`; returns where the next would begin.
///
/// A block's marks end within `at + 48 + 1 ..= at + 48 + 4 * RUN`: the place after the first window belongs to the block before.
fn scan_all<const RUN: usize>(data: &[u8], mut at: usize, marks: &mut Vec<u32>) -> usize {
    let mut found: [Vec<u32>; LANES] = Default::default();
    while data.len() - at >= WINDOW + LANES * RUN {
        let block = &data[at..at + WINDOW + LANES * RUN];
        scan::<RUN>(block, &mut found);
        for (lane, places) in found.iter_mut().enumerate() {
            let base = at + lane * RUN + WINDOW;
            marks.extend(places.drain(..).map(|place| position(base) + place));
        }
        at += LANES * RUN;
    }
    at
}

/// The places of four runs of a block, each from its own beginning.
fn scan<const RUN: usize>(block: &[u8], found: &mut [Vec<u32>; LANES]) {
    let entering: [&[u8]; LANES] = std::array::from_fn(|lane| &block[lane * RUN + WINDOW..][..RUN]);
    let leaving: [&[u8]; LANES] = std::array::from_fn(|lane| &block[lane * RUN..][..RUN]);
    let mut states: [u64; LANES] = std::array::from_fn(|lane| first(leaving[lane]));
    let mut done = 0;
    while done < RUN {
        // What is done with a mark is kept out of the loop that finds it: it would take registers.
        while done < RUN {
            for lane in 0..LANES {
                states[lane] = step(states[lane], leaving[lane][done], entering[lane][done]);
            }
            done += 1;
            if states.iter().any(|state| state & BREAKMARK == 0) {
                break;
            }
        }
        for lane in 0..LANES {
            if states[lane] & BREAKMARK == 0 {
                found[lane].push(position(done));
            }
        }
    }
}

/// The state at the end of the first window: its fingerprint, the bits of the mask inverted.
fn first(data: &[u8]) -> u64 {
    data[..WINDOW].iter().fold(0, |fingerprint, byte| append(fingerprint, *byte)) ^ BREAKMARK
}

#[inline(always)]
fn step(state: u64, leaving: u8, entering: u8) -> u64 {
    let top = TABLES.top[(state >> 55) as usize];
    let below = TABLES.leaving[usize::from(leaving)] ^ u64::from(entering);
    (state << 8) ^ below ^ top
}

/// Buffers have a few MiB.
fn position(place: usize) -> u32 {
    u32::try_from(place).unwrap_or(u32::MAX)
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
        let mut state = first(&data);
        for end in WINDOW + 1..=data.len() {
            state = step(state, data[end - WINDOW - 1], data[end - 1]);
            assert_eq!(state, first(&data[end - WINDOW..]), "at {end}");
        }
    }
}
