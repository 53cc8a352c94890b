//! CUBIC's window (RFC 9438).
//!
//! Arrives: the time, acknowledged bytes, congestion. Leaves: a window. Must not know: what counts as congestion.
//!
//! ```text
//! W(t) = C (t - K)^3 + W_max        in packets and seconds, and never below Reno's window
//! K    = cbrt(W_max (1 - beta) / C)        C = 0.4, beta = 0.7
//! ```
//!
//! One such flow beside a CUBIC TCP flow has an even share by construction.

use super::controller::PACKET;

const C: f64 = 0.4;
const BETA: f64 = 0.7;

/// The part kept after a mark, which comes before the buffer is full (RFC 8511).
const MARKED_BETA: f64 = 0.85;

/// The additive increase that gives Reno's share with beta = 0.7 (RFC 9438, section 4.3).
const RENO: f64 = 3.0 * (1.0 - BETA) / (1.0 + BETA);

/// The round trips in which a flow with this window, in bytes, regains what a loss takes from it.
#[must_use]
pub fn regain_rounds(window: f64, rtt_ns: u64) -> f64 {
    let lost_packets = (1.0 - BETA) * window / PACKET;
    let k_s = (lost_packets / C).cbrt();
    (lost_packets / RENO).min(k_s * 1e9 / rtt_ns as f64)
}

/// The state of the window. Windows are in bytes.
#[derive(Clone, Copy, Debug, Default)]
pub struct Cubic {
    max_packets: f64,
    reno_packets: f64,
    epoch_ns: Option<u64>,
    k_s: f64,
}

impl Cubic {
    /// Congestion at this window, told by a loss, or by a mark: of a short queue where `short`. Returns the new window.
    pub fn on_congestion(&mut self, window: f64, short: bool) -> f64 {
        let packets = window / PACKET;
        // Fast convergence: a flow with less than before leaves room for new flows (section 4.7).
        self.max_packets =
            if packets < self.max_packets { packets * (1.0 + BETA) / 2.0 } else { packets };
        self.epoch_ns = None;
        window * if short { MARKED_BETA } else { BETA }
    }

    /// Starts from a window without congestion, on the plateau.
    pub fn begin(&mut self, window: f64) {
        *self = Self { max_packets: window / PACKET, ..Self::default() };
    }

    /// The window after an acknowledgement of `bytes`.
    pub fn on_ack(&mut self, now_ns: u64, window: f64, bytes: u64, rtt_ns: u64) -> f64 {
        let packets = window / PACKET;
        let epoch_ns = *self.epoch_ns.get_or_insert_with(|| {
            self.k_s = ((self.max_packets - packets).max(0.0) / C).cbrt();
            self.max_packets = self.max_packets.max(packets);
            self.reno_packets = packets;
            now_ns
        });
        let acked = bytes as f64 / PACKET;
        self.reno_packets += RENO * acked / packets;
        let ahead_s = (now_ns - epoch_ns + rtt_ns) as f64 / 1e9 - self.k_s;
        let target = (C * ahead_s.powi(3) + self.max_packets).clamp(packets, 1.5 * packets);
        let cubic = packets + (target - packets) * acked / packets;
        cubic.max(self.reno_packets) * PACKET
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RTT_NS: u64 = 100_000_000;

    /// The window in packets after each round trip without loss.
    fn grown(cubic: &mut Cubic, mut window: f64, rounds: u64) -> Vec<f64> {
        let mut windows = Vec::new();
        for round in 0..rounds {
            window = cubic.on_ack(round * RTT_NS, window, window as u64, RTT_NS);
            windows.push(window / PACKET);
        }
        windows
    }

    #[test]
    fn the_window_returns_to_its_maximum_after_k_and_is_flat_there() {
        let mut cubic = Cubic::default();
        let window = cubic.on_congestion(1000.0 * PACKET, false);
        assert!((window / PACKET - 700.0).abs() < 1e-6);
        let windows = grown(&mut cubic, window, 110);
        // K = cbrt(1000 * 0.3 / 0.4) = 9.09 s.
        assert!((windows[90] - 1000.0).abs() < 2.0, "{}", windows[90]);
        assert!(windows[90] - windows[80] < 2.0, "the plateau");
        assert!(windows[10] - windows[0] > 50.0, "steep at first");
    }

    #[test]
    fn a_second_loss_below_the_maximum_leaves_room() {
        let mut cubic = Cubic::default();
        let first = cubic.on_congestion(100.0 * PACKET, false);
        cubic.on_congestion(first, false);
        assert!((cubic.max_packets - 70.0 * 0.85).abs() < 1e-6);
    }

    #[test]
    fn a_small_window_grows_as_reno_s() {
        let mut cubic = Cubic::default();
        let window = cubic.on_congestion(10.0 * PACKET, false);
        let windows = grown(&mut cubic, window, 6);
        assert!((windows[5] - (7.0 + 6.0 * RENO)).abs() < 0.3, "{windows:?}");
    }
}
