//! The TCP-friendly phase: CUBIC's window beside flows that fill buffers, and share probing, which sets its initial
//! value.
//!
//! Arrives: acknowledged bytes, delivery rates, congestion. Leaves: a window. Must not know: what counts as congestion.
//!
//! CUBIC needs many losses to converge to an even share, and on a deep buffer each takes ten seconds. A flow that
//! enters the phase therefore probes its share first: the window grows by half each round trip until a loss, or until
//! the share is a half. The response shows the share: with `W` bytes of this flow in flight and `V` of others, this
//! flow receives the share `s = W / (W + V)` of a full path, and where its window grows by the factor `g`
//!
//! ```text
//! the delivery rate grows by  g / (1 + (g - 1) s)        1.2 at g = 1.5 and s = 1/2; less for a larger share
//! ```

use super::controller::{AckEvent, PACKET};
use super::cubic::Cubic;

/// Growth of the window in each round trip of share probing.
const GROWTH: f64 = 1.5;

/// Growth of the delivery rate for a flow with half of the path.
const AT_HALF: f64 = GROWTH / (1.0 + (GROWTH - 1.0) / 2.0);

/// The first rounds deliver packets that were sent before the window grew.
const BLIND_ROUNDS: u32 = 2;

const TEST_INTERVAL_NS: u64 = 10_000_000_000;

#[derive(Clone, Copy, Debug)]
struct ShareProbe {
    rounds: u32,
    previous_bps: f64,
}

/// The state of the window.
#[derive(Clone, Copy, Debug, Default)]
pub struct TcpFriendly {
    cubic: Cubic,
    share_probe: Option<ShareProbe>,
    tests: u64,
    next_test_ns: u64,
}

impl TcpFriendly {
    /// Continues from a window as CUBIC does on its plateau.
    pub fn hold(&mut self, window: f64) {
        self.cubic.begin(window);
        self.share_probe = None;
    }

    /// Restarts without a plateau.
    pub fn reset(&mut self) {
        (self.cubic, self.share_probe) = (Cubic::default(), None);
    }

    /// Begins share probing.
    pub fn probe_share(&mut self) {
        self.share_probe = Some(ShareProbe { rounds: 0, previous_bps: 0.0 });
    }

    /// Congestion at this window, told by a loss, or by a mark: of a short queue where `short`. Returns the new window.
    pub fn on_congestion(&mut self, window: f64, short: bool) -> f64 {
        self.share_probe = None;
        self.cubic.on_congestion(window, short)
    }

    /// The window after an acknowledgement.
    pub fn on_ack(&mut self, ack: &AckEvent, window: f64, rtt_ns: u64) -> f64 {
        if self.share_probe.is_some() {
            return window + (GROWTH - 1.0) * ack.acked_bytes as f64;
        }
        self.cubic.on_ack(ack.now_ns, window, ack.acked_bytes, rtt_ns)
    }

    /// The window at the end of a round trip with this delivery rate.
    pub fn on_round(&mut self, delivery_bps: Option<f64>, window: f64) -> f64 {
        let Some(probe) = &mut self.share_probe else { return window };
        let bps = delivery_bps.unwrap_or(0.0);
        if probe.rounds >= BLIND_ROUNDS && bps < AT_HALF * probe.previous_bps {
            // The response is to the window of two rounds ago.
            let enough = window / (GROWTH * GROWTH);
            self.hold(enough);
            return enough;
        }
        *probe = ShareProbe { rounds: probe.rounds + 1, previous_bps: bps };
        window
    }

    /// Schedules the next test for other flows.
    pub fn schedule_test(&mut self, now_ns: u64, window: f64) {
        // Flows on one path must not test simultaneously: the golden ratio spreads them.
        self.tests += 1;
        let spread = (self.tests as f64 * 0.618_034 + window / PACKET * 0.414_214).fract();
        self.next_test_ns = now_ns + (TEST_INTERVAL_NS as f64 * (0.75 + 0.5 * spread)) as u64;
    }

    /// Whether that test is due.
    #[must_use]
    pub fn is_test_due(&self, now_ns: u64) -> bool {
        now_ns >= self.next_test_ns
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RTT_NS: u64 = 20_000_000;

    /// The share of a flow when its probe ends, beside flows that keep this many bytes in flight on a full path.
    fn probed_share(others: f64) -> f64 {
        let mut tcp_friendly = TcpFriendly::default();
        let mut window = 20.0 * PACKET;
        tcp_friendly.hold(window);
        tcp_friendly.probe_share();
        let mut share = window / (window + others);
        for round in 0..40 {
            let ack = AckEvent {
                now_ns: round * RTT_NS,
                acked_bytes: window as u64,
                smoothed_rtt_ns: RTT_NS,
                ..AckEvent::default()
            };
            let before = window;
            window = tcp_friendly.on_ack(&ack, window, RTT_NS);
            window = tcp_friendly.on_round(Some(1e8 * share), window);
            share = before / (before + others);
        }
        assert!(tcp_friendly.share_probe.is_none(), "it ends");
        window / (window + others)
    }

    #[test]
    fn a_flow_probes_for_half_of_the_path_and_no_more() {
        for others in [100.0, 500.0, 5000.0] {
            let share = probed_share(others * PACKET);
            assert!((0.35..0.65).contains(&share), "beside {others} packets: {share:.2}");
        }
    }

    #[test]
    fn alone_it_stops_at_once() {
        assert!(probed_share(0.0) > 0.99);
        let mut tcp_friendly = TcpFriendly::default();
        tcp_friendly.probe_share();
        let first = 100.0 * PACKET;
        let mut window = first;
        for _ in 0..8 {
            window *= if tcp_friendly.share_probe.is_some() { GROWTH } else { 1.0 };
            window = tcp_friendly.on_round(Some(1e8), window);
        }
        assert!(window < 3.0 * first, "{} packets from 100", window / PACKET);
    }

    #[test]
    fn loss_ends_share_probing() {
        let mut tcp_friendly = TcpFriendly::default();
        tcp_friendly.hold(100.0 * PACKET);
        tcp_friendly.probe_share();
        let window = tcp_friendly.on_congestion(150.0 * PACKET, false);
        assert!((window / PACKET - 105.0).abs() < 0.1);
        let ack = AckEvent { acked_bytes: 105 * 1472, ..AckEvent::default() };
        let grown = tcp_friendly.on_ack(&ack, 105.0 * PACKET, RTT_NS);
        assert!(grown < 110.0 * PACKET, "{}", grown / PACKET);
    }
}
