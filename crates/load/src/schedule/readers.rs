//! Limits on the readers of targets that change while an epoch is read, and loaders that are added for them.

use super::Scheduler;

impl Scheduler {
    /// Limit the readers of a target, given by its index, from now on. A reader above the limit ends its piece first.
    pub fn limit_readers(&mut self, target: usize, most: u32) {
        if let Some(target) = self.targets.get_mut(target) {
            target.most_readers = most.max(1);
        }
    }

    /// How many loaders the targets can take together.
    #[must_use]
    pub fn most_loaders(&self) -> u32 {
        self.targets.iter().fold(0, |sum, target| sum.saturating_add(target.most_readers))
    }

    /// One more loader, bound to the target that has the fewest for the readers it takes; its number.
    pub fn add_loader(&mut self) -> u32 {
        let bound = |index: usize| {
            let has = |home: &&Vec<u16>| home.iter().any(|target| usize::from(*target) == index);
            self.homes.iter().filter(has).count() as f64
        };
        let wants = |index: &usize| bound(*index) / f64::from(self.targets[*index].most_readers);
        let home = (0..self.targets.len()).min_by(|a, b| wants(a).total_cmp(&wants(b)));
        let home = home.and_then(|index| u16::try_from(index).ok());
        self.homes.push(home.into_iter().collect());
        self.reading.push(None);
        u32::try_from(self.homes.len() - 1).unwrap_or(u32::MAX)
    }
}
