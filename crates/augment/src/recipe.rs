//! The operations on every image, and their parameters.

use crate::error::{ImageError, Limits};
use crate::image_file::{self, Encoding};
use crate::operation::Operation;
use crate::pixels::Pixels;
use crate::random::Random;

/// The operations on every image.
#[derive(Clone, Debug)]
pub struct Recipe {
    /// In order.
    pub operations: Vec<Operation>,
    /// The seed of all random choices.
    pub seed: u64,
    /// How the result is written.
    pub encoding: Encoding,
    /// What is refused before decoding.
    pub limits: Limits,
}

impl Recipe {
    /// The image `data`, decoded; an error where it is incomplete.
    pub(crate) fn decode(&self, data: &[u8]) -> Result<Decoded, ImageError> {
        let (pixels, found) = image_file::decode(data, self.limits)?;
        Ok(Decoded { pixels, found })
    }

    /// Copy `copy` of a decoded image.
    pub(crate) fn change(
        &self,
        image: Decoded,
        path: &[u8],
        copy: u32,
    ) -> Result<(Pixels, Encoding), ImageError> {
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

    /// The pixels of copy `copy` of the image `data`, whose path is `path`.
    pub fn pixels(
        &self,
        data: &[u8],
        path: &[u8],
        copy: u32,
    ) -> Result<(Pixels, Encoding), ImageError> {
        self.change(self.decode(data)?, path, copy)
    }

    /// The same as a file, and its encoding.
    pub fn encoded(
        &self,
        data: &[u8],
        path: &[u8],
        copy: u32,
    ) -> Result<(Vec<u8>, Encoding), ImageError> {
        let (pixels, encoding) = self.pixels(data, path, copy)?;
        Ok((image_file::encode(pixels, encoding)?, encoding))
    }
}

/// A complete image, and its encoding.
#[derive(Clone)]
pub(crate) struct Decoded {
    pixels: Pixels,
    found: Encoding,
}
