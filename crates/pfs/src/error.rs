//! What an emulated file system refuses, by what the caller can do.

use std::io;

/// Why there is no emulated file system.
#[derive(Debug, thiserror::Error)]
pub enum PfsError {
    /// An invalid number in the shape.
    #[error("{0}")]
    Shape(String),
    /// The mount was refused.
    #[error("the file system cannot be mounted: {0}")]
    Mount(#[source] io::Error),
    /// The folder behind it cannot be served.
    #[error("the folder cannot be served: {0}")]
    Folder(#[source] io::Error),
}
