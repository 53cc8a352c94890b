//! Loaders that read striped files from storage targets, and how unevenly they crowd them.
//!
//! Arrives: file sizes, a progressive layout, a slowdown curve, a number of loaders.
//! Leaves: times of loaders, contention imbalance over time.
//! Must not know: files, file systems, Python; how sizes were drawn.
//!
//! The model is that of SwiftLoad's simulation study (section V.B, with III.A and IV.D): one loader alone reads one
//! object from a target in one unit of time; with `x` loaders on a target each of them needs `g(x)`. At **file
//! level** a loader reads its files one after the other and the objects of a file in order, target after target. At
//! **object level** each loader is bound to one target and reads only objects that lie there. The study steps through
//! units of time; here time goes from event to event, which is the same model without the rounding.

mod entropy;
mod file_level;
mod object_level;
mod placement;
#[cfg(test)]
mod tests;

use std::fmt;

pub use entropy::imbalance;
pub use file_level::{Dealing, FileLevel, Outcome};
pub use object_level::{best_loaders, object_level};
pub use placement::{Component, Layout, Placement};

/// What the simulation of contention refuses. A caller can act on each.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum ContentionError {
    /// No target, or more than 65,535.
    Targets(usize),
    /// No loader, or more than 2^24.
    Loaders(usize),
    /// No file, or more than 2^32.
    Files(usize),
    /// A file of 0 bytes or of more than 2^32 objects.
    Size(u64),
    /// Components that do not rise, do not reach to infinity, or have stripes that are none.
    Layout,
    /// A stripe size of 0.
    StripeSize,
    /// A slowdown curve without points, with loaders that do not rise, or a slowdown below 1.
    Slowdown,
}

impl fmt::Display for ContentionError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Targets(n) => write!(f, "{n} targets: give 1 to 65535"),
            Self::Loaders(n) => write!(f, "{n} loaders: give 1 to 16777216"),
            Self::Files(n) => write!(f, "{n} files: give 1 to 4294967295"),
            Self::Size(bytes) => write!(
                f,
                "a file of {bytes} bytes: give at least 1 byte and at most 2^32 objects of the stripe size"
            ),
            Self::Layout => write!(
                f,
                "a layout needs components with rising ends, the last without an end, each with 1 stripe or more"
            ),
            Self::StripeSize => write!(f, "a stripe size of 0 bytes: give at least 1"),
            Self::Slowdown => write!(
                f,
                "a slowdown curve needs points (loaders, slowdown) with rising loaders and slowdowns of 1 or more"
            ),
        }
    }
}

impl std::error::Error for ContentionError {}

/// The time that each of `x` loaders on a target needs for an object, relative to one alone.
#[derive(Clone, Debug)]
pub struct Slowdown {
    /// For each number of loaders from 0.
    table: Vec<f64>,
}

impl Slowdown {
    /// A curve through `(loaders, slowdown)`, linear between them, constant before the first; past the last it goes
    /// on as steeply as between the last two. Worked out for up to `most` loaders.
    ///
    /// # Errors
    /// If there is no point, the loaders do not rise, or a slowdown is below 1 or not finite.
    pub fn new(points: &[(f64, f64)], most: usize) -> Result<Self, ContentionError> {
        let rising = points.windows(2).all(|pair| pair[0].0 < pair[1].0);
        let valid = points.iter().all(|&(x, g)| x.is_finite() && g.is_finite() && g >= 1.0);
        if points.is_empty() || !rising || !valid {
            return Err(ContentionError::Slowdown);
        }
        let table = (0..=most).map(|x| at(points, x as f64)).collect();
        Ok(Self { table })
    }

    /// The slowdown with `loaders` on a target.
    #[must_use]
    pub fn at(&self, loaders: usize) -> f64 {
        self.table[loaders.min(self.table.len() - 1)]
    }
}

fn at(points: &[(f64, f64)], x: f64) -> f64 {
    let last = points.len() - 1;
    if last == 0 || x <= points[0].0 {
        return points[0].1;
    }
    let after = points.partition_point(|&(p, _)| p <= x).clamp(1, last);
    let ((x0, y0), (x1, y1)) = (points[after - 1], points[after]);
    (y0 + (y1 - y0) * (x - x0) / (x1 - x0)).max(1.0)
}
