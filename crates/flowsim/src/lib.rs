//! Flows over an interconnect, without the bytes: what each link carries and when each flow is done.
//!
//! Arrives: an interconnect as numbered nodes and links, and how much each host sends to each other one.
//! Leaves: a path for each pair, the bytes on each link, bounds on what any routing could reach.
//! Must not know: files, sockets, clocks, threads, Python, jobs, policies.
//!
//! Load mode ([`load`]) adds up whole transfers per link, as PFSim does (Takahashi, chapter 2): one number a link,
//! no time. Time mode ([`programs`], over the fair shares of [`sharing`]) says when each flow ends. [`contention`]
//! is apart from both: loaders that crowd storage targets.
//!
//! Everything random comes from a seed, and nothing depends on the order of a hash table or on the number of
//! processors: the same call gives the same bits.

pub mod contention;
mod error;
pub mod generate;
pub mod load;
pub mod mapping;
pub mod network;
pub mod programs;
pub mod seeded;
pub mod sharing;

pub use error::FlowError;
pub use network::Network;
