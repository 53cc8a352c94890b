//! Limits on the readers of targets that change while an epoch is read, and loaders that are added for them.

use super::Scheduler;

impl Scheduler {
    /// Limit the readers of a target, given by its index, from now on. A reader above the limit ends its piece first.
    pub fn limit_readers(&mut self, target: usize, most: u32) {
        self.bindings.limit_readers(target, most);
    }

    /// How many loaders the targets can take together.
    #[must_use]
    pub fn most_loaders(&self) -> u32 {
        self.bindings.most_loaders()
    }

    /// One more loader, bound to the target that has the fewest for the readers it takes; its number.
    pub fn add_loader(&mut self) -> u32 {
        self.bindings.add_loader()
    }
}
