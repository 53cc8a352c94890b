//! Entropy of loaders over targets, and the contention imbalance CI = 1 - H / Hmax (SwiftLoad, equations 1 and 2).

/// The imbalance of loaders over targets: 0 if all targets have as many, 1 if one has all. 0 without loaders, and
/// with one target, where nothing can be uneven.
#[must_use]
pub fn imbalance(loaders: &[u32]) -> f64 {
    let mut tally = Tally::new(loaders.iter().copied().max().unwrap_or(0) as usize, loaders.len());
    for &n in loaders {
        tally.change(0, n as usize);
    }
    tally.imbalance()
}

/// The imbalance kept up to date as single loaders come and go.
///
/// With n loaders, n_i of them on target i: H = ln n - (sum of n_i ln n_i) / n.
#[derive(Debug)]
pub(super) struct Tally {
    x_log_x: Vec<f64>,
    most: f64,
    loaders: usize,
    sum: f64,
}

impl Tally {
    pub(super) fn new(loaders: usize, targets: usize) -> Self {
        let x_log_x = |n: usize| if n == 0 { 0.0 } else { n as f64 * (n as f64).ln() };
        Self {
            x_log_x: (0..=loaders).map(x_log_x).collect(),
            most: (targets as f64).ln(),
            loaders: 0,
            sum: 0.0,
        }
    }

    /// A target had `before` loaders, and has `after` now.
    pub(super) fn change(&mut self, before: usize, after: usize) {
        self.sum += self.x_log_x[after] - self.x_log_x[before];
        self.loaders = self.loaders + after - before;
    }

    pub(super) fn imbalance(&self) -> f64 {
        if self.loaders == 0 || self.most == 0.0 {
            return 0.0;
        }
        let n = self.loaders as f64;
        (1.0 - (n.ln() - self.sum / n) / self.most).clamp(0.0, 1.0)
    }
}
