//! Random early detection: Floyd, Jacobson, ToN 1(4), 1993, figure 2.

use crate::packet::Offered;

const WEIGHT: f64 = 0.002;
const MAX_PROBABILITY: f64 = 0.1;

/// The state of figure 2.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Red {
    /// The average queue as a share of the buffer.
    average: f64,
    /// Packets since the last drop; none while the average is below the lower threshold.
    count: Option<f64>,
}

impl Red {
    /// Whether a packet is dropped. `chance` draws: true with the given probability.
    pub(crate) fn drops(
        &mut self,
        min: f64,
        max: f64,
        packet: &Offered,
        chance: impl FnOnce(f64) -> bool,
    ) -> bool {
        if packet.queued_bytes > 0 {
            let queue = packet.queued_bytes as f64 / packet.buffer_bytes as f64;
            self.average += WEIGHT * (queue - self.average);
        } else {
            // The packets that an idle link could have sent would have found an empty queue.
            let idle_ns = packet.now_ns.saturating_sub(packet.free_ns) as f64;
            let missed = 1.0 + idle_ns / packet.crossing_ns.max(1) as f64;
            self.average *= (1.0 - WEIGHT).powf(missed);
        }
        if self.average < min {
            self.count = None;
            return false;
        }
        let count = self.count.map_or(0.0, |count| count + 1.0);
        self.count = Some(count);
        let base = MAX_PROBABILITY * (self.average - min) / (max - min);
        // Drops are spread evenly: the gap between two is uniform, not geometric.
        let spread = 1.0 - count * base;
        let dropped = self.average >= max || spread <= base || chance(base / spread);
        if dropped {
            self.count = Some(0.0);
        }
        dropped
    }
}
