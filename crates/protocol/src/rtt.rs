//! Round-trip times: smoothed, variation, and the minimum of the last half minute.
//!
//! Arrives: measurements. Leaves: estimates. Must not know: packets.

/// The window of the minimum. A path may become longer, but a queue that never empties must not look like one soon.
const MIN_WINDOW_NS: u64 = 30_000_000_000;

/// The least value of a window: that of its current half and of the previous half.
#[derive(Clone, Debug, Default)]
struct WindowedMin<T> {
    halves: [Option<T>; 2],
    half_ends_ns: u64,
}

impl<T: Ord + Copy> WindowedMin<T> {
    fn on_sample(&mut self, now_ns: u64, window_ns: u64, value: T) {
        if now_ns >= self.half_ends_ns {
            self.halves = [None, self.halves[0]];
            self.half_ends_ns = now_ns + window_ns / 2;
        }
        self.halves[0] = Some(self.halves[0].map_or(value, |least| least.min(value)));
    }

    fn get(&self) -> Option<T> {
        self.halves.into_iter().flatten().min()
    }
}

/// Estimates of the round-trip time (RFC 6298, with measurements corrected by the receiver's delay).
#[derive(Clone, Debug)]
pub struct Rtt {
    smoothed_ns: u64,
    variation_ns: u64,
    measured: bool,
    min: WindowedMin<u64>,
}

impl Rtt {
    /// The estimates before the first measurement, from the round trip of the handshake.
    #[must_use]
    pub fn new(initial_ns: u64) -> Self {
        Self {
            smoothed_ns: initial_ns,
            variation_ns: initial_ns / 2,
            measured: false,
            min: WindowedMin::default(),
        }
    }

    /// Processes a measurement.
    pub fn on_sample(&mut self, now_ns: u64, rtt_ns: u64) {
        if self.measured {
            let difference = self.smoothed_ns.abs_diff(rtt_ns);
            self.variation_ns = (3 * self.variation_ns + difference) / 4;
            self.smoothed_ns = (7 * self.smoothed_ns + rtt_ns) / 8;
        } else {
            (self.smoothed_ns, self.variation_ns, self.measured) = (rtt_ns, rtt_ns / 2, true);
        }
        self.min.on_sample(now_ns, MIN_WINDOW_NS, rtt_ns);
    }

    /// The path has become longer: forgets shorter round trips.
    pub fn lengthen(&mut self, by_ns: u64) {
        self.min.halves = [Some(self.min_ns() + by_ns), None];
    }

    /// The smoothed round trip.
    #[must_use]
    pub fn smoothed_ns(&self) -> u64 {
        self.smoothed_ns
    }

    /// The minimum round trip, that of the path without a queue; the smoothed one before any measurement.
    #[must_use]
    pub fn min_ns(&self) -> u64 {
        self.min.get().unwrap_or(self.smoothed_ns)
    }

    /// The interval of acknowledgements: min(10 ms, RTT/8), at most 10,000 a second.
    #[must_use]
    pub fn ack_interval_ns(&self) -> u64 {
        (self.smoothed_ns / 8).clamp(100_000, 10_000_000)
    }

    /// The same under load.
    #[must_use]
    pub fn busy_ack_interval_ns(&self) -> u64 {
        (self.smoothed_ns / 32).clamp(250_000, 10_000_000)
    }

    /// The probe timeout: how long to wait for an acknowledgement before a ping asks for one (RFC 9002, section 6.2).
    #[must_use]
    pub fn timeout_ns(&self) -> u64 {
        self.smoothed_ns + (4 * self.variation_ns).max(1_000_000) + 2 * self.ack_interval_ns()
    }
}

/// The window of the shortest way back: two clocks drift apart by less than 0.2 ms meanwhile.
const RETURN_WINDOW_NS: u64 = 2_000_000_000;

/// The delay of acknowledgements on their way back, above the least of the last seconds: the offset of the two clocks
/// cancels. A queue, or a host that was busy when they came.
#[derive(Clone, Debug, Default)]
pub struct ReturnDelay {
    /// The least difference of the clocks.
    least_ns: WindowedMin<i64>,
}

impl ReturnDelay {
    /// Processes an acknowledgement whose last packet reached the peer at `peer_ns` by its clock. Returns the delay.
    pub fn on_ack(&mut self, now_ns: u64, peer_ns: u64) -> u64 {
        let [now, peer] = [now_ns, peer_ns].map(|ns| i64::try_from(ns).unwrap_or(i64::MAX));
        let difference_ns = now.saturating_sub(peer);
        self.least_ns.on_sample(now_ns, RETURN_WINDOW_NS, difference_ns);
        difference_ns.abs_diff(self.least_ns.get().unwrap_or(difference_ns))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    #[test]
    fn the_first_measurement_replaces_the_handshake_s_and_later_ones_are_smoothed() {
        let mut rtt = Rtt::new(100 * MS);
        assert_eq!((rtt.smoothed_ns(), rtt.min_ns()), (100 * MS, 100 * MS));
        rtt.on_sample(0, 40 * MS);
        assert_eq!((rtt.smoothed_ns(), rtt.min_ns()), (40 * MS, 40 * MS));
        rtt.on_sample(MS, 48 * MS);
        assert_eq!((rtt.smoothed_ns(), rtt.min_ns()), (41 * MS, 40 * MS));
    }

    #[test]
    fn the_minimum_is_forgotten_after_half_a_minute() {
        let mut rtt = Rtt::new(10 * MS);
        rtt.on_sample(0, 10 * MS);
        rtt.on_sample(16_000 * MS, 20 * MS);
        assert_eq!(rtt.min_ns(), 10 * MS);
        rtt.on_sample(32_000 * MS, 20 * MS);
        assert_eq!(rtt.min_ns(), 20 * MS);
        rtt.lengthen(5 * MS);
        rtt.on_sample(32_001 * MS, 26 * MS);
        assert_eq!(rtt.min_ns(), 25 * MS);
    }

    #[test]
    fn a_return_delay_is_what_exceeds_the_least_of_two_seconds_whatever_the_clocks_show() {
        for peer_began_ns in [0, 1 << 50] {
            let mut way_back = ReturnDelay::default();
            // When acknowledgements come, by how much they are late, and what is found.
            for (now_ms, late_ms, found_ms) in
                [(100, 5, 0), (200, 3, 0), (300, 10, 7), (1200, 9, 6), (2500, 9, 0), (2600, 10, 1)]
            {
                let delay_ns =
                    way_back.on_ack(now_ms * MS, peer_began_ns + (now_ms - late_ms) * MS);
                assert_eq!(delay_ns, found_ms * MS, "{now_ms} ms");
            }
            way_back.on_ack(2700 * MS, u64::MAX);
        }
    }
}
