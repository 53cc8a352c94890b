//! ECMP: each node hashes the pair and takes the next hop that the hash selects (RFC 2992, "modulo-N").
//!
//! The node's own number goes into the hash, as switches are configured with different seeds; without it every
//! level of a fat tree would choose alike and leave most of its links idle. Where every demand is a flow
//! with a separate path, the flow's position stands for its ports.

use crate::load::fixed::{Hop, HopChoice};
use crate::network::{Hops, Network};
use crate::seeded;

/// The rule, with the seed of all hashes.
#[derive(Clone, Copy, Debug)]
pub struct EcmpHash {
    /// Another seed gives other paths.
    pub seed: u64,
    /// Whether each demand is a flow, and not all traffic between two hosts together.
    pub per_flow: bool,
}

impl HopChoice for EcmpHash {
    type Prepared = ();

    fn prepare(&self, _network: &Network, _hops: &Hops) {}

    fn choose(&self, hop: &Hop<'_>, (): &mut ()) -> usize {
        let flow = if self.per_flow { u64::from(hop.demand) + 1 } else { 0 };
        let words = [u64::from(hop.src), u64::from(hop.dst), u64::from(hop.at), flow];
        let word = seeded::hash(self.seed, &words);
        ((u128::from(word) * hop.links.len() as u128) >> 64) as usize
    }
}
