//! What can go wrong, for the copy as a whole and for one entry of it.

use std::fmt;

use rustix::io::Errno;

/// Why a copy cannot go on, named by what the caller can act on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CopyErrorKind {
    /// The destination is full, or its owner's quota is.
    NoSpace,
    /// The destination cannot be written.
    Refused,
    /// Another process is copying to the same destination.
    Busy,
    /// The source is not there or cannot be opened, or the two ends do not fit together.
    Ends,
    /// An interrupted copy of something else lies at the destination.
    OtherJournal,
    /// The caller stopped it.
    Stopped,
    /// Another failure of the machine.
    Failed,
}

impl CopyErrorKind {
    /// Its name for programs.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::NoSpace => "no-space",
            Self::Refused => "refused",
            Self::Busy => "busy",
            Self::Ends => "ends",
            Self::OtherJournal => "other-journal",
            Self::Stopped => "stopped",
            Self::Failed => "failed",
        }
    }
}

/// Why a copy cannot go on, with a sentence for people.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CopyError {
    /// What the caller can act on.
    pub kind: CopyErrorKind,
    /// What happened, where, and how to mend it.
    pub text: String,
}

impl CopyError {
    /// An error of this kind.
    pub fn new(kind: CopyErrorKind, text: impl Into<String>) -> Self {
        Self { kind, text: text.into() }
    }
}

impl fmt::Display for CopyError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl std::error::Error for CopyError {}

/// Which end a call was made on: a full source is no reason to stop.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum End {
    /// The source.
    Source,
    /// The destination.
    Destination,
}

/// Why one entry was not copied.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Failure {
    /// A call failed.
    Call {
        /// On which end.
        end: End,
        /// What was to be done.
        doing: &'static str,
        /// What the system answered.
        errno: Errno,
    },
    /// The source changed under the copy.
    Changed(&'static str),
    /// Something of another sort bears the name at the destination.
    Clash(&'static str),
    /// What was read back is not what was written.
    Damaged,
    /// Somebody wants the copy to end.
    Stopped,
}

impl Failure {
    /// Why the whole copy has to end, where this is such a reason.
    pub fn fatal(&self) -> Option<CopyErrorKind> {
        match self {
            Self::Call { end: End::Destination, errno, .. } => match *errno {
                Errno::NOSPC | Errno::DQUOT => Some(CopyErrorKind::NoSpace),
                Errno::ROFS => Some(CopyErrorKind::Refused),
                _ => None,
            },
            _ => None,
        }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Call { end, doing, errno } => {
                let end = if *end == End::Source { "source" } else { "destination" };
                write!(f, "{end}: {doing}: {}", said(*errno))
            }
            Self::Changed(what) | Self::Clash(what) => f.write_str(what),
            Self::Damaged => f.write_str("what was read back is not what was written"),
            Self::Stopped => f.write_str("stopped"),
        }
    }
}

/// What the system calls an error, without its number.
pub fn said(errno: Errno) -> String {
    let text = std::io::Error::from(errno).to_string();
    text.split(" (os error").next().unwrap_or_default().to_owned()
}

/// Says on which end, and doing what, a call failed.
pub trait At<T> {
    /// Says on which end, and doing what.
    fn at(self, end: End, doing: &'static str) -> Result<T, Failure>;
}

impl<T> At<T> for Result<T, Errno> {
    fn at(self, end: End, doing: &'static str) -> Result<T, Failure> {
        self.map_err(|errno| Failure::Call { end, doing, errno })
    }
}
