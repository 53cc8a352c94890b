//! The rate that the phase `hold` keeps to.
//!
//! Arrives: what a probe found. Leaves: the rate, and when to probe. Must not know: the other phases.

use super::super::loss_floor::LossFloor;

/// Rounds between two probes for more, doubled after one that failed.
pub(super) const PROBE_ROUNDS: [u32; 2] = [8, 64];
/// The rate of a probe, of the rate held; the excess doubles after one that succeeded.
pub(super) const PROBE: f64 = 1.05;
pub(super) const MOST_PROBE: f64 = 1.25;

/// A probe that failed delivered what the path carries; the rate held is a little below, so that it loses nothing.
pub(super) const BELOW: f64 = 0.99;

/// The rate held.
#[derive(Clone, Copy, Debug)]
pub(super) struct Hold {
    pub(super) bps: f64,
    /// The factor in use: 1 between probes.
    pub(super) gain: f64,
    /// The rounds of the present part, holding or probing, and those until the next probe.
    pub(super) rounds: u32,
    pub(super) wait_rounds: u32,
    pub(super) excess: f64,
    pub(super) begun_ns: u64,
    /// The share lost in the round that began the phase, while the test lasts.
    pub(super) tested: Option<f64>,
    /// What was lost in the test, and while holding.
    pub(super) calm: LossFloor,
    pub(super) losses: LossFloor,
}

impl Hold {
    /// Ends a probe that found no more than `bps`.
    pub(super) fn end_probe(&mut self, bps: f64) {
        self.bps = self.bps.min(BELOW * bps);
        self.wait_rounds = (2 * self.wait_rounds).min(PROBE_ROUNDS[1]);
        (self.gain, self.rounds, self.excess) = (1.0, 0, PROBE - 1.0);
    }
}
