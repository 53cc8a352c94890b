//! Why an answer gives no layout.

use std::borrow::Cow;

/// The class of an error. In every case the file can be read by its path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ErrorKind {
    /// The bytes end before the layout does.
    Truncated,
    /// An unknown form of layout, perhaps of a later release.
    Unsupported,
    /// The bytes contradict themselves.
    Invalid,
    /// The file system failed or refused.
    Io,
}

impl ErrorKind {
    /// The name that Python and JSON give it.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Truncated => "truncated",
            Self::Unsupported => "unsupported",
            Self::Invalid => "invalid",
            Self::Io => "io",
        }
    }
}

/// An answer of a file system that gives no layout: one sentence.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{text}")]
pub struct LayoutError {
    /// The class.
    pub kind: ErrorKind,
    /// What and where.
    pub text: Cow<'static, str>,
}

impl LayoutError {
    pub(crate) fn truncated(text: impl Into<Cow<'static, str>>) -> Self {
        Self { kind: ErrorKind::Truncated, text: text.into() }
    }

    pub(crate) fn unsupported(text: impl Into<Cow<'static, str>>) -> Self {
        Self { kind: ErrorKind::Unsupported, text: text.into() }
    }

    pub(crate) fn invalid(text: impl Into<Cow<'static, str>>) -> Self {
        Self { kind: ErrorKind::Invalid, text: text.into() }
    }

    pub(crate) fn io(what: &str, error: impl std::fmt::Display) -> Self {
        Self { kind: ErrorKind::Io, text: format!("{what}: {error}").into() }
    }
}
