//! What can go wrong with a probe, named by what the caller can act on.

use std::fmt;
use std::io;

use waystage_netns::NamespaceError;

/// Why probes could not be set up or run.
#[derive(Debug)]
pub enum LossMeterError {
    /// The named network namespace cannot be entered: it is not there, or this process is not root.
    Namespace(NamespaceError),
    /// A socket of a stream could not be opened, configured or bound.
    Socket {
        /// Which stream and end.
        what: String,
        /// What the system said.
        source: io::Error,
    },
    /// A stream's description is of no use.
    Stream {
        /// Which stream.
        index: usize,
        /// What is wrong, and how to mend it.
        reason: String,
    },
    /// The engine was called out of order, or one of its threads ended early.
    State(&'static str),
}

impl fmt::Display for LossMeterError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Namespace(error) => error.fmt(f),
            Self::Socket { what, source } => write!(f, "{what}: {source}"),
            Self::Stream { index, reason } => write!(f, "stream {index}: {reason}"),
            Self::State(reason) => f.write_str(reason),
        }
    }
}

impl std::error::Error for LossMeterError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Namespace(error) => Some(error),
            Self::Socket { source, .. } => Some(source),
            Self::Stream { .. } | Self::State(_) => None,
        }
    }
}

impl From<NamespaceError> for LossMeterError {
    fn from(error: NamespaceError) -> Self {
        Self::Namespace(error)
    }
}
