//! Requests to the servers, and emulated time.

/// Nanoseconds of emulated time.
pub type Ns = u64;

/// A request by its number, as given out by the model.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Ticket(pub u64);

/// Bytes that a request moves at one target.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Part {
    /// The target's number.
    pub target: usize,
    /// How many bytes.
    pub bytes: u64,
    /// Whether they are written.
    pub write: bool,
}
