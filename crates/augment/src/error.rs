//! What an image or a run refuses.

use std::io;
use std::path::PathBuf;

/// Why an image could not be used. The run continues without it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ImageError {
    /// Neither PNG nor JPEG.
    #[error("it is neither PNG nor JPEG")]
    Format,
    /// More pixels, or more memory, than is allowed, as in a decompression bomb.
    #[error("{0} x {1} pixels are more than the limit: raise --max-pixels if it is to be trusted")]
    TooLarge(u32, u32),
    /// Damaged, or of a form that is not supported.
    #[error("{0}")]
    Damaged(String),
}

/// Why a run cannot start or continue.
#[derive(Debug, thiserror::Error)]
pub enum AugmentError {
    /// No operation has this text.
    #[error(
        "operation {0:?} is none of flip[:P], flip-vertical[:P], rotate:DEGREES, crop:WxH, resize:WxH, brightness:F, \
         contrast:F, color:F, noise:S"
    )]
    Operation(String),
    /// The root, or the destination.
    #[error("{}: {source}", path.display())]
    Io {
        /// The file or folder.
        path: PathBuf,
        /// What the system refused.
        source: io::Error,
    },
    /// It was stopped.
    #[error("stopped")]
    Stopped,
}

/// What a decoder refuses to try.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Pixels of an image.
    pub pixels: u64,
}

impl Limits {
    pub(crate) fn check(self, width: u32, height: u32) -> Result<(), ImageError> {
        if u64::from(width) * u64::from(height) > self.pixels {
            return Err(ImageError::TooLarge(width, height));
        }
        Ok(())
    }
}
