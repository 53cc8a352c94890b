//! What the simulation of contention refuses.

/// Invalid input to a study.
#[derive(Clone, Copy, Debug, PartialEq, thiserror::Error)]
pub enum ContentionError {
    /// No target, or more than 65,535.
    #[error("{0} targets: give 1 to 65535")]
    Targets(usize),
    /// No loader, or more than 2^24.
    #[error("{0} loaders: give 1 to 16777216")]
    Loaders(usize),
    /// No file, or more than 2^32.
    #[error("{0} files: give 1 to 4294967295")]
    Files(usize),
    /// A file of 0 bytes or of more than 2^32 objects.
    #[error(
        "a file of {0} bytes: give at least 1 byte and at most 2^32 objects of the stripe size"
    )]
    Size(u64),
    /// Components that do not rise, do not reach to infinity, or have invalid stripes.
    #[error(
        "a layout needs components with rising ends, the last without an end, each with 1 stripe or more"
    )]
    Layout,
    /// A stripe size of 0.
    #[error("a stripe size of 0 bytes: give at least 1")]
    StripeSize,
    /// A slowdown curve without points, with loaders that do not rise, or a slowdown below 1.
    #[error(
        "a slowdown curve needs points (loaders, slowdown) with rising loaders and slowdowns of 1 or more"
    )]
    Slowdown,
}
