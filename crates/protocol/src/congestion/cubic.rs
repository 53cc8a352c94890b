//! CUBIC's window (RFC 9438): how `fair` grows and yields beside flows that fill buffers.
//!
//! Arrives: the time, acknowledged bytes, congestion. Leaves: a window. Must not know: what counts as congestion.
//!
//! `W(t) = C (t - K)^3 + W_max`, in packets and seconds, `K = cbrt(W_max (1 - beta) / C)`, `C = 0.4`, `beta = 0.7`, and never below what
//! Reno would have. One such flow beside a CUBIC TCP flow has its share by construction.

use super::PACKET;

const C: f64 = 0.4;
const BETA: f64 = 0.7;

/// Additive increase that gives Reno's share with beta = 0.7 (RFC 9438, section 4.3).
const RENO: f64 = 3.0 * (1.0 - BETA) / (1.0 + BETA);

/// The window's state; windows are in bytes.
#[derive(Clone, Copy, Debug, Default)]
pub struct Cubic {
    max_packets: f64,
    reno_packets: f64,
    epoch_ns: Option<u64>,
    k_s: f64,
}

impl Cubic {
    /// Congestion at this window; the window to go on with.
    pub fn congested(&mut self, window: f64) -> f64 {
        let packets = window / PACKET;
        // Fast convergence: who has less than before leaves room for newcomers.
        self.max_packets =
            if packets < self.max_packets { packets * (1.0 + BETA) / 2.0 } else { packets };
        self.epoch_ns = None;
        window * BETA
    }

    /// Starts from a window without congestion, on the plateau.
    pub fn begin(&mut self, window: f64) {
        *self = Self { max_packets: window / PACKET, ..Self::default() };
    }

    /// The window after an acknowledgement of `bytes`.
    pub fn grown(&mut self, now_ns: u64, window: f64, bytes: u64, rtt_ns: u64) -> f64 {
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
