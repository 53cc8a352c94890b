//! Where chunks of the fast method may end: a gear hash of the last 32 bytes.
//!
//! Gear hashing is of Xia et al., "Ddelta" (2014) and FastCDC (2016). A hash of 32 bits has forgotten a byte after 32 more, so that
//! the place of a mark depends on content alone, and four runs are scanned at once.

/// Bytes that a hash is of.
const WINDOW: usize = 32;

/// A chunk may end where the upper 13 bits are zero: one place in 8192. The upper ones, because all 32 bytes reach them.
const BELOW: u32 = 1 << (32 - 13);

/// Runs scanned at once, and bytes of a run: see the same in `rabin.rs`.
const LANES: usize = 4;
const LONG: usize = 4160;
const SHORT: usize = 544;

static GEAR: [u32; 256] = gear();

/// Numbers without a pattern, the same for ever: splitmix64 (Steele et al., 2014) from 0.
const fn gear() -> [u32; 256] {
    let mut table = [0; 256];
    let mut seed: u64 = 0;
    let mut byte = 0;
    while byte < 256 {
        seed = seed.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut mixed = seed;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        table[byte] = ((mixed ^ (mixed >> 31)) >> 32) as u32;
        byte += 1;
    }
    table
}

#[inline(always)]
fn step(hash: u32, byte: u8) -> u32 {
    (hash << 1).wrapping_add(GEAR[usize::from(byte)])
}

fn hash(data: &[u8]) -> u32 {
    data.iter().fold(0, |hash, byte| step(hash, *byte))
}

/// Append to `marks` every place `p` where a chunk may end by the window `data[p - 32..p]`, in rising order.
pub(super) fn marks(data: &[u8], marks: &mut Vec<u32>) {
    let mut at = scan_all::<LONG>(data, 0, marks);
    at = scan_all::<SHORT>(data, at, marks);
    let rest = &data[at..];
    if rest.len() <= WINDOW {
        return;
    }
    let mut state = hash(&rest[..WINDOW]);
    for (place, byte) in rest.iter().enumerate().skip(WINDOW) {
        state = step(state, *byte);
        if state < BELOW {
            marks.push(position(at + place + 1));
        }
    }
}

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

fn scan<const RUN: usize>(block: &[u8], found: &mut [Vec<u32>; LANES]) {
    let runs: [&[u8]; LANES] = std::array::from_fn(|lane| &block[lane * RUN + WINDOW..][..RUN]);
    let mut states: [u32; LANES] = std::array::from_fn(|lane| hash(&block[lane * RUN..][..WINDOW]));
    let mut done = 0;
    while done < RUN {
        while done < RUN {
            for lane in 0..LANES {
                states[lane] = step(states[lane], runs[lane][done]);
            }
            done += 1;
            if states.iter().any(|state| *state < BELOW) {
                break;
            }
        }
        for lane in 0..LANES {
            if states[lane] < BELOW {
                found[lane].push(position(done));
            }
        }
    }
}

/// Buffers have a few MiB.
fn position(place: usize) -> u32 {
    u32::try_from(place).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hash_depends_on_its_window_alone() {
        let data: Vec<u8> = (0..300_u32).map(|i| (i * i % 251) as u8).collect();
        for end in WINDOW..data.len() {
            assert_eq!(hash(&data[..end]), hash(&data[end - WINDOW..end]), "at {end}");
        }
    }

    #[test]
    fn a_run_of_one_byte_has_no_mark() {
        for byte in 0..=255 {
            let mut found = Vec::new();
            marks(&[byte; 100], &mut found);
            assert!(found.is_empty(), "{byte}");
        }
    }
}
