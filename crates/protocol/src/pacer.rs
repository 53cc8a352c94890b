//! The pacer: packets leave at a rate, a few at a time.
//!
//! Arrives: the time, the rate, the bytes sent. Leaves: when the next packet may leave. Must not know: the contents
//! of packets.

/// A burst is the packets of this time: few enough for a shallow buffer, enough at a high rate for the kernel to send
/// them in one call (segmentation offload).
const BURST_NS: u64 = 250_000;

/// The smallest burst in bytes, at any rate.
const MIN_BURST: u64 = 2 * 1500;

/// The largest burst in bytes: one system call takes 64 KiB.
const MAX_BURST: u64 = 60_000;

/// A token bucket in bytes, filled at the pacing rate.
#[derive(Clone, Debug, Default)]
pub struct Pacer {
    /// Bytes in the bucket; negative after a packet larger than the level.
    bytes: f64,
    filled_at_ns: u64,
}

impl Pacer {
    /// Fills the bucket up to `now_ns`.
    pub fn fill(&mut self, now_ns: u64, rate_bps: f64) {
        let passed_ns = now_ns.saturating_sub(self.filled_at_ns) as f64;
        self.filled_at_ns = now_ns;
        self.bytes = (self.bytes + passed_ns * rate_bps / 8e9).min(burst(rate_bps));
    }

    /// Whether a packet may leave.
    #[must_use]
    pub fn may_send(&self) -> bool {
        self.bytes > 0.0
    }

    /// Takes the bytes of a packet out of the bucket.
    pub fn on_sent(&mut self, bytes: usize) {
        self.bytes -= bytes as f64;
    }

    /// When the bucket is half full again, so that the next burst leaves together.
    #[must_use]
    pub fn next_ns(&self, rate_bps: f64) -> u64 {
        let missing = burst(rate_bps) / 2.0 - self.bytes;
        if self.may_send() || rate_bps <= 0.0 {
            return self.filled_at_ns;
        }
        self.filled_at_ns + (missing * 8e9 / rate_bps).ceil().min(1e15) as u64
    }
}

fn burst(rate_bps: f64) -> f64 {
    (rate_bps * BURST_NS as f64 / 8e9).clamp(MIN_BURST as f64, MAX_BURST as f64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_rate_is_kept_without_long_bursts() {
        for rate_bps in [1e5, 1e7, 1e9, 1e11] {
            let (mut pacer, mut now_ns, mut sent, mut at_once) =
                (Pacer::default(), 0, 0_u64, 0_u64);
            while now_ns < 1_000_000_000 {
                pacer.fill(now_ns, rate_bps);
                at_once = 0;
                while pacer.may_send() {
                    pacer.on_sent(1500);
                    at_once += 1500;
                }
                sent += at_once;
                now_ns = pacer.next_ns(rate_bps).max(now_ns + 1);
            }
            let expected = (rate_bps / 8.0) as u64;
            assert!(at_once <= MAX_BURST + 1500);
            assert!(
                sent.abs_diff(expected) <= expected / 100 + MAX_BURST,
                "{sent} instead of {expected}"
            );
        }
    }
}
