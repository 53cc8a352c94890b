//! What the crate refuses.

/// The largest capacity, in bytes per second: above it a unit is mistaken, and sums would not stay finite and exact.
pub const MAX_CAPACITY: f64 = 1e18;

/// Invalid input. The message says what to give instead.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum FlowError {
    // Networks and routes.
    /// Two lists that go together differ in length.
    #[error("{what}: {got} given where {expected} are needed; give one for each")]
    Lengths {
        /// What the lists hold.
        what: &'static str,
        /// How long the first is.
        expected: usize,
        /// How long the other one is.
        got: usize,
    },
    /// A link, given by number, with an end that is no node, with two equal ends, or between two hosts.
    #[error("link {0} {1}")]
    Link(usize, &'static str),
    /// A link's capacity is not a number above zero and up to [`MAX_CAPACITY`].
    #[error("link {0} has the capacity {1} bytes/s: give a number above zero and up to 1e18")]
    LinkCapacity(String, f64),
    /// Two nodes of one name.
    #[error("two nodes are named {0:?}: give each its own name")]
    SameName(String),
    /// More nodes or links than 32-bit numbers can hold.
    #[error("the network has more than 2^31 nodes or links: give a smaller one")]
    TooLarge,
    /// No way between two hosts, by name.
    #[error(
        "there is no way from host {0} to host {1}: add the missing link, or take hosts of one component"
    )]
    Unreachable(String, String),
    /// A pair, given by its position, whose host is no host of the network.
    #[error("pair {0} names host {1}, which the network does not have")]
    NoHost(usize, u32),
    /// A pair, given by its position, whose bytes are negative, infinite or not a number.
    #[error("pair {0} has {1} bytes: give a finite number of at least zero")]
    PairBytes(usize, f64),
    /// A link, given by number, whose initial load is negative, infinite or not a number.
    #[error("link {0} has the load {1}: give a finite number of at least zero")]
    Load(usize, f64),
    /// A path, given by its position, that is none.
    #[error("path {0} {1}")]
    Path(usize, &'static str),
    /// A shape that no topology has.
    #[error("{0}")]
    Shape(String),

    // Shares of resources.
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

    // Clocks and programs.
    /// A precision outside of 1e-11 .. 0.1.
    #[error("a precision of {0} is none: give a number from 1e-11 to 0.1")]
    Precision(f64),
    /// A key that the table of routes does not have.
    #[error("there is no route {0}: add it before a flow takes it")]
    Route(u32),
    /// A number of bytes that is none.
    #[error("{0} bytes are none: give a finite number of at least 0")]
    Bytes(f64),
    /// A pause that is no finite number of at least 0.
    #[error("a pause of {0} s is none: give a finite number of at least 0")]
    Pause(f64),
    /// Flows without a step.
    #[error("flows belong to a step: add a step first")]
    NoStep,
    /// A program that is to be done 0 times.
    #[error("a program is done at least once: give a repeat of 1 or more")]
    NoRepeat,
    /// A time before now, or none at all.
    #[error("{0} s is before the clock's time, or no time: the clock only goes on")]
    Time(f64),
    /// A run that was never started.
    #[error("there is no run {0}: give a number that start returned")]
    Run(u32),
    /// Arrays that should have one length, and their lengths.
    #[error("one array has {0} entries and its other {1}: give as many of each")]
    Uneven(usize, usize),
    /// Offsets that do not start at 0, fall, or do not end where the resources do.
    #[error("route offsets must start at 0, never fall, and end at the number of resources given")]
    Offsets,
    /// More of what is named than can be numbered.
    #[error("more than 2^32 {0}: split the simulation")]
    TooMany(&'static str),

    // Contention of loaders.
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
