//! Why a copy between hosts cannot go on, by what the caller can act on.
//!
//! Arrives: errors of the channel and of files, what the peer reports. Leaves: a kind and one sentence. Must not
//! know: sockets.

use std::io;

use waystage_copy::state::Fatal;
use waystage_copy::CopyError;
use waystage_transport::Error;

/// Why a copy between hosts cannot start or continue: see the variants of what it wraps.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum WanError {
    /// The session with the other host.
    #[error(transparent)]
    Session(Error),
    /// The files at one side.
    #[error(transparent)]
    Files(#[from] CopyError),
}

impl WanError {
    /// The name of its kind, for programs and the peer.
    #[must_use]
    pub fn kind(&self) -> &str {
        match self {
            Self::Session(error) => error.kind(),
            Self::Files(error) => error.kind(),
        }
    }

    /// An option that cannot be used.
    pub fn input(text: impl Into<String>) -> Self {
        Self::Session(Error::input(text))
    }

    /// The connection was lost.
    pub fn lost(text: impl Into<String>) -> Self {
        Self::Session(Error::lost(text))
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
    /// An error of files that the peer reports is one of files here, too.
    fn from(error: Error) -> Self {
        let files = match error {
            Error::Busy(text) => CopyError::Busy(text),
            Error::Stopped(text) => CopyError::Stopped(text),
            Error::Failed(text) => CopyError::Failed(text),
            Error::Other { kind, text } => match kind.as_str() {
                "no-space" => CopyError::NoSpace(text),
                "refused" => CopyError::Refused(text),
                "ends" => CopyError::Ends(text),
                "other-journal" => CopyError::OtherJournal(text),
                _ => return Self::Session(Error::Denied(text)),
            },
            session => return Self::Session(session),
        };
        Self::Files(files)
    }
}

impl From<WanError> for Error {
    fn from(error: WanError) -> Self {
        match error {
            WanError::Session(error) => error,
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
        let lost = |error: &Self| matches!(error, Self::Session(Error::Lost(_)));
        lost(before) && !lost(self)
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
