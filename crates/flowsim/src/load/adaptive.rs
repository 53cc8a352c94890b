//! Adaptive minimal: at each switch the least loaded link of a shortest path.
//!
//! Arrives: demands, initial loads.
//! Leaves: routes over shortest paths.
//! Must not know: loads beyond the next link.
//!
//! Routers of tori and fat trees that use only their own queues (Duato, "A new theory of deadlock-free
//! adaptive routing in wormhole networks", 1993; Dally and Towles, "Principles and Practices of Interconnection
//! Networks", 2004, section 10.2): unlike `greedy-max`, which sees whole paths. Here a pair of hosts is one flow, the
//! load of a link stands for its queue, and every pair chooses again once all others have chosen.

use crate::error::FlowError;
use crate::load::greedy::{scales, MOST_CACHED_LINKS};
use crate::load::paths::PathCollector;
use crate::load::shortest_paths::{whole_path, PathDag, PathDagCache};
use crate::load::{Demands, RouteOptions, Routes};
use crate::network::Network;

/// How often every pair chooses: the first find an empty network.
const ROUNDS: usize = 3;

/// Route every demand.
///
/// # Errors
/// [`FlowError::Unreachable`] names the two hosts that no path joins.
pub fn route(
    network: &Network,
    demands: &Demands,
    options: &RouteOptions,
) -> Result<Routes, FlowError> {
    let scale = scales(network, options.by_capacity);
    let mut seen = vec![0.0; network.link_count()];
    for (link, load) in options.initial.iter().enumerate() {
        seen[link] = load * scale[link];
    }
    let mut cache = PathDagCache::new(network, MOST_CACHED_LINKS);
    let order = demands.heaviest_first();
    let mut chosen: Vec<Vec<u32>> = vec![Vec::new(); demands.len()];
    for round in 0..ROUNDS {
        let mut moved = false;
        for &demand in &order {
            let bytes = demands.bytes[demand as usize];
            let old = std::mem::take(&mut chosen[demand as usize]);
            for &link in &old {
                seen[link as usize] -= bytes * scale[link as usize];
            }
            let path = hop_by_hop(&cache.of(demands, demand)?.clone(), &seen);
            for &link in &path {
                seen[link as usize] += bytes * scale[link as usize];
            }
            moved |= round == 0 || path != old;
            chosen[demand as usize] = path;
        }
        if !moved {
            break;
        }
    }
    let mut loads = vec![0.0; network.link_count()];
    let mut collector = options.keep_paths.then(|| PathCollector::new(demands.len()));
    let mut whole = Vec::new();
    for demand in order {
        let at = demand as usize;
        let ways = cache.of(demands, demand)?;
        whole_path(network, (demands.src[at], demands.dst[at]), &ways, &chosen[at], &mut whole);
        whole.iter().for_each(|&link| loads[link as usize] += demands.bytes[at]);
        if let Some(collector) = &mut collector {
            collector.add(demand, &whole);
        }
    }
    Ok(Routes { loads, paths: collector.map(PathCollector::finish) })
}

/// The links between switches; ties go to lower link numbers.
fn hop_by_hop(ways: &PathDag, seen: &[f64]) -> Vec<u32> {
    let mut path = Vec::with_capacity(ways.length());
    let mut at = 0;
    while let Some(&(link, head)) = ways
        .links_of(at)
        .iter()
        .min_by(|one, other| seen[one.0 as usize].total_cmp(&seen[other.0 as usize]))
    {
        path.push(link);
        at = head as usize;
    }
    path
}
