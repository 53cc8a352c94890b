//! The bytes in a queue that is kept as the time at which its link will be free.
//!
//! Arrives: times, rates. Leaves: bytes. Must not know: packets.

/// What is queued before a link whose rate may change. Packets that were queued at another rate leave at that rate.
///
/// Where the rate changes again before they have left, all of them count at the last of their rates.
#[derive(Clone, Copy, Debug)]
pub struct Backlog {
    rate_bps: f64,
    /// Until when packets of the former rate leave, and that rate.
    former: (u64, f64),
}

impl Backlog {
    /// The empty queue of a link of this rate, in bits a second; infinite where the link has none.
    #[must_use]
    pub fn new(rate_bps: f64) -> Self {
        Self { rate_bps, former: (0, rate_bps) }
    }

    /// From here on packets are queued at this rate; those before leave until `free_ns`.
    pub fn at_rate(&mut self, rate_bps: f64, free_ns: u64) {
        if rate_bps.to_bits() != self.rate_bps.to_bits() {
            (self.former, self.rate_bps) = ((free_ns, self.rate_bps), rate_bps);
        }
    }

    /// The bytes queued at `now_ns`, where the link is free at `free_ns`.
    #[must_use]
    pub fn bytes(&self, now_ns: u64, free_ns: u64) -> u64 {
        let (until_ns, former_bps) = self.former;
        let within = |from_ns: u64, to_ns: u64, rate_bps: f64| {
            let bytes = to_ns.saturating_sub(from_ns) as f64 * rate_bps / 8e9;
            if bytes.is_finite() {
                bytes as u64
            } else {
                0
            }
        };
        within(now_ns, until_ns, former_bps) + within(now_ns.max(until_ns), free_ns, self.rate_bps)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packets_queued_at_another_rate_are_no_more_bytes_after_it_has_changed() {
        let mut backlog = Backlog::new(8e6);
        assert_eq!(backlog.bytes(0, 10_000_000), 10_000);
        for (rate_bps, added) in [(32e6, 4_000), (2e6, 250)] {
            let mut changed = backlog;
            changed.at_rate(rate_bps, 10_000_000);
            assert_eq!(changed.bytes(0, 10_000_000), 10_000, "the change itself queues nothing");
            assert_eq!(changed.bytes(0, 11_000_000), 10_000 + added);
            assert_eq!(changed.bytes(10_000_000, 11_000_000), added);
            assert_eq!(changed.bytes(20_000_000, 11_000_000), 0);
        }
        backlog.at_rate(f64::INFINITY, 10_000_000);
        assert_eq!(backlog.bytes(5_000_000, 10_000_000), 5_000);
    }
}
