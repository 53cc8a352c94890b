//! The round-trip time: smoothed, its variation, and the least of the last half minute.
//!
//! Arrives: measurements. Leaves: estimates. Must not know: packets.

/// How long a least round trip counts. A path may become longer; a queue that never empties must not look like one soon.
const BASE_WINDOW_NS: u64 = 30_000_000_000;

/// Estimates of the round-trip time (RFC 6298, with the measurements corrected for the receiver's delay).
#[derive(Clone, Debug)]
pub struct Rtt {
    smoothed_ns: u64,
    variation_ns: u64,
    measured: bool,
    /// Least values of the window's half that runs, and of the half before.
    halves: [u64; 2],
    half_ends_ns: u64,
}

impl Rtt {
    /// Before the first measurement, what the handshake found.
    #[must_use]
    pub fn new(initial_ns: u64) -> Self {
        Self {
            smoothed_ns: initial_ns,
            variation_ns: initial_ns / 2,
            measured: false,
            halves: [u64::MAX; 2],
            half_ends_ns: 0,
        }
    }

    /// Takes in a measurement.
    pub fn measured(&mut self, now_ns: u64, rtt_ns: u64) {
        if self.measured {
            let difference = self.smoothed_ns.abs_diff(rtt_ns);
            self.variation_ns = (3 * self.variation_ns + difference) / 4;
            self.smoothed_ns = (7 * self.smoothed_ns + rtt_ns) / 8;
        } else {
            (self.smoothed_ns, self.variation_ns, self.measured) = (rtt_ns, rtt_ns / 2, true);
        }
        if now_ns >= self.half_ends_ns {
            self.halves = [u64::MAX, self.halves[0]];
            self.half_ends_ns = now_ns + BASE_WINDOW_NS / 2;
        }
        self.halves[0] = self.halves[0].min(rtt_ns);
    }

    /// The smoothed round trip.
    #[must_use]
    pub fn smoothed_ns(&self) -> u64 {
        self.smoothed_ns
    }

    /// The least round trip lately, that of a path without a queue; the smoothed one before any measurement.
    #[must_use]
    pub fn base_ns(&self) -> u64 {
        match self.halves[0].min(self.halves[1]) {
            u64::MAX => self.smoothed_ns,
            least => least,
        }
    }

    /// How often the receiver should acknowledge: at min(10 ms, RTT/8), and not above 10,000 times a second.
    #[must_use]
    pub fn ack_interval_ns(&self) -> u64 {
        (self.smoothed_ns / 8).clamp(100_000, 10_000_000)
    }

    /// The same where packets come fast.
    #[must_use]
    pub fn busy_ack_interval_ns(&self) -> u64 {
        (self.smoothed_ns / 32).clamp(250_000, 10_000_000)
    }

    /// After how long without a word an acknowledgement is asked for (RFC 9002, section 6.2).
    #[must_use]
    pub fn timeout_ns(&self) -> u64 {
        self.smoothed_ns + (4 * self.variation_ns).max(1_000_000) + 2 * self.ack_interval_ns()
    }
}
