//! Why a rank's call on a coupled name failed.

use std::fmt;
use std::io;

use crate::request::Why;

/// Why a call failed.
#[derive(Debug)]
pub enum Failure {
    /// The other ranks have not come in time.
    Timeout(String),
    /// What the directory or an owner answered.
    Answer(Why, String),
    /// The kernel's error, with what was attempted.
    System(String, io::Error),
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Timeout(text) | Self::Answer(_, text) => f.write_str(text),
            Self::System(what, error) => write!(f, "{what}: {error}"),
        }
    }
}

impl std::error::Error for Failure {}

/// The result of a rank's calls.
pub type Result<T> = std::result::Result<T, Failure>;

/// The kernel's error of what was attempted.
pub(crate) fn system(what: &str) -> impl Fn(io::Error) -> Failure + '_ {
    move |error| Failure::System(what.to_owned(), error)
}

/// An answer of the directory, of an owner, or of this library.
pub(crate) fn refused(why: Why, text: &str) -> Failure {
    Failure::Answer(why, text.to_owned())
}

/// The process that holds a piece cannot be reached.
pub(crate) fn dead(owner: &str, error: &io::Error) -> Failure {
    Failure::Answer(Why::Lost, format!("the process that holds a piece, {owner}: {error}"))
}

/// The process of a writer's node has ended.
pub(crate) fn gone(error: &io::Error) -> Failure {
    Failure::Answer(Why::Lost, format!("the process of this node has ended: {error}"))
}
