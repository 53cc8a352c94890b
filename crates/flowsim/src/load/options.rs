//! Which router, its options, and what it gives.

use super::paths::Paths;
use crate::error::FlowError;
use crate::network::{same_length, Network};

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
    /// Each demand is a flow with a separate path, even between the same two hosts.
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
    pub(crate) fn check(&self, network: &Network) -> Result<(), FlowError> {
        if !self.initial.is_empty() {
            same_length("initial loads", network.link_count(), self.initial.len())?;
        }
        match self.initial.iter().position(|load| !(load.is_finite() && *load >= 0.0)) {
            Some(link) => Err(FlowError::Load(link, self.initial[link])),
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
