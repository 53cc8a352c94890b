//! What can go wrong with a transfer, named by what the caller can act on.

use std::fmt;
use std::io;

use nix::errno::Errno;
use waystage_netns::NamespaceError;

/// Why a transfer or a server failed. The numbers go over the wire: none changes its meaning.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum ErrorKind {
    /// The receiving end's storage is full.
    NoSpace = 1,
    /// A file or folder is not there.
    Missing = 2,
    /// The server does not allow it: a name outside its modules, or writing where only reading is.
    Refused = 3,
    /// What arrived is not what was sent.
    Damaged = 4,
    /// Nothing moved for too long.
    Stalled = 5,
    /// The other end closed the connection early.
    Ended = 6,
    /// The caller stopped it.
    Cancelled = 7,
    /// The port is somebody else's.
    PortInUse = 8,
    /// No connection came about, or a socket could not be opened.
    Unreachable = 9,
    /// The other end does not speak this protocol.
    Protocol = 10,
    /// Reading or writing a file failed for another reason.
    File = 11,
}

impl ErrorKind {
    const ALL: [Self; 11] = [
        Self::NoSpace,
        Self::Missing,
        Self::Refused,
        Self::Damaged,
        Self::Stalled,
        Self::Ended,
        Self::Cancelled,
        Self::PortInUse,
        Self::Unreachable,
        Self::Protocol,
        Self::File,
    ];

    /// Its number on the wire.
    #[must_use]
    pub fn code(self) -> u8 {
        self as u8
    }

    /// The kind of that number.
    #[must_use]
    pub fn from_code(code: u8) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.code() == code)
    }

    /// Its name for programs: lower case, with hyphens.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::NoSpace => "no-space",
            Self::Missing => "missing",
            Self::Refused => "refused",
            Self::Damaged => "damaged",
            Self::Stalled => "stalled",
            Self::Ended => "ended",
            Self::Cancelled => "cancelled",
            Self::PortInUse => "port-in-use",
            Self::Unreachable => "unreachable",
            Self::Protocol => "protocol",
            Self::File => "file",
        }
    }
}

/// Why a transfer or a server failed, with a sentence for people.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TransferError {
    /// What the caller can act on.
    pub kind: ErrorKind,
    /// What happened, where.
    pub text: String,
}

impl TransferError {
    pub(crate) fn new(kind: ErrorKind, text: impl Into<String>) -> Self {
        Self { kind, text: text.into() }
    }

    /// From a call on the file or folder `name`.
    pub(crate) fn file(name: &[u8], source: &io::Error) -> Self {
        let errno = source.raw_os_error().map(Errno::from_raw);
        let kind = match errno {
            Some(Errno::ENOSPC | Errno::EDQUOT) => ErrorKind::NoSpace,
            Some(Errno::ENOENT | Errno::ENOTDIR) => ErrorKind::Missing,
            // What openat2 says of a way out of a module's root, or of a symbolic link in it.
            Some(Errno::EXDEV | Errno::ELOOP) => ErrorKind::Refused,
            _ => ErrorKind::File,
        };
        let why = match errno {
            Some(errno) => errno.desc().to_owned(),
            None => source.to_string(),
        };
        Self::new(kind, format!("{}: {why}", shown(name)))
    }
}

impl fmt::Display for TransferError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl std::error::Error for TransferError {}

impl From<NamespaceError> for TransferError {
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
    fn every_kind_survives_the_wire_and_has_a_name_of_its_own() {
        for kind in ErrorKind::ALL {
            assert_eq!(ErrorKind::from_code(kind.code()), Some(kind));
            assert_eq!(ErrorKind::ALL.iter().filter(|k| k.name() == kind.name()).count(), 1);
        }
        assert_eq!(ErrorKind::from_code(0), None);
        assert_eq!(ErrorKind::from_code(200), None);
    }

    #[test]
    fn names_are_shown_short_and_harmless() {
        assert_eq!(shown(b"a\x1b[2Jb"), "a\u{fffd}[2Jb");
        let long = shown(&[b'x'; 5000]);
        assert!(long.starts_with("...") && long.len() < 130);
    }
}
