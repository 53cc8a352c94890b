//! What a flow remembers of a capacity that has fallen.
//!
//! Arrives: windows, round trips. Leaves: to which window the flow may return, or with which it competes. Must not
//! know: the phases.

/// Round trips after a response in which another flow may show.
const ROUNDS: u32 = 8;

/// Responses before what goes on to fall is another flow's doing.
const MOST_RESPONSES: u32 = 3;

/// What CUBIC keeps of a window after a loss.
const KEPT_BY_CUBIC: f64 = 0.7;

/// The part of the window before a fall to which a flow returns faster, and the growth in each round trip.
const RETURN: f64 = 0.9;
const RETURN_STEP: f64 = 0.5;

/// A fall of the capacity from which the flow has not yet returned.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Fall {
    /// The window before the first response that is not confirmed.
    window_before: f64,
    /// The largest window before a fall.
    highest: f64,
    responses: u32,
    /// Round trips since the last response.
    rounds: u32,
}

impl Fall {
    /// Responses that another flow may still contradict.
    pub(super) fn unconfirmed(&self) -> u32 {
        if self.is_confirmed() {
            0
        } else {
            self.responses
        }
    }

    /// Whether another response would be one too many.
    pub(super) fn is_exhausted(&self) -> bool {
        self.unconfirmed() >= MOST_RESPONSES
    }

    /// The window falls from `before` to `to`. What the flow `grew` to by itself was too much, and is not returned to.
    pub(super) fn falls(&self, before: f64, to: f64, grew: bool) -> Self {
        let unconfirmed = self.unconfirmed();
        Self {
            window_before: if unconfirmed > 0 { self.window_before } else { before },
            highest: if grew { to } else { self.highest.max(before) },
            responses: unconfirmed + 1,
            rounds: 0,
        }
    }

    /// A round trip has passed, at this window. Returns whether the flow has returned.
    pub(super) fn on_round(&mut self, window: f64) -> bool {
        self.rounds = self.rounds.saturating_add(1);
        self.is_confirmed() && self.room(window) <= 0.0
    }

    /// The part by which the window may grow in a round trip without a queue.
    pub(super) fn step(&self, window: f64) -> f64 {
        if self.is_confirmed() {
            self.room(window).clamp(0.0, RETURN_STEP)
        } else {
            0.0
        }
    }

    /// The window that CUBIC would have, where what seemed to be a fall was another flow.
    pub(super) fn window_beside_others(&self) -> f64 {
        if self.is_confirmed() {
            0.0
        } else {
            KEPT_BY_CUBIC * self.window_before
        }
    }

    fn is_confirmed(&self) -> bool {
        self.rounds > ROUNDS
    }

    fn room(&self, window: f64) -> f64 {
        RETURN * self.highest / window - 1.0
    }
}
