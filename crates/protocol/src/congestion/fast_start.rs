//! `fast-start`: `fair` with a packet train first, near the path's capacity after one round trip.
//!
//! Arrives: a round trip, a cap. Leaves: the controller. Must not know: how `fair` decides.
//!
//! [`super::startup`] describes the train. It takes capacity before other flows can respond, so a server grants the
//! mode by name.

use super::fair::Fair;

/// The controller for a path of this round trip, never above `cap_bps`.
#[must_use]
pub fn fast_start(rtt_ns: u64, cap_bps: f64) -> Fair {
    Fair::with_train(rtt_ns, cap_bps, true)
}
