//! Routers whose choice for a pair does not depend on other pairs.
//!
//! Arrives: demands, and a [`HopChoice`].
//! Leaves: routes.
//! Must not know: which rule chooses.
//!
//! Pairs are taken destination by destination, so that the hops of one destination at a time are in memory. A pair
//! costs the length of its path; a pod of edge switches costs a search, which visits every link.

use crate::error::FlowError;
use crate::load::demands::Demand;
use crate::load::paths::PathCollector;
use crate::load::{Demands, Routes};
use crate::network::{Hops, Network};

/// Where a path has come to.
#[derive(Debug)]
pub struct Hop<'a> {
    /// The interconnect.
    pub network: &'a Network,
    /// Hops from every switch to the receiving host's group.
    pub hops: &'a Hops,
    /// The sending host.
    pub src: u32,
    /// The receiving host.
    pub dst: u32,
    /// Which demand: differs between flows of one pair where each has its own path.
    pub demand: u32,
    /// The node to leave.
    pub at: u32,
    /// The links that begin a shortest way, by the next node's name; at least two.
    pub links: &'a [u32],
}

/// Chooses one of the links that begin a shortest way.
pub trait HopChoice {
    /// What the choice works out once for each destination group.
    type Prepared;

    /// Called before the first choice towards a group of hosts.
    fn prepare(&self, network: &Network, hops: &Hops) -> Self::Prepared;

    /// The position, in `hop.links`, of the link to take.
    fn choose(&self, hop: &Hop<'_>, prepared: &mut Self::Prepared) -> usize;
}

/// Route every demand by `choice`.
///
/// # Errors
/// [`FlowError::Unreachable`] names the two hosts that no path joins.
pub fn route<C: HopChoice>(
    network: &Network,
    demands: &Demands,
    choice: &C,
    keep_paths: bool,
) -> Result<Routes, FlowError> {
    let mut loads = vec![0.0; network.link_count()];
    let mut collector = keep_paths.then(|| PathCollector::new(demands.len()));
    let mut ready: Option<(u32, Hops, C::Prepared)> = None;
    let mut buffer = Vec::new();
    let mut path = Vec::new();
    for Demand { position, src, dst, bytes } in demands.by_group(network) {
        let group = network.group(dst);
        if ready.as_ref().is_none_or(|(prepared_for, _, _)| *prepared_for != group) {
            let hops = match ready.take() {
                Some((_, mut hops, _)) => {
                    network.aim_at(&mut hops, group);
                    hops
                }
                None => network.hops_to(group),
            };
            let prepared = choice.prepare(network, &hops);
            ready = Some((group, hops, prepared));
        }
        let Some((_, hops, prepared)) = &mut ready else { continue };
        path.clear();
        let mut at = src;
        while at != dst {
            let links = network.next_links(hops, at, dst, &mut buffer);
            let link = match links.len() {
                0 => return Err(network.unreachable(src, dst)),
                1 => links[0],
                _ => {
                    let hop = Hop { network, hops, src, dst, demand: position, at, links };
                    links[choice.choose(&hop, prepared)]
                }
            };
            path.push(link);
            at = network.links_to()[link as usize];
        }
        for &link in &path {
            loads[link as usize] += bytes;
        }
        if let Some(collector) = &mut collector {
            collector.add(position, &path);
        }
    }
    Ok(Routes { loads, paths: collector.map(PathCollector::finish) })
}
