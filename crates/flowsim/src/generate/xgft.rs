//! Extended generalised fat trees, and the k-ary fat tree as one of them.
//!
//! XGFT(h; m1..mh; w1..wh) as Öhring, Ibel, Das and Kumar define it ("On generalized fat trees", IPPS 1995): a node
//! of level l has m(l) children and w(l + 1) parents. Its address is a digit for each level, below m(i) above its own
//! level and below w(i) up to it; nodes of neighbouring levels are joined where all digits but that level's agree.
//! PFSim's class of this name joins every top switch to every top of a subtree instead: the same up to two levels,
//! denser above.

use crate::error::FlowError;
use crate::generate::builder::{at_least_one, numbered, product, Builder, Capacities};
use crate::network::Network;

/// XGFT(h; m; w), h being the length of both lists; hosts are level 0.
///
/// # Errors
/// [`FlowError::Shape`] where the lists do not fit or the tree is too large.
pub fn xgft(m: &[usize], w: &[usize], capacities: Capacities) -> Result<Network, FlowError> {
    if m.is_empty() || m.len() != w.len() {
        return Err(FlowError::Shape(format!(
            "XGFT has {} numbers m and {} numbers w: give as many of both, one for each level",
            m.len(),
            w.len()
        )));
    }
    for (level, (&children, &parents)) in m.iter().zip(w).enumerate() {
        at_least_one(&format!("XGFT: m{}", level + 1), children)?;
        at_least_one(&format!("XGFT: w{}", level + 1), parents)?;
    }
    let height = m.len();
    let mut builder = Builder::new(product(m)?, capacities)?;
    let mut first_of_level = vec![0; height + 1];
    for level in 1..=height {
        let count = level_size(m, w, level)?;
        builder.add_switches(numbered(&format!("l{level:02}-s"), count))?;
        if level < height {
            first_of_level[level + 1] = first_of_level[level] + count;
        }
    }
    for level in 0..height {
        // Digits below `level` and above `level` stay; digit `level` is a child's on one end and a parent's on the
        // other.
        let below = product(&w[..level])?;
        let above = product(&m[level + 1..])?;
        for high in 0..above {
            for child in 0..m[level] {
                for low in 0..below {
                    for parent in 0..w[level] {
                        let lower = (high * m[level] + child) * below + low;
                        let upper = (high * w[level] + parent) * below + low;
                        if level == 0 {
                            builder.join_host(lower, upper)?;
                        } else {
                            let first = [first_of_level[level], first_of_level[level + 1]];
                            builder.join_switches(first[0] + lower, first[1] + upper)?;
                        }
                    }
                }
            }
        }
    }
    builder.finish()
}

/// The fat tree of switches with k ports in three tiers, k^3 / 4 hosts (Al-Fares et al., SIGCOMM 2008).
///
/// # Errors
/// [`FlowError::Shape`] where k is odd, below 2 or too large.
pub fn fat_tree(k: usize, capacities: Capacities) -> Result<Network, FlowError> {
    if k < 2 || k % 2 == 1 {
        return Err(FlowError::Shape(format!(
            "a fat tree of {k}-port switches cannot be built: give an even number of at least 2"
        )));
    }
    xgft(&[k / 2, k / 2, k], &[1, k / 2, k / 2], capacities)
}

fn level_size(m: &[usize], w: &[usize], level: usize) -> Result<usize, FlowError> {
    product(&[product(&m[level..])?, product(&w[..level])?])
}
