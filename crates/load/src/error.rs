//! What a loader or a deduplication profile refuses, and why a file was not delivered.

use std::io;
use std::path::PathBuf;

/// Why there is no loader or profile.
#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    /// Columns that do not fit together.
    #[error("the columns of the files are damaged: {0}")]
    Columns(&'static str),
    /// An invalid option.
    #[error("{0}")]
    Option(String),
    /// A state of another loader.
    #[error("{0}")]
    State(String),
    /// A part that cannot be used: which, and why.
    #[error("{0}: {1}: make this part anew")]
    Part(String, String),
    /// What the system refused.
    #[error("{path}: {error}", path = .0.display(), error = .1)]
    Io(PathBuf, #[source] io::Error),
    /// It was stopped.
    #[error("stopped")]
    Stopped,
}

/// Why a file was not delivered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Trouble {
    /// It no longer exists.
    Vanished,
    /// It is not a regular file.
    NotAFile,
    /// It may not be read, or reading failed.
    Unreadable,
    /// It has become larger than the memory limit.
    Grown,
    /// Its size differs from its entry, or it became shorter while it was read.
    Resized,
}

/// A file that was not delivered.
#[derive(Clone, Debug)]
pub struct Failure {
    /// Its path below the root.
    pub path: PathBuf,
    /// The reason.
    pub trouble: Trouble,
    /// What the system said.
    pub message: String,
}
