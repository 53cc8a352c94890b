//! Load mode: a path for each pair of hosts, and the bytes that all paths add up to on each link.
//!
//! Arrives: a [`Network`] and [`Demands`], what hosts send to each other.
//! Leaves: [`Routes`]: loads and, where wanted, the paths; lower bounds.
//! Must not know: time, jobs, where the demands come from.
//!
//! Every router but those of `non_minimal` takes shortest paths only, and never lists them: from each switch the hops
//! towards a group of hosts give the links that begin a shortest path, which is all that a choice needs. Each draws
//! from its own random stream, named after it. What each file chooses:
//!
//! | file | choice |
//! |---|---|
//! | `d_mod_k`, `s_mod_k`, `ecmp_hash`, `random` | at each node by host number or hash; pairs are independent |
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
mod options;
pub mod paths;
pub mod random;
pub mod s_mod_k;
pub mod splittable;

pub(crate) mod shortest_paths;

use crate::error::FlowError;
use crate::network::Network;
use crate::seeded;
pub use demands::Demands;
use non_minimal::Knowledge;
pub use options::{RouteOptions, Router, Routes};
pub use paths::Paths;

/// Route all demands.
///
/// # Errors
/// [`FlowError::Unreachable`] for a pair in two components, [`FlowError::Lengths`] for `initial`.
pub fn route(
    network: &Network,
    demands: &Demands,
    router: Router,
    options: &RouteOptions,
) -> Result<Routes, FlowError> {
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
