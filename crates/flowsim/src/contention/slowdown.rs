//! How loaders on one target slow each other down.

use crate::error::FlowError;

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
    pub fn new(points: &[(f64, f64)], most: usize) -> Result<Self, FlowError> {
        let rising = points.windows(2).all(|pair| pair[0].0 < pair[1].0);
        let valid = points.iter().all(|&(x, g)| x.is_finite() && g.is_finite() && g >= 1.0);
        if points.is_empty() || !rising || !valid {
            return Err(FlowError::Slowdown);
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
