//! Regular interconnects of any size.
//!
//! Arrives: the shape, as numbers, and the links' capacities.
//! Leaves: a validated [`crate::Network`], the same for the same numbers.
//! Must not know: what is routed on it.
//!
//! Names sort in byte order as the numbers in them do, so that D-mod-K, which sorts by name, follows the shape. Hosts
//! under one switch have consecutive numbers. A cable is two links, `2 i` towards the later node of the list and `2 i
//! + 1` back.

mod builder;
mod dragonfly;
mod torus;
mod xgft;

pub use builder::Capacities;
pub use dragonfly::dragonfly;
pub use torus::torus;
pub use xgft::{fat_tree, xgft};
