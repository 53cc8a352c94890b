//! The entries of a tree and their storage targets: a parallel walk into columns.
//!
//! Arrives: a tree, patterns to leave out, what an earlier walk knew.
//! Leaves: batches of columns that a columnar file takes as they are, counts, and errors that name the path.
//! Must not know: Python, Parquet, jobs, paths through the network.
//!
//! A batch holds columns and not entries, so that millions of entries are stored without touching each. A struct for
//! each entry was rejected: its name alone would be an allocation, made in one thread and freed in another.

mod batch;
pub mod check;
pub mod checksum;
mod digest;
mod exclude;
mod generate;
pub mod holes;
pub mod layout;
mod layouts;
mod lookup;

mod opener;
mod paths;
mod root;
pub mod seal;
mod stat;
pub mod walk;
mod xattr;

pub use batch::{
    nanoseconds, Attributes, Batch, Beyond, Bytes, Directories, DirectoryState, Entries,
    TYPE_LETTERS,
};
pub use exclude::{join, Exclude};
pub use generate::generate;
pub use layouts::{LayoutMethod, Layouts, ObjectRange, Objects};
pub use lookup::{EntryLookup, Found, NamedEntry};
pub use opener::{CheckCounts, CheckedTree, Columns, OpenFailed, Opened, Summed};
pub use paths::hash_paths;
pub use root::Root;
pub use walk::BATCH_ROWS;

/// Exchange two paths of one file system atomically: neither is ever absent.
pub fn exchange_paths(one: &std::path::Path, other: &std::path::Path) -> std::io::Result<()> {
    use rustix::fs::{renameat_with, RenameFlags, CWD};
    renameat_with(CWD, one, CWD, other, RenameFlags::EXCHANGE)?;
    Ok(())
}
