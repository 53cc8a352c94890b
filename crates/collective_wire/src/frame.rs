//! Frames of a stream: a length, a body.
//!
//! Arrives: bodies; bytes of a stream in any pieces. Leaves: bytes; bodies. Must not know: what bodies say.

use crate::WireError;

/// Bytes of a body, at most: one field of the largest size, and small ones.
pub const MOST_BODY_BYTES: usize = (4 << 20) + (64 << 10);

/// The body with its length before it, a u32, little endian.
pub fn framed(body: &[u8]) -> Vec<u8> {
    let mut frame = Vec::with_capacity(4 + body.len());
    frame.extend_from_slice(&u32::try_from(body.len()).unwrap_or(u32::MAX).to_le_bytes());
    frame.extend_from_slice(body);
    frame
}

/// Cuts a stream into frames. It holds at most one frame and what was pushed behind it.
#[derive(Default)]
pub struct Frames {
    bytes: Vec<u8>,
    begin: usize,
}

impl Frames {
    /// Bytes that arrived.
    pub fn push(&mut self, bytes: &[u8]) {
        if self.begin > 0 && (self.begin == self.bytes.len() || self.begin >= 1 << 16) {
            self.bytes.drain(..self.begin);
            self.begin = 0;
        }
        self.bytes.extend_from_slice(bytes);
    }

    /// The body of the next frame, if it is complete. An error ends the stream.
    pub fn next_body(&mut self, most: usize) -> Result<Option<Vec<u8>>, WireError> {
        let left = &self.bytes[self.begin..];
        let Some((head, rest)) = left.split_first_chunk::<4>() else {
            return Ok(None);
        };
        let length = u32::from_le_bytes(*head) as usize;
        if length > most.min(MOST_BODY_BYTES) {
            return Err(WireError::TooLong(length as u64));
        }
        if length == 0 {
            return Err(WireError::Wrong("length"));
        }
        let Some(body) = rest.get(..length) else {
            return Ok(None);
        };
        let body = body.to_vec();
        self.begin += 4 + length;
        Ok(Some(body))
    }

    /// Bytes that are not part of a frame that was returned; a stream changes over to raw data with them.
    pub fn take_rest(&mut self, most: usize) -> Vec<u8> {
        let end = self.bytes.len().min(self.begin.saturating_add(most));
        let taken = self.bytes[self.begin..end].to_vec();
        self.begin = end;
        taken
    }

    /// Whether nothing is left.
    pub fn is_empty(&self) -> bool {
        self.begin == self.bytes.len()
    }
}
