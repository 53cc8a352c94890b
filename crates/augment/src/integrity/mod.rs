//! Whether the file of an image is whole, which decoders do not say: they fill what is missing with grey.
//!
//! Arrives: the bytes of a PNG or JPEG file.
//! Leaves: what is missing or damaged, in words.
//! Must not know: pixels.
//!
//! A PNG has a checksum for every chunk. A JPEG has none, so its entropy-coded data is read to its end: every block of every
//! scan, every restart marker in its turn, and the end-of-image marker. Damage that is valid code of the right
//! length cannot be told from an image. Bytes behind the image's end belong to others (previews, second images) and are
//! not looked at.

mod bits;
mod frame;
mod huffman;
mod jpeg;
mod png;
mod scan;

#[cfg(test)]
mod tests;

pub(crate) use jpeg::check as check_jpeg;
pub(crate) use png::check as check_png;

use crate::image_file::Broken;

fn damaged<T>(what: impl Into<String>) -> Result<T, Broken> {
    Err(Broken::Damaged(what.into()))
}

/// A big-endian number of 16 bits.
fn number(data: &[u8], at: usize) -> Option<usize> {
    let bytes = data.get(at..at + 2)?;
    Some(usize::from(bytes[0]) << 8 | usize::from(bytes[1]))
}
