//! Tori of any number of dimensions, with hosts at every switch.
//!
//! PFSim's torus lets hosts forward and has no switches; here each place has a switch, as machines with such networks
//! do.

use crate::error::FlowError;
use crate::generate::builder::{at_least_one, product, Builder, Capacities};
use crate::network::Network;

/// A torus with `dims[i]` switches along dimension i, the last varying fastest, and `hosts` at each.
///
/// Along a dimension of 2 there is one cable, not two side by side.
///
/// # Errors
/// [`FlowError::Shape`] where a number is 0 or the torus is too large.
pub fn torus(dims: &[usize], hosts: usize, capacities: Capacities) -> Result<Network, FlowError> {
    if dims.is_empty() {
        return Err(FlowError::Shape(
            "a torus of no dimension cannot be built: give the size of at least one".into(),
        ));
    }
    for (dimension, &size) in dims.iter().enumerate() {
        at_least_one(&format!("torus: size {}", dimension + 1), size)?;
    }
    at_least_one("torus: hosts at a switch", hosts)?;
    let switches = product(dims)?;
    let mut builder = Builder::new(product(&[switches, hosts])?, capacities)?;
    builder.add_switches((0..switches).map(|switch| name(switch, dims)).collect())?;
    for host in 0..switches * hosts {
        builder.join_host(host, host / hosts)?;
    }
    let mut stride = switches;
    for &size in dims {
        stride /= size;
        for switch in 0..switches {
            let place = switch / stride % size;
            let next = if place + 1 < size { switch + stride } else { switch - place * stride };
            let closes_pair = size == 2 && place == 1;
            if size > 1 && !closes_pair {
                builder.join_switches(switch, next)?;
            }
        }
    }
    builder.finish()
}

/// The place along each dimension, as in `s-0-12-3`, padded.
fn name(switch: usize, dims: &[usize]) -> String {
    let mut places = Vec::new();
    let mut rest = switch;
    for &size in dims.iter().rev() {
        let width = (size - 1).to_string().len();
        places.push(format!("-{:0width$}", rest % size));
        rest /= size;
    }
    places.push("s".into());
    places.reverse();
    places.concat()
}
