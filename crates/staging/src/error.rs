//! What can go wrong with a transfer, named by what the caller can act on.

use std::io;

use rustix::io::Errno;
use waystage_copy::error::describe;
use waystage_copy::{CopyErrorKind, Problem, ProblemKind};
use waystage_netns::NamespaceError;
use waystage_remote_copy::{WanError, WanErrorKind};

/// Why a transfer or a server failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ErrorKind {
    /// The receiver's storage is full.
    NoSpace,
    /// A file or directory does not exist.
    Missing,
    /// The server does not allow it: a name outside its modules, or writing where only reading is.
    Refused,
    /// Nothing moved for too long.
    Stalled,
    /// The peer closed the connection early.
    Ended,
    /// The caller stopped it.
    Cancelled,
    /// Another process has the port.
    PortInUse,
    /// No connection could be made, or no socket opened.
    Unreachable,
    /// Reading or writing a file failed for another reason.
    File,
}

impl ErrorKind {
    /// Its name for programs: lower case, with hyphens.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::NoSpace => "no-space",
            Self::Missing => "missing",
            Self::Refused => "refused",
            Self::Stalled => "stalled",
            Self::Ended => "ended",
            Self::Cancelled => "cancelled",
            Self::PortInUse => "port-in-use",
            Self::Unreachable => "unreachable",
            Self::File => "file",
        }
    }
}

/// Why a transfer or a server failed, with a sentence for people.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{text}")]
pub struct StagingError {
    /// What the caller can act on.
    pub kind: ErrorKind,
    /// What happened, and where.
    pub text: String,
}

impl StagingError {
    pub(crate) fn new(kind: ErrorKind, text: impl Into<String>) -> Self {
        Self { kind, text: text.into() }
    }

    /// From a socket of `address`.
    pub(crate) fn socket(address: impl std::fmt::Display, error: &io::Error) -> Self {
        let kind = match error.kind() {
            io::ErrorKind::TimedOut => ErrorKind::Stalled,
            io::ErrorKind::AddrInUse => ErrorKind::PortInUse,
            _ => ErrorKind::Unreachable,
        };
        Self::new(kind, format!("{address}: {error}"))
    }

    /// From a call on the file or directory `name`.
    pub(crate) fn file(name: &[u8], errno: Errno) -> Self {
        let kind = match errno {
            Errno::NOENT | Errno::NOTDIR => ErrorKind::Missing,
            // What openat2(2) answers where a path leaves its root or leads through a symbolic link.
            Errno::XDEV | Errno::LOOP => ErrorKind::Refused,
            _ => ErrorKind::File,
        };
        Self::new(kind, format!("{}: {}", shown(name), describe(errno)))
    }

    /// From an entry that was not copied.
    pub(crate) fn problem(problem: &Problem) -> Self {
        let kind = match problem.kind {
            ProblemKind::Vanished => ErrorKind::Missing,
            _ => ErrorKind::File,
        };
        Self::new(kind, format!("{}: {}", shown(&problem.path), problem.text))
    }

    /// As an error for the peer.
    pub(crate) fn to_peer(&self) -> WanError {
        let kind = match self.kind {
            ErrorKind::NoSpace => WanErrorKind::Files(CopyErrorKind::NoSpace),
            ErrorKind::Missing => WanErrorKind::Files(CopyErrorKind::Ends),
            ErrorKind::Refused => WanErrorKind::Refused,
            ErrorKind::File => WanErrorKind::Files(CopyErrorKind::Failed),
            _ => WanErrorKind::Lost,
        };
        WanError::new(kind, self.text.clone())
    }
}

impl From<WanError> for StagingError {
    fn from(error: WanError) -> Self {
        let kind = match error.kind {
            WanErrorKind::Files(CopyErrorKind::NoSpace) => ErrorKind::NoSpace,
            WanErrorKind::Files(CopyErrorKind::Ends) => ErrorKind::Missing,
            WanErrorKind::Files(CopyErrorKind::Stopped) => ErrorKind::Cancelled,
            WanErrorKind::Refused => ErrorKind::Refused,
            WanErrorKind::Lost => ErrorKind::Ended,
            _ => ErrorKind::File,
        };
        Self::new(kind, error.text)
    }
}

impl From<NamespaceError> for StagingError {
    fn from(error: NamespaceError) -> Self {
        Self::new(ErrorKind::Unreachable, error.to_string())
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
        for kind in [ErrorKind::NoSpace, ErrorKind::Missing, ErrorKind::Refused, ErrorKind::File] {
            let sent = StagingError::new(kind, "why").to_peer();
            let told = WanError::told(sent.kind.name(), sent.text);
            assert_eq!(StagingError::from(told), StagingError::new(kind, "why"));
        }
    }
}
