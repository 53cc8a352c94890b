//! Errors of a session with another host, by what the caller can do.
//!
//! Arrives: what went wrong here, or what the peer reports of itself. Leaves: a kind and one sentence. Must not know:
//! what the session is for.

/// Why a session cannot begin or go on.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// The host cannot be reached or speaks another protocol: check its address, its server and the firewall.
    #[error("{0}")]
    Unreachable(String),
    /// The peer ended the connection before it said anything: try again later.
    #[error("{0}")]
    TurnedAway(String),
    /// The server's key is not the trusted one: compare fingerprints.
    #[error("{text}")]
    Untrusted {
        /// The line that names the server's key.
        key: String,
        /// What to compare.
        text: String,
    },
    /// The peer does not know the key, or does not allow what was asked for: ask its administrator.
    #[error("{0}")]
    Denied(String),
    /// The connection was lost: try again, or resume.
    #[error("{0}")]
    Lost(String),
    /// A key or an option cannot be used: correct it.
    #[error("{0}")]
    Input(String),
    /// All places are taken: try again later.
    #[error("{0}")]
    Busy(String),
    /// This end was stopped.
    #[error("{0}")]
    Stopped(String),
    /// A system call failed.
    #[error("{0}")]
    Failed(String),
    /// An error of what the session is for, by the name of its kind.
    #[error("{text}")]
    Other {
        /// The name, as sent to the peer.
        kind: String,
        /// One sentence.
        text: String,
    },
}

impl Error {
    /// The name of its kind, for programs and the peer.
    #[must_use]
    pub fn kind(&self) -> &str {
        match self {
            Self::Unreachable(_) => "unreachable",
            Self::TurnedAway(_) => "turned-away",
            Self::Untrusted { .. } => "untrusted",
            Self::Denied(_) => "denied",
            Self::Lost(_) => "lost",
            Self::Input(_) => "input",
            Self::Busy(_) => "busy",
            Self::Stopped(_) => "stopped",
            Self::Failed(_) => "failed",
            Self::Other { kind, .. } => kind,
        }
    }

    /// The error that the peer reports of itself. When the peer lost the connection or is being stopped, this end can
    /// resume: for it, too, the connection is lost. No name makes this end trust another key.
    #[must_use]
    pub fn reported(kind: &str, text: String) -> Self {
        match kind {
            "lost" => Self::Lost(text),
            "stopped" => Self::Lost(format!(
                "the peer is being stopped ({text}): the same command goes on where it stopped"
            )),
            "input" => Self::Input(text),
            "busy" => Self::Busy(text),
            "failed" => Self::Failed(text),
            "no-space" | "refused" | "ends" | "other-journal" => {
                Self::Other { kind: kind.to_owned(), text }
            }
            _ => Self::Denied(text),
        }
    }

    /// An option that cannot be used.
    pub fn input(text: impl Into<String>) -> Self {
        Self::Input(text.into())
    }

    /// A lost connection.
    pub fn lost(text: impl Into<String>) -> Self {
        Self::Lost(text.into())
    }

    /// A failed system call: what it was to do.
    #[must_use]
    pub fn io(doing: &str, error: &std::io::Error) -> Self {
        Self::Failed(format!("cannot {doing}: {error}"))
    }
}

/// The peer sent what cannot be sent in this state.
#[must_use]
pub fn protocol_violation() -> Error {
    Error::lost("the peer broke the protocol: a message cannot be read")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_peer_that_lost_the_connection_or_stops_leaves_it_lost_here_too() {
        for error in [Error::lost("it said nothing for 30 s"), Error::Stopped("stopped".into())] {
            let reported = Error::reported(error.kind(), error.to_string());
            assert!(matches!(&reported, Error::Lost(text) if text.contains(&error.to_string())));
        }
    }

    #[test]
    fn no_reported_name_makes_this_end_trust_another_key() {
        for name in ["untrusted", "unreachable", "turned-away", "denied", "", "odd"] {
            assert!(matches!(Error::reported(name, String::new()), Error::Denied(_)));
        }
    }
}
