//! How a file is cut into objects, and on which storage targets they are.
//!
//! Arrives: a file system's answer as bytes: an extended attribute, the result of an ioctl, the output of a command.
//! Leaves: one [`Layout`] for every file system; from it the extents that cover a file of a given size, and the part
//! of the file in each object.
//! Must not know: paths, catalogs, who reads the objects.
//!
//! A kind of file system is one file here that implements [`LayoutReader`], and a line in [`READERS`]; [`null`] is
//! the template.
//!
//! A layout is a rule, not a list: a terabyte in stripes of 64 KiB has 16 million extents, so they are computed one
//! at a time, and a layout never takes more memory than its input did. Answers are untrusted bytes: a parser returns
//! a [`LayoutError`], and the caller reads the file by its path, as if there were no layout.

pub mod beegfs;
pub mod ceph;
mod error;
mod extents;
mod file_systems;
mod flags;
pub mod gfarm;
pub mod gluster;
pub mod local;
pub mod lustre;
mod model;
pub mod null;
mod reader;
mod sample;
mod shares;
mod striping;
mod target;

pub use error::{ErrorKind, LayoutError};
pub use extents::{Extent, Extents, Mirrors};
pub(crate) use file_systems::Served;
pub use file_systems::{reader_at, reader_index, reader_named, FileSystems, READERS};
pub use flags::Flags;
pub use model::{Component, Layout, Planned};
pub use reader::{Access, LayoutReader, OpenFile};
pub use sample::Sample;
pub use shares::{Share, Shares};
pub use striping::{Place, Striping, EOF, MIN_UNIT};
pub use target::{Object, ObjectId, Target};

#[cfg(test)]
mod tests;
