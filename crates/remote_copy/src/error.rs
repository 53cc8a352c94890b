//! Why a copy between hosts cannot go on, by what the caller can act on.
//!
//! Arrives: errors of the channel and of files, what the peer reports. Leaves: a kind and one sentence. Must not
//! know: sockets.

use std::io;

use waystage_copy::state::Fatal;
use waystage_copy::CopyError;
use waystage_transport::Error;

/// Why a copy between hosts cannot start or continue, by what the caller can do.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum WanError {
    /// The host cannot be reached or speaks another protocol: check its address, its server and the firewall.
    #[error("{0}")]
    Unreachable(String),
    /// The peer ended the connection before it said anything: try again later.
    #[error("{0}")]
    TurnedAway(String),
    /// The server's key is not the trusted one: compare fingerprints.
    #[error("{text}")]
    Untrusted {
        /// The line that names the server's key.
        key: String,
        /// What to compare.
        text: String,
    },
    /// The peer does not know the key, or does not allow what was asked for: ask its administrator.
    #[error("{0}")]
    Refused(String),
    /// The connection was lost: resume.
    #[error("{0}")]
    Lost(String),
    /// A key or an option cannot be used: correct it.
    #[error("{0}")]
    Input(String),
    /// The files at one side.
    #[error(transparent)]
    Files(#[from] CopyError),
}

impl WanError {
    /// The name of its kind, for programs and the peer.
    #[must_use]
    pub fn kind(&self) -> &'static str {
        match self {
            Self::Unreachable(_) => "unreachable",
            Self::TurnedAway(_) => "turned-away",
            Self::Untrusted { .. } => "untrusted",
            Self::Refused(_) => "denied",
            Self::Lost(_) => "lost",
            Self::Input(_) => "input",
            Self::Files(error) => error.kind(),
        }
    }

    /// An option that cannot be used.
    pub fn input(text: impl Into<String>) -> Self {
        Self::Input(text.into())
    }

    /// The connection was lost.
    pub fn lost(text: impl Into<String>) -> Self {
        Self::Lost(text.into())
    }

    /// The error that the peer reports of itself: see [`Error::reported`].
    pub fn reported(kind: &str, text: String) -> Self {
        Error::reported(kind, text).into()
    }

    /// A system call failed.
    pub fn io(doing: &str, error: &io::Error) -> Self {
        Error::io(doing, error).into()
    }
}

impl From<Error> for WanError {
    fn from(error: Error) -> Self {
        let files = match error {
            Error::Unreachable(text) => return Self::Unreachable(text),
            Error::TurnedAway(text) => return Self::TurnedAway(text),
            Error::Untrusted { key, text } => return Self::Untrusted { key, text },
            Error::Denied(text) => return Self::Refused(text),
            Error::Lost(text) => return Self::Lost(text),
            Error::Input(text) => return Self::Input(text),
            Error::Busy(text) => CopyError::Busy(text),
            Error::Stopped(text) => CopyError::Stopped(text),
            Error::Failed(text) => CopyError::Failed(text),
            Error::Other { kind, text } => match kind.as_str() {
                "no-space" => CopyError::NoSpace(text),
                "refused" => CopyError::Refused(text),
                "ends" => CopyError::Ends(text),
                "other-journal" => CopyError::OtherJournal(text),
                _ => return Self::Refused(text),
            },
        };
        Self::Files(files)
    }
}

impl From<WanError> for Error {
    fn from(error: WanError) -> Self {
        match error {
            WanError::Unreachable(text) => Self::Unreachable(text),
            WanError::TurnedAway(text) => Self::TurnedAway(text),
            WanError::Untrusted { key, text } => Self::Untrusted { key, text },
            WanError::Refused(text) => Self::Denied(text),
            WanError::Lost(text) => Self::Lost(text),
            WanError::Input(text) => Self::Input(text),
            WanError::Files(CopyError::Busy(text)) => Self::Busy(text),
            WanError::Files(CopyError::Stopped(text)) => Self::Stopped(text),
            WanError::Files(CopyError::Failed(text)) => Self::Failed(text),
            WanError::Files(error) => {
                Self::Other { kind: error.kind().to_owned(), text: error.to_string() }
            }
        }
    }
}

impl Fatal for WanError {
    fn stopped() -> Self {
        <CopyError as Fatal>::stopped().into()
    }

    /// What the peer said before it ended the connection explains that it was lost.
    fn explains(&self, before: &Self) -> bool {
        matches!(before, Self::Lost(_)) && !matches!(self, Self::Lost(_))
    }
}

/// The peer sent what cannot be sent here.
pub fn protocol_violation() -> WanError {
    waystage_transport::protocol_violation().into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_reported_kind_keeps_its_name_and_sentence() {
        let kinds = ["no-space", "refused", "busy", "ends", "other-journal", "failed"];
        for kind in kinds.into_iter().chain(["lost", "input", "denied"]) {
            let reported = WanError::reported(kind, "why".to_owned());
            let passed_on = Error::from(reported.clone());
            assert_eq!((reported.kind(), passed_on.kind()), (kind, kind));
            assert_eq!((reported.to_string(), passed_on.to_string()), ("why".into(), "why".into()));
            assert_eq!(matches!(reported, WanError::Files(_)), kinds.contains(&kind));
        }
    }
}
