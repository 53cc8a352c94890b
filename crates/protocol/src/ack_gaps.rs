//! The gaps that lost packets of the peer leave between its acknowledgements.
//!
//! Arrives: the numbers of the peer's packets, and when they came. Leaves: bytes that may be in flight beyond the
//! window. Must not know: windows, what packets contain.
//!
//! A window as large as what the path carries is full a moment after acknowledgements stop, and a sender whose next
//! acknowledgements are lost stops with them: of ten lost in a row, at 32 a round trip, it would miss a third of the
//! round trip. Where such gaps were seen, bytes leave in a gap at the rate of the acknowledgements that are due, for
//! as long as the longest of them (as BBR allows for aggregated acknowledgements: draft-cardwell-iccrg-bbr-congestion-
//! control, "extra_acked"). The window rules again with the next acknowledgement, so nothing adds up.

/// How long the longest gap is remembered, at least; at most twice as long.
const MEMORY_NS: u64 = 10_000_000_000;

/// The gaps of one connection.
#[derive(Clone, Debug, Default)]
pub struct AckGaps {
    /// When the last packet of the peer came.
    last_ns: u64,
    /// The longest gap of the current period of memory and of the one before.
    longest_ns: [u64; 2],
    period_began_ns: u64,
}

impl AckGaps {
    /// A packet of the peer has come with this number, where `expected` would be next if none was lost.
    pub fn on_packet(&mut self, now_ns: u64, number: u64, expected: u64) {
        if now_ns.saturating_sub(self.period_began_ns) >= MEMORY_NS {
            self.longest_ns = [0, self.longest_ns[0]];
            self.period_began_ns = now_ns;
        }
        if number > expected && expected > 0 {
            self.longest_ns[0] = self.longest_ns[0].max(now_ns.saturating_sub(self.last_ns));
        }
        if number >= expected {
            self.last_ns = now_ns;
        }
    }

    /// The time since the last packet for which acknowledgements may be lost, within a round trip.
    fn most_ns(&self, rtt_ns: u64) -> u64 {
        self.longest_ns[0].max(self.longest_ns[1]).min(rtt_ns)
    }

    /// The bytes that may be in flight beyond `window_bytes`, which hold for a round trip.
    #[must_use]
    pub fn allowed_bytes(&self, now_ns: u64, window_bytes: u64, rtt_ns: u64) -> u64 {
        let gap_ns = now_ns.saturating_sub(self.last_ns).min(self.most_ns(rtt_ns));
        (window_bytes as f64 * gap_ns as f64 / rtt_ns.max(1) as f64) as u64
    }

    /// When `bytes` beyond the window will be allowed; None if an acknowledgement has to come first.
    #[must_use]
    pub fn allowed_at_ns(&self, bytes: u64, window_bytes: u64, rtt_ns: u64) -> Option<u64> {
        let gap_ns = bytes as f64 * rtt_ns as f64 / window_bytes.max(1) as f64;
        (gap_ns < self.most_ns(rtt_ns) as f64).then(|| self.last_ns + gap_ns.ceil() as u64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const MS: u64 = 1_000_000;

    #[test]
    fn a_gap_of_lost_packets_is_allowed_for_at_the_rate_of_the_window() {
        let mut gaps = AckGaps::default();
        gaps.on_packet(100 * MS, 7, 0);
        gaps.on_packet(130 * MS, 8, 8);
        assert_eq!(gaps.allowed_bytes(200 * MS, 40_000, 40 * MS), 0, "none was lost");
        assert_eq!(gaps.allowed_at_ns(1, 40_000, 40 * MS), None);
        gaps.on_packet(142 * MS, 19, 9);
        assert_eq!(gaps.allowed_bytes(145 * MS, 40_000, 40 * MS), 3000);
        assert_eq!(gaps.allowed_bytes(200 * MS, 40_000, 40 * MS), 12_000, "no more than was seen");
        assert_eq!(gaps.allowed_at_ns(3000, 40_000, 40 * MS), Some(145 * MS));
        assert_eq!(gaps.allowed_at_ns(12_000, 40_000, 40 * MS), None);
        assert_eq!(gaps.allowed_bytes(200 * MS, 4000, 4 * MS), 4000, "within a round trip");
        // A late packet ends no gap, and its number was seen as lost before.
        gaps.on_packet(150 * MS, 12, 20);
        assert_eq!(gaps.allowed_bytes(145 * MS, 40_000, 40 * MS), 3000);
    }

    #[test]
    fn gaps_are_forgotten() {
        let mut gaps = AckGaps::default();
        for (now_s, number) in [(1, 0), (2, 5), (15, 6), (24, 7)] {
            gaps.on_packet(1000 * MS * now_s, number, if number == 5 { 1 } else { number });
        }
        assert_ne!(gaps.allowed_bytes(30_000 * MS, 40_000, 40 * MS), 0);
        gaps.on_packet(26_000 * MS, 8, 8);
        assert_eq!(gaps.allowed_bytes(30_000 * MS, 40_000, 40 * MS), 0);
    }

    proptest! {
        #[test]
        fn what_is_allowed_at_a_time_is_allowed_then(
            gap_ns in 1..200 * MS,
            bytes in 0_u64..1 << 30,
            window_bytes in 1_u64..1 << 30,
            rtt_ns in 1000..1000 * MS,
        ) {
            let mut gaps = AckGaps::default();
            gaps.on_packet(MS, 0, 0);
            gaps.on_packet(MS + gap_ns, 9, 1);
            if let Some(at_ns) = gaps.allowed_at_ns(bytes, window_bytes, rtt_ns) {
                let allowed = gaps.allowed_bytes(at_ns, window_bytes, rtt_ns);
                prop_assert!(allowed + 1 >= bytes, "{allowed} of {bytes}");
            } else {
                let allowed = gaps.allowed_bytes(u64::MAX, window_bytes, rtt_ns);
                prop_assert!(allowed <= bytes, "{allowed} and {bytes}");
            }
        }
    }
}
