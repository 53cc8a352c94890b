//! A histogram of latencies with bounded relative error and constant memory.

/// Steps within each power of two: a quantile is at most 1/32, about 3 %, too high.
const STEPS: u64 = 32;
const STEP_BITS: u32 = STEPS.trailing_zeros();
const BUCKETS: usize = ((64 - STEP_BITS as usize) + 1) * STEPS as usize;

/// Counts of latencies in nanoseconds, in buckets that grow with the value.
///
/// The layout is that of HdrHistogram: linear within a power of two, so that recording is a shift
/// and an increment.
#[derive(Clone, Debug)]
pub struct LatencyHistogram {
    counts: Vec<u64>,
    total: u64,
    largest_ns: u64,
}

impl Default for LatencyHistogram {
    fn default() -> Self {
        Self { counts: vec![0; BUCKETS], total: 0, largest_ns: 0 }
    }
}

impl LatencyHistogram {
    /// Counts a latency.
    pub fn record(&mut self, latency_ns: u64) {
        self.counts[bucket(latency_ns)] += 1;
        self.total += 1;
        self.largest_ns = self.largest_ns.max(latency_ns);
    }

    /// The number of latencies counted.
    pub fn total(&self) -> u64 {
        self.total
    }

    /// The largest latency, exactly.
    pub fn largest_ns(&self) -> u64 {
        self.largest_ns
    }

    /// The latency that a share `quantile` (0 to 1) does not exceed, at most 1/32 too high; 0 where
    /// nothing was counted.
    pub fn quantile_ns(&self, quantile: f64) -> u64 {
        let rank = ((quantile.clamp(0.0, 1.0) * self.total as f64).ceil() as u64).max(1);
        let mut below = 0;
        for (index, count) in self.counts.iter().enumerate() {
            below += count;
            if below >= rank {
                return upper_bound(index).min(self.largest_ns);
            }
        }
        self.largest_ns
    }

    /// Add the counts of `other`.
    pub fn merge(&mut self, other: &Self) {
        for (own, others) in self.counts.iter_mut().zip(&other.counts) {
            *own += others;
        }
        self.total += other.total;
        self.largest_ns = self.largest_ns.max(other.largest_ns);
    }
}

fn bucket(value: u64) -> usize {
    if value < STEPS {
        return value as usize;
    }
    let shift = value.ilog2() - STEP_BITS;
    ((u64::from(shift) + 1) * STEPS + ((value >> shift) - STEPS)) as usize
}

fn upper_bound(index: usize) -> u64 {
    let (row, step) = (index as u64 / STEPS, index as u64 % STEPS);
    if row == 0 {
        return step;
    }
    let shift = row - 1;
    ((u128::from(STEPS + step + 1) << shift) - 1).min(u128::from(u64::MAX)) as u64
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn quantiles_are_close_to_the_sorted_sample(
            mut sample in proptest::collection::vec(0u64..10_000_000_000, 1..200),
            quantile in 0.0f64..=1.0,
        ) {
            let mut histogram = LatencyHistogram::default();
            sample.iter().for_each(|&value| histogram.record(value));
            sample.sort_unstable();
            let rank = ((quantile * sample.len() as f64).ceil() as usize).max(1);
            let exact = sample[rank - 1];
            let found = histogram.quantile_ns(quantile);
            prop_assert!(found >= exact && found <= exact + exact / STEPS + 1, "{found} for {exact}");
        }

        #[test]
        fn every_value_has_a_bucket_that_holds_it(value: u64) {
            let index = bucket(value);
            prop_assert!(index < BUCKETS && upper_bound(index) >= value);
            prop_assert!(index == 0 || upper_bound(index - 1) < value);
        }

        #[test]
        fn merging_is_counting_together(a in proptest::collection::vec(any::<u32>(), 0..50), b in proptest::collection::vec(any::<u32>(), 0..50)) {
            let fill = |values: &[u32]| {
                let mut histogram = LatencyHistogram::default();
                values.iter().for_each(|&value| histogram.record(u64::from(value)));
                histogram
            };
            let (mut merged, together) = (fill(&a), fill(&[a.clone(), b.clone()].concat()));
            merged.merge(&fill(&b));
            prop_assert_eq!(merged.counts, together.counts);
            prop_assert_eq!((merged.total, merged.largest_ns), (together.total, together.largest_ns));
        }
    }

    #[test]
    fn an_empty_histogram_answers_zero() {
        assert_eq!(LatencyHistogram::default().quantile_ns(0.99), 0);
    }
}
