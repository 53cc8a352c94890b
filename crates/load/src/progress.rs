//! The delivered units of an epoch: compact while they are delivered in order, exact when they are not.

use std::collections::{BTreeMap, BTreeSet};

/// Positions delivered, and parts of units that are delivered in part.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Progress {
    /// First and past-the-last position of each run that is delivered in full.
    runs: BTreeMap<u32, u32>,
    parts: BTreeMap<u32, BTreeSet<u32>>,
}

impl Progress {
    /// From runs of positions and parts of units, as [`Self::runs`] and [`Self::parts`] give them.
    #[must_use]
    pub fn new(runs: &[(u32, u32)], parts: &[(u32, Vec<u32>)]) -> Self {
        let mut progress = Self::default();
        for &(start, end) in runs {
            if start < end {
                progress.add(start, end);
            }
        }
        for (position, of) in parts {
            progress.parts.entry(*position).or_default().extend(of);
        }
        progress
    }

    /// Part `part` of the `parts` of the unit at `position` has been delivered.
    pub fn delivered(&mut self, position: u32, part: u32, parts: u32) {
        if parts > 1 {
            let seen = self.parts.entry(position).or_default();
            seen.insert(part);
            if (seen.len() as u64) < u64::from(parts) {
                return;
            }
            self.parts.remove(&position);
        }
        self.add(position, position + 1);
    }

    /// Whether the unit at `position` has been delivered in full.
    #[must_use]
    pub fn has(&self, position: u32) -> bool {
        self.runs.range(..=position).next_back().is_some_and(|(_, end)| position < *end)
    }

    /// Whether a part of a unit has been delivered.
    #[must_use]
    pub fn has_part(&self, position: u32, part: u32) -> bool {
        self.parts.get(&position).is_some_and(|parts| parts.contains(&part))
    }

    /// How many units have been delivered in full.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.runs.iter().map(|(start, end)| u64::from(end - start)).sum()
    }

    /// Runs of positions delivered in full: first, and past the last.
    #[must_use]
    pub fn runs(&self) -> Vec<(u32, u32)> {
        self.runs.iter().map(|(start, end)| (*start, *end)).collect()
    }

    /// Units delivered in part, and which parts.
    #[must_use]
    pub fn parts(&self) -> Vec<(u32, Vec<u32>)> {
        let listed = |(position, parts): (&u32, &BTreeSet<u32>)| {
            (*position, parts.iter().copied().collect())
        };
        self.parts.iter().map(listed).collect()
    }

    fn add(&mut self, mut start: u32, mut end: u32) {
        if let Some((&before, &to)) = self.runs.range(..=start).next_back() {
            if to >= start {
                start = before;
                end = end.max(to);
            }
        }
        while let Some((&next, &to)) = self.runs.range(start..=end).next() {
            end = end.max(to);
            self.runs.remove(&next);
        }
        self.runs.insert(start, end);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn it_knows_what_a_set_would_know(delivered in prop::collection::vec((0_u32..40, 0_u32..3), 0..90)) {
            let mut progress = Progress::default();
            let mut model = BTreeSet::new();
            // Units at positions divisible by three have three parts, others one.
            for (position, part) in delivered {
                let (part, parts) = if position % 3 == 0 { (part, 3) } else { (0, 1) };
                let whole = (0..parts).all(|p| model.contains(&(position, p)));
                if !whole {
                    progress.delivered(position, part, parts);
                }
                model.insert((position, part));
            }
            progress = Progress::new(&progress.runs(), &progress.parts());
            for position in 0..40 {
                let parts = if position % 3 == 0 { 3 } else { 1 };
                let whole = (0..parts).all(|part| model.contains(&(position, part)));
                prop_assert_eq!(progress.has(position), whole);
                for part in 0..parts {
                    let known = whole || progress.has_part(position, part);
                    prop_assert_eq!(known, model.contains(&(position, part)));
                }
            }
            let runs = progress.runs();
            prop_assert!(runs.windows(2).all(|pair| pair[0].1 < pair[1].0), "{:?}", runs);
        }
    }
}
