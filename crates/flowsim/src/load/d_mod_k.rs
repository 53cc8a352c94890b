//! D-mod-K: the receiving host's number chooses.
//!
//! At a node with n next hops, sorted by name, the next hop is the (host number mod n)-th. The choice
//! is PFSim's, digit by digit: names in byte order, so that core10 comes before core2. Every sender reaches a host by
//! the same root of a fat tree (Zahavi et al., "Optimized InfiniBand fat-tree routing for shift all-to-all
//! communication patterns", 2010, give the reasons).

use crate::load::fixed::{Hop, HopChoice};
use crate::network::{Hops, Network};

/// The rule; it has no state.
#[derive(Clone, Copy, Debug)]
pub struct DModK;

impl HopChoice for DModK {
    type Prepared = ();

    fn prepare(&self, _network: &Network, _hops: &Hops) {}

    fn choose(&self, hop: &Hop<'_>, (): &mut ()) -> usize {
        hop.dst as usize % hop.links.len()
    }
}
