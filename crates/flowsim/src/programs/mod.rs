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
mod lists;
mod program;
mod routes;
#[cfg(test)]
mod tests;

pub use clock::{FlowClock, Pause};
pub use program::{Flows, Program};
