//! The node's agent: reads the records of preloaded libraries, and finds the entries that programs changed.
//!
//! Arrives: records in shared memory, written by programs that may be killed, slow, or hostile.
//! Leaves: the paths below a root that changed, and the entries found there.
//! Must not know: Python, Parquet, how programs are started.
//!
//! A record is a hint that a path has changed. The file's attributes come from the file system, once, when the
//! program has ended. So neither the order of records among threads and processes matters, nor an extra or a wrong
//! one; a lost record does, and it is counted. Entries built from the records alone were rejected: descriptors are
//! inherited, duplicated, and written after they are closed elsewhere, which no library in a process can follow.

mod abi;
mod agent;
mod changed_paths;
mod changes;
mod counts;
mod event;
mod programs;
mod resolver;
mod ring;
#[cfg(test)]
mod ring_tests;
mod segment;

pub use agent::{Agent, Setup};
pub use changes::{Changes, LookupOptions};
pub use counts::Counts;
