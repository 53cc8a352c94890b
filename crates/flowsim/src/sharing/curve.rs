//! The total rate of a resource as a function of its number of flows.

use crate::error::{FlowError, MAX_CAPACITY};

/// A contention curve: bytes a second as a function of the number of flows, linear between the points given,
/// constant before the first and after the last.
///
/// A link gives the same to any number of flows. A storage target does not: seed measurements of parallel
/// file systems show its total rise with the first readers and fall past some number of them.
#[derive(Clone, Debug, PartialEq)]
pub struct Curve {
    points: Vec<(f64, f64)>,
}

impl Curve {
    /// A curve through `(flows, bytes a second)`, the flows strictly rising.
    ///
    /// # Errors
    /// If there is no point, the flows do not rise, or a value is no finite number of at least 0.
    pub fn new(points: Vec<(f64, f64)>) -> Result<Self, FlowError> {
        let valid = |value: f64| value.is_finite() && (0.0..=MAX_CAPACITY).contains(&value);
        let rising = points.windows(2).all(|pair| pair[0].0 < pair[1].0);
        if points.is_empty() || !rising || !points.iter().all(|&(x, y)| valid(x) && valid(y)) {
            return Err(FlowError::Curve);
        }
        Ok(Self { points })
    }

    /// The total for `flows` flows.
    #[must_use]
    pub fn at(&self, flows: f64) -> f64 {
        let after = self.points.partition_point(|&(x, _)| x <= flows);
        if after == 0 {
            return self.points[0].1;
        }
        let (x0, y0) = self.points[after - 1];
        match self.points.get(after) {
            None => y0,
            Some(&(x1, y1)) => y0 + (y1 - y0) * (flows - x0) / (x1 - x0),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_linear_between_points_and_constant_outside() {
        let curve = Curve::new(vec![(1.0, 10.0), (3.0, 20.0), (5.0, 0.0)]).expect("a curve");
        let seen: Vec<f64> = [0.0, 1.0, 2.0, 3.0, 4.0, 9.0].iter().map(|&x| curve.at(x)).collect();
        assert_eq!(seen, [10.0, 10.0, 15.0, 20.0, 10.0, 0.0]);
    }

    #[test]
    fn what_is_no_curve_is_refused() {
        for points in [
            vec![],
            vec![(1.0, 1.0), (1.0, 2.0)],
            vec![(2.0, 1.0), (1.0, 1.0)],
            vec![(1.0, f64::NAN)],
            vec![(1.0, -1.0)],
            vec![(f64::INFINITY, 1.0)],
        ] {
            assert_eq!(Curve::new(points), Err(FlowError::Curve));
        }
    }
}
