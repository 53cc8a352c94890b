//! What a peer or a caller can do wrong.

/// An error, by what its receiver does about it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// Bytes that cannot be parsed. A packet that is not authenticated yet is dropped; a peer that sealed it is at
    /// fault.
    #[error("malformed packet: {0}")]
    Malformed(&'static str),
    /// The peer violated the protocol: close the connection with the code `codes::PROTOCOL_VIOLATION`.
    #[error("protocol violation: {0}")]
    Violation(&'static str),
    /// No congestion controller has this name: choose another.
    #[error("there is no mode {name:?}: use one of {known}")]
    UnknownMode {
        /// The name.
        name: String,
        /// The registered names.
        known: String,
    },
}

impl Error {
    /// The rule or the name, without an introduction.
    #[must_use]
    pub fn detail(&self) -> &str {
        match self {
            Self::Malformed(detail) | Self::Violation(detail) => detail,
            Self::UnknownMode { name, .. } => name,
        }
    }
}
