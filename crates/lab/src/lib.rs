//! The loss meter of the emulated cluster: UDP streams between network namespaces, counted exactly.
//!
//! Arrives: descriptions of streams between network namespaces.
//! Leaves: exact counts of packets sent, received, lost, duplicated and reordered, and latencies.
//! Must not know: Python, OpenFlow, topologies, policies.
//!
//! The decision here: the meter remembers every sequence number in a bitmap and therefore counts exactly. The rejected
//! alternative, a sliding window as in RTP receivers (RFC 3550, appendix A.1), cannot distinguish a late packet from a
//! duplicate, and "0 lost, 0 duplicated" is what the streams must prove.

mod control;
mod error;
mod latency;
pub mod loss_meter;
mod receiver;
mod sender;
mod sequence;
mod sockets;
pub mod stream;
mod wire;

pub use error::LossMeterError;
pub use latency::LatencyHistogram;
pub use receiver::overflowed;
pub use sequence::{LossRun, SequenceTracker, MAX_SEQUENCE};
