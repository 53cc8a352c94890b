//! What a clock or a program refuses.

use crate::sharing::SharingError;

/// Invalid input to [`super::FlowClock`] or [`super::Program`].
#[derive(Clone, Copy, Debug, PartialEq, thiserror::Error)]
pub enum ClockError {
    /// Resources, weights, limits or routes that do not hold together.
    #[error(transparent)]
    Sharing(#[from] SharingError),
    /// A precision outside of 1e-11 .. 0.1.
    #[error("a precision of {0} is none: give a number from 1e-11 to 0.1")]
    Precision(f64),
    /// A key that the table of routes does not have.
    #[error("there is no route {0}: add it before a flow takes it")]
    Route(u32),
    /// A number of bytes that is none.
    #[error("{0} bytes are none: give a finite number of at least 0")]
    Bytes(f64),
    /// A pause that is no finite number of at least 0.
    #[error("a pause of {0} s is none: give a finite number of at least 0")]
    Pause(f64),
    /// Flows without a step.
    #[error("flows belong to a step: add a step first")]
    NoStep,
    /// A program that is to be done 0 times.
    #[error("a program is done at least once: give a repeat of 1 or more")]
    NoRepeat,
    /// A time before now, or none at all.
    #[error("{0} s is before the clock's time, or no time: the clock only goes on")]
    Time(f64),
    /// A run that was never started.
    #[error("there is no run {0}: give a number that start returned")]
    Run(u32),
    /// Arrays that should have one length, and their lengths.
    #[error("one array has {0} entries and its other {1}: give as many of each")]
    Lengths(usize, usize),
    /// Offsets that do not start at 0, fall, or do not end where the resources do.
    #[error("route offsets must start at 0, never fall, and end at the number of resources given")]
    Offsets,
    /// More routes, runs or flows than can be numbered.
    #[error("more than 2^32 routes, runs or flows: split the simulation")]
    TooMany,
}
