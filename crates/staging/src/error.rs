//! What can go wrong with a transfer, named by what the caller can act on.

use std::io;

use rustix::io::Errno;
use waystage_copy::error::describe;
use waystage_copy::{CopyError, Problem, ProblemKind};
use waystage_netns::NamespaceError;
use waystage_remote_copy::WanError;
use waystage_transport::Error;

/// Why a transfer or a server failed, by what the caller can do.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum StagingError {
    /// The receiver's storage is full: make room.
    #[error("{0}")]
    NoSpace(String),
    /// A file or directory does not exist: name another.
    #[error("{0}")]
    Missing(String),
    /// The server does not allow it, as a name outside its modules or a write to one that may only be read.
    #[error("{0}")]
    Refused(String),
    /// Nothing moved for too long: try again.
    #[error("{0}")]
    Stalled(String),
    /// The peer closed the connection early: try again.
    #[error("{0}")]
    Ended(String),
    /// The caller stopped it.
    #[error("{0}")]
    Cancelled(String),
    /// Another process has the port: choose another.
    #[error("{0}")]
    PortInUse(String),
    /// No connection could be made, or no socket opened: check the address.
    #[error("{0}")]
    Unreachable(String),
    /// Reading or writing a file failed for another reason.
    #[error("{0}")]
    File(String),
}

impl StagingError {
    /// The name of its kind, for programs: lower case, with hyphens.
    #[must_use]
    pub fn kind(&self) -> &'static str {
        match self {
            Self::NoSpace(_) => "no-space",
            Self::Missing(_) => "missing",
            Self::Refused(_) => "refused",
            Self::Stalled(_) => "stalled",
            Self::Ended(_) => "ended",
            Self::Cancelled(_) => "cancelled",
            Self::PortInUse(_) => "port-in-use",
            Self::Unreachable(_) => "unreachable",
            Self::File(_) => "file",
        }
    }

    /// From a socket of `address`.
    pub(crate) fn socket(address: impl std::fmt::Display, error: &io::Error) -> Self {
        let text = format!("{address}: {error}");
        match error.kind() {
            io::ErrorKind::TimedOut => Self::Stalled(text),
            io::ErrorKind::AddrInUse => Self::PortInUse(text),
            _ => Self::Unreachable(text),
        }
    }

    /// From a call on the file or directory `name`.
    pub(crate) fn file(name: &[u8], errno: Errno) -> Self {
        let text = format!("{}: {}", shown(name), describe(errno));
        match errno {
            Errno::NOENT | Errno::NOTDIR => Self::Missing(text),
            // What openat2(2) answers where a path leaves its root or leads through a symbolic link.
            Errno::XDEV | Errno::LOOP => Self::Refused(text),
            _ => Self::File(text),
        }
    }

    /// From an entry that was not copied.
    pub(crate) fn problem(problem: &Problem) -> Self {
        let text = format!("{}: {}", shown(&problem.path), problem.text);
        match problem.kind {
            ProblemKind::Vanished => Self::Missing(text),
            _ => Self::File(text),
        }
    }

    /// As an error for the peer.
    pub(crate) fn to_peer(&self) -> WanError {
        let text = self.to_string();
        match self {
            Self::NoSpace(_) => CopyError::NoSpace(text).into(),
            Self::Missing(_) => CopyError::Ends(text).into(),
            Self::Refused(_) => Error::Denied(text).into(),
            Self::File(_) => CopyError::Failed(text).into(),
            _ => WanError::lost(text),
        }
    }
}

impl From<WanError> for StagingError {
    fn from(error: WanError) -> Self {
        let text = error.to_string();
        match error {
            WanError::Files(CopyError::NoSpace(_)) => Self::NoSpace(text),
            WanError::Files(CopyError::Ends(_)) => Self::Missing(text),
            WanError::Files(CopyError::Stopped(_)) => Self::Cancelled(text),
            WanError::Session(Error::Denied(_)) => Self::Refused(text),
            WanError::Session(Error::Lost(_)) => Self::Ended(text),
            _ => Self::File(text),
        }
    }
}

impl From<NamespaceError> for StagingError {
    fn from(error: NamespaceError) -> Self {
        Self::Unreachable(error.to_string())
    }
}

/// A name as people can read it: its end, where it is long, and nothing that would upset a terminal.
pub(crate) fn shown(name: &[u8]) -> String {
    const LONGEST: usize = 120;
    let end = &name[name.len().saturating_sub(LONGEST)..];
    let text: String = String::from_utf8_lossy(end)
        .chars()
        .map(|c| if c.is_control() { char::REPLACEMENT_CHARACTER } else { c })
        .collect();
    if end.len() < name.len() {
        format!("...{text}")
    } else {
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_shown_short_and_harmless() {
        assert_eq!(shown(b"a\x1b[2Jb"), "a\u{fffd}[2Jb");
        let long = shown(&[b'x'; 5000]);
        assert!(long.starts_with("...") && long.len() < 130);
    }

    #[test]
    fn what_a_caller_can_act_on_survives_the_wire() {
        use StagingError as Error;
        for kind in [Error::NoSpace, Error::Missing, Error::Refused, Error::File] {
            let sent = kind("why".to_owned()).to_peer();
            let reported = WanError::reported(sent.kind(), sent.to_string());
            assert_eq!(StagingError::from(reported), kind("why".to_owned()));
        }
    }
}
