//! Paces flows while they run, and says what limits them.
//!
//! Arrives: limits on the rate, pauses, bytes about to move, what threads wait for.
//! Leaves: when the bytes may go; what most of the threads' time was spent on.
//! Must not know: files, sockets, what a flow is made of.
//!
//! | module | contents |
//! |---|---|
//! | [`limiter`] | the decision, pure: time is passed in |
//! | [`gate`] | the limiter behind a lock, for threads that wait |
//! | [`meter`] | what threads spend their time on |
//! | [`turns`] | tasks of storage targets, each with a limit on its readers; pure |
//!
//! The decision here: every engine asks one limiter, and two parties set it. The user's limit and the control plane's
//! rate are kept apart, and the lower one holds, so that lifting one leaves the other. A limiter in each engine was
//! rejected: three of four forgot that a limit may change while a thread sleeps.

pub mod gate;
pub mod limiter;
pub mod meter;
pub mod turns;

pub use gate::{Gate, Stopped};
pub use limiter::{Limiter, Turn};
pub use meter::{during, Attached, Cause, Meter};
pub use turns::{Next, Turns};

use std::sync::atomic::{AtomicU64, Ordering};

/// How far a flow is.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct FlowCounts {
    /// Bytes moved, also those of files that are not complete yet.
    pub bytes_done: u64,
    /// Bytes to move, as far as known; 0 where nothing is known.
    pub bytes_total: u64,
    /// What limits it now, if one cause stands out.
    pub limited_by: Option<Cause>,
}

/// The gate, the meter and the byte count of one flow.
#[derive(Debug, Default)]
pub struct Pace {
    /// Whether bytes may move.
    pub gate: Gate,
    /// What the flow's threads wait for.
    pub meter: Meter,
    bytes: AtomicU64,
}

impl Pace {
    /// A flow with the user's limit, bytes/s.
    #[must_use]
    pub fn limited_to(bytes_per_s: Option<u64>) -> Self {
        Self { gate: Gate::limited_to(bytes_per_s), ..Self::default() }
    }

    /// Count bytes that have moved.
    pub fn moved(&self, bytes: u64) {
        self.bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    /// The bytes that have moved.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }

    /// What limits the flow now: a pause before all else.
    #[must_use]
    pub fn limited_by(&self) -> Option<Cause> {
        let measured = self.meter.limited_by();
        if self.gate.is_paused() {
            Some(Cause::Paused)
        } else {
            measured
        }
    }

    /// Bytes, and what limits them.
    #[must_use]
    pub fn counts(&self, bytes_total: u64) -> FlowCounts {
        FlowCounts { bytes_done: self.bytes(), bytes_total, limited_by: self.limited_by() }
    }
}
