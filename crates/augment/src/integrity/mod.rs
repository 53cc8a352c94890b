//! Whether an image file is complete, which decoders do not report: they fill missing parts with grey.
//!
//! Arrives: the bytes of a PNG or JPEG file.
//! Leaves: an error that names the missing or damaged part.
//! Must not know: pixels.
//!
//! A PNG has a checksum for every chunk. A JPEG has none, so its entropy-coded data is read to its end: every block
//! of every scan, every restart marker in its turn, and the end-of-image marker. Damage that is valid code of the
//! right length is not detected. Bytes behind the image's end (previews, second images) are ignored.

mod bits;
mod bytes;
mod frame;
mod huffman;
mod jpeg;
mod png;
mod scan;

#[cfg(test)]
mod tests;

pub(crate) use jpeg::check as check_jpeg;
pub(crate) use png::check as check_png;
