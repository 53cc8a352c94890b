//! Why bytes are no layout.

use std::borrow::Cow;
use std::fmt;

/// What a caller can make of it. All of them mean: read the file by its path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ErrorKind {
    /// The bytes end before the layout does.
    Truncated,
    /// A layout of a sort that is not known here, perhaps of a later release.
    Unsupported,
    /// The bytes contradict themselves.
    Invalid,
    /// The file system refused to say.
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

/// One sentence on what is wrong.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LayoutError {
    /// What a caller can make of it.
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

    pub(crate) fn io(what: &str, error: impl fmt::Display) -> Self {
        Self { kind: ErrorKind::Io, text: format!("{what}: {error}").into() }
    }
}

impl fmt::Display for LayoutError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl std::error::Error for LayoutError {}
