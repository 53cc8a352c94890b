//! Marks by a hash that is linear over bits, many places at once, where the processor multiplies bytes by matrices
//! (GFNI).
//!
//! Such a hash is the exclusive-or of what each byte of its window gives by itself, and what a byte gives at a
//! distance is a matrix of bits times that byte. So nothing rolls: 128 places are computed side by side, byte of the
//! window by byte of the window. Eight bits of the hash are computed first; the others only for the 32 places around
//! one where those eight are set, which is one of eight.

#[cfg(target_arch = "x86_64")]
use std::arch::x86_64::{
    __m256i, _mm256_and_si256, _mm256_cmpeq_epi8, _mm256_gf2p8affine_epi64_epi8,
    _mm256_loadu_si256, _mm256_movemask_epi8, _mm256_set1_epi64x, _mm256_set1_epi8,
    _mm256_setzero_si256, _mm256_xor_si256,
};

/// Bits of a hash that are all set at a mark: one place in 8192.
pub(super) const BITS: u32 = 13;

/// For each byte of a window, the newest first, the matrix that gives the lower eight bits and the one for those
/// above.
pub(super) struct Matrices<const WINDOW: usize> {
    lower: [u64; WINDOW],
    upper: [u64; WINDOW],
}

/// Rows of `upper` that there are.
const UPPER: u8 = (1 << (BITS - 8)) - 1;

/// Places computed side by side: four registers of 32.
const BLOCK: usize = 4 * LANE;
const LANE: usize = 32;

impl<const WINDOW: usize> Matrices<WINDOW> {
    /// `given[i][j]`: what bit `j` of the byte `i` bytes before the newest gives to the hash, in its lower [`BITS`]
    /// bits.
    pub(super) const fn new(given: &[[u16; 8]; WINDOW]) -> Self {
        let mut matrices = Self { lower: [0; WINDOW], upper: [0; WINDOW] };
        let mut byte = 0;
        while byte < WINDOW {
            let mut bit = 0;
            while bit < BITS {
                let mut row = 0_u64;
                let mut input = 0;
                while input < 8 {
                    row |= ((given[byte][input] as u64 >> bit) & 1) << input;
                    input += 1;
                }
                // The row of the lowest bit is the highest byte of a matrix.
                if bit < 8 {
                    matrices.lower[byte] |= row << (8 * (7 - bit));
                } else {
                    matrices.upper[byte] |= row << (8 * (15 - bit));
                }
                bit += 1;
            }
            byte += 1;
        }
        matrices
    }

    /// Append the marks of as many whole blocks as there are, beyond the first window, in rising order.
    ///
    /// Returns from where on another scan is to go on, with the bytes of a window before its first place; 0 where the
    /// processor cannot do it.
    #[cfg(target_arch = "x86_64")]
    pub(super) fn marks(&self, data: &[u8], marks: &mut Vec<u32>) -> usize {
        if !(is_x86_feature_detected!("gfni") && is_x86_feature_detected!("avx2")) {
            return 0;
        }
        // SAFETY: the processor has both.
        #[allow(unsafe_code)]
        unsafe {
            self.scan(data, marks)
        }
    }

    #[cfg(not(target_arch = "x86_64"))]
    pub(super) fn marks(&self, _data: &[u8], _marks: &mut Vec<u32>) -> usize {
        0
    }

    #[cfg(target_arch = "x86_64")]
    #[target_feature(enable = "avx2,gfni")]
    fn scan(&self, data: &[u8], marks: &mut Vec<u32>) -> usize {
        let mut newest = WINDOW;
        while data.len().saturating_sub(newest) >= BLOCK {
            let block = &data[newest - (WINDOW - 1)..newest + BLOCK];
            let found = hashes::<WINDOW, 4>(&self.lower, block, 0);
            for (lane, lower) in found.into_iter().enumerate() {
                let mut places = ones(lower, 0xFF);
                if places != 0 {
                    let [upper] = hashes::<WINDOW, 1>(&self.upper, block, lane * LANE);
                    places &= ones(upper, UPPER);
                }
                while places != 0 {
                    let place = newest + lane * LANE + places.trailing_zeros() as usize;
                    marks.push(super::lanes::position(place + 1));
                    places &= places - 1;
                }
            }
            newest += BLOCK;
        }
        newest - WINDOW
    }
}

/// Eight bits of the hashes at `32 * N` places; the first window begins `skip` bytes into `block`.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,gfni")]
fn hashes<const WINDOW: usize, const N: usize>(
    matrices: &[u64; WINDOW],
    block: &[u8],
    skip: usize,
) -> [__m256i; N] {
    let mut found = [_mm256_setzero_si256(); N];
    for (distance, matrix) in matrices.iter().enumerate() {
        let matrix = _mm256_set1_epi64x(i64::from_ne_bytes(matrix.to_ne_bytes()));
        let bytes = &block[skip + WINDOW - 1 - distance..][..N * LANE];
        for (lane, hash) in found.iter_mut().enumerate() {
            let bytes = &bytes[lane * LANE..][..LANE];
            // SAFETY: 32 bytes, at any address.
            #[allow(unsafe_code)]
            let bytes = unsafe { _mm256_loadu_si256(bytes.as_ptr().cast()) };
            *hash = _mm256_xor_si256(*hash, _mm256_gf2p8affine_epi64_epi8::<0>(bytes, matrix));
        }
    }
    found
}

/// A bit for each of 32 bytes: whether all bits of `mask` are set in it.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2")]
fn ones(hash: __m256i, mask: u8) -> u32 {
    let mask = _mm256_set1_epi8(i8::from_ne_bytes([mask]));
    let equal = _mm256_cmpeq_epi8(_mm256_and_si256(hash, mask), mask);
    u32::from_ne_bytes(_mm256_movemask_epi8(equal).to_ne_bytes())
}
