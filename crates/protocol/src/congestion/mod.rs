//! How fast to send: one file a mode.
//!
//! Arrives: what acknowledgements brought to light. Leaves: a rate and a window. Must not know: packets, extents, the wire.
//!
//! A mode is a [`Mode`]. What counts as congestion is in [`evidence`]; the papers on HpFP give the modes' aims (fair, fast-start,
//! modest, aggressive: JHPCN report jh160034, section 6) but not their equations, which are ours and stand in each file.

pub mod aggressive;
pub mod compete;
pub mod coupled;
pub mod cubic;
pub mod evidence;
pub mod fair;
pub mod grant;
pub mod look;
pub mod modest;
pub mod startup;

use std::fmt;
use std::str::FromStr;

/// Bytes of a packet, where a mode counts in packets.
pub const PACKET: f64 = 1472.0;

/// What one acknowledgement brought to light.
#[derive(Clone, Copy, Debug, Default)]
pub struct AckEvent {
    /// Now.
    pub now_ns: u64,
    /// The round trip of the quickest packet since the acknowledgement before.
    pub rtt_ns: Option<u64>,
    /// How much longer that of the slowest packet was.
    pub spread_ns: u64,
    /// The least round trip lately.
    pub base_rtt_ns: u64,
    /// The smoothed round trip.
    pub smoothed_rtt_ns: u64,
    /// Bytes newly acknowledged.
    pub arrived_bytes: u64,
    /// Packets newly acknowledged.
    pub arrived_packets: u64,
    /// Packets newly found lost.
    pub lost_packets: u64,
    /// The largest number among these.
    pub newest_lost: Option<u64>,
    /// Packets that arrived after they had been found lost: they were late.
    pub late_packets: u64,
    /// Packets newly found to be marked (ECN).
    pub marked_packets: u64,
    /// One behind the newest packet that any acknowledgement spoke of.
    pub newest_spoken_of: u64,
    /// The number of the next packet to be sent.
    pub next_number: u64,
    /// Bytes underway.
    pub in_flight_bytes: u64,
    /// What arrived at the peer since the acknowledgement before, by its clock.
    pub arrival: Option<Arrival>,
    /// Whether the application or the peer's memory, not this mode, holds sending back.
    pub limited: bool,
}

/// Bytes that arrived at the peer, and in which time.
#[derive(Clone, Copy, Debug, Default)]
pub struct Arrival {
    /// Since the acknowledgement before.
    pub bytes: u64,
    /// From the last packet of that one to the last packet of this one.
    pub span_ns: u64,
    /// The bytes of this acknowledgement alone, but for its first packet.
    pub burst_bytes: u64,
    /// From its first packet to its last.
    pub burst_ns: u64,
}

/// What a mode asks for.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Control {
    /// At most so many bits a second, headers of UDP and IP left out.
    pub rate_bps: f64,
    /// At most so many bytes underway.
    pub window_bytes: u64,
}

/// Decides how fast to send.
pub trait Controller: Send {
    /// Its name.
    fn name(&self) -> Mode;

    /// In a word, what it is doing; for statistics and tests.
    fn phase(&self) -> &'static str;

    /// Takes in an acknowledgement.
    fn on_ack(&mut self, ack: &AckEvent);

    /// Nothing has been heard for two time-outs: what was known of the path may be out of date.
    fn on_timeout(&mut self, now_ns: u64);

    /// Packets take another path from now on.
    fn on_path_change(&mut self, now_ns: u64, rtt_ns: u64);

    /// How fast to send now.
    fn control(&self) -> Control;
}

/// The modes by name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// Shares a path evenly, with TCP too. The default.
    Fair,
    /// As fair, but starts at once near the path's capacity.
    FastStart,
    /// Takes only what others leave.
    Modest,
    /// Takes what it can.
    Aggressive,
}

impl Mode {
    /// All of them.
    pub const ALL: [Self; 4] = [Self::Fair, Self::FastStart, Self::Modest, Self::Aggressive];

    /// The mode itself, on a path of this round trip; `rate_cap_bps` bounds its rate.
    #[must_use]
    pub fn start(self, rtt_ns: u64, rate_cap_bps: f64) -> Box<dyn Controller> {
        match self {
            Self::Fair => Box::new(fair::Fair::gradual(rtt_ns, rate_cap_bps)),
            Self::FastStart => Box::new(fair::Fair::quick(rtt_ns, rate_cap_bps)),
            Self::Modest => Box::new(modest::Modest::new(rtt_ns, rate_cap_bps)),
            Self::Aggressive => Box::new(aggressive::Aggressive::new(rtt_ns, rate_cap_bps)),
        }
    }
}

impl fmt::Display for Mode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Fair => "fair",
            Self::FastStart => "fast-start",
            Self::Modest => "modest",
            Self::Aggressive => "aggressive",
        })
    }
}

/// There is no mode of this name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnknownMode(pub String);

impl fmt::Display for UnknownMode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "there is no mode {:?}: use fair, fast-start, modest or aggressive", self.0)
    }
}

impl std::error::Error for UnknownMode {}

impl FromStr for Mode {
    type Err = UnknownMode;

    fn from_str(name: &str) -> Result<Self, UnknownMode> {
        Self::ALL
            .into_iter()
            .find(|mode| mode.to_string() == name)
            .ok_or_else(|| UnknownMode(name.to_owned()))
    }
}
