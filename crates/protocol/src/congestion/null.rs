//! `null`: a fixed rate on any path, and the template for your own controller.
//!
//! Copy this file to `congestion/yours.rs`, rename the struct, add `pub mod yours;` to `congestion/mod.rs` and a line
//! to `congestion/registry.rs`. `docs/how-to/write-a-congestion-controller.md` has every step, including a trial in
//! virtual time.
//!
//! Arrives: acknowledgements. Leaves: a window and a pace. Must not know: sockets, clocks, the wire, the other
//! controllers.
//!
//! State the equations here, and the paper or RFC that they follow:
//!
//! ```text
//! rate   = cap
//! window = 2 min RTT x cap
//! ```

// Controllers share their vocabulary (`controller`) and building blocks: `rounds` (round trips), `delivery_rate`,
// `loss_floor` (random loss), `detectors`, `startup` (the search for the capacity) and `cubic`. Nothing else may be
// imported.
use super::controller::{AckEvent, Control, Controller, PACKET};

/// The controller's state. Rates are in bits a second, windows in bytes, times in nanoseconds.
#[derive(Clone, Debug)]
pub struct Null {
    cap_bps: f64,
    min_rtt_ns: u64,
}

impl Null {
    /// The controller for a path of this round trip, measured by the handshake. The server grants `cap_bps`; never
    /// exceed it.
    #[must_use]
    pub fn new(rtt_ns: u64, cap_bps: f64) -> Self {
        Self { cap_bps, min_rtt_ns: rtt_ns }
    }
}

impl Controller for Null {
    // One word for statistics: the state of your state machine.
    fn phase(&self) -> &'static str {
        "fixed"
    }

    // Called for each acknowledgement. Pure: the same events give the same state, so
    //   - the time is `ack.now_ns`; there is no other clock,
    //   - the state is in `self`; there is nothing else to read or write.
    //
    // Evidence of congestion, from the weakest to the strongest:
    //   - `ack.smoothed_rtt_ns - ack.min_rtt_ns`: the queueing delay;
    //   - `ack.delivery`: the delivery rate, by the peer's clock;
    //   - `ack.lost_packets`: losses, random ones too; `ack.late_packets` takes earlier losses back;
    //   - `ack.marked_packets`: ECN marks.
    //
    // Respond at most once a round trip: packets below the `ack.next_packet_number` of your last response were sent
    // before it. Do not grow while `ack.app_limited`: the window was not in use, and its acknowledgements prove
    // nothing.
    fn on_ack(&mut self, ack: &AckEvent) {
        self.min_rtt_ns = ack.min_rtt_ns;
    }

    // The second and each further timeout in a row. A path may have become much slower: reduce the window.
    fn on_timeout(&mut self, _now_ns: u64) {}

    // Another path: forget the measurements of the old one.
    fn on_path_change(&mut self, _now_ns: u64, rtt_ns: u64) {
        *self = Self::new(rtt_ns, self.cap_bps);
    }

    // The pacing rate and the window. Keep the window at two packets or more: a smaller one cannot detect the loss of
    // the last packet. Two bandwidth-delay products leave room for the delay of acknowledgements.
    fn control(&self) -> Control {
        let bdp_bytes = self.min_rtt_ns as f64 * self.cap_bps / 8e9;
        Control { rate_bps: self.cap_bps, window_bytes: (2.0 * bdp_bytes).max(2.0 * PACKET) as u64 }
    }
}

// Tests need no socket and no time: build the acknowledgements that matter and check `control()`.
#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_window_follows_the_minimum_round_trip_and_the_rate_nothing() {
        let mut controller = Null::new(10_000_000, 1e8);
        assert_eq!(controller.control(), Control { rate_bps: 1e8, window_bytes: 250_000 });
        controller.on_ack(&AckEvent {
            min_rtt_ns: 5_000_000,
            lost_packets: 9,
            ..AckEvent::default()
        });
        assert_eq!(controller.control(), Control { rate_bps: 1e8, window_bytes: 125_000 });
        controller.on_path_change(0, 20_000_000);
        assert_eq!(controller.control().window_bytes, 500_000);
    }
}
