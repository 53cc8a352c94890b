//! Loaders that read striped files from storage targets, and the contention imbalance among them.
//!
//! Arrives: file sizes, a progressive layout, a slowdown curve, a number of loaders.
//! Leaves: times of loaders, contention imbalance over time.
//! Must not know: files, file systems, Python; how sizes were drawn.
//!
//! The model is that of SwiftLoad's simulation study (section V.B, with III.A and IV.D): one loader alone reads one
//! object from a target in one unit of time; with `x` loaders on a target each of them needs `g(x)`. At **file
//! level** a loader reads its files one after the other and the objects of a file in order, target after target. At
//! **object level** each loader is bound to one target and reads only the objects on it. The study steps through
//! units of time; here time goes from event to event, which is the same model without the rounding.

mod entropy;
mod file_level;
mod object_level;
mod placement;
mod slowdown;
#[cfg(test)]
mod tests;

pub use entropy::imbalance;
pub use file_level::{Dealing, FileLevel, Outcome};
pub use object_level::{best_loaders, object_level};
pub use placement::{Component, Layout, Placement};
pub use slowdown::Slowdown;
