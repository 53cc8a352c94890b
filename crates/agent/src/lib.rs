//! The node's agent: reads what preloaded libraries say of files, and says what became of them.
//!
//! Arrives: records in shared memory, written by programs that may be killed, slow, or hostile.
//! Leaves: which paths below a root to look at again, and the entries found there.
//! Must not know: Python, Parquet, how programs are started.
//!
//! A record is a hint that a path has changed, and never the truth about it: what a file is, the file system is asked once,
//! when the program is over. So the order of records among threads and processes does not matter, nor does one more or a wrong one;
//! only a lost one does, and it is counted. Entries made from the records themselves, as they come, were rejected: descriptors
//! are inherited, duplicated and written after they are closed elsewhere, which no library in a process can follow.

mod abi;
mod agent;
mod changes;
mod event;
mod lane;
#[cfg(test)]
mod lane_tests;
mod ledger;
mod places;
mod programs;
mod segment;

pub use agent::{Agent, Counts, Setup};
pub use changes::{Changes, Looks};
