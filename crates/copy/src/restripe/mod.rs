//! Gives the files of a tree another layout on their storage targets, in place.
//!
//! Arrives: a tree on Lustre, or on a file system that answers `lustre.lov` as Lustre does; a layout for each class of
//! sizes.
//! Leaves: the same files with their contents, owners, modes, times, attributes and hard links, laid out anew; counts,
//! and problems that name the path.
//! Must not know: Python, catalogs, how a layout was chosen.
//!
//! The decision here: a new inode is made beside the file, with the layout, complete and on storage, and then exchanged
//! with it (`RENAME_EXCHANGE`). At every moment the name is that of a complete file. The old inode keeps a name until
//! it is certain that no process changed it meanwhile, so that the exchange can be taken back. The tree itself says
//! what is done, by the layout of each file; the journal holds what it cannot say: which names are being moved
//! together because they are hard links of one file.

mod context;
mod engine;
mod file;
mod group;
mod journal;
mod lease;
mod probe;
mod stripes;
mod temporary;

pub use engine::{Restripe, RestripeJob};
pub use journal::{parse as parse_journal, Group};
pub use stripes::{StripeLayout, StripePart, ALL};

use std::path::PathBuf;

use waystage_catalog::Exclude;

use crate::options::Verify;

/// Files up to a size, and their layout.
#[derive(Debug, Clone)]
pub struct SizeClass {
    /// The largest size in it, bytes.
    pub most_bytes: u64,
    /// How its files are to be laid out.
    pub layout: StripeLayout,
}

/// Which files to lay out anew, and how.
#[derive(Debug, Clone)]
pub struct RestripeOptions {
    /// The top of the tree.
    pub tree: PathBuf,
    /// By rising size; larger files than those of the last class stay as they are.
    pub classes: Vec<SizeClass>,
    /// Threads, at least one.
    pub workers: usize,
    /// Left out.
    pub exclude: Exclude,
    /// Whether directories on other file systems are left out.
    pub one_file_system: bool,
    /// Whether the new file is read back before it takes the name.
    pub verify: Verify,
    /// Whether data is forced to storage before a new file takes the name.
    pub sync: bool,
    /// Bytes a second that all workers together read; None for no limit.
    pub rate_bytes_per_s: Option<u64>,
    /// Only say what would be done.
    pub dry_run: bool,
}
