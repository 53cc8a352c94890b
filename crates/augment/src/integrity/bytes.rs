//! Reading numbers, and reporting damage.

use crate::error::ImageError;

pub(super) fn damaged<T>(what: impl Into<String>) -> Result<T, ImageError> {
    Err(ImageError::Damaged(what.into()))
}

/// A big-endian number of 16 bits.
pub(super) fn number(data: &[u8], at: usize) -> Option<usize> {
    let bytes = data.get(at..at + 2)?;
    Some(usize::from(bytes[0]) << 8 | usize::from(bytes[1]))
}
