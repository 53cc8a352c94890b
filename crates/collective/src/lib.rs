//! The core of collective I/O: which bytes of which rank belong where in a shared file, and who writes them.
//!
//! Arrives: MPI datatypes, file views, ranges of data, server maps, messages of other processes.
//! Leaves: file extents, file domains and windows of aggregators, messages.
//! Must not know: sockets, clocks, threads, files, MPI libraries.
//!
//! The embodied decision: a datatype stays nested loops. A view is searched in O(depth × log entries) both by data
//! offset and by file offset, so that neither a client nor an aggregator flattens it (`docs/decisions/0059`).
//! It chooses between the view-based and list-based exchange of CLARISSE, section III.A.

pub mod behind;
pub mod datatype;
pub mod error;
pub mod exchange;
pub mod server_map;
#[cfg(test)]
mod tests;
pub mod view;
mod wire;

pub use datatype::{Datatype, Distribution, Order, Run, Runs};
pub use error::{DatatypeError, DecodeError, ViewError};
pub use exchange::Exchange;
pub use server_map::{Domains, Placement, ServerMap};
pub use view::{Extent, Extents, View};
