//! Images made from images for training.
//!
//! Arrives: files with images, what is to be done to them, a seed.
//! Leaves: for each file new images, in a tree, in a shard, or one after the other to whoever asks; what was broken.
//! Must not know: Python, how files were listed, what the images are for.
//!
//! What becomes of an image hangs on the seed, its path, the number of the copy and the operations alone: neither threads nor nodes
//! nor order change a byte of it. What images say of themselves is not believed: dimensions are held against a limit
//! before anything is decoded.

mod content;
mod counts;
mod image_file;
mod integrity;
mod operation;
mod pixels;
mod random;
mod run;
mod sink;

pub use counts::Counts;
pub use image_file::{Broken, Encoding, Limits};
pub use operation::{Operation, Unknown};
pub use pixels::Pixels;
pub use run::{Augmentation, Made, Options, Refused, Source};
pub use sink::Target;

use random::Random;

#[cfg(test)]
mod tests;

/// What is done to every image.
#[derive(Clone, Debug)]
pub struct Recipe {
    /// One after the other.
    pub operations: Vec<Operation>,
    /// What decides all that is random.
    pub seed: u64,
    /// How the result is written.
    pub encoding: Encoding,
    /// What is not even tried.
    pub limits: Limits,
}

impl Recipe {
    /// The image `data`, decoded; an error where it is not whole.
    pub(crate) fn decode(&self, data: &[u8]) -> Result<Decoded, Broken> {
        let (pixels, found) = image_file::decode(data, self.limits)?;
        Ok(Decoded { pixels, found })
    }

    /// What becomes of a decoded image as copy `copy`.
    pub(crate) fn change(
        &self,
        image: Decoded,
        path: &[u8],
        copy: u32,
    ) -> Result<(Pixels, Encoding), Broken> {
        let mut pixels = image.pixels;
        let mut random = Random::new(self.seed, path, copy);
        for operation in &self.operations {
            pixels = operation.apply(pixels, &mut random, self.limits)?;
        }
        let encoding = match self.encoding {
            Encoding::Same => image.found,
            other => other,
        };
        Ok((pixels, encoding))
    }

    /// The pixels of copy `copy` of the image `data`, which lies at `path`.
    pub fn pixels(
        &self,
        data: &[u8],
        path: &[u8],
        copy: u32,
    ) -> Result<(Pixels, Encoding), Broken> {
        self.change(self.decode(data)?, path, copy)
    }

    /// The same as a file, and what it is.
    pub fn encoded(
        &self,
        data: &[u8],
        path: &[u8],
        copy: u32,
    ) -> Result<(Vec<u8>, Encoding), Broken> {
        let (pixels, encoding) = self.pixels(data, path, copy)?;
        Ok((image_file::encode(pixels, encoding)?, encoding))
    }
}

/// An image that is whole, and how it was written.
#[derive(Clone)]
pub(crate) struct Decoded {
    pixels: Pixels,
    found: Encoding,
}
