//! Random numbers that depend on a seed alone.
//!
//! SplitMix64 (Steele, Lea, Flood: "Fast splittable pseudorandom number generators", OOPSLA 2014) is both the
//! generator and, with a key in place of the state, the hash of the routers. A crate was not taken: results must
//! stay the same for years, and crates of random numbers change their streams between versions.

/// One step of SplitMix64's output function: a bijection of 64-bit words that mixes every bit.
#[must_use]
pub fn mix(word: u64) -> u64 {
    let word = (word ^ (word >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    let word = (word ^ (word >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    word ^ (word >> 31)
}

/// A hash of several words under a seed.
#[must_use]
pub fn hash(seed: u64, words: &[u64]) -> u64 {
    words.iter().fold(mix(seed.wrapping_add(GOLDEN)), |state, word| {
        mix(state.wrapping_add(GOLDEN) ^ word.wrapping_mul(GOLDEN))
    })
}

/// The seed of one algorithm's own stream: algorithms that are given one seed must not draw the same numbers.
#[must_use]
pub fn stream(seed: u64, name: &str) -> u64 {
    name.bytes()
        .fold(hash(seed, &[name.len() as u64]), |state, byte| hash(state, &[u64::from(byte)]))
}

/// 2^64 divided by the golden ratio, the increment of SplitMix64.
const GOLDEN: u64 = 0x9E37_79B9_7F4A_7C15;

/// A generator of random numbers.
#[derive(Clone, Debug)]
pub struct Random(u64);

impl Random {
    /// A generator whose numbers follow from `seed`.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        Self(mix(seed))
    }

    /// The next 64 bits.
    pub fn next_u64(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(GOLDEN);
        mix(self.0)
    }

    /// A number below `bound`, which is above zero. Multiply-shift: the bias is below 2^-32 for the sizes used here.
    pub fn below(&mut self, bound: usize) -> usize {
        ((u128::from(self.next_u64()) * bound as u128) >> 64) as usize
    }

    /// A number from 0 to 1, without 1.
    pub fn unit(&mut self) -> f64 {
        unit(self.next_u64())
    }

    /// Bring `items` into a random order (Fisher-Yates).
    pub fn shuffle<T>(&mut self, items: &mut [T]) {
        for last in (1..items.len()).rev() {
            items.swap(last, self.below(last + 1));
        }
    }
}

/// The upper 53 bits of a word as a number from 0 to 1, without 1.
#[must_use]
pub fn unit(word: u64) -> f64 {
    (word >> 11) as f64 / (1u64 << 53) as f64
}
