//! The bytes of one file by storage target, as runs within any range of it.
//!
//! Arrives: the objects of a file, as a catalog or a walk has them. Leaves: runs of bytes on one target.
//! Must not know: files, who reads them.

use crate::files::{groups, Object};

/// The objects of one file.
#[derive(Clone, Debug)]
pub struct Stripes {
    /// Targets, each once, with their objects.
    shares: Vec<(u32, Vec<Object>)>,
}

impl Stripes {
    /// Of a file of `size` bytes from each object's target, first byte and length. Where they do not cover the file,
    /// the first one's target stands for all; None without an object.
    #[must_use]
    pub fn of(objects: &[(u32, u64, u64)], size: u64) -> Option<Self> {
        let signed = |value: u64| i64::try_from(value).unwrap_or(i64::MAX);
        let offsets: Vec<i64> = objects.iter().map(|object| signed(object.1)).collect();
        let lengths: Vec<i64> = objects.iter().map(|object| signed(object.2)).collect();
        let mut shares: Vec<(u32, Vec<Object>)> = Vec::new();
        let mut add =
            |target: u32, object: Object| match shares.iter_mut().find(|share| share.0 == target) {
                Some(share) => share.1.push(object),
                None => shares.push((target, vec![object])),
            };
        match groups(&offsets, &lengths, size) {
            Some(groups) => {
                for group in groups {
                    for (target, offset, length) in &objects[group.first..group.first + group.count]
                    {
                        let (unit, count) = (group.unit, group.count);
                        add(*target, Object { offset: *offset, length: *length, unit, count });
                    }
                }
            }
            None => {
                add(objects.first()?.0, Object { offset: 0, length: size, unit: size, count: 1 })
            }
        }
        Some(Self { shares })
    }

    /// Its targets, each once.
    pub fn targets(&self) -> impl Iterator<Item = u32> + '_ {
        self.shares.iter().map(|share| share.0)
    }

    /// The bytes on target number `share` of [`Stripes::targets`] from `start` to before `end`, as first byte and end.
    pub fn runs(
        &self,
        share: usize,
        start: u64,
        end: u64,
    ) -> impl Iterator<Item = (u64, u64)> + '_ {
        let objects = self.shares.get(share).map_or(&[][..], |share| &share.1);
        objects.iter().flat_map(move |object| object.runs(start, end))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// A file of two components, as objects: one stripe up to `first`, then `count` in turns of `unit`.
    fn objects(first: u64, unit: u64, count: u64, size: u64) -> Vec<(u32, u64, u64)> {
        let mut all = vec![(9, 0, first.min(size))];
        for index in 0..count {
            let start = first + index * unit;
            let length =
                (start..size).step_by((unit * count) as usize).map(|at| unit.min(size - at)).sum();
            if start < size {
                all.push((u32::try_from(index).unwrap(), start, length));
            }
        }
        all
    }

    proptest! {
        #[test]
        fn each_byte_of_a_range_is_in_one_run_of_its_target(
            first in 1_u64..40, unit in 1_u64..9, count in 1_u64..5, size in 1_u64..300,
            cut in (0_u64..300, 0_u64..300),
        ) {
            let stripes = Stripes::of(&objects(first, unit, count, size), size).unwrap();
            let (start, end) = (cut.0.min(cut.1).min(size), cut.0.max(cut.1).min(size));
            let mut owner = vec![None; usize::try_from(size).unwrap()];
            for (share, target) in stripes.targets().enumerate() {
                for (from, to) in stripes.runs(share, start, end) {
                    prop_assert!(start <= from && from < to && to <= end);
                    for byte in &mut owner[from as usize..to as usize] {
                        prop_assert_eq!(byte.replace(target), None);
                    }
                }
            }
            for (at, found) in (0..size).zip(owner) {
                let target = if at < first { 9 } else { ((at - first) / unit % count) as u32 };
                prop_assert_eq!(found, (start <= at && at < end).then_some(target), "{}", at);
            }
        }
    }

    #[test]
    fn objects_that_do_not_cover_the_file_stand_for_all_of_it() {
        let stripes = Stripes::of(&[(3, 5, 10), (4, 15, 1)], 100).unwrap();
        assert_eq!(stripes.targets().collect::<Vec<_>>(), [3]);
        assert_eq!(stripes.runs(0, 10, 200).collect::<Vec<_>>(), [(10, 100)]);
        assert!(Stripes::of(&[], 100).is_none());
    }
}
