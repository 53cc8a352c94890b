//! Why a copy between hosts cannot go on, by what the caller can act on.

use std::fmt;
use std::io;

use waystage_copy::{CopyError, CopyErrorKind};

/// What can be acted on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum WanErrorKind {
    /// The other host cannot be reached, or speaks something else.
    Unreachable,
    /// The server's key is not the one that is trusted; its fingerprint.
    Untrusted(String),
    /// The other end refuses: it does not know the key, or does not allow what was asked for.
    Refused,
    /// The connection was lost on the way.
    Lost,
    /// A key or an option cannot be used.
    Input,
    /// The files at one end: see [`CopyErrorKind`].
    Files(CopyErrorKind),
}

impl WanErrorKind {
    /// Its name for programs.
    #[must_use]
    pub fn name(&self) -> &'static str {
        match self {
            Self::Unreachable => "unreachable",
            Self::Untrusted(_) => "untrusted",
            Self::Refused => "denied",
            Self::Lost => "lost",
            Self::Input => "input",
            Self::Files(kind) => kind.name(),
        }
    }

    /// The kind of this name, as the other end gave it.
    pub(crate) fn of_name(name: &str) -> Self {
        use CopyErrorKind as Kind;
        let files = [
            Kind::NoSpace,
            Kind::Refused,
            Kind::Busy,
            Kind::Ends,
            Kind::OtherJournal,
            Kind::Failed,
        ];
        let known = files.into_iter().find(|kind| kind.name() == name);
        match known {
            Some(kind) => Self::Files(kind),
            None if name == Self::Input.name() => Self::Input,
            None => Self::Refused,
        }
    }
}

/// Why a copy cannot go on, with a sentence for people.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WanError {
    /// What can be acted on.
    pub kind: WanErrorKind,
    /// What happened, where, and how to mend it.
    pub text: String,
}

impl WanError {
    pub(crate) fn new(kind: WanErrorKind, text: impl Into<String>) -> Self {
        Self { kind, text: text.into() }
    }

    pub(crate) fn input(text: impl Into<String>) -> Self {
        Self::new(WanErrorKind::Input, text)
    }

    pub(crate) fn lost(text: impl Into<String>) -> Self {
        Self::new(WanErrorKind::Lost, text)
    }

    pub(crate) fn stopped() -> Self {
        Self::new(WanErrorKind::Files(CopyErrorKind::Stopped), "the copy was stopped")
    }

    pub(crate) fn stopped_probe() -> Self {
        Self::new(WanErrorKind::Files(CopyErrorKind::Stopped), "the probe was stopped")
    }

    pub(crate) fn io(doing: &str, error: &io::Error) -> Self {
        Self::new(WanErrorKind::Files(CopyErrorKind::Failed), format!("cannot {doing}: {error}"))
    }
}

impl From<CopyError> for WanError {
    fn from(error: CopyError) -> Self {
        Self::new(WanErrorKind::Files(error.kind), error.text)
    }
}

impl fmt::Display for WanError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl std::error::Error for WanError {}
