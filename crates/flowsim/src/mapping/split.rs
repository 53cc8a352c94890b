//! How traffic between two groups of hosts spreads over links when every switch splits it evenly.
//!
//! Arrives: two hosts.
//! Leaves: the share of their bytes on each link between switches.
//! Must not know: traffic.

use std::collections::HashMap;
use std::rc::Rc;

use crate::error::FlowError;
use crate::load::shortest_paths::{PathDag, PathDagCache};
use crate::load::Demands;
use crate::network::Network;

/// Links between switches with the share of the bytes that each carries.
pub(super) type Shares = Rc<[(u32, f64)]>;

/// Shares for each pair of groups asked for.
pub(super) struct SplitTable<'a> {
    network: &'a Network,
    ways: PathDagCache<'a>,
    known: HashMap<(u32, u32), Shares>,
}

impl<'a> SplitTable<'a> {
    pub fn new(network: &'a Network) -> Self {
        // The shares are kept, the ways are not needed again: a small cache of them is enough.
        Self { network, ways: PathDagCache::new(network, 1 << 16), known: HashMap::new() }
    }

    pub fn of(&mut self, src: u32, dst: u32) -> Result<Shares, FlowError> {
        let key = (self.network.source_group(src), self.network.group(dst));
        if let Some(shares) = self.known.get(&key) {
            return Ok(Rc::clone(shares));
        }
        let demand = Demands { src: vec![src], dst: vec![dst], bytes: vec![1.0] };
        let ways = self.ways.of(&demand, 0)?;
        let shares: Shares = even_split(&ways).into();
        self.known.insert(key, Rc::clone(&shares));
        Ok(shares)
    }
}

fn even_split(ways: &PathDag) -> Vec<(u32, f64)> {
    let mut arriving = vec![0.0; ways.switches.len()];
    let entries = ways.entries();
    arriving[..entries].fill(1.0 / entries as f64);
    let mut shares = Vec::with_capacity(ways.links.len());
    for at in 0..ways.switches.len() {
        let links = ways.links_of(at);
        let share = arriving[at] / links.len().max(1) as f64;
        for &(link, head) in links {
            arriving[head as usize] += share;
            shares.push((link, share));
        }
    }
    shares
}
