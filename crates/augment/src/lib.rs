//! Images made from images for training.
//!
//! Arrives: image files, operations, a seed.
//! Leaves: new images for each file, in a tree, in a shard, or in turn to a consumer; the files that are damaged.
//! Must not know: Python, how files were listed, what the images are for.
//!
//! A new image depends on the seed, its path, the number of the copy and the operations alone: threads, nodes and
//! order do not change a byte of it. Headers of images are untrusted: dimensions are compared with a limit before
//! anything is decoded.

mod content;
mod counts;
mod error;
mod image_file;
mod integrity;
mod operation;
mod pixels;
mod random;
mod recipe;
mod run;
mod sink;

pub use counts::Counts;
pub use error::{AugmentError, ImageError, Limits};
pub use image_file::Encoding;
pub use operation::Operation;
pub use pixels::Pixels;
pub use recipe::Recipe;
pub use run::{Augmentation, Made, Options, Source};
pub use sink::Target;

#[cfg(test)]
mod tests;
