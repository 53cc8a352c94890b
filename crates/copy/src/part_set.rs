//! A set of the parts of a large file: as runs of neighbours, so that what comes in order takes next to no memory.
//!
//! Arrives: numbers of parts. Leaves: which there are. Must not know: what a part is.

use std::collections::BTreeMap;

/// Bytes of memory that a run takes, about.
pub const RUN_BYTES: usize = 48;

/// PartSet by their numbers.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct PartSet {
    /// First parts of runs, and what follows their last ones. They neither touch nor overlap.
    runs: BTreeMap<u32, u64>,
    count: u64,
}

impl PartSet {
    /// All parts below `end`.
    #[must_use]
    pub fn below(end: u32) -> Self {
        let runs = (end > 0).then_some((0, u64::from(end))).into_iter().collect();
        Self { runs, count: u64::from(end) }
    }

    /// How many there are.
    #[must_use]
    pub fn len(&self) -> u64 {
        self.count
    }

    /// Whether there is none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// How many runs there are.
    #[must_use]
    pub fn runs(&self) -> usize {
        self.runs.len()
    }

    /// The run that a part is in.
    fn run_of(&self, part: u32) -> Option<(u32, u64)> {
        let (first, end) = self.runs.range(..=part).next_back()?;
        (u64::from(part) < *end).then_some((*first, *end))
    }

    /// Whether it is there.
    #[must_use]
    pub fn contains(&self, part: u32) -> bool {
        self.run_of(part).is_some()
    }

    /// Whether it was not there yet.
    pub fn insert(&mut self, part: u32) -> bool {
        if self.contains(part) {
            return false;
        }
        let after = u64::from(part) + 1;
        let before = self.runs.range(..part).next_back().map(|(first, end)| (*first, *end));
        let first = before.filter(|(_, end)| *end == u64::from(part)).map_or(part, |run| run.0);
        let next = u32::try_from(after).ok().and_then(|next| self.runs.remove(&next));
        self.runs.insert(first, next.unwrap_or(after));
        self.count += 1;
        true
    }

    /// Whether it was there.
    pub fn remove(&mut self, part: u32) -> bool {
        let Some((first, end)) = self.run_of(part) else { return false };
        let after = u64::from(part) + 1;
        if first == part {
            self.runs.remove(&first);
        } else {
            self.runs.insert(first, u64::from(part));
        }
        if let (true, Ok(next)) = (after < end, u32::try_from(after)) {
            self.runs.insert(next, end);
        }
        self.count -= 1;
        true
    }

    /// The first one.
    #[must_use]
    pub fn first(&self) -> Option<u32> {
        Some(*self.runs.first_key_value()?.0)
    }

    /// Take the first one out.
    pub fn pop_first(&mut self) -> Option<u32> {
        let first = *self.runs.first_key_value()?.0;
        self.remove(first);
        Some(first)
    }

    /// Keep the first `most` numbers.
    pub fn keep_first(&mut self, most: u64) {
        while let Some((first, end)) = self.runs.pop_last() {
            self.count -= end - u64::from(first);
            let kept = (end - u64::from(first)).min(most.saturating_sub(self.count));
            if kept > 0 {
                self.runs.insert(first, u64::from(first) + kept);
                self.count += kept;
                return;
            }
        }
    }

    /// They, in order.
    pub fn iter(&self) -> impl Iterator<Item = u32> + '_ {
        let number = |part: u64| u32::try_from(part).unwrap_or(u32::MAX);
        self.runs.iter().flat_map(move |(first, end)| (u64::from(*first)..*end).map(number))
    }
}

impl FromIterator<u32> for PartSet {
    fn from_iter<I: IntoIterator<Item = u32>>(parts: I) -> Self {
        let mut set = Self::default();
        for part in parts {
            set.insert(part);
        }
        set
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn it_is_the_set_that_it_says_it_is(
            steps in prop::collection::vec((any::<bool>(), 0..20_u32), 0..200), high: bool,
        ) {
            let base = if high { u32::MAX - 19 } else { 0 };
            let (mut set, mut model) = (PartSet::default(), BTreeSet::new());
            for (adds, part) in steps {
                let part = base + part;
                if adds {
                    prop_assert_eq!(set.insert(part), model.insert(part));
                } else {
                    prop_assert_eq!(set.remove(part), model.remove(&part));
                }
                prop_assert_eq!(set.iter().collect::<Vec<_>>(), model.iter().copied().collect::<Vec<_>>());
                prop_assert_eq!((set.len(), set.is_empty()), (model.len() as u64, model.is_empty()));
                prop_assert!((0..20).all(|part| set.contains(base + part) == model.contains(&(base + part))));
                prop_assert!(set.runs() <= model.len());
                let (mut few, most) = (set.clone(), part % 20);
                few.keep_first(most.into());
                let first: Vec<u32> = model.iter().copied().take(most as usize).collect();
                prop_assert_eq!(few.len(), first.len() as u64);
                prop_assert_eq!(few.iter().collect::<Vec<_>>(), first);
            }
            prop_assert_eq!(model.iter().copied().collect::<PartSet>(), set.clone());
            prop_assert_eq!(set.pop_first(), model.pop_first());
        }
    }

    #[test]
    fn a_file_of_eight_exbibytes_takes_one_run() {
        let mut all = PartSet::below(u32::MAX);
        assert_eq!((all.len(), all.runs()), (u64::from(u32::MAX), 1));
        assert_eq!((all.pop_first(), all.pop_first(), all.runs()), (Some(0), Some(1), 1));
    }
}
