//! How many loaders read from a storage target at once: SwiftLoad's algorithm 1 (section IV.D).
//!
//! With `x` loaders on a target each needs `g(x)` times as long for an object as one alone. Together they read `x /
//! g(x)` objects in the time of one, and that is largest where another loader costs the others as much as it brings:
//! `g(x) = x g'(x)`. Loaders beyond that number stay idle.

use waystage_flowsim::contention::Slowdown;
use waystage_flowsim::FlowError;

/// How far below the largest rate a smaller number of loaders is still chosen. A measured curve is flat at its top,
/// and which of its points is the highest is chance; fewer loaders leave more of the target to others.
const CLOSE_ENOUGH: f64 = 0.02;

/// What loaders on one target do to each other, as measured.
#[derive(Clone, Debug, PartialEq)]
pub struct Curve {
    points: Vec<(u32, f64)>,
}

impl Curve {
    /// A curve through (loaders, slowdown), as measured: smoothed, because a slowdown that falls as loaders are added
    /// is noise of the measurement.
    ///
    /// # Errors
    /// Where there is no point, the loaders do not rise from 1 on, or a slowdown is not above 0.
    pub fn new(measured: &[(u32, f64)]) -> Result<Self, FlowError> {
        let rising = measured.windows(2).all(|pair| pair[0].0 < pair[1].0);
        let sound = measured.iter().all(|&(x, g)| x > 0 && g.is_finite() && g > 0.0);
        if measured.is_empty() || !rising || !sound {
            return Err(FlowError::Slowdown);
        }
        Ok(Self { points: rising_means(measured) })
    }

    /// The points, slowdowns of at least 1 that do not fall.
    #[must_use]
    pub fn points(&self) -> &[(u32, f64)] {
        &self.points
    }

    /// The largest number of loaders that was measured.
    #[must_use]
    pub fn most(&self) -> u32 {
        self.points.last().map_or(1, |&(x, _)| x)
    }

    /// Objects that `loaders` read together in the time that one alone needs for one.
    #[must_use]
    pub fn gain(&self, loaders: u32) -> f64 {
        self.table(loaders).map_or(1.0, |table| f64::from(loaders) / table.at(loaders as usize))
    }

    /// Algorithm 1: the smallest number of loaders that reads nearly the most, among those measured.
    #[must_use]
    pub fn best_loaders(&self) -> u32 {
        let gains: Vec<f64> = (1..=self.most()).map(|x| self.gain(x)).collect();
        let largest = gains.iter().copied().fold(0.0, f64::max);
        let near = gains.iter().position(|gain| *gain >= largest * (1.0 - CLOSE_ENOUGH));
        near.and_then(|index| u32::try_from(index + 1).ok()).unwrap_or(1)
    }

    fn table(&self, most: u32) -> Option<Slowdown> {
        let points: Vec<(f64, f64)> = self.points.iter().map(|&(x, g)| (f64::from(x), g)).collect();
        Slowdown::new(&points, most as usize).ok()
    }
}

/// Loaders that are to read, of those there are: algorithm 1, lines 7 and 8. The others stay idle.
#[must_use]
pub fn active_loaders(loaders: u32, targets: u32, best: u32) -> u32 {
    loaders.min(best.max(1).saturating_mul(targets.max(1)))
}

/// The nearest slowdowns that do not fall: neighbours that do are replaced by their mean (pool adjacent violators).
fn rising_means(measured: &[(u32, f64)]) -> Vec<(u32, f64)> {
    let mut pools: Vec<(f64, usize)> = Vec::with_capacity(measured.len());
    for &(_, slowdown) in measured {
        pools.push((slowdown, 1));
        while let [.., (before, many), (last, few)] = pools[..] {
            if before <= last {
                break;
            }
            let count = many + few;
            pools.truncate(pools.len() - 2);
            pools.push(((before * many as f64 + last * few as f64) / count as f64, count));
        }
    }
    let smooth = pools.iter().flat_map(|&(mean, count)| std::iter::repeat_n(mean.max(1.0), count));
    measured.iter().zip(smooth).map(|(&(x, _), g)| (x, g)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_best_number_is_where_another_loader_brings_nothing() {
        // Nothing is lost up to 4; from there on each loader costs more than it brings.
        let curve =
            Curve::new(&[(1, 1.0), (2, 1.0), (4, 1.0), (8, 4.0), (16, 32.0)]).expect("a curve");
        assert_eq!(curve.best_loaders(), 4);
        assert!((curve.gain(4) - 4.0).abs() < 1e-12);
    }

    #[test]
    fn where_loaders_only_share_one_is_enough() {
        let curve = Curve::new(&[(1, 1.0), (2, 2.0), (4, 4.0), (8, 8.1)]).expect("a curve");
        assert_eq!(curve.best_loaders(), 1);
    }

    #[test]
    fn surplus_loaders_stay_idle_as_in_the_example_of_the_paper() {
        // Section IV.D: three targets, nine loaders, two a target are best.
        assert_eq!(active_loaders(9, 3, 2), 6);
        assert_eq!(active_loaders(4, 3, 2), 4);
    }

    #[test]
    fn a_slowdown_that_falls_is_taken_for_noise() {
        let curve = Curve::new(&[(1, 1.0), (2, 1.5), (4, 1.0), (8, 3.0)]).expect("a curve");
        assert_eq!(curve.points(), [(1, 1.0), (2, 1.25), (4, 1.25), (8, 3.0)]);
    }

    #[test]
    fn what_is_no_curve_is_refused() {
        for points in [&[][..], &[(0, 1.0)], &[(2, 1.0), (1, 1.0)], &[(1, f64::NAN)], &[(1, 0.0)]] {
            assert!(Curve::new(points).is_err(), "{points:?}");
        }
    }
}
