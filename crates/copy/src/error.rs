//! What can go wrong, for the copy as a whole and for one entry of it.

use rustix::io::Errno;

use crate::counts::ProblemKind;

/// Why a copy cannot go on, named by what the caller can act on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CopyErrorKind {
    /// The destination or its owner's quota is full.
    NoSpace,
    /// The destination cannot be written.
    Refused,
    /// Another process is copying to the same destination.
    Busy,
    /// The source cannot be opened, or source and destination do not fit together.
    Ends,
    /// The destination holds an interrupted copy of something else.
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
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{text}")]
pub struct CopyError {
    /// What the caller can act on.
    pub kind: CopyErrorKind,
    /// What happened, where, and how to fix it.
    pub text: String,
}

impl CopyError {
    /// An error of this kind.
    pub fn new(kind: CopyErrorKind, text: impl Into<String>) -> Self {
        Self { kind, text: text.into() }
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
    /// The complete copy has to end.
    Fatal(CopyErrorKind),
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
                return FailureClass::Fatal(CopyErrorKind::NoSpace)
            }
            Self::Call { end: End::Destination, errno: Errno::ROFS, .. } => {
                return FailureClass::Fatal(CopyErrorKind::Refused)
            }
            Self::Call { end: End::Source, errno: Errno::NOENT, .. } => ProblemKind::Vanished,
            // Part of its path is no directory any more, or a link by now.
            Self::Call { end: End::Source, errno: Errno::NOTDIR | Errno::LOOP, .. }
            | Self::Changed(_) => ProblemKind::Changed,
            _ => ProblemKind::Error,
        };
        FailureClass::Problem(problem)
    }

    /// Why the complete copy has to end, where this is such a reason.
    #[must_use]
    pub fn fatal(&self) -> Option<CopyErrorKind> {
        match self.class() {
            FailureClass::Fatal(kind) => Some(kind),
            _ => None,
        }
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
            (call(End::Destination, Errno::NOSPC), FailureClass::Fatal(CopyErrorKind::NoSpace)),
            (call(End::Destination, Errno::DQUOT), FailureClass::Fatal(CopyErrorKind::NoSpace)),
            (call(End::Destination, Errno::ROFS), FailureClass::Fatal(CopyErrorKind::Refused)),
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
