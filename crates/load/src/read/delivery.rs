//! Items and counts, for the consumer.

use crate::buffer::Buffer;
use crate::error::Failure;

/// What is delivered.
#[derive(Debug)]
pub struct Delivered {
    /// The position of its unit in the epoch.
    pub position: u32,
    /// The file.
    pub file: u32,
    /// The offset of its first byte in the file.
    pub offset: u64,
    /// Its bytes; None for a part that no longer exists.
    pub bytes: Result<Option<Buffer>, Failure>,
}

/// The answer to a wait for an item.
#[derive(Debug)]
pub enum Next {
    /// An item.
    Item(Delivered),
    /// None within the time; there will be more.
    Waiting,
    /// Everything was delivered.
    End,
}

/// How much was read from one target.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TargetCounts {
    /// Bytes.
    pub bytes: u64,
    /// Pieces.
    pub pieces: u64,
    /// Nanoseconds in which it had a reader.
    pub busy_ns: u64,
    /// Nanoseconds of all its readers together.
    pub reading_ns: u64,
}

/// The progress of an epoch.
#[derive(Clone, Debug, Default)]
pub struct Counts {
    /// Units, delivered before or not.
    pub units: u64,
    /// Units delivered in full, before this start or since.
    pub delivered: u64,
    /// Items handed out since.
    pub items: u64,
    /// Bytes handed out since.
    pub bytes: u64,
    /// Items of files that had vanished, were no regular files, could not be read, had grown beyond memory,
    /// or had another size than was recorded.
    pub failed: [u64; 5],
    /// Files that became shorter while they were read.
    pub shrunk: u64,
    /// Pieces read by a loader bound to another target.
    pub stolen: u64,
    /// By target, in the order of [`Files::targets`].
    pub targets: Vec<TargetCounts>,
}
