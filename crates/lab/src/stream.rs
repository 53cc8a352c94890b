//! Streams and their reports.
//!
//! Arrives: nothing. Leaves: the description of a stream, and its counts. Must not know: sockets, threads.

use std::net::Ipv4Addr;
use std::time::Duration;

use crate::{LatencyHistogram, LossRun};

/// The largest payload: a packet stays below an MTU of 1,500 on every path.
pub const MAX_PAYLOAD_BYTES: usize = 1400;

/// The highest rate: a packet each microsecond is more than one core sends.
pub const MAX_RATE_PPS: u32 = 1_000_000;

/// A stream of packets from a source host to a target host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stream {
    /// The source's namespace in `/run/netns`; `None` for the caller's own.
    pub source_namespace: Option<String>,
    /// The address to send from.
    pub source: Ipv4Addr,
    /// The target's namespace in `/run/netns`; `None` for the caller's own.
    pub target_namespace: Option<String>,
    /// The address to send to.
    pub target: Ipv4Addr,
    /// The target's UDP port.
    pub port: u16,
    /// The code point of the traffic class, 0 to 63.
    pub dscp: u8,
    /// Packets a second.
    pub rate_pps: u32,
}

/// The report of a stream.
#[derive(Clone, Debug)]
pub struct StreamReport {
    /// Packets that the system accepted.
    pub sent: u64,
    /// Packets that the sending system did not accept; no other count includes them.
    pub refused: u64,
    /// Packets skipped because the sending thread did not get the processor in time.
    pub skipped: u64,
    /// Distinct packets that arrived.
    pub received: u64,
    /// Packets that never arrived.
    pub lost: u64,
    /// Arrivals of a packet that had arrived before.
    pub duplicated: u64,
    /// Packets that arrived after a later one.
    pub reordered: u64,
    /// The first runs of consecutive losses.
    pub loss_runs: Vec<LossRun>,
    /// One-way latencies, from before the sending call to after the receiving one.
    pub latency: LatencyHistogram,
}

/// The report of all streams.
#[derive(Clone, Debug)]
pub struct Report {
    /// For each stream, in the order given.
    pub streams: Vec<StreamReport>,
    /// The duration of sending.
    pub sending: Duration,
    /// Packets lost in receive buffers of this machine, not in the network.
    pub overflowed: u64,
    /// Packets of another run or program.
    pub foreign: u64,
}
