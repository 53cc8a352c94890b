//! Frames of the TLS connection, decoded as their bytes arrive.
//!
//! Arrives: bytes in pieces of any size. Leaves: complete frames, each a kind and a body. Must not know: sockets, TLS.
//!
//! A frame is its length (4 bytes, little-endian, of what follows), a kind (1 byte) and a body.

use std::io;

use crate::message::MOST_BYTES;

/// The kind of those messages that belong on a channel.
pub(super) const BULK: u8 = 0;

/// No message of another kind is longer.
pub(super) const LONGEST_SMALL: usize = 4 << 20;

/// Bytes in front of a body.
const HEAD_BYTES: usize = 5;

/// A frame: its kind and its body.
pub(super) type Frame = (u8, Vec<u8>);

/// Why no further frame can be decoded.
#[derive(Debug)]
pub(super) enum FrameError {
    /// The source of bytes failed.
    Read(io::Error),
    /// A length is above the limit of its kind.
    TooLong,
}

/// Decodes one frame after the other.
#[derive(Default)]
pub(super) struct FrameDecoder {
    head: Vec<u8>,
    body: Option<(u8, Vec<u8>, usize)>,
}

impl FrameDecoder {
    /// Take at most `most` bytes from `read`: how many were taken, and the frame that they complete.
    pub(super) fn fill(
        &mut self,
        most: usize,
        read: impl FnOnce(&mut [u8]) -> io::Result<usize>,
    ) -> Result<(usize, Option<Frame>), FrameError> {
        let count;
        if let Some((_, body, at)) = &mut self.body {
            let end = body.len().min(at.saturating_add(most));
            count = read(&mut body[*at..end]).map_err(FrameError::Read)?;
            *at += count;
        } else {
            let mut more = [0; HEAD_BYTES];
            let end = (HEAD_BYTES - self.head.len()).min(most);
            count = read(&mut more[..end]).map_err(FrameError::Read)?;
            self.head.extend_from_slice(&more[..count]);
            if let [a, b, c, d, kind] = self.head[..] {
                let limit = if kind == BULK { MOST_BYTES } else { LONGEST_SMALL };
                let length = (u32::from_le_bytes([a, b, c, d]) as usize)
                    .checked_sub(1)
                    .filter(|length| *length <= limit)
                    .ok_or(FrameError::TooLong)?;
                self.head.clear();
                self.body = Some((kind, vec![0; length], 0));
            }
        }
        let whole = self.body.take_if(|(_, body, at)| *at == body.len());
        Ok((count, whole.map(|(kind, body, _)| (kind, body))))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::framed;
    use proptest::prelude::*;

    fn decode(mut bytes: &[u8], pieces: &[usize]) -> Result<Vec<Frame>, FrameError> {
        let (mut decoder, mut frames) = (FrameDecoder::default(), Vec::new());
        let mut pieces = pieces.iter().cycle();
        while !bytes.is_empty() {
            let most = pieces.next().map_or(1, |piece| 1 + piece).min(bytes.len());
            let (count, frame) = decoder.fill(most, |into| io::Read::read(&mut bytes, into))?;
            assert!(count > 0, "the decoder stands still");
            frames.extend(frame);
        }
        Ok(frames)
    }

    #[test]
    fn a_length_above_the_limit_of_its_kind_is_refused_before_memory_is_taken() {
        for (kind, most) in [(BULK, MOST_BYTES), (1, LONGEST_SMALL)] {
            let head = |length: usize| [&(length as u32 + 1).to_le_bytes()[..], &[kind]].concat();
            assert!(decode(&head(most), &[9]).is_ok());
            assert!(matches!(decode(&head(most + 1), &[9]), Err(FrameError::TooLong)));
        }
        assert!(matches!(decode(&[0; 5], &[9]), Err(FrameError::TooLong)), "no room for a kind");
    }

    proptest! {
        #[test]
        fn frames_arrive_as_they_were_sent_however_their_bytes_are_cut(
            frames in prop::collection::vec((any::<u8>(), prop::collection::vec(any::<u8>(), 0..40)), 0..8),
            pieces in prop::collection::vec(0_usize..30, 1..6),
        ) {
            let bytes: Vec<u8> = frames.iter().flat_map(|(kind, body)| framed(*kind, body)).collect();
            prop_assert_eq!(decode(&bytes, &pieces).unwrap(), frames);
        }

        #[test]
        fn no_bytes_make_the_decoder_panic(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            let _ = decode(&bytes, &[3]);
        }
    }
}
