//! What a worker is given to do.

use std::sync::Arc;

use super::large_file::Large;
use super::striped::Part;
use crate::source::Item;

/// A piece of work.
pub(super) enum Task {
    /// Entries of one directory.
    Items(Vec<Item>),
    /// Names of one file: the first is there, the others are to become links to it.
    Links(Vec<Item>),
    /// One extent of a large file.
    Extent(Arc<Large>, u32),
    /// The part of an extent on one storage target.
    Part(Arc<Large>, Part),
}
