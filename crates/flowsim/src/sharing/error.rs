//! What the sharing of resources refuses.

/// The largest capacity taken, an exabyte a second: sums of capacities then stay finite and exact enough.
pub const MAX_CAPACITY: f64 = 1e18;

/// Invalid input to [`super::Sharing`].
#[derive(Clone, Copy, Debug, PartialEq, thiserror::Error)]
pub enum SharingError {
    /// A capacity that is no number from 0 to `MAX_CAPACITY`.
    #[error("a capacity of {0} bytes/s is none: give a number from 0 to {MAX_CAPACITY:e}")]
    Capacity(f64),
    /// A contention curve without points, with flows that do not rise, or with values that are no capacities.
    #[error(
        "a contention curve needs points (flows, bytes/s) with rising flows and rates from 0 to {MAX_CAPACITY:e}"
    )]
    Curve,
    /// A tolerance outside of 1e-12 .. 0.1.
    #[error("a tolerance of {0} is none: give a number from 1e-12 to 0.1")]
    Tolerance(f64),
    /// A resource that does not exist.
    #[error("there is no resource {0}: give one of those the capacities number")]
    Resource(u32),
    /// A weight that is no number from 1e-9 to 1e9.
    #[error("a weight of {0} is none: give a number from 1e-9 to 1e9")]
    Weight(f64),
    /// A limit that is no positive number.
    #[error(
        "a rate limit of {0} bytes/s is none: give a positive number, or infinity for no limit"
    )]
    Limit(f64),
    /// A flow with neither a resource on its route nor a limit.
    #[error("a flow crosses no resource and has no rate limit, so it has no rate: leave it out")]
    Unbounded,
    /// More flows, resources or hops than can be numbered.
    #[error("more than 2^32 flows, resources or hops: split the simulation")]
    TooMany,
}
