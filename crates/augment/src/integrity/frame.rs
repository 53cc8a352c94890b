//! Frames of JPEG: the components of an image and their blocks (ITU-T T.81, A.1 and B.2.2).

use super::bytes::number;
use crate::error::{ImageError, Limits};

/// One component, of blocks of 8 by 8 samples.
pub(super) struct Component {
    pub(super) id: u8,
    pub(super) h: usize,
    pub(super) v: usize,
    /// Blocks of a scan of this component alone.
    pub(super) wide: usize,
    pub(super) high: usize,
    /// Blocks in a row where scans interleave components: up to a whole MCU.
    pub(super) stride: usize,
    /// Whether a scan has given its coefficients, or the first of each block where the frame is progressive.
    pub(super) given: bool,
    /// Of progressive frames: by block, which coefficients are not zero.
    pub(super) filled: Vec<u64>,
}

pub(super) struct Frame {
    pub(super) progressive: bool,
    pub(super) components: Vec<Component>,
    /// MCUs of interleaved scans.
    pub(super) wide: usize,
    pub(super) high: usize,
}

impl Frame {
    /// From the body of a segment SOF0, SOF1 or SOF2; None where it is none.
    pub(super) fn parse(
        body: &[u8],
        progressive: bool,
        limits: Limits,
    ) -> Result<Option<Self>, ImageError> {
        let (Some(height), Some(width)) = (number(body, 1), number(body, 3)) else {
            return Ok(None);
        };
        // Numbers of 16 bits.
        limits.check(width as u32, height as u32)?;
        Ok(Self::of_size(body, progressive, width, height))
    }

    fn of_size(body: &[u8], progressive: bool, width: usize, height: usize) -> Option<Self> {
        let count = usize::from(*body.get(5)?);
        let specs = body.get(6..6 + 3 * count)?;
        if width == 0 || height == 0 || !(1..=4).contains(&count) {
            return None;
        }
        let factors = |spec: &[u8]| (usize::from(spec[1] >> 4), usize::from(spec[1] & 15));
        let all: Vec<_> = specs.chunks_exact(3).map(factors).collect();
        if all.iter().any(|(h, v)| !(1..=4).contains(h) || !(1..=4).contains(v)) {
            return None;
        }
        let (most_h, most_v) = all.iter().fold((1, 1), |(a, b), (h, v)| (a.max(*h), b.max(*v)));
        let (wide, high) = (width.div_ceil(8 * most_h), height.div_ceil(8 * most_v));
        let components = specs.chunks_exact(3).zip(all).map(|(spec, (h, v))| Component {
            id: spec[0],
            h,
            v,
            wide: (width * h).div_ceil(most_h).div_ceil(8),
            high: (height * v).div_ceil(most_v).div_ceil(8),
            stride: wide * h,
            given: false,
            filled: vec![0; if progressive { wide * h * high * v } else { 0 }],
        });
        Some(Self { progressive, components: components.collect(), wide, high })
    }
}
