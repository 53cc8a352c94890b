//! What a deduplication profile refuses.

use std::fmt;
use std::io;
use std::path::PathBuf;

/// Why there is no profile.
#[derive(Debug)]
pub enum DedupError {
    /// A part that cannot be used: which, and why.
    Part(String, String),
    /// A file or folder of the run's own.
    Io(PathBuf, io::Error),
    /// An option that cannot be.
    Option(String),
    /// Somebody asked it to stop.
    Stopped,
}

impl fmt::Display for DedupError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Part(name, what) => write!(f, "{name}: {what}: make this part anew"),
            Self::Io(path, error) => write!(f, "{}: {error}", path.display()),
            Self::Option(what) => f.write_str(what),
            Self::Stopped => f.write_str("stopped"),
        }
    }
}

impl std::error::Error for DedupError {}
