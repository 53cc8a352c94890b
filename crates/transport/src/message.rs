//! Messages of a channel: the unit that one end sends and the other receives, complete and at most once.
//!
//! Arrives: buffers. Leaves: messages, and the limits of their sizes. Must not know: what messages contain, how they
//! travel.

use std::ops::Deref;

/// Bytes of contents in a message at most; also what is sent again of a large file after a crash, for each worker.
pub const CONTENT_BYTES: usize = 4 << 20;

/// No message is longer.
pub const MOST_BYTES: usize = CONTENT_BYTES + (1 << 20);

/// Default memory for received messages.
pub const MEMORY_BYTES: u64 = 256 << 20;

/// The least memory of each connection of a copy: several messages.
const LEAST_MEMORY_BYTES: u64 = 16 << 20;

/// What each of several connections has of the memory of one.
pub fn memory_of_each(bytes: u64, connections: u32) -> u64 {
    (bytes / u64::from(connections.max(1))).max(LEAST_MEMORY_BYTES.min(bytes))
}

/// A message that came in. Its buffer may be longer, so that the next one need not be made and cleared.
pub struct Message {
    /// Holds the message in its first `length` bytes.
    pub buffer: Vec<u8>,
    /// Bytes of the message.
    pub length: usize,
    /// The member by whose UDP it came; None where it came over TLS.
    pub by: Option<usize>,
}

impl Deref for Message {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.buffer[..self.length]
    }
}
