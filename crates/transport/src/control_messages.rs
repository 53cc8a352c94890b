//! Messages on the TLS connection: their kinds, answers that are waited for, refusals.
//!
//! Arrives: messages of the peer. Leaves: their bodies, or an error. Must not know: what is copied or proxied.

use std::time::{Duration, Instant};

use crate::control::Control;
use crate::error::{protocol_violation, Error};
use crate::wire::{Reader, Writer};

/// Kinds of small messages.
pub mod kinds {
    /// The client: who it is and what it wants.
    pub const HELLO: u8 = 1;
    /// The server: what it grants.
    pub const WELCOME: u8 = 2;
    /// Either end: an error, by name and text.
    pub const REFUSED: u8 = 3;
    /// The client: whether bulk messages go over UDP.
    pub const WAY: u8 = 5;
    /// The client: what to copy.
    pub const ASK: u8 = 6;
    /// The server: the request is accepted.
    pub const ACCEPTED: u8 = 7;
    /// Either end of a copy: its result.
    pub const VERDICT: u8 = 8;
    /// The client: where the server is to listen.
    pub const PROXY: u8 = 9;
    /// A piece of a list of names.
    pub const LIST: u8 = 10;
    /// The answer to a piece.
    pub const LISTED: u8 = 11;
    /// Either end: a rate limit from now on.
    pub const LIMIT: u8 = 12;
    /// Either end, from version 3 on: whether it pauses the copy.
    pub const PAUSE: u8 = 13;
    /// The client, from version 3 on: the mode from now on. The server: the one granted, and why it is another.
    pub const MODE: u8 = 14;
    /// The client: what to do with a directory of the server. The server: the answer, page by page.
    pub const TREE: u8 = 15;
    /// The client, from version 7 on: the server may compress what it sends.
    pub const COMPRESS: u8 = 16;
}

/// An end that was asked something answers within this time, or is taken for gone.
pub const ANSWER_TIME: Duration = Duration::from_secs(60);

/// A refusal as a message.
pub fn refusal(error: &Error) -> Vec<u8> {
    let mut out = Writer::default();
    out.bytes(error.kind().as_bytes()).bytes(error.to_string().as_bytes());
    out.0
}

/// The next message, which has to be of this kind; a refusal is an error with the peer's text.
pub fn expect(control: &Control, kind: u8) -> Result<Vec<u8>, Error> {
    expect_within(control, kind, ANSWER_TIME)
}

/// The same, within another time.
pub fn expect_within(control: &Control, kind: u8, time: Duration) -> Result<Vec<u8>, Error> {
    expect_one_of(control, &[kind], time).map(|(_, body)| body)
}

/// The next message, which has to be of one of these kinds.
pub fn expect_one_of(
    control: &Control,
    kinds: &[u8],
    time: Duration,
) -> Result<(u8, Vec<u8>), Error> {
    let deadline = Instant::now() + time;
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        return match control.receive(left)? {
            Some((found, body)) if kinds.contains(&found) => Ok((found, body)),
            Some((self::kinds::REFUSED, body)) => Err(refused(&body)),
            Some(_) => Err(protocol_violation()),
            None if left.is_zero() => Err(Error::lost("the peer does not answer")),
            // An interrupt for another part of this session.
            None => continue,
        };
    }
}

/// What a refusal says.
#[must_use]
pub fn refused(body: &[u8]) -> Error {
    let mut reader = Reader(body);
    match (reader.text(), reader.text()) {
        (Ok(name), Ok(text)) => Error::reported(&name, text),
        _ => protocol_violation(),
    }
}
