//! Estimates the redundancy in memory that does not grow with the data.
//!
//! After Harnik, Khaitzin and Sotnikov, "Estimating unseen deduplication, from theory to practice" (FAST'16), and the
//! two-phase scheme of Harnik, Margalit, Naor, Sotnikov and Vernik (MSST'12) that FS-C has: sample chunks first, then
//! count in a second pass how often each one of the sample occurs. A chunk that occurs n times stands for 1/n of
//! distinct data.

use std::collections::HashMap;
use std::path::Path;

use crate::digest::Fingerprint;

use super::tally::{Files, Types};
use super::totals::{checked, replay};
use super::trace::{Parameters, SLICES};
use crate::error::LoadError;

/// The estimate holds with this probability.
pub const CONFIDENCE: f64 = 0.99;

/// An estimate of what is distinct.
#[derive(Clone, Debug, PartialEq)]
pub struct Estimate {
    /// What became of the files.
    pub files: Files,
    /// Chunks of all parts.
    pub chunks: u64,
    /// Their bytes, exactly.
    pub bytes: u64,
    /// Chunks in the sample.
    pub sample: u64,
    /// The share of the bytes that is distinct.
    pub distinct_share: f64,
    /// How far off that is at most, with a probability of [`CONFIDENCE`].
    pub error: f64,
}

/// Estimate from parts, in two passes over them. The same parts, sample size and seed give the same estimate.
pub fn estimate(
    parts: &[impl AsRef<Path>],
    sample: usize,
    seed: u64,
    mut seen: impl FnMut(u64) -> bool,
) -> Result<(Parameters, Estimate), LoadError> {
    let parameters = checked(parts)?;
    let sample = sample.max(1);
    let mut random = Random(seed);
    let mut reservoir: Vec<(Fingerprint, u32)> = Vec::new();
    let (mut chunks, mut bytes) = (0_u64, 0_u64);
    let mut files = Files::default();
    let mut passed = 0;
    let types = Types::new();
    let mut go_on = |more: usize| {
        passed += more as u64;
        if seen(passed) {
            Ok(())
        } else {
            Err(LoadError::Stopped)
        }
    };
    for path in parts {
        // Vitter's algorithm R: every chunk stays with the same probability, wherever it comes.
        let take = |_, _, block: &[(Fingerprint, u32)]| {
            for chunk in block {
                chunks += 1;
                bytes = bytes.saturating_add(u64::from(chunk.1));
                if reservoir.len() < sample {
                    reservoir.push(*chunk);
                } else if let Some(place) = reservoir.get_mut(random.below(chunks)) {
                    *place = *chunk;
                }
            }
            go_on(block.len())
        };
        files.merge(replay(path.as_ref(), 0..SLICES, &types, take, |_| ())?);
    }
    let mut counts: HashMap<Fingerprint, u64> =
        reservoir.iter().map(|(fingerprint, _)| (*fingerprint, 0)).collect();
    for path in parts {
        let count = |_, _, block: &[(Fingerprint, u32)]| {
            for (fingerprint, _) in block {
                if let Some(count) = counts.get_mut(fingerprint) {
                    *count += 1;
                }
            }
            go_on(block.len())
        };
        replay(path.as_ref(), 0..SLICES, &types, count, |_| ())?;
    }
    let (mut share, mut weight, mut squares) = (0.0, 0.0, 0.0);
    for (fingerprint, length) in &reservoir {
        let length = f64::from(*length);
        share += length / counts[fingerprint] as f64;
        weight += length;
        squares += length * length;
    }
    let distinct_share = if weight > 0.0 { share / weight } else { 1.0 };
    // Hoeffding's bound, for means that are weighted by length.
    let spread = if weight > 0.0 { squares / (weight * weight) } else { 0.0 };
    let error = if chunks <= sample as u64 {
        0.0
    } else {
        ((2.0 / (1.0 - CONFIDENCE)).ln() / 2.0 * spread).sqrt()
    };
    let sample = reservoir.len() as u64;
    Ok((parameters, Estimate { files, chunks, bytes, sample, distinct_share, error }))
}

/// splitmix64 (Steele et al., 2014).
struct Random(u64);

impl Random {
    /// A number from 0 to `bound` - 1.
    fn below(&mut self, bound: u64) -> usize {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        mixed ^= mixed >> 31;
        usize::try_from((u128::from(mixed) * u128::from(bound)) >> 64).unwrap_or(usize::MAX)
    }
}
