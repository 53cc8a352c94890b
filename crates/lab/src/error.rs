//! Why streams cannot be set up or measured.

use std::io;

use waystage_netns::NamespaceError;

/// An error, by what the caller can change.
#[derive(Debug, thiserror::Error)]
pub enum LossMeterError {
    /// The network namespace cannot be entered: it does not exist, or this process is not root.
    #[error(transparent)]
    Namespace(#[from] NamespaceError),
    /// A socket of a stream cannot be opened, configured or bound.
    #[error("{what}: {source}")]
    Socket {
        /// The stream and its end.
        what: String,
        /// The cause.
        source: io::Error,
    },
    /// The description of a stream is invalid.
    #[error("stream {index}: {reason}")]
    Stream {
        /// The stream.
        index: usize,
        /// The invalid value, and how to repair it.
        reason: String,
    },
    /// The calls are out of order, or a thread ended early.
    #[error("{0}")]
    State(&'static str),
}
