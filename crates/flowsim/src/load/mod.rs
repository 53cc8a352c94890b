//! Load mode: a path for each pair of hosts, and the bytes that all paths add up to on each link.
//!
//! Arrives: a [`Network`] and [`Demands`], what hosts send to each other.
//! Leaves: [`Routes`]: loads and, where wanted, the paths; bounds that no routing can beat.
//! Must not know: time, jobs, where the demands come from.
//!
//! Every router but those of `non_minimal` takes shortest paths only, and never lists them: from each switch the hops
//! towards a group of hosts give the links that begin a shortest way, which is all that a choice needs. Each draws from a
//! stream of its own, named after it. What each file chooses:
//!
//! | file | choice |
//! |---|---|
//! | `d_mod_k`, `s_mod_k`, `ecmp_hash`, `random` | at each node by host number or hash; pairs do not affect each other |
//! | `greedy` | pair after pair, the heaviest first: the least sum, or the least busiest link ("dynamic") |
//! | `adaptive` | pair after pair, at each node the least loaded link |
//! | `joint` | all pairs together, towards the bound of `splittable` |
//! | `non_minimal` | by way of a random switch (Valiant), or so where shortest paths are loaded (UGAL) |
//!
//! `splittable` bounds what routing over shortest paths can reach, `any_path` what any routing can.

pub mod adaptive;
pub mod any_path;
pub mod d_mod_k;
pub mod demands;
pub mod ecmp_hash;
pub mod fixed;
pub mod greedy;
pub mod joint;
pub mod non_minimal;
pub mod paths;
pub mod random;
pub mod s_mod_k;
pub mod splittable;

pub(crate) mod ways;

use crate::network::{same_length, Network, NetworkError};
use crate::seeded;
pub use demands::Demands;
use non_minimal::Knowledge;
pub use paths::Paths;

/// How paths are chosen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Router {
    /// By the number of the destination host.
    DModK,
    /// By the number of the source host.
    SModK,
    /// A uniformly random one of a pair's shortest paths.
    Random,
    /// By a hash of the pair, anew at each switch.
    EcmpHash,
    /// The path whose links carry least together.
    GreedySum,
    /// The path whose busiest link carries least: the original's "dynamic" routing.
    GreedyMax,
    /// At each switch the least loaded link that leads nearer.
    AdaptiveMinimal,
    /// All pairs together.
    Joint,
    /// By way of a random intermediate switch.
    Valiant,
    /// A shortest path or Valiant's, by the load next to the sender.
    UgalL,
    /// A shortest path or Valiant's, by the loads of whole paths.
    UgalG,
}

impl Router {
    /// Whether a pair's path depends on what other pairs send: only then must what two hosts send be added up first.
    #[must_use]
    pub fn weighs_pairs(self) -> bool {
        let apart = matches!(
            self,
            Self::DModK | Self::SModK | Self::Random | Self::EcmpHash | Self::Valiant
        );
        !apart
    }

    /// Whether every path is a shortest one.
    #[must_use]
    pub fn is_minimal(self) -> bool {
        !matches!(self, Self::Valiant | Self::UgalL | Self::UgalG)
    }

    /// The name users give.
    #[must_use]
    pub fn name(self) -> &'static str {
        Self::ALL.iter().find(|(_, router)| *router == self).map_or("", |(name, _)| name)
    }

    /// Every router with the name users give.
    pub const ALL: [(&'static str, Self); 11] = [
        ("d-mod-k", Self::DModK),
        ("s-mod-k", Self::SModK),
        ("random", Self::Random),
        ("ecmp-hash", Self::EcmpHash),
        ("greedy-sum", Self::GreedySum),
        ("greedy-max", Self::GreedyMax),
        ("adaptive-minimal", Self::AdaptiveMinimal),
        ("joint", Self::Joint),
        ("valiant", Self::Valiant),
        ("ugal-l", Self::UgalL),
        ("ugal-g", Self::UgalG),
    ];

    /// The router of a name, or None.
    #[must_use]
    pub fn by_name(name: &str) -> Option<Self> {
        Self::ALL.iter().find(|(known, _)| *known == name).map(|&(_, router)| router)
    }
}

/// What a call to [`route`] asks for besides the router.
#[derive(Clone, Debug)]
pub struct RouteOptions {
    /// Where random choices and hashes come from.
    pub seed: u64,
    /// Loads already on the links, which greedy and joint routing avoid; empty for none.
    pub initial: Vec<f64>,
    /// Each demand is a flow with a path of its own, even between the same two hosts.
    pub per_flow: bool,
    /// Compare loads by bytes per capacity, not by bytes. PFSim compares bytes.
    pub by_capacity: bool,
    /// Keep the paths.
    pub keep_paths: bool,
    /// How long joint routing searches: 1 is its own measure.
    pub effort: f64,
    /// UGAL: how many shortest paths, and how many of Valiant's, each pair chooses among.
    pub candidates: u32,
}

impl Default for RouteOptions {
    fn default() -> Self {
        Self {
            seed: 0,
            initial: Vec::new(),
            per_flow: false,
            by_capacity: false,
            keep_paths: false,
            effort: 1.0,
            candidates: 2,
        }
    }
}

impl RouteOptions {
    pub(crate) fn check(&self, network: &Network) -> Result<(), NetworkError> {
        if !self.initial.is_empty() {
            same_length("initial loads", network.link_count(), self.initial.len())?;
        }
        match self.initial.iter().position(|load| !(load.is_finite() && *load >= 0.0)) {
            Some(link) => Err(NetworkError::Load(link, self.initial[link])),
            None => Ok(()),
        }
    }
}

/// What routing gave: `loads` in bytes of these demands alone, one for each link.
#[derive(Clone, Debug, PartialEq)]
pub struct Routes {
    /// Bytes on each link; what was there before is not in them.
    pub loads: Vec<f64>,
    /// The path of each demand, in the order of the demands.
    pub paths: Option<Paths>,
}

/// Route all demands.
///
/// # Errors
/// [`NetworkError::Unreachable`] for a pair in two components, [`NetworkError::Lengths`] for `initial`.
pub fn route(
    network: &Network,
    demands: &Demands,
    router: Router,
    options: &RouteOptions,
) -> Result<Routes, NetworkError> {
    options.check(network)?;
    let seed = seeded::stream(options.seed, router.name());
    let options = &RouteOptions { seed, ..options.clone() };
    let (keep, per_flow) = (options.keep_paths, options.per_flow);
    match router {
        Router::DModK => fixed::route(network, demands, &d_mod_k::DModK, keep),
        Router::SModK => fixed::route(network, demands, &s_mod_k::SModK, keep),
        Router::EcmpHash => {
            fixed::route(network, demands, &ecmp_hash::EcmpHash { seed, per_flow }, keep)
        }
        Router::Random => fixed::route(network, demands, &random::Random { seed, per_flow }, keep),
        Router::GreedySum => greedy::route(network, demands, greedy::Cost::Sum, options),
        Router::GreedyMax => greedy::route(network, demands, greedy::Cost::Max, options),
        Router::AdaptiveMinimal => adaptive::route(network, demands, options),
        Router::Joint => joint::route(network, demands, options),
        Router::Valiant => non_minimal::valiant(network, demands, options),
        Router::UgalL => non_minimal::ugal(network, demands, Knowledge::Local, options),
        Router::UgalG => non_minimal::ugal(network, demands, Knowledge::Global, options),
    }
}
