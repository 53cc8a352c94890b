//! Time mode: programs of pauses and flows, and when each of them ends.
//!
//! Arrives: resources with capacities; a table of routes, which may change at any time; programs.
//! Leaves: the times at which programs end; bytes that each resource has carried, by class.
//! Must not know: jobs, hosts, switches, a real clock. Python decides what the numbers stand for.
//!
//! A **program** is a list of steps, done one after the other and the whole list some number of times; a step is a
//! pause and then a set of flows, and is over when all of them have ended. A flow moves its bytes at the rate that
//! [`crate::sharing`] gives it. Latency is a pause.
//!
//! Flows are kept in **groups** by their bottleneck: all flows that one resource holds get the same bytes for each
//! unit of weight in any time, so their order of ending never changes while they are there. When the resource's level
//! changes, one number of the group changes, and not the ending times of its flows (the idea of virtual time, from
//! fair queueing: Parekh and Gallager, 1993).
//!
//! The same calls give the same answers to the last bit: nothing here depends on a clock, a hash or a thread.

mod clock;
mod flows;
mod groups;
mod program;
mod routes;
#[cfg(test)]
mod tests;

use std::fmt;

pub use clock::{FlowClock, Pause};
pub use program::{Flows, Program};

use crate::sharing::SharingError;

/// What a clock or a program refuses. A caller can act on each.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum ClockError {
    /// Resources, weights, limits or routes that do not hold together.
    Sharing(SharingError),
    /// A precision outside of 1e-11 .. 0.1.
    Precision(f64),
    /// A key that the table of routes does not have.
    Route(u32),
    /// A number of bytes that is none.
    Bytes(f64),
    /// A pause that is no finite number of at least 0.
    Pause(f64),
    /// Flows without a step.
    NoStep,
    /// A program that is to be done 0 times.
    NoRepeat,
    /// A time before now, or none at all.
    Time(f64),
    /// A run that was never started.
    Run(u32),
    /// Arrays that should have one length, and their lengths.
    Lengths(usize, usize),
    /// Offsets that do not start at 0, fall, or do not end where the resources do.
    Offsets,
    /// More routes, runs or flows than can be numbered.
    TooMany,
}

impl From<SharingError> for ClockError {
    fn from(error: SharingError) -> Self {
        Self::Sharing(error)
    }
}

impl fmt::Display for ClockError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Sharing(error) => error.fmt(f),
            Self::Precision(value) => write!(f, "a precision of {value} is none: give a number from 1e-11 to 0.1"),
            Self::Route(key) => write!(f, "there is no route {key}: add it before a flow takes it"),
            Self::Bytes(value) => write!(f, "{value} bytes are none: give a finite number of at least 0"),
            Self::Pause(value) => write!(f, "a pause of {value} s is none: give a finite number of at least 0"),
            Self::NoStep => write!(f, "flows belong to a step: add a step first"),
            Self::NoRepeat => write!(f, "a program is done at least once: give a repeat of 1 or more"),
            Self::Time(value) => write!(f, "{value} s is before the clock's time, or no time: the clock only goes on"),
            Self::Run(id) => write!(f, "there is no run {id}: give a number that start returned"),
            Self::Lengths(a, b) => write!(f, "one array has {a} entries and its other {b}: give as many of each"),
            Self::Offsets => write!(
                f,
                "route offsets must start at 0, never fall, and end at the number of resources given"
            ),
            Self::TooMany => write!(f, "more than 2^32 routes, runs or flows: split the simulation"),
        }
    }
}

impl std::error::Error for ClockError {}
