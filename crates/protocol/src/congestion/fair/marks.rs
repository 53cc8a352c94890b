//! Marks in the phase `delay`: the queue that marks is shorter than the one that is followed, or another flow grows.
//!
//! A flow that answers its own marks as CUBIC does leaves a part of the path unused. Here a mark lowers the queue that
//! is followed to [`LESS`] of it, and the window at once to what keeps that queue; each round raises it again a
//! little, so that flows which see the same marks come to follow the same queue. Beside a flow that grows, marks go on
//! and the window falls: at [`YIELDED`] of the one at the first mark, this flow competes.

/// The part of the followed queue that is left after a mark.
const LESS: f64 = 0.7;

/// What each round adds to it.
const MORE: f64 = 0.001;

/// A window below this part of the one at the first mark has yielded to another flow.
const YIELDED: f64 = 0.9;

/// What marks have told since the phase began.
#[derive(Clone, Copy, Debug)]
pub(super) struct Marks {
    /// The part of the usual queue that is followed.
    pub(super) part: f64,
    /// The largest window at a mark.
    window: f64,
}

impl Default for Marks {
    fn default() -> Self {
        Self { part: 1.0, window: 0.0 }
    }
}

impl Marks {
    /// A mark at this window. False where a flow that grows has to be answered.
    pub(super) fn on_mark(&mut self, window: f64) -> bool {
        self.window = self.window.max(window);
        let own = window >= YIELDED * self.window;
        if own {
            self.part *= LESS;
        }
        own
    }

    /// A round has ended.
    pub(super) fn on_round(&mut self) {
        self.part = (self.part + MORE).min(1.0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn marks_shorten_the_queue_until_the_window_has_yielded() {
        let mut marks = Marks::default();
        assert!(marks.on_mark(100.0) && marks.on_mark(120.0) && marks.on_mark(110.0));
        assert!((marks.part - 0.343).abs() < 1e-9);
        assert!(!marks.on_mark(107.0), "below 0.9 of the largest");
        for _ in 0..300 {
            marks.on_round();
        }
        assert!((marks.part - 0.643).abs() < 1e-9);
        (0..1000).for_each(|_| marks.on_round());
        assert!((marks.part - 1.0).abs() < 1e-9);
    }
}
