//! Counts of files and images, by outcome.

/// What became of files and images.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Images that were read.
    pub images: u64,
    /// Bytes of these.
    pub bytes_in: u64,
    /// Images made.
    pub made: u64,
    /// Bytes of these.
    pub bytes_out: u64,
    /// Images that were there already.
    pub kept: u64,
    /// Images that could not be used.
    pub broken: u64,
    /// Files that are no images, and are not called so.
    pub others: u64,
    /// Files no longer there.
    pub vanished: u64,
    /// Files that could not be read.
    pub unreadable: u64,
    /// Images of another size, time or inode than was said; taken as they are.
    pub changed: u64,
}

impl Counts {
    pub(crate) fn merge(&mut self, other: Self) {
        self.images += other.images;
        self.bytes_in += other.bytes_in;
        self.made += other.made;
        self.bytes_out += other.bytes_out;
        self.kept += other.kept;
        self.broken += other.broken;
        self.others += other.others;
        self.vanished += other.vanished;
        self.unreadable += other.unreadable;
        self.changed += other.changed;
    }
}
