//! A large file over several storage targets: its extents by target, so that each worker reads from its own.
//!
//! Arrives: objects of a file, extents that are missing. Leaves: the part of an extent that one target holds; whether
//! an extent is complete. Must not know: files, threads.

use std::collections::BTreeMap;

use parking_lot::Mutex;
use waystage_load::stripes::Stripes;

use crate::part_set::PartSet;

/// How many extents a target may be ahead of the slowest one of a file: what an interrupted copy reads again at most,
/// as the journal knows only complete extents.
const LEAD: u32 = 32;

/// The part of an extent on one target: the extent, its place in [`StripedFile::targets`], and bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Part {
    pub(super) extent: u32,
    pub(super) share: usize,
    pub(super) bytes: u64,
}

/// Which parts are left.
#[derive(Debug)]
pub(super) struct StripedFile {
    stripes: Stripes,
    extent_bytes: u64,
    size: u64,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    /// Extents of which no worker has taken the part, by share.
    todo: Vec<PartSet>,
    /// Extents that are begun, with their parts that are not written.
    begun: BTreeMap<u32, u32>,
}

impl StripedFile {
    /// The extents `missing` of a file; None where its targets are not known.
    pub(super) fn new(
        objects: &[(u32, u64, u64)],
        missing: &PartSet,
        extent_bytes: u64,
        size: u64,
    ) -> Option<Self> {
        let stripes = Stripes::of(objects, size)?;
        let todo = stripes.targets().map(|_| missing.clone()).collect();
        let state = Mutex::new(State { todo, begun: BTreeMap::new() });
        Some(Self { stripes, extent_bytes, size, state })
    }

    /// Its targets, each once.
    pub(super) fn targets(&self) -> Vec<u32> {
        self.stripes.targets().collect()
    }

    /// Bytes of missing extents on each target.
    pub(super) fn bytes(&self) -> Vec<u64> {
        let state = self.state.lock();
        let each = state.todo.iter().enumerate();
        each.map(|(share, todo)| todo.iter().map(|extent| self.held(share, extent)).sum()).collect()
    }

    /// Take the next part of a share: Err where there is none yet, since other targets are too far behind, None where
    /// none is left.
    pub(super) fn claim(&self, share: usize) -> Result<Option<Part>, TooFarAhead> {
        let mut state = self.state.lock();
        loop {
            let Some(extent) = state.todo[share].first() else { return Ok(None) };
            let waiting = state.todo.iter().filter_map(PartSet::first).min();
            let begun = state.begun.keys().next().copied();
            let oldest = waiting.into_iter().chain(begun).min().unwrap_or(extent);
            if extent > oldest.saturating_add(LEAD) {
                return Err(TooFarAhead);
            }
            state.todo[share].remove(extent);
            let bytes = self.held(share, extent);
            if bytes == 0 {
                continue;
            }
            let parts = (0..state.todo.len()).filter(|share| self.held(*share, extent) > 0).count();
            let parts = u32::try_from(parts).unwrap_or(u32::MAX);
            state.begun.entry(extent).or_insert(parts);
            return Ok(Some(Part { extent, share, bytes }));
        }
    }

    /// A part is written; whether its extent is complete.
    pub(super) fn written(&self, part: Part) -> bool {
        let mut state = self.state.lock();
        let Some(left) = state.begun.get_mut(&part.extent) else { return false };
        *left -= 1;
        let complete = *left == 0;
        if complete {
            state.begun.remove(&part.extent);
        }
        complete
    }

    /// The bytes of a part, as first byte and end.
    pub(super) fn runs(&self, part: Part) -> Vec<(u64, u64)> {
        let (start, end) = self.range(part.extent);
        self.stripes.runs(part.share, start, end).collect()
    }

    /// Nothing more is done of it.
    pub(super) fn end(&self) {
        self.state.lock().todo.iter_mut().for_each(|todo| *todo = PartSet::default());
    }

    fn range(&self, extent: u32) -> (u64, u64) {
        let start = u64::from(extent) * self.extent_bytes;
        (start, (start + self.extent_bytes).min(self.size))
    }

    fn held(&self, share: usize, extent: u32) -> u64 {
        let (start, end) = self.range(extent);
        self.stripes.runs(share, start, end).map(|(from, to)| to - from).sum()
    }
}

/// Other targets of the file are too far behind.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct TooFarAhead;

#[cfg(test)]
mod tests {
    use super::*;

    /// Two targets take turns of 4 bytes in a file of 400; extents have 16 bytes.
    fn file() -> StripedFile {
        StripedFile::new(&[(7, 0, 200), (8, 4, 200)], &PartSet::below(25), 16, 400)
            .expect("objects")
    }

    #[test]
    fn an_extent_is_complete_when_each_target_has_given_its_part() {
        let file = file();
        assert_eq!((file.targets(), file.bytes()), (vec![7, 8], vec![200, 200]));
        let one = file.claim(0).expect("not ahead").expect("a part");
        assert_eq!((one.extent, one.bytes), (0, 8));
        assert_eq!(file.runs(one), [(0, 4), (8, 12)]);
        assert!(!file.written(one));
        let other = file.claim(1).expect("not ahead").expect("a part");
        assert_eq!(file.runs(other), [(4, 8), (12, 16)]);
        assert!(file.written(other));
    }

    #[test]
    fn a_target_does_not_run_far_ahead_of_a_slow_one() {
        let objects = [(7, 0, 4000), (8, 4, 4000)];
        let file = StripedFile::new(&objects, &PartSet::below(500), 16, 8000).expect("objects");
        let slow = file.claim(1).expect("not ahead").expect("a part");
        let taken = (0..).take_while(|_| matches!(file.claim(0), Ok(Some(_)))).count();
        assert_eq!(taken, LEAD as usize + 1);
        assert_eq!(file.claim(0), Err(TooFarAhead));
        file.written(slow);
        // Of extent 0 the part of the quick target is written too.
        file.written(Part { share: 0, ..slow });
        assert!(matches!(file.claim(0), Ok(Some(_))));
    }

    #[test]
    fn only_missing_extents_are_taken() {
        let missing: PartSet = [3, 20].into_iter().collect();
        let file =
            StripedFile::new(&[(7, 0, 200), (8, 4, 200)], &missing, 16, 400).expect("objects");
        let taken: Vec<u32> =
            std::iter::from_fn(|| file.claim(1).ok().flatten()).map(|part| part.extent).collect();
        assert_eq!(taken, [3, 20]);
    }
}
