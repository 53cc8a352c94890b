//! A window beside flows that fill buffers: CUBIC's, and how large it begins.
//!
//! Arrives: acknowledged bytes, rates of arrival, congestion. Leaves: a window. Must not know: what counts as congestion, or who the others are.
//!
//! CUBIC needs many losses to come to an even share, and on a deep buffer each takes ten seconds. So whoever begins to compete first seeks its
//! share: the window grows by half each round trip until something is lost, or until the share is a half. What share it is shows in the answer: with
//! `W` of its own underway and `V` of others, what arrives is `s = W / (W + V)` of a full path, and where the window grows by `g`
//!
//! ```text
//! what arrives grows by  g / (1 + (g - 1) s)        1.2 at g = 1.5 and s = 1/2; less where this flow has more already
//! ```

use super::cubic::Cubic;
use super::{AckEvent, PACKET};

/// Growth of a round trip while a flow seeks its share.
const GROWTH: f64 = 1.5;

/// So much more arrives where half of the path belongs to this flow.
const AT_HALF: f64 = GROWTH / (1.0 + (GROWTH - 1.0) / 2.0);

/// What arrives in the first rounds was sent before the window grew.
const BLIND_ROUNDS: u32 = 2;

const TEST_EVERY_NS: u64 = 10_000_000_000;

#[derive(Clone, Copy, Debug)]
struct Seeking {
    rounds: u32,
    before_bps: f64,
}

/// The window's state.
#[derive(Clone, Copy, Debug, Default)]
pub struct Competitor {
    cubic: Cubic,
    seeking: Option<Seeking>,
    tests: u64,
    next_test_ns: u64,
}

impl Competitor {
    /// Goes on from a window as CUBIC does on its plateau.
    pub fn hold(&mut self, window: f64) {
        self.cubic.begin(window);
        self.seeking = None;
    }

    /// Begins without a plateau.
    pub fn forget(&mut self) {
        (self.cubic, self.seeking) = (Cubic::default(), None);
    }

    /// Seeks the share that this flow may have.
    pub fn seek(&mut self) {
        self.seeking = Some(Seeking { rounds: 0, before_bps: 0.0 });
    }

    /// Congestion at this window; the window to go on with.
    pub fn congested(&mut self, window: f64) -> f64 {
        self.seeking = None;
        self.cubic.congested(window)
    }

    /// The window after an acknowledgement.
    pub fn grown(&mut self, ack: &AckEvent, window: f64, rtt_ns: u64) -> f64 {
        if self.seeking.is_some() {
            return window + (GROWTH - 1.0) * ack.arrived_bytes as f64;
        }
        self.cubic.grown(ack.now_ns, window, ack.arrived_bytes, rtt_ns)
    }

    /// A round trip is over, and so much arrives; the window to go on with.
    pub fn end_of_round(&mut self, arrival_bps: Option<f64>, window: f64) -> f64 {
        let Some(seeking) = &mut self.seeking else { return window };
        let bps = arrival_bps.unwrap_or(0.0);
        if seeking.rounds >= BLIND_ROUNDS && bps < AT_HALF * seeking.before_bps {
            // The answer is to the window of two rounds ago.
            let enough = window / (GROWTH * GROWTH);
            self.hold(enough);
            return enough;
        }
        *seeking = Seeking { rounds: seeking.rounds + 1, before_bps: bps };
        window
    }

    /// Sets the time of the next test of whether anybody else is there.
    pub fn plan(&mut self, now_ns: u64, window: f64) {
        // Flows of one path must not test at the same time: spread by the golden ratio.
        self.tests += 1;
        let spread = (self.tests as f64 * 0.618_034 + window / PACKET * 0.414_214).fract();
        self.next_test_ns = now_ns + (TEST_EVERY_NS as f64 * (0.75 + 0.5 * spread)) as u64;
    }

    /// Whether it is time for that test.
    #[must_use]
    pub fn is_test_due(&self, now_ns: u64) -> bool {
        now_ns >= self.next_test_ns
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RTT_NS: u64 = 20_000_000;

    /// The share that a flow has when it stops to seek, beside others that keep so many bytes underway on a path that is full.
    fn sought(others: f64) -> f64 {
        let mut competitor = Competitor::default();
        let mut window = 20.0 * PACKET;
        competitor.hold(window);
        competitor.seek();
        let mut share = window / (window + others);
        for round in 0..40 {
            let bytes = window as u64;
            let ack = AckEvent {
                now_ns: round * RTT_NS,
                arrived_bytes: bytes,
                smoothed_rtt_ns: RTT_NS,
                ..AckEvent::default()
            };
            let before = window;
            window = competitor.grown(&ack, window, RTT_NS);
            window = competitor.end_of_round(Some(1e8 * share), window);
            share = before / (before + others);
        }
        assert!(competitor.seeking.is_none(), "it ends");
        window / (window + others)
    }

    #[test]
    fn a_flow_seeks_half_of_the_path_and_no_more() {
        for others in [100.0, 500.0, 5000.0] {
            let share = sought(others * PACKET);
            assert!((0.35..0.65).contains(&share), "beside {others} packets: {share:.2}");
        }
    }

    #[test]
    fn alone_it_stops_at_once() {
        assert!(sought(0.0) > 0.99);
        let mut competitor = Competitor::default();
        competitor.seek();
        let window = 100.0 * PACKET;
        let mut now = window;
        for _ in 0..8 {
            now *= if competitor.seeking.is_some() { GROWTH } else { 1.0 };
            now = competitor.end_of_round(Some(1e8), now);
        }
        assert!(now < 3.0 * window, "{} packets from 100", now / PACKET);
    }

    #[test]
    fn loss_ends_it() {
        let mut competitor = Competitor::default();
        competitor.hold(100.0 * PACKET);
        competitor.seek();
        assert!((competitor.congested(150.0 * PACKET) / PACKET - 105.0).abs() < 0.1);
        let ack = AckEvent { arrived_bytes: 105 * 1472, ..AckEvent::default() };
        let grown = competitor.grown(&ack, 105.0 * PACKET, RTT_NS);
        assert!(grown < 110.0 * PACKET, "{}", grown / PACKET);
    }
}
