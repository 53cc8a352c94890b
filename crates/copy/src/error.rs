//! What can go wrong, for the copy as a whole and for one entry of it.

use rustix::io::Errno;

use crate::counts::ProblemKind;

/// Why a copy cannot continue, by what the caller can do. The text says what happened, where, and how to fix it.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CopyError {
    /// The destination or its owner's quota is full: make room, then resume.
    #[error("{0}")]
    NoSpace(String),
    /// The destination cannot be written: choose another.
    #[error("{0}")]
    Refused(String),
    /// Another process is copying to the same destination: try again later.
    #[error("{0}")]
    Busy(String),
    /// The source cannot be opened, or source and destination do not fit together: name others.
    #[error("{0}")]
    Ends(String),
    /// The destination holds an interrupted copy of something else: finish that copy, or restart.
    #[error("{0}")]
    OtherJournal(String),
    /// More would be deleted than the caller allows: allow more, or look at the source.
    #[error("{0}")]
    TooMany(String),
    /// The caller stopped it.
    #[error("{0}")]
    Stopped(String),
    /// Another system call failed.
    #[error("{0}")]
    Failed(String),
}

impl CopyError {
    /// The name of its kind, for programs and the peer.
    #[must_use]
    pub fn kind(&self) -> &'static str {
        match self {
            Self::NoSpace(_) => "no-space",
            Self::Refused(_) => "refused",
            Self::Busy(_) => "busy",
            Self::Ends(_) => "ends",
            Self::OtherJournal(_) => "other-journal",
            Self::TooMany(_) => "too-many",
            Self::Stopped(_) => "stopped",
            Self::Failed(_) => "failed",
        }
    }
}

/// The side on which a call was made: a full source is no reason to stop.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum End {
    /// The source.
    Source,
    /// The destination.
    Destination,
}

impl std::fmt::Display for End {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(if *self == Self::Source { "source" } else { "destination" })
    }
}

/// Why one entry was not copied.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Failure {
    /// A call failed.
    #[error("{end}: {doing}: {}", describe(*.errno))]
    Call {
        /// On which side.
        end: End,
        /// What was to be done.
        doing: &'static str,
        /// What the system answered.
        errno: Errno,
    },
    /// The source changed under the copy.
    #[error("{0}")]
    Changed(&'static str),
    /// Why, in words: a symbolic link that was to be followed leads nowhere, or another host says so.
    #[error("{0}")]
    Said(String),
    /// An entry of another type has the name at the destination.
    #[error("{0}")]
    Clash(&'static str),
    /// What was read back is not what was written.
    #[error("what was read back is not what was written")]
    Damaged,
    /// The copy was stopped.
    #[error("stopped")]
    Stopped,
}

/// What follows from the failure of one entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FailureClass {
    /// Nothing: the copy is ending.
    Stopped,
    /// The destination is full, and the copy ends.
    NoSpace,
    /// The destination's file system became read-only, and the copy ends.
    ReadOnly,
    /// The entry is reported, and the copy goes on.
    Problem(ProblemKind),
}

impl Failure {
    /// What follows from it.
    #[must_use]
    pub fn class(&self) -> FailureClass {
        let problem = match self {
            Self::Stopped => return FailureClass::Stopped,
            Self::Call { end: End::Destination, errno: Errno::NOSPC | Errno::DQUOT, .. } => {
                return FailureClass::NoSpace
            }
            Self::Call { end: End::Destination, errno: Errno::ROFS, .. } => {
                return FailureClass::ReadOnly
            }
            Self::Call { end: End::Source, errno: Errno::NOENT, .. } => ProblemKind::Vanished,
            // Part of its path is no longer a directory, or is a link by now.
            Self::Call { end: End::Source, errno: Errno::NOTDIR | Errno::LOOP, .. }
            | Self::Changed(_) => ProblemKind::Changed,
            _ => ProblemKind::Error,
        };
        FailureClass::Problem(problem)
    }

    /// Whether the next run can continue a large file at which this happened.
    #[must_use]
    pub fn is_resumable(&self) -> bool {
        !matches!(self.class(), FailureClass::Problem(_))
    }
}

/// What of an entry could not be kept, for the report.
pub type Lost = Option<String>;

/// Two losses of one entry.
#[must_use]
pub fn join_lost(one: Lost, other: Lost) -> Lost {
    match (one, other) {
        (Some(one), Some(other)) => Some(format!("{one}; {other}")),
        (one, other) => one.or(other),
    }
}

/// What the system calls an error, without its number.
#[must_use]
pub fn describe(errno: Errno) -> String {
    let text = std::io::Error::from(errno).to_string();
    text.split(" (os error").next().unwrap_or_default().to_owned()
}

/// Adds to a failed call on which side it was made, and what for.
pub trait At<T> {
    /// Adds them.
    fn at(self, end: End, doing: &'static str) -> Result<T, Failure>;
}

impl<T> At<T> for Result<T, Errno> {
    fn at(self, end: End, doing: &'static str) -> Result<T, Failure> {
        self.map_err(|errno| Failure::Call { end, doing, errno })
    }
}

impl<T> At<T> for std::io::Result<T> {
    fn at(self, end: End, doing: &'static str) -> Result<T, Failure> {
        self.map_err(|error| {
            let errno = error.raw_os_error().map_or(Errno::IO, Errno::from_raw_os_error);
            Failure::Call { end, doing, errno }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failure_ends_the_copy_only_where_going_on_is_pointless() {
        let call = |end, errno| Failure::Call { end, doing: "write", errno }.class();
        let problem = FailureClass::Problem;
        for (class, expected) in [
            (call(End::Destination, Errno::NOSPC), FailureClass::NoSpace),
            (call(End::Destination, Errno::DQUOT), FailureClass::NoSpace),
            (call(End::Destination, Errno::ROFS), FailureClass::ReadOnly),
            (call(End::Destination, Errno::NOENT), problem(ProblemKind::Error)),
            (call(End::Source, Errno::NOSPC), problem(ProblemKind::Error)),
            (call(End::Source, Errno::NOENT), problem(ProblemKind::Vanished)),
            (call(End::Source, Errno::LOOP), problem(ProblemKind::Changed)),
            (Failure::Changed("it grew").class(), problem(ProblemKind::Changed)),
            (Failure::Damaged.class(), problem(ProblemKind::Error)),
            (Failure::Stopped.class(), FailureClass::Stopped),
        ] {
            assert_eq!(class, expected);
        }
    }
}
