//! What ends say of streams, message by message: each is an extent of its own, or follows the others on an ordered connection.
//!
//! Arrives: what is to be said, or bytes. Leaves: bytes, or what was said; never a panic.
//! Must not know: which streams there are. The form is in `docs/reference/wide-area-protocol.md`, "Streams".

use crate::varint::{self, Malformed, Reader};

/// What a stream is asked for with is not longer.
pub const MOST_TARGET: usize = 1024;

/// A refusal's words are not longer.
pub const MOST_REASON: usize = 512;

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

/// One message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Message<'a> {
    /// A new stream to what the application calls `target`; its opener takes `window` bytes for a start.
    Open {
        /// Which; even numbers are the client's, odd ones the server's.
        stream: u64,
        /// Bytes that may be sent to the opener.
        window: u64,
        /// For the application.
        target: &'a [u8],
    },
    /// The stream is there, and `window` bytes may be sent to who says so.
    Opened {
        /// Which.
        stream: u64,
        /// Bytes that may be sent to the accepter.
        window: u64,
    },
    /// It will not be there.
    Refused {
        /// Which.
        stream: u64,
        /// For the application.
        code: u64,
        /// In words.
        reason: &'a [u8],
    },
    /// Bytes of a stream.
    Data {
        /// Which.
        stream: u64,
        /// Where they belong.
        offset: u64,
        /// The bytes.
        bytes: &'a [u8],
    },
    /// The stream has so many bytes in this direction, and no more.
    End {
        /// Which.
        stream: u64,
        /// Its length.
        length: u64,
    },
    /// Bytes below `limit` may be sent.
    Window {
        /// Which.
        stream: u64,
        /// From the stream's begin.
        limit: u64,
    },
    /// The stream has ended at once, in both directions.
    Reset {
        /// Which.
        stream: u64,
        /// For the application.
        code: u64,
    },
    /// No more streams are taken.
    Drain,
}

/// The head of a message with bytes of a stream; the bytes follow.
pub fn put_data_head(out: &mut Vec<u8>, stream: u64, offset: u64) {
    out.push(kinds::DATA);
    varint::put(out, stream);
    varint::put(out, offset);
}

impl<'a> Message<'a> {
    /// Appends it.
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

    /// Reads one, which takes all of `bytes`.
    pub fn read(bytes: &'a [u8]) -> Result<Self, Malformed> {
        let mut reader = Reader::new(bytes);
        let kind = reader.take(1)?[0];
        if kind == kinds::DRAIN {
            return whole(Self::Drain, &reader);
        }
        let stream = reader.varint()?;
        if kind == kinds::OPEN {
            let window = reader.varint()?;
            let target = at_most(reader.rest(), MOST_TARGET)?;
            return Ok(Self::Open { stream, window, target });
        }
        let number = reader.varint()?;
        match kind {
            kinds::REFUSED => {
                let reason = at_most(reader.rest(), MOST_REASON)?;
                Ok(Self::Refused { stream, code: number, reason })
            }
            kinds::DATA => {
                let bytes = reader.rest();
                if number.saturating_add(bytes.len() as u64) > varint::MAX {
                    return Err(Malformed("a stream is too long"));
                }
                Ok(Self::Data { stream, offset: number, bytes })
            }
            kinds::OPENED => whole(Self::Opened { stream, window: number }, &reader),
            kinds::END => whole(Self::End { stream, length: number }, &reader),
            kinds::WINDOW => whole(Self::Window { stream, limit: number }, &reader),
            kinds::RESET => whole(Self::Reset { stream, code: number }, &reader),
            _ => Err(Malformed("a message on streams is of no kind that is known")),
        }
    }
}

fn whole<'a>(message: Message<'a>, reader: &Reader<'_>) -> Result<Message<'a>, Malformed> {
    if reader.is_empty() {
        Ok(message)
    } else {
        Err(Malformed("a message on streams is too long"))
    }
}

fn at_most(bytes: &[u8], most: usize) -> Result<&[u8], Malformed> {
    if bytes.len() <= most {
        Ok(bytes)
    } else {
        Err(Malformed("words on a stream are too long"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn no_bytes_make_a_reader_panic(bytes in prop::collection::vec(any::<u8>(), 0..80)) {
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
            let reason = &bytes[..bytes.len().min(MOST_REASON)];
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
    fn words_that_are_too_long_are_refused() {
        let mut out = Vec::new();
        Message::Open { stream: 0, window: 1, target: &[7; MOST_TARGET + 1] }.put(&mut out);
        assert!(Message::read(&out).is_err());
        assert!(Message::read(&[kinds::WINDOW, 1, 2, 3]).is_err());
        assert!(Message::read(&[200, 1, 2]).is_err());
        assert!(Message::read(&[]).is_err());
    }
}
