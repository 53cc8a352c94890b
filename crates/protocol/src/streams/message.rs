//! The messages on streams. Each is an extent, or follows the others on an ordered connection.
//!
//! Arrives: messages, or bytes. Leaves: bytes, or messages; never a panic. Must not know: the state of streams.
//! The format is in `docs/reference/wide-area-protocol.md`, "Streams".

use crate::error::Error;
use crate::varint::{self, Reader};

/// The longest target of a stream in bytes.
pub const MAX_TARGET: usize = 1024;

/// The longest reason of a refusal in bytes.
pub const MAX_REASON: usize = 512;

mod kinds {
    pub(super) const OPEN: u8 = 0;
    pub(super) const OPENED: u8 = 1;
    pub(super) const REFUSED: u8 = 2;
    pub(super) const DATA: u8 = 3;
    pub(super) const END: u8 = 4;
    pub(super) const WINDOW: u8 = 5;
    pub(super) const RESET: u8 = 6;
    pub(super) const DRAIN: u8 = 7;
}

/// A message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Message<'a> {
    /// A new stream to a `target` of the application. The opener grants a first window.
    Open {
        /// The stream: even numbers are the client's, odd ones the server's.
        stream: u64,
        /// Bytes that may be sent to the opener.
        window: u64,
        /// For the application.
        target: &'a [u8],
    },
    /// The stream is accepted. The accepter grants a first window.
    Opened {
        /// The stream.
        stream: u64,
        /// Bytes that may be sent to the accepter.
        window: u64,
    },
    /// The stream is refused.
    Refused {
        /// The stream.
        stream: u64,
        /// For the application.
        code: u64,
        /// A text for users.
        reason: &'a [u8],
    },
    /// Bytes of a stream.
    Data {
        /// The stream.
        stream: u64,
        /// Their offset.
        offset: u64,
        /// The bytes.
        bytes: &'a [u8],
    },
    /// The end of the stream in this direction.
    End {
        /// The stream.
        stream: u64,
        /// Its length.
        length: u64,
    },
    /// Bytes below `limit` may be sent.
    Window {
        /// The stream.
        stream: u64,
        /// The offset from the start of the stream.
        limit: u64,
    },
    /// The stream ends immediately, in both directions.
    Reset {
        /// The stream.
        stream: u64,
        /// For the application.
        code: u64,
    },
    /// The sender accepts no more streams.
    Drain,
}

/// Appends the head of a message with bytes of a stream. The bytes follow it.
pub fn put_data_head(out: &mut Vec<u8>, stream: u64, offset: u64) {
    out.push(kinds::DATA);
    varint::put(out, stream);
    varint::put(out, offset);
}

impl<'a> Message<'a> {
    /// Appends the message.
    pub fn put(&self, out: &mut Vec<u8>) {
        let mut numbers = |kind: u8, values: &[u64]| {
            out.push(kind);
            for value in values {
                varint::put(out, *value);
            }
        };
        match *self {
            Self::Open { stream, window, target } => {
                numbers(kinds::OPEN, &[stream, window]);
                out.extend_from_slice(target);
            }
            Self::Opened { stream, window } => numbers(kinds::OPENED, &[stream, window]),
            Self::Refused { stream, code, reason } => {
                numbers(kinds::REFUSED, &[stream, code]);
                out.extend_from_slice(reason);
            }
            Self::Data { stream, offset, bytes } => {
                put_data_head(out, stream, offset);
                out.extend_from_slice(bytes);
            }
            Self::End { stream, length } => numbers(kinds::END, &[stream, length]),
            Self::Window { stream, limit } => numbers(kinds::WINDOW, &[stream, limit]),
            Self::Reset { stream, code } => numbers(kinds::RESET, &[stream, code]),
            Self::Drain => numbers(kinds::DRAIN, &[]),
        }
    }

    /// Reads a message that consists of all `bytes`.
    ///
    /// # Errors
    /// [`Error::Malformed`].
    pub fn read(bytes: &'a [u8]) -> Result<Self, Error> {
        let mut reader = Reader::new(bytes);
        let kind = reader.take(1)?[0];
        if kind == kinds::DRAIN {
            return complete(Self::Drain, &reader);
        }
        let stream = reader.varint()?;
        if kind == kinds::OPEN {
            let window = reader.varint()?;
            let target = at_most(reader.rest(), MAX_TARGET)?;
            return Ok(Self::Open { stream, window, target });
        }
        let number = reader.varint()?;
        match kind {
            kinds::REFUSED => {
                let reason = at_most(reader.rest(), MAX_REASON)?;
                Ok(Self::Refused { stream, code: number, reason })
            }
            kinds::DATA => {
                let bytes = reader.rest();
                if number.saturating_add(bytes.len() as u64) > varint::MAX {
                    return Err(Error::Malformed("a stream is too long"));
                }
                Ok(Self::Data { stream, offset: number, bytes })
            }
            kinds::OPENED => complete(Self::Opened { stream, window: number }, &reader),
            kinds::END => complete(Self::End { stream, length: number }, &reader),
            kinds::WINDOW => complete(Self::Window { stream, limit: number }, &reader),
            kinds::RESET => complete(Self::Reset { stream, code: number }, &reader),
            _ => Err(Error::Malformed("a message on streams is of an unknown kind")),
        }
    }
}

fn complete<'a>(message: Message<'a>, reader: &Reader<'_>) -> Result<Message<'a>, Error> {
    if reader.is_empty() {
        Ok(message)
    } else {
        Err(Error::Malformed("a message on streams is too long"))
    }
}

fn at_most(bytes: &[u8], max: usize) -> Result<&[u8], Error> {
    if bytes.len() <= max {
        Ok(bytes)
    } else {
        Err(Error::Malformed("a text on a stream is too long"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn arbitrary_bytes_never_make_the_reader_panic(bytes in prop::collection::vec(any::<u8>(), 0..80)) {
            if let Ok(message) = Message::read(&bytes) {
                let mut again = Vec::new();
                message.put(&mut again);
                prop_assert_eq!(Message::read(&again), Ok(message));
            }
        }

        #[test]
        fn messages_are_read_as_they_were_written(
            stream in 0..=varint::MAX, number in 0..varint::MAX / 2, bytes in prop::collection::vec(any::<u8>(), 0..600),
        ) {
            let reason = &bytes[..bytes.len().min(MAX_REASON)];
            for message in [
                Message::Open { stream, window: number, target: &bytes },
                Message::Opened { stream, window: number },
                Message::Refused { stream, code: number, reason },
                Message::Data { stream, offset: number, bytes: &bytes },
                Message::End { stream, length: number },
                Message::Window { stream, limit: number },
                Message::Reset { stream, code: number },
                Message::Drain,
            ] {
                let mut out = Vec::new();
                message.put(&mut out);
                prop_assert_eq!(Message::read(&out), Ok(message));
            }
        }
    }

    #[test]
    fn texts_that_are_too_long_are_refused() {
        let mut out = Vec::new();
        Message::Open { stream: 0, window: 1, target: &[7; MAX_TARGET + 1] }.put(&mut out);
        assert!(Message::read(&out).is_err());
        assert!(Message::read(&[kinds::WINDOW, 1, 2, 3]).is_err());
        assert!(Message::read(&[200, 1, 2]).is_err());
        assert!(Message::read(&[]).is_err());
    }
}
