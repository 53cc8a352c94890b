//! The views of a file that its aggregators know.
//!
//! Arrives: the views that ranks use. Leaves: numbers of views. Must not know: messages.

use std::collections::BTreeMap;

use super::File;

impl File {
    /// Forget the views that no rank uses any longer: programs that set another one for each operation have many.
    /// Others get new numbers, by which aggregators learn them anew.
    pub(super) fn forget_views(&mut self) {
        if self.op.as_ref().is_some_and(|op| op.running) {
            return;
        }
        let announced = self.op.iter_mut().flat_map(|op| op.ranks.values_mut());
        let of_ranks = self.members.values_mut().filter_map(|member| member.view.as_mut());
        let used: Vec<&mut u32> = announced
            .filter_map(|of| of.view.as_mut())
            .chain(of_ranks.map(|(_, number)| number))
            .collect();
        let mut renamed: BTreeMap<u32, u32> = BTreeMap::new();
        for number in used {
            let next = u32::try_from(renamed.len()).unwrap_or(u32::MAX);
            *number = *renamed.entry(*number).or_insert(next);
        }
        let mut kept: Vec<_> = renamed.into_iter().map(|(old, new)| (new, old)).collect();
        kept.sort_unstable();
        let view = |(_, old): &(u32, u32)| self.views.get(*old as usize).cloned();
        self.views = kept.iter().filter_map(view).collect();
        self.attached.values_mut().for_each(|known| *known = 0);
    }
}
