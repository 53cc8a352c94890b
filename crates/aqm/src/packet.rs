//! A packet in front of a queue, and what it finds.

/// A packet in front of a queue.
#[derive(Clone, Copy, Debug)]
pub struct Offered {
    /// The time.
    pub now_ns: u64,
    /// Its size.
    pub bytes: u64,
    /// How long it occupies the link.
    pub crossing_ns: u64,
    /// Bytes in the queue.
    pub queued_bytes: u64,
    /// When the link will have sent them, or since when it is idle.
    pub free_ns: u64,
    /// The buffer, of which `queued_bytes` are taken.
    pub buffer_bytes: u64,
    /// Whether it has an ECN-capable code point.
    pub ecn_capable: bool,
}
