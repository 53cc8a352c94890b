//! Why a path cannot be emulated.

use std::io;

/// An error, by what the caller can change.
#[derive(Debug, thiserror::Error)]
pub enum PathError {
    /// The properties of the path are invalid.
    #[error("{0}")]
    Spec(String),
    /// A device cannot be created in a namespace: the process lacks privileges.
    #[error("no TUN device can be made in {namespace}: {source} (it needs root and /dev/net/tun)")]
    Device {
        /// The namespace.
        namespace: String,
        /// The cause.
        source: io::Error,
    },
    /// A namespace cannot be entered.
    #[error(transparent)]
    Namespace(#[from] waystage_netns::NamespaceError),
    /// A socket cannot be opened: choose another address.
    #[error("{0}")]
    Socket(String),
    /// The threads cannot be started: the machine lacks resources.
    #[error("the path's threads cannot be started: {0}")]
    Thread(io::Error),
}
