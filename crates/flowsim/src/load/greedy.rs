//! Greedy: pair after pair, the heaviest first, each by the best path given the pairs before it.
//!
//! [`Cost::Max`] is the "dynamic" routing of the PFSim paper (section 2.4.4): the path whose busiest link carries
//! least. [`Cost::Sum`] takes the path whose links carry least together, the pair's own bytes left out as there.
//! Pairs of equal weight keep the order in which they came, and of equal paths the one with lower link
//! numbers is taken; with both, the published figures come out to the last digit.
//!
//! A pair costs one pass over the links of its shortest paths, for any number of them.

use crate::error::FlowError;
use crate::load::paths::PathCollector;
use crate::load::shortest_paths::{whole_path, Combine, PathDagCache};
use crate::load::{Demands, RouteOptions, Routes};
use crate::network::Network;

/// What is least on the path taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cost {
    /// The loads of all its links added up.
    Sum,
    /// The load of its busiest link.
    Max,
}

/// Links of shortest ways kept between pairs: 256 MiB.
pub(crate) const MOST_CACHED_LINKS: usize = 1 << 25;

/// Route every demand.
///
/// # Errors
/// [`FlowError::Unreachable`] names the two hosts that no path joins.
pub fn route(
    network: &Network,
    demands: &Demands,
    cost: Cost,
    options: &RouteOptions,
) -> Result<Routes, FlowError> {
    let combine = if cost == Cost::Sum { Combine::Sum } else { Combine::Max };
    let mut loads = vec![0.0; network.link_count()];
    let mut seen = loads.clone();
    let scale = scales(network, options.by_capacity);
    for (link, load) in options.initial.iter().enumerate() {
        seen[link] = load * scale[link];
    }
    let mut collector = options.keep_paths.then(|| PathCollector::new(demands.len()));
    let mut cache = PathDagCache::new(network, MOST_CACHED_LINKS);
    let (mut costs, mut between, mut path) = (Vec::new(), Vec::new(), Vec::new());
    for demand in demands.heaviest_first() {
        let ways = cache.of(demands, demand)?;
        ways.cheapest(combine, |link| seen[link as usize], &mut costs, &mut between);
        let ends = (demands.src[demand as usize], demands.dst[demand as usize]);
        whole_path(network, ends, &ways, &between, &mut path);
        let bytes = demands.bytes[demand as usize];
        for &link in &path {
            loads[link as usize] += bytes;
            seen[link as usize] += bytes * scale[link as usize];
        }
        if let Some(collector) = &mut collector {
            collector.add(demand, &path);
        }
    }
    Ok(Routes { loads, paths: collector.map(PathCollector::finish) })
}

/// What a byte adds to the load of each link, as loads are compared.
pub(crate) fn scales(network: &Network, by_capacity: bool) -> Vec<f64> {
    if by_capacity {
        network.capacity().iter().map(|capacity| 1.0 / capacity).collect()
    } else {
        vec![1.0; network.link_count()]
    }
}
