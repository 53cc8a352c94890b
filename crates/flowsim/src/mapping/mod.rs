//! Application-aware mapping: which process goes to which host, so that the busiest link carries less.
//!
//! Arrives: what processes send to each other, a mapping to begin with, the slots of each host.
//! Leaves: a mapping that fills the same hosts no further than their slots.
//! Must not know: routers, jobs, how the first mapping was made.
//!
//! A partitioner of graphs (METIS, called from Python) finds groups with much internal traffic: it minimises the sum
//! of all cuts, but the busiest link decides the time. [`refine`] therefore takes its answer, or any other, and lets
//! two processes change places as long as `sum over links of (load / reference)^p` falls, p rising from 2 to 32.
//! Loads are those of an even split at every switch: linear in the traffic, so that an exchange costs only the links
//! it changes, and the same for every topology. Then processes change hosts below one switch, to keep bytes off the
//! network altogether. Simulated annealing was rejected: it needs many times longer to beat several starts.

mod exchange;
mod split;
mod traffic;

use crate::error::FlowError;
use crate::network::{same_length, Network};
use crate::seeded::Random;
use exchange::Exchanger;
pub use traffic::Traffic;

/// A mapping and how it is expected to do.
#[derive(Clone, Debug, PartialEq)]
pub struct Mapping {
    /// The host of each process.
    pub host_of: Vec<u32>,
    /// The busiest link between switches under an even split of every pair, in bytes.
    pub busiest: f64,
}

/// Link visits that one unit of effort pays for: about a second.
const VISITS: f64 = 1e8;

/// Powers of the sum, one after the other: from "less in all" to "less on the busiest".
const POWERS: [i32; 5] = [2, 4, 8, 16, 32];

/// Let processes change places, so that the busiest link carries less or as much as before, beginning with `host_of`;
/// host `h` has `slots[h]` places.
///
/// # Errors
/// [`FlowError::NoHost`] for a process on no host, [`FlowError::Shape`] for one on a host that is full,
/// [`FlowError::PairBytes`], [`FlowError::Unreachable`] as in routing.
pub fn refine(
    network: &Network,
    traffic: Traffic<'_>,
    host_of: &[u32],
    slots: &[u32],
    seed: u64,
    effort: f64,
) -> Result<Mapping, FlowError> {
    check(network, traffic, host_of, slots)?;
    let mut places = host_of.to_vec();
    places.extend(free_places(network, host_of, slots)?);
    let mut exchanger = Exchanger::new(network, traffic, places.clone())?;
    let before = network.max_load(&exchanger.loads);
    let mut random = Random::new(seed);
    let budget = VISITS * effort.max(0.0);
    for power in POWERS {
        while exchanger.visits < budget && exchanger.pass(power, &mut random, budget)? > 0 {}
    }
    // A low power may trade the busiest link for many others, and a high one need not find the way back.
    if network.max_load(&exchanger.loads) > before {
        exchanger = Exchanger::new(network, traffic, places)?;
    }
    exchanger.gather_on_hosts(&mut random, 2.0 * budget);
    let mut host_of_all = exchanger.host_of;
    let busiest = network.max_load(&exchanger.loads);
    host_of_all.truncate(host_of.len());
    Ok(Mapping { host_of: host_of_all, busiest })
}

fn check(
    network: &Network,
    traffic: Traffic<'_>,
    host_of: &[u32],
    slots: &[u32],
) -> Result<(), FlowError> {
    same_length("receiving processes", traffic.src.len(), traffic.dst.len())?;
    same_length("bytes", traffic.src.len(), traffic.bytes.len())?;
    same_length("slots of hosts", network.host_count() as usize, slots.len())?;
    if let Some(process) = host_of.iter().position(|&host| host >= network.host_count()) {
        return Err(FlowError::NoHost(process, host_of[process]));
    }
    for (entry, &bytes) in traffic.bytes.iter().enumerate() {
        if !(bytes.is_finite() && bytes >= 0.0) {
            return Err(FlowError::PairBytes(entry, bytes));
        }
        let ends = [traffic.src[entry], traffic.dst[entry]];
        if let Some(&end) = ends.iter().find(|&&end| end as usize >= host_of.len()) {
            return Err(FlowError::Shape(format!(
                "entry {entry} names process {end}: there are {} processes",
                host_of.len()
            )));
        }
    }
    Ok(())
}

/// The hosts of slots that no process is on: processes without traffic, to change places with.
///
/// Only hosts in use count, as a job does not get others. As many as there are processes are enough.
fn free_places(network: &Network, host_of: &[u32], slots: &[u32]) -> Result<Vec<u32>, FlowError> {
    let mut used = vec![0u32; slots.len()];
    host_of.iter().for_each(|&host| used[host as usize] += 1);
    let mut free = Vec::new();
    for (host, (&used, &slots)) in used.iter().zip(slots).enumerate() {
        if used > slots {
            return Err(FlowError::Shape(format!(
                "host {} has {slots} slots and {used} processes: map no more than fit",
                network.names()[host]
            )));
        }
        if used > 0 {
            let most = (slots - used).min(host_of.len() as u32);
            free.extend(std::iter::repeat_n(host as u32, most as usize));
        }
    }
    Ok(free)
}
