//! A set of numbers, kept as ranges: which bytes of an extent were received, which extents are complete.
//!
//! Arrives: ranges. Leaves: which parts are new, which are in the set. Must not know: the meaning of the numbers.

use std::collections::BTreeMap;
use std::ops::Range;

/// Ranges that neither touch nor overlap.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Ranges {
    ends: BTreeMap<u64, u64>,
    total: u64,
}

impl Ranges {
    /// How many numbers are in the set.
    #[must_use]
    pub fn total(&self) -> u64 {
        self.total
    }

    /// The number of ranges in the set.
    #[must_use]
    pub fn count(&self) -> usize {
        self.ends.len()
    }

    /// Whether `at` is in the set.
    #[must_use]
    pub fn contains(&self, at: u64) -> bool {
        self.ends.range(..=at).next_back().is_some_and(|(_, &end)| at < end)
    }

    /// The first part of `range` that is not in the set; None if all of it is.
    #[must_use]
    pub fn first_missing(&self, range: Range<u64>) -> Option<Range<u64>> {
        let mut start = range.start;
        if let Some((_, &end)) = self.ends.range(..=start).next_back() {
            start = start.max(end);
        }
        if start >= range.end {
            return None;
        }
        let end =
            self.ends.range(start..).next().map_or(range.end, |(&next, _)| next.min(range.end));
        Some(start..end)
    }

    /// Adds a range, and returns how many of its numbers were new.
    pub fn insert(&mut self, range: Range<u64>) -> u64 {
        if range.is_empty() {
            return 0;
        }
        let Range { mut start, mut end } = range;
        // Ranges in order are the common case, and cost one lookup.
        if let Some((&before, before_end)) = self.ends.range_mut(..=start).next_back() {
            if *before_end >= end {
                return 0;
            }
            if *before_end >= start {
                start = before;
            }
        }
        let mut replaced = 0;
        while let Some((&at, &at_end)) = self.ends.range(start..=end).next() {
            end = end.max(at_end);
            replaced += at_end - at;
            self.ends.remove(&at);
        }
        self.ends.insert(start, end);
        let new = end - start - replaced;
        self.total += new;
        new
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    proptest! {
        #[test]
        fn it_behaves_as_a_set_of_numbers(ranges in prop::collection::vec((0_u64..60, 0_u64..12), 0..40)) {
            let mut set = Ranges::default();
            let mut model = BTreeSet::new();
            for (start, length) in ranges {
                let missing = (start..start + length).find(|at| !model.contains(at));
                prop_assert_eq!(set.first_missing(start..start + length).map(|r| r.start), missing);
                let before = model.len();
                model.extend(start..start + length);
                prop_assert_eq!(set.insert(start..start + length), (model.len() - before) as u64);
                prop_assert_eq!(set.total(), model.len() as u64);
                for at in 0..80 {
                    prop_assert_eq!(set.contains(at), model.contains(&at));
                }
                let ranges = model.iter().filter(|&&at| at == 0 || !model.contains(&(at - 1))).count();
                prop_assert_eq!(set.count(), ranges);
            }
        }
    }
}
