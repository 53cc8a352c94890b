//! Dragonflies: groups of switches, each switch joined to all of its group, each group to all groups.
//!
//! Kim, Dally, Scott and Abts, "Technology-driven, highly-scalable dragonfly topology", ISCA 2008, with the largest
//! number of groups, one cable between each two, dealt out in the order of the groups ("consecutive").

use crate::error::FlowError;
use crate::generate::builder::{at_least_one, product, Builder, Capacities};
use crate::network::Network;

/// `a` switches a group with `h` cables to other groups and `p` hosts each; a h + 1 groups.
///
/// # Errors
/// [`FlowError::Shape`] where a number is 0 or the dragonfly is too large.
pub fn dragonfly(
    a: usize,
    h: usize,
    p: usize,
    capacities: Capacities,
) -> Result<Network, FlowError> {
    at_least_one("dragonfly: a, switches in a group,", a)?;
    at_least_one("dragonfly: h, cables to other groups,", h)?;
    at_least_one("dragonfly: p, hosts at a switch,", p)?;
    let groups = product(&[a, h])? + 1;
    let switches = product(&[groups, a])?;
    let mut builder = Builder::new(product(&[switches, p])?, capacities)?;
    let group_width = (groups - 1).to_string().len();
    let switch_width = (a - 1).to_string().len();
    let name =
        |switch: usize| format!("g{:0group_width$}-s{:0switch_width$}", switch / a, switch % a);
    builder.add_switches((0..switches).map(name).collect())?;
    for host in 0..switches * p {
        builder.join_host(host, host / p)?;
    }
    for group in 0..groups {
        for one in 0..a {
            for other in one + 1..a {
                builder.join_switches(group * a + one, group * a + other)?;
            }
        }
    }
    for one in 0..groups {
        for other in one + 1..groups {
            // A group's cables lead to the other groups in order, itself left out; h of them at each switch.
            builder.join_switches(one * a + (other - 1) / h, other * a + one / h)?;
        }
    }
    builder.finish()
}
