//! The aggregator process of collective I/O: one a node and job.
//!
//! Arrives: ranks over a unix socket, processes of other nodes over TCP, settings of the control plane.
//! Leaves: bytes in the file system, or in ranks' memory; what became of each operation; measured service times.
//! Must not know: MPI, policies, Python.
//!
//! Pure state machines hold all decisions: [`gatherer`] has the ranks' side, [`aggregator`] the storage's, [`control`]
//! the control points. The process around them moves bytes. An aggregator pulls a window at a time and never takes
//! what it did not ask for, so its memory is what was configured, however many ranks and extents there are. It writes
//! covered extents alone: no locks, no read-modify-write. Acknowledged means that the write system call returned.
//! Decision 0051 has the rejected alternatives.

pub mod aggregator;
mod auth;
mod calls;
mod clock;
mod connection;
pub mod control;
pub mod coverage;
pub mod effect;
mod event_loop;
mod fair;
pub mod gatherer;
pub mod hints;
mod listeners;
mod memory;
pub mod node;
mod opening;
pub mod options;
pub mod patience;
mod pieces;
mod poller;
mod process;
pub mod room;
mod shared;
mod status;
mod storage;
mod view_coverage;

pub use process::Aggregator;
pub use status::{Served, Status};
