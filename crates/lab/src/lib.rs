//! Parts of the emulated cluster that need speed.
//!
//! Arrives: descriptions of streams between network namespaces.
//! Leaves: exact counts of what was sent, received, lost, duplicated and reordered, and latencies.
//! Must not know: Python, OpenFlow, topologies, policies.
//!
//! The decision here: the probe engine remembers every sequence number in a bitmap and therefore
//! counts exactly. The rejected alternative, a sliding window as in RTP receivers (RFC 3550,
//! appendix A.1), cannot tell a late packet from a duplicate, and "0 lost, 0 duplicated" is what the
//! probes are there to prove.

mod error;
mod latency;
pub mod loss_meter;
mod receiver;
mod sender;
mod sequence;
mod sockets;
mod wire;

pub use error::LossMeterError;
pub use latency::LatencyHistogram;
pub use receiver::overflowed;
pub use sequence::{LossRun, SequenceTracker, MAX_SEQUENCE};
