//! What an agent counts.

/// Records read, and what may be missing.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub struct Counts {
    /// Records read.
    pub records: u64,
    /// Paths below the root that they are of, with the directories that hold these.
    pub paths: u64,
    /// Records of paths elsewhere.
    pub outside: u64,
    /// Changes that programs dropped because no ring had room in time.
    pub lost: u64,
    /// Changes whose paths could not be determined.
    pub unplaced: u64,
    /// Times that the contents of a ring were not a record.
    pub damaged: u64,
    /// Symbolic links that changed while paths were resolved through them.
    pub doubtful: u64,
    /// Processes of the program that still run.
    pub running: u64,
    /// Programs started by processes that cannot be observed, such as static ones.
    pub unseen: u64,
    /// Processes that used an interface that cannot be observed, such as io_uring.
    pub blind: u64,
}

impl Counts {
    /// Whether no change can be missing.
    #[must_use]
    pub fn complete(&self) -> bool {
        let unread = self.lost + self.unplaced + self.damaged + self.doubtful;
        unread + self.running + self.unseen + self.blind == 0
    }
}
