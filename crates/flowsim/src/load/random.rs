//! Random: each of a pair's shortest paths is as probable as any other.
//!
//! A node takes each next hop with the share of paths that begin with it, counted once for each destination, so that
//! no path is listed. The choice comes from the seed and the pair, not from the order of pairs: a pair keeps its path
//! whatever else is routed, as in PFSim, where it is cached.

use crate::load::fixed::{Hop, HopChoice};
use crate::network::{Hops, Network};
use crate::seeded;

/// The rule, with its seed.
#[derive(Clone, Copy, Debug)]
pub struct Random {
    /// Another seed gives other paths.
    pub seed: u64,
    /// Whether a path is drawn for each demand, and not for each pair of hosts.
    pub per_flow: bool,
}

impl HopChoice for Random {
    /// How many shortest paths lead on from each switch, 0 while not counted. Beyond 2^53 they are rounded.
    type Prepared = Vec<f64>;

    fn prepare(&self, network: &Network, _hops: &Hops) -> Vec<f64> {
        vec![0.0; network.switch_count() as usize]
    }

    fn choose(&self, hop: &Hop<'_>, counted: &mut Vec<f64>) -> usize {
        let head = |link: u32| hop.network.links_to()[link as usize];
        let counts: Vec<f64> = hop
            .links
            .iter()
            .map(|&link| count(hop.network, hop.hops, head(link), hop.dst, counted))
            .collect();
        let flow = if self.per_flow { u64::from(hop.demand) + 1 } else { 0 };
        let words = [u64::from(hop.src), u64::from(hop.dst), u64::from(hop.at), flow];
        let mut left = seeded::unit(seeded::hash(self.seed, &words)) * counts.iter().sum::<f64>();
        for (position, ways) in counts.iter().enumerate() {
            left -= ways;
            if left < 0.0 {
                return position;
            }
        }
        counts.len() - 1
    }
}

/// Shortest paths from `from` to the group of `dst`, not counting parallel links of the host itself.
///
/// The stack is explicit: a ring's paths are as long as half the ring.
fn count(network: &Network, hops: &Hops, from: u32, dst: u32, counted: &mut [f64]) -> f64 {
    let first = network.host_count();
    if from < first {
        return 1.0;
    }
    let slot = |switch: u32| (switch - first) as usize;
    let mut buffer = Vec::new();
    let mut stack = vec![from];
    while let Some(&at) = stack.last() {
        if counted[slot(at)] > 0.0 {
            stack.pop();
            continue;
        }
        if hops.of(at) == 0 {
            counted[slot(at)] = 1.0;
            continue;
        }
        let links = network.next_links(hops, at, dst, &mut buffer);
        let heads = links.iter().map(|&link| network.links_to()[link as usize]);
        let missing: Vec<u32> = heads.clone().filter(|&head| counted[slot(head)] == 0.0).collect();
        if missing.is_empty() {
            counted[slot(at)] = heads.map(|head| counted[slot(head)]).sum();
        }
        stack.extend(missing);
    }
    counted[slot(from)]
}
