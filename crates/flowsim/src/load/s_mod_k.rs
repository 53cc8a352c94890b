//! S-mod-K: the sending host's number chooses.
//!
//! As D-mod-K, with the sender in the receiver's place: all that a host sends leaves by one root of a fat tree.

use crate::load::fixed::{Hop, HopChoice};
use crate::network::{Hops, Network};

/// The rule; it has no state.
#[derive(Clone, Copy, Debug)]
pub struct SModK;

impl HopChoice for SModK {
    type Prepared = ();

    fn prepare(&self, _network: &Network, _hops: &Hops) {}

    fn choose(&self, hop: &Hop<'_>, (): &mut ()) -> usize {
        hop.src as usize % hop.links.len()
    }
}
