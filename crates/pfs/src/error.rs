//! What can be wrong with an emulated file system, by what a caller can do about it.

use std::fmt;
use std::io;

/// Why there is no emulated file system.
#[derive(Debug)]
pub enum PfsError {
    /// A number of the shape makes no sense; the sentence says which.
    Shape(String),
    /// The mount was refused.
    Mount(io::Error),
    /// The folder behind it cannot be served.
    Folder(io::Error),
}

impl fmt::Display for PfsError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Shape(what) => f.write_str(what),
            Self::Mount(error) => write!(f, "the file system cannot be mounted: {error}"),
            Self::Folder(error) => write!(f, "the folder cannot be served: {error}"),
        }
    }
}

impl std::error::Error for PfsError {}
