//! What a loader refuses, and what befalls one file.

use std::fmt;
use std::io;
use std::path::PathBuf;

/// What makes a loader impossible.
#[derive(Debug)]
pub enum LoadError {
    /// Columns that do not fit together.
    Columns(&'static str),
    /// An option that cannot be.
    Option(String),
    /// A state that is not of this loader.
    State(String),
    /// What the system refused.
    Io(PathBuf, io::Error),
}

impl fmt::Display for LoadError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Columns(what) => write!(f, "the columns of the files are damaged: {what}"),
            Self::Option(what) | Self::State(what) => f.write_str(what),
            Self::Io(path, error) => write!(f, "{}: {error}", path.display()),
        }
    }
}

impl std::error::Error for LoadError {}

/// Why a file was not delivered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Trouble {
    /// It is no longer there.
    Vanished,
    /// It is there and is not a regular file.
    NotAFile,
    /// It may not be read, or reading failed.
    Unreadable,
    /// It has become larger than memory is meant to hold.
    Grown,
    /// It has another size than was recorded, or became shorter while it was read.
    Resized,
}

/// A file that was not delivered.
#[derive(Clone, Debug)]
pub struct Failure {
    /// Its path below the root.
    pub path: PathBuf,
    /// What befell it.
    pub trouble: Trouble,
    /// What the system said.
    pub message: String,
}
