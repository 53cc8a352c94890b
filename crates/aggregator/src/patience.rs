//! How long a process waits for what may never come.
//!
//! Leaves: limits. Must not know: what is waited for.

/// How long is waited for what may never come.
#[derive(Clone, Copy, Debug)]
pub struct Patience {
    /// For a node or a rank that is not connected, in nanoseconds.
    pub absence_ns: u64,
    /// For a rank that was asked to pack or unpack, in ticks: a process that was stopped counts none meanwhile.
    pub answer_ticks: u32,
    /// For an aggregator that was left out and is to say that it has ended its requests, in ticks.
    pub fence_ticks: u32,
}
