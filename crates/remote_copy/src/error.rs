//! Why a copy between hosts cannot go on, by what the caller can act on.
//!
//! Arrives: errors of the channel and of files, what the peer reports. Leaves: a kind and one sentence. Must not
//! know: sockets.

use std::io;

use waystage_copy::state::Fatal;
use waystage_copy::{CopyError, CopyErrorKind};
use waystage_transport::Error;

/// What can be acted on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum WanErrorKind {
    /// The other host cannot be reached, or speaks something else.
    Unreachable,
    /// The other host ended the connection before it said anything: it may let a later one in.
    TurnedAway,
    /// The server's key is not the one that is trusted; its fingerprint.
    Untrusted(String),
    /// The peer refuses: it does not know the key, or does not allow what was asked for.
    Refused,
    /// The connection was lost on the way.
    Lost,
    /// A key or an option cannot be used.
    Input,
    /// The files at one side: see [`CopyErrorKind`].
    Files(CopyErrorKind),
}

impl WanErrorKind {
    /// Its name for programs.
    #[must_use]
    pub fn name(&self) -> &'static str {
        match self {
            Self::Unreachable => "unreachable",
            Self::TurnedAway => "turned-away",
            Self::Untrusted(_) => "untrusted",
            Self::Refused => "denied",
            Self::Lost => "lost",
            Self::Input => "input",
            Self::Files(kind) => kind.name(),
        }
    }

    /// The kind of this name, as the peer gave it. What the peer lost, or does no longer because it is being stopped,
    /// can be gone on with: for this end, too, the connection is lost.
    pub fn of_name(name: &str) -> Self {
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
            None if name == Self::Lost.name() || name == Kind::Stopped.name() => Self::Lost,
            None => Self::Refused,
        }
    }
}

/// Why a copy cannot go on, with a sentence for people.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{text}")]
pub struct WanError {
    /// What can be acted on.
    pub kind: WanErrorKind,
    /// What happened, where, and how to fix it.
    pub text: String,
}

impl WanError {
    /// An error of a kind.
    pub fn new(kind: WanErrorKind, text: impl Into<String>) -> Self {
        Self { kind, text: text.into() }
    }

    /// An option that cannot be used.
    pub fn input(text: impl Into<String>) -> Self {
        Self::new(WanErrorKind::Input, text)
    }

    /// The connection was lost.
    pub fn lost(text: impl Into<String>) -> Self {
        Self::new(WanErrorKind::Lost, text)
    }

    /// What the peer said of itself: the name of a kind, and a sentence.
    pub fn told(name: &str, text: String) -> Self {
        let text = if name == CopyErrorKind::Stopped.name() {
            format!("the peer is being stopped ({text}): the same command goes on where it stopped")
        } else {
            text
        };
        Self::new(WanErrorKind::of_name(name), text)
    }

    /// The copy was stopped here.
    pub fn stopped() -> Self {
        Self::new(WanErrorKind::Files(CopyErrorKind::Stopped), "the copy was stopped")
    }

    /// A system call failed.
    pub fn io(doing: &str, error: &io::Error) -> Self {
        Self::new(WanErrorKind::Files(CopyErrorKind::Failed), format!("cannot {doing}: {error}"))
    }
}

impl From<CopyError> for WanError {
    fn from(error: CopyError) -> Self {
        Self::new(WanErrorKind::Files(error.kind), error.text)
    }
}

impl From<Error> for WanError {
    fn from(error: Error) -> Self {
        let text = error.to_string();
        let kind = match error {
            Error::Unreachable(_) => WanErrorKind::Unreachable,
            Error::TurnedAway(_) => WanErrorKind::TurnedAway,
            Error::Untrusted { key, .. } => WanErrorKind::Untrusted(key),
            Error::Input(_) => WanErrorKind::Input,
            Error::Stopped(_) => WanErrorKind::Files(CopyErrorKind::Stopped),
            other => WanErrorKind::of_name(other.kind()),
        };
        Self { kind, text }
    }
}

impl From<WanError> for Error {
    fn from(WanError { kind, text }: WanError) -> Self {
        match kind {
            WanErrorKind::Unreachable => Self::Unreachable(text),
            WanErrorKind::TurnedAway => Self::TurnedAway(text),
            WanErrorKind::Untrusted(key) => Self::Untrusted { key, text },
            WanErrorKind::Refused => Self::Denied(text),
            WanErrorKind::Lost => Self::Lost(text),
            WanErrorKind::Input => Self::Input(text),
            WanErrorKind::Files(CopyErrorKind::Stopped) => Self::Stopped(text),
            WanErrorKind::Files(kind) => Self::Other { kind: kind.name().to_owned(), text },
        }
    }
}

impl Fatal for WanError {
    fn stopped() -> Self {
        Self::stopped()
    }

    /// What the peer said before it ended the connection explains that it was lost.
    fn explains(&self, before: &Self) -> bool {
        before.kind == WanErrorKind::Lost && self.kind != WanErrorKind::Lost
    }
}

/// The peer sent what cannot be sent here.
pub fn protocol_violation() -> WanError {
    WanError::lost("the peer broke the protocol: a message cannot be read")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_peer_lost_or_gave_up_because_it_stops_is_lost_here_too() {
        for error in [WanError::lost("it said nothing for 30 s"), WanError::stopped()] {
            let told = WanError::told(error.kind.name(), error.text.clone());
            assert_eq!(told.kind, WanErrorKind::Lost, "{told}");
            assert!(told.text.contains(&error.text));
        }
    }

    #[test]
    fn nothing_that_the_peer_says_makes_this_side_trust_another_key() {
        for name in ["untrusted", "unreachable", "turned-away", "denied", "", "odd"] {
            assert_eq!(WanErrorKind::of_name(name), WanErrorKind::Refused);
        }
    }
}
