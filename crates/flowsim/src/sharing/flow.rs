//! A flow and a resource, as the solver reads them.

/// The bottleneck of a flow that its own limit holds, not a resource.
pub const LIMITED: u32 = u32::MAX;

/// The bottleneck of a flow that has no rate yet.
pub const UNSOLVED: u32 = u32::MAX - 1;

/// What is read of a flow whenever something near it changes, in one cache line: a million flows fit in no cache, and
/// waiting for memory is what the time goes into.
#[derive(Clone, Copy, Debug)]
#[repr(align(64))]
pub(super) struct Flow {
    /// Rate for each unit of weight.
    pub(super) level: f64,
    /// Weight of one flow times the number of flows merged into this one.
    pub(super) weight: f64,
    /// The largest level its own rate limit allows.
    pub(super) limit: f64,
    pub(super) bottleneck: u32,
    /// How many resources its route has.
    pub(super) length: u32,
    /// The route, if it fits.
    pub(super) hops: [u32; INLINE_HOPS],
}

/// Hops that fit into a flow's cache line; a fat tree of three levels needs six.
pub(super) const INLINE_HOPS: usize = 8;

impl Flow {
    pub(super) const NONE: Self = Self {
        level: 0.0,
        weight: 0.0,
        limit: 0.0,
        bottleneck: UNSOLVED,
        length: 0,
        hops: [0; INLINE_HOPS],
    };
}

/// What is read of a resource whenever the rate of a flow on it changes.
#[derive(Clone, Copy, Debug)]
pub(super) struct Resource {
    /// The rate it allows for each unit of weight; infinite where it is no bottleneck.
    pub(super) level: f64,
    /// What it gives now, and what it could give.
    pub(super) used: f64,
    pub(super) capacity: f64,
}

impl Resource {
    pub(super) fn idle(capacity: f64) -> Self {
        Self { level: f64::INFINITY, used: 0.0, capacity }
    }
}
