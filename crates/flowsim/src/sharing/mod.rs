//! Max-min fair shares of resources among flows, kept up to date as flows come, go and move.
//!
//! Arrives: resources with capacities; flows with routes, weights and limits; changes of all of these.
//! Leaves: the rate of each flow, and which flows and resources the last changes concerned.
//! Must not know: time, bytes that are left, what a resource or a flow stands for.
//!
//! The state is one **level** for each resource: the rate, for each unit of weight, that the resource allows to any
//! flow on it; infinite where it is not a bottleneck. A flow's rate is its weight times the least level on its route.
//! Such rates are the max-min fair ones exactly if no resource gives more than its capacity, and each that has a
//! finite level gives all of it (Bertsekas and Gallager, "Data Networks", section 6.5.2, says it as: every flow has a
//! bottleneck). A change puts a few resources out of this balance. `solve` fills these anew, with all other levels
//! held; then those that this has put out of balance join them, until none is. What the change does not reach is
//! never visited; that is the decision of this module. The alternative, to solve again the whole part of the graph
//! that shares anything with the change, costs a pass over all flows for each flow that ends.
//!
//! `tolerance` is the share of its capacity by which a resource may be out of balance. 1e-10 is exact for all
//! purposes. With 1e-3, changes too small to matter stay where they are until enough of them have come together.

mod curve;
mod fill;
mod flow;
mod members;
mod relax;
mod scratch;
mod table;
#[cfg(test)]
mod tests;

pub use curve::Curve;
pub use flow::{LIMITED, UNSOLVED};
pub use relax::ROUGH;
pub use table::Sharing;
