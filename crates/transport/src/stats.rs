//! Statistics of a connection or channel, and its bottleneck.
//!
//! Arrives: counters of the protocol, time spent waiting. Leaves: named numbers, what limited the rate. Must not know:
//! sockets.

use std::time::{Duration, Instant};

use waystage_pacing::Cause;

/// How a channel is doing, for statistics and reports.
#[derive(Clone, Debug, Default)]
pub struct Status {
    /// Whether messages go over UDP.
    pub udp: bool,
    /// The smoothed round trip.
    pub rtt_ns: u64,
    /// The pacing rate.
    pub rate_bps: f64,
    /// Bytes of a datagram.
    pub datagram_bytes: u64,
    /// Packets sent.
    pub sent_packets: u64,
    /// Packets lost.
    pub lost_packets: u64,
    /// Bytes sent again.
    pub repaired_bytes: u64,
    /// Bytes that came in although they were there already.
    pub duplicate_bytes: u64,
    /// Packets that failed authentication or decoding.
    pub refused_packets: u64,
    /// What may be in flight by what both ends have agreed on.
    pub memory_bytes: u64,
    /// Nanoseconds spent waiting, by [`Bottleneck`].
    pub held_ns: [u64; Bottleneck::ALL.len()],
}

/// What holds sending back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bottleneck {
    /// The application has nothing to send.
    Source,
    /// The receiver consumes too slowly.
    Destination,
    /// A rate limit.
    Cap,
    /// Congestion control.
    Path,
    /// The memory for unacknowledged messages.
    Memory,
    /// This thread.
    Processor,
}

impl Bottleneck {
    /// All of them, by index.
    pub const ALL: [Self; 6] =
        [Self::Source, Self::Destination, Self::Cap, Self::Path, Self::Memory, Self::Processor];

    /// Its name for programs.
    pub fn name(self) -> &'static str {
        match self {
            Self::Source => "source",
            Self::Destination => "destination",
            Self::Cap => "cap",
            Self::Path => "path",
            Self::Memory => "memory",
            Self::Processor => "processor",
        }
    }

    /// What this is to a flow; None where its threads compute.
    pub fn cause(self) -> Option<Cause> {
        match self {
            Self::Source => Some(Cause::Source),
            Self::Destination => Some(Cause::Destination),
            Self::Cap => Some(Cause::Rate),
            Self::Path | Self::Memory => Some(Cause::Network),
            Self::Processor => None,
        }
    }
}

impl Status {
    /// Numbers by name, for people and programs.
    pub fn numbers(&self) -> Vec<(&'static str, f64)> {
        vec![
            ("udp", f64::from(u8::from(self.udp))),
            ("round_trip_ms", self.rtt_ns as f64 / 1e6),
            ("rate_bytes_per_s", self.rate_bps / 8.0),
            ("datagram_bytes", self.datagram_bytes as f64),
            ("sent_packets", self.sent_packets as f64),
            ("lost_packets", self.lost_packets as f64),
            ("repaired_bytes", self.repaired_bytes as f64),
            ("duplicate_bytes", self.duplicate_bytes as f64),
            ("refused_packets", self.refused_packets as f64),
            ("memory_bytes", self.memory_bytes as f64),
        ]
    }

    /// Two connections of one copy together.
    pub(crate) fn joined(mut self, other: Self) -> Self {
        self.udp |= other.udp;
        self.rtt_ns = self.rtt_ns.max(other.rtt_ns);
        self.rate_bps += other.rate_bps;
        self.datagram_bytes = match (self.datagram_bytes, other.datagram_bytes) {
            (0, one) | (one, 0) => one,
            (one, another) => one.min(another),
        };
        self.sent_packets += other.sent_packets;
        self.lost_packets += other.lost_packets;
        self.repaired_bytes += other.repaired_bytes;
        self.duplicate_bytes += other.duplicate_bytes;
        self.refused_packets += other.refused_packets;
        self.memory_bytes += other.memory_bytes;
        // A copy lasts as long as its slowest connection; its source is what it waits for only while all of them wait
        // for that.
        for bottleneck in Bottleneck::ALL {
            let (one, another) =
                (&mut self.held_ns[bottleneck as usize], other.held_ns[bottleneck as usize]);
            *one = if bottleneck == Bottleneck::Source {
                another.min(*one)
            } else {
                another.max(*one)
            };
        }
        self
    }

    /// What held sending back the longest; None where there is nothing to tell.
    pub fn limit(&self) -> Option<Bottleneck> {
        let longest = Bottleneck::ALL
            .into_iter()
            .max_by_key(|bottleneck| self.held_ns[*bottleneck as usize])?;
        (self.held_ns[longest as usize] > 0).then_some(longest)
    }
}

/// The least time that is judged by [`Recent`]: statistics are at most 100 ms old.
const RECENT: Duration = Duration::from_millis(300);

/// What held sending back lately.
#[derive(Debug, Default)]
pub struct Recent {
    since: Option<Instant>,
    held_ns: [u64; Bottleneck::ALL.len()],
    limit: Option<Bottleneck>,
    /// Bytes sent and received at the last judgement.
    moved: (u64, u64),
    /// More were received than sent since the one before.
    receives: bool,
    /// None moved.
    idle: bool,
}

impl Recent {
    /// What limits a flow of both directions at this end, of which `sent` and `received` bytes have moved. Where more
    /// comes than goes, and this end waits for more to send, it waits for the other host.
    pub fn cause(
        &mut self,
        now: Instant,
        held_ns: &[u64; Bottleneck::ALL.len()],
        (sent, received): (u64, u64),
    ) -> Option<Cause> {
        let judged = self.since;
        let limit = self.limit(now, held_ns);
        if self.since != judged {
            let (before, after) = self.moved;
            self.receives = received.saturating_sub(after) > sent.saturating_sub(before);
            self.idle = (sent, received) == self.moved;
            self.moved = (sent, received);
        }
        match limit {
            Some(Bottleneck::Source) | None if self.receives => Some(Cause::Network),
            None if self.idle => Some(Cause::Source),
            limit => limit.and_then(Bottleneck::cause),
        }
    }

    /// What held sending back the longest since this was last called, at least in [`RECENT`].
    pub fn limit(
        &mut self,
        now: Instant,
        held_ns: &[u64; Bottleneck::ALL.len()],
    ) -> Option<Bottleneck> {
        let passed = self.since.map(|since| now.saturating_duration_since(since));
        if passed.is_none_or(|passed| passed >= RECENT) {
            let grown =
                |of: &Bottleneck| held_ns[*of as usize].saturating_sub(self.held_ns[*of as usize]);
            let longest = Bottleneck::ALL.into_iter().max_by_key(grown);
            self.limit = longest.filter(|longest| grown(longest) > 0);
            (self.since, self.held_ns) = (Some(now), *held_ns);
        }
        self.limit
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_limited_long_ago_does_not_count() {
        let (mut recent, began) = (Recent::default(), Instant::now());
        let held = |path, cap| {
            let mut held_ns = [0; Bottleneck::ALL.len()];
            (held_ns[Bottleneck::Path as usize], held_ns[Bottleneck::Cap as usize]) = (path, cap);
            held_ns
        };
        assert_eq!(recent.limit(began, &held(100, 0)), Some(Bottleneck::Path));
        assert_eq!(recent.limit(began + RECENT / 2, &held(100, 50)), Some(Bottleneck::Path));
        assert_eq!(recent.limit(began + RECENT, &held(101, 50)), Some(Bottleneck::Cap));
        assert_eq!(recent.limit(began + 2 * RECENT, &held(101, 50)), None);
    }

    #[test]
    fn an_end_that_mostly_receives_waits_for_the_network() {
        let (mut recent, began) = (Recent::default(), Instant::now());
        let mut held = [0; Bottleneck::ALL.len()];
        held[Bottleneck::Source as usize] = 100;
        assert_eq!(recent.cause(began, &held, (0, 10)), Some(Cause::Network));
        held[Bottleneck::Source as usize] = 200;
        assert_eq!(recent.cause(began + RECENT, &held, (50, 20)), Some(Cause::Source));
        held[Bottleneck::Cap as usize] = 300;
        assert_eq!(recent.cause(began + 2 * RECENT, &held, (50, 900)), Some(Cause::Rate));
        assert_eq!(recent.cause(began + 3 * RECENT, &held, (50, 900)), Some(Cause::Source));
    }

    #[test]
    fn what_waits_longest_is_said_to_limit() {
        let mut status = Status::default();
        assert_eq!(status.limit(), None);
        status.held_ns[Bottleneck::Path as usize] = 5;
        status.held_ns[Bottleneck::Source as usize] = 4;
        assert_eq!(status.limit(), Some(Bottleneck::Path));
    }

    #[test]
    fn connections_that_have_sent_their_share_do_not_hide_what_limits_the_last() {
        let status = |source, cap| {
            let mut status = Status::default();
            status.held_ns[Bottleneck::Source as usize] = source;
            status.held_ns[Bottleneck::Cap as usize] = cap;
            status
        };
        let joined = status(2, 9).joined(status(8, 3)).joined(status(8, 3));
        assert_eq!(joined.limit(), Some(Bottleneck::Cap));
        assert_eq!(status(8, 3).joined(status(7, 4)).limit(), Some(Bottleneck::Source));
    }
}
