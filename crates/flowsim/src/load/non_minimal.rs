//! Valiant's routing and UGAL: paths by way of an intermediate switch, always or where the short ones are loaded.
//!
//! Arrives: demands, initial loads.
//! Leaves: routes of one path a pair, at most the length of two shortest ones.
//! Must not know: kinds of topologies.
//!
//! Dragonflies and tori have few shortest paths: all that one group of a dragonfly sends to another crosses one
//! cable. Valiant and Brebner ("Universal schemes for parallel communication", STOC 1981) route to a random
//! intermediate node first, which makes any traffic random at the price of twice the load. UGAL (Singh,
//! "Load-balanced routing in interconnection networks", PhD thesis, Stanford 2005, section 3.4; for dragonflies Kim,
//! Dally, Scott and Abts, ISCA 2008, section 4.2) chooses for each packet between a shortest path and Valiant's by
//! queue length times hops. Here a pair of hosts is one flow, and the load of a link stands for its queue.
//!
//! An intermediate is a switch with hosts, as in Valiant's scheme, drawn for each pair; where it is the pair's own
//! switch, the path is a shortest one. A path that meets a switch twice is cut short there.

use crate::error::FlowError;
use crate::load::fixed;
use crate::load::greedy::scales;
use crate::load::paths::{PathCollector, Paths};
use crate::load::random::Random as RandomChoice;
use crate::load::{Demands, RouteOptions, Routes};
use crate::network::Network;
use crate::seeded;

/// What UGAL knows of a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Knowledge {
    /// The load of the first link after the sender's switch: UGAL-L.
    Local,
    /// The load of the path's busiest link: UGAL-G.
    Global,
}

/// How often every pair chooses again once all others have chosen: the first find an empty network.
const ROUNDS: usize = 4;

/// Words of the hash that draws intermediates.
const INTERMEDIATE: u64 = 0x5641_4c49;

/// Every pair by way of a random intermediate switch.
///
/// # Errors
/// [`FlowError::Unreachable`] names the two hosts that no path joins.
pub fn valiant(
    network: &Network,
    demands: &Demands,
    options: &RouteOptions,
) -> Result<Routes, FlowError> {
    let paths = detours(network, demands, options, 0)?;
    let mut loads = vec![0.0; network.link_count()];
    for demand in 0..demands.len() {
        paths.of(demand).iter().for_each(|&link| loads[link as usize] += demands.bytes[demand]);
    }
    Ok(Routes { loads, paths: options.keep_paths.then_some(paths) })
}

/// Every pair by the candidate whose hops times load are least: `options.candidates` shortest and as many of
/// Valiant's.
///
/// # Errors
/// [`FlowError::Unreachable`] names the two hosts that no path joins.
pub fn ugal(
    network: &Network,
    demands: &Demands,
    knowledge: Knowledge,
    options: &RouteOptions,
) -> Result<Routes, FlowError> {
    let mut candidates = Vec::new();
    for number in 0..options.candidates.max(1) {
        candidates.push(shortest(network, demands, options, number)?);
    }
    for number in 0..options.candidates.max(1) {
        candidates.push(detours(network, demands, options, number)?);
    }
    let scale = scales(network, options.by_capacity);
    let mut seen: Vec<f64> = vec![0.0; network.link_count()];
    for (link, load) in options.initial.iter().enumerate() {
        seen[link] = load * scale[link];
    }
    let between = network.between_switches();
    let mut order: Vec<u32> = (0..demands.len() as u32).collect();
    seeded::Random::new(options.seed).shuffle(&mut order);
    let mut chosen: Vec<Option<u32>> = vec![None; demands.len()];
    for _ in 0..ROUNDS {
        let mut moved = false;
        for &demand in &order {
            let at = demand as usize;
            let bytes = demands.bytes[at];
            let before = chosen[at];
            if let Some(old) = before {
                let path = candidates[old as usize].of(at);
                path.iter().for_each(|&l| seen[l as usize] -= bytes * scale[l as usize]);
            }
            let cost = |paths: &Paths| {
                let links = paths.of(at).iter().filter(|&&link| between[link as usize]);
                let load = |link: u32| seen[link as usize].max(0.0) + bytes * scale[link as usize];
                let hops = links.clone().count() as f64;
                let queue = match knowledge {
                    Knowledge::Local => links.clone().next().map_or(0.0, |&link| load(link)),
                    Knowledge::Global => {
                        links.clone().fold(0.0, |most, &l| f64::max(most, load(l)))
                    }
                };
                hops * queue
            };
            let mut best = (f64::INFINITY, 0);
            // Of equal ones the first, and shortest paths come first; a choice once made is kept.
            let again = before.into_iter().chain(0..candidates.len() as u32);
            for number in again {
                let value = cost(&candidates[number as usize]);
                if value < best.0 * (1.0 - 1e-12) || best.0.is_infinite() {
                    best = (value, number);
                }
            }
            moved |= before != Some(best.1);
            chosen[at] = Some(best.1);
            let path = candidates[best.1 as usize].of(at);
            path.iter().for_each(|&l| seen[l as usize] += bytes * scale[l as usize]);
        }
        if !moved {
            break;
        }
    }
    let mut loads = vec![0.0; network.link_count()];
    let mut collector = options.keep_paths.then(|| PathCollector::new(demands.len()));
    for (at, choice) in chosen.iter().enumerate() {
        let path = candidates[choice.unwrap_or(0) as usize].of(at);
        path.iter().for_each(|&link| loads[link as usize] += demands.bytes[at]);
        if let Some(collector) = &mut collector {
            collector.add(at as u32, path);
        }
    }
    Ok(Routes { loads, paths: collector.map(PathCollector::finish) })
}

/// A shortest path for each demand, other ones for another `number`.
fn shortest(
    network: &Network,
    demands: &Demands,
    options: &RouteOptions,
    number: u32,
) -> Result<Paths, FlowError> {
    let seed = seeded::hash(options.seed, &[u64::from(number), 0]);
    let choice = RandomChoice { seed, per_flow: options.per_flow };
    Ok(fixed::route(network, demands, &choice, true)?.paths.unwrap_or_default())
}

/// A path by way of an intermediate switch for each demand, other ones for another `number`.
fn detours(
    network: &Network,
    demands: &Demands,
    options: &RouteOptions,
    number: u32,
) -> Result<Paths, FlowError> {
    let via = intermediates(network);
    let mut there = Demands::default();
    let mut onward = Demands::default();
    for at in 0..demands.len() {
        let (src, dst) = (demands.src[at], demands.dst[at]);
        let flow = if options.per_flow { at as u64 + 1 } else { 0 };
        let words = [INTERMEDIATE, u64::from(number), u64::from(src), u64::from(dst), flow];
        let drawn = seeded::hash(options.seed, &words);
        let stop = via.get(((u128::from(drawn) * via.len() as u128) >> 64) as usize).copied();
        let own = |stop: u32| {
            network.group(stop) == network.group(src) || network.group(stop) == network.group(dst)
        };
        // Hosts below one switch need no detour, and a pair's own switch is none.
        let local = network.group(src) == network.group(dst);
        let stop = stop.filter(|&stop| !local && !own(stop));
        there.src.push(src);
        there.dst.push(stop.unwrap_or(dst));
        onward.src.push(stop.unwrap_or(src));
        onward.dst.push(dst);
    }
    there.bytes = demands.bytes.clone();
    onward.bytes = demands.bytes.clone();
    let legs = |leg: &Demands, word: u64| {
        let seed = seeded::hash(options.seed, &[u64::from(number), word]);
        let choice = RandomChoice { seed, per_flow: options.per_flow };
        fixed::route(network, leg, &choice, true).map(|routes| routes.paths.unwrap_or_default())
    };
    let (first, second) = (legs(&there, 1)?, legs(&onward, 2)?);
    let mut collector = PathCollector::new(demands.len());
    let mut path = Vec::new();
    for at in 0..demands.len() {
        path.clear();
        if there.dst[at] == demands.dst[at] {
            path.extend_from_slice(first.of(at));
        } else {
            // Without the links of the host that stands for the intermediate switch.
            let (to, from) = (first.of(at), second.of(at));
            path.extend_from_slice(&to[..to.len() - 1]);
            path.extend_from_slice(&from[1..]);
            cut_circles(network, &mut path);
        }
        collector.add(at as u32, &path);
    }
    Ok(collector.finish())
}

/// A host below each switch that alone serves its hosts.
fn intermediates(network: &Network) -> Vec<u32> {
    let mut seen = std::collections::HashSet::new();
    let alone = |host: &u32| {
        let group = network.group(*host);
        network.delivers_alone(group) && network.enters_alone(*host) && seen.insert(group)
    };
    (0..network.host_count()).filter(alone).collect()
}

/// Cut the loops: the part between two occurrences of one node.
fn cut_circles(network: &Network, path: &mut Vec<u32>) {
    let mut kept: Vec<u32> = Vec::with_capacity(path.len());
    for &link in path.iter() {
        let end = network.links_to()[link as usize];
        let begins = |&known: &u32| network.links_from()[known as usize] == end;
        match kept.iter().position(begins) {
            Some(again) => kept.truncate(again),
            None => kept.push(link),
        }
    }
    *path = kept;
}
