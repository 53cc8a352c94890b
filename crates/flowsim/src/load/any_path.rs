//! A lower bound for any routing, over any paths and any split.
//!
//! Arrives: demands.
//! Leaves: a load that some link between switches carries at least.
//! Must not know: how paths are chosen.
//!
//! As in `splittable`, every weighting `y` of links with `sum(y) = 1` proves `sum over pairs of bytes * (length of
//! the shortest path by y)`; here the path is the shortest of all paths, not only of those with the fewest hops, so
//! that the bound holds for Valiant's routing and UGAL too. Weights come from the links around each switch and each
//! pair of neighbouring switches, and from multiplicative updates (Garg and Koenemann, "Faster and simpler algorithms
//! for multicommodity flow", 1998): traffic takes the cheapest paths, and links become expensive as they fill.
//! Whatever the steps did, the bound is computed from the weights, so it holds without trusting them.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};

use crate::error::FlowError;
use crate::load::greedy::scales;
use crate::load::{Demands, RouteOptions};
use crate::network::Network;

/// Link visits that one unit of effort pays for: some tenths of a second.
const VISITS: f64 = 2e7;

/// Rounds at most; by then the bound moves in its fourth digit.
const MOST_ROUNDS: usize = 400;

/// Relative distance of bound and best split at which the search ends.
const CLOSE_ENOUGH: f64 = 1e-3;

/// The bound, in bytes, or in seconds where loads are compared by capacity.
///
/// # Errors
/// [`FlowError::Unreachable`] for a pair in two components, [`FlowError::Lengths`] for `initial`.
pub fn bound(
    network: &Network,
    demands: &Demands,
    options: &RouteOptions,
) -> Result<f64, FlowError> {
    options.check(network)?;
    let mut search = Search::new(network, demands, options);
    let budget = VISITS * options.effort.max(0.0);
    let mut best = search.around_switches();
    let used: Vec<usize> =
        (0..network.link_count()).filter(|&link| network.between_switches()[link]).collect();
    if used.is_empty() || search.sources.is_empty() {
        return Ok(best);
    }
    let initial = search.initial.clone();
    let mut total = initial.clone();
    let mut weights = vec![0.0; network.link_count()];
    for round in 1..=MOST_ROUNDS {
        // Weights by the mean of all rounds so far, ever sharper.
        let mean = |link: usize| (total[link] - initial[link]) / round as f64 + initial[link];
        let busiest = used.iter().map(|&link| mean(link)).fold(f64::MIN_POSITIVE, f64::max);
        let sharpness = 4.0 + 2.0 * (round as f64).sqrt();
        let mut sum = 0.0;
        for &link in &used {
            weights[link] = (sharpness * (mean(link) / busiest - 1.0)).exp();
            sum += weights[link];
        }
        for &link in &used {
            weights[link] *= search.scale[link] / sum;
        }
        let value = search.send(&weights, &mut total)?;
        best = best.max(value);
        let reached = |link: usize| (total[link] - initial[link]) / round as f64 + initial[link];
        let split = used.iter().map(|&link| reached(link)).fold(0.0, f64::max);
        if search.visits > budget || split - best <= CLOSE_ENOUGH * split {
            break;
        }
    }
    Ok(best)
}

/// What one sending host's group sends to each receiving one.
type Sends = BTreeMap<u32, (u32, Vec<(u32, f64)>)>;

struct Search<'a> {
    network: &'a Network,
    sources: Sends,
    scale: Vec<f64>,
    initial: Vec<f64>,
    out: Vec<Vec<(u32, u32)>>,
    visits: f64,
}

impl<'a> Search<'a> {
    fn new(network: &'a Network, demands: &Demands, options: &RouteOptions) -> Self {
        let scale = scales(network, options.by_capacity);
        let mut initial = vec![0.0; network.link_count()];
        for (link, load) in options.initial.iter().enumerate() {
            initial[link] = load * scale[link];
        }
        let mut merged: BTreeMap<(u32, u32), (u32, u32, f64)> = BTreeMap::new();
        for at in 0..demands.len() {
            let (src, dst) = (demands.src[at], demands.dst[at]);
            let key = (network.source_group(src), network.group(dst));
            merged.entry(key).or_insert((src, dst, 0.0)).2 += demands.bytes[at];
        }
        let mut sources: Sends = BTreeMap::new();
        for ((group, _), (src, dst, bytes)) in merged {
            if bytes > 0.0 {
                sources.entry(group).or_insert((src, Vec::new())).1.push((dst, bytes));
            }
        }
        let mut out = vec![Vec::new(); network.names().len()];
        for (link, (&from, &to)) in network.links_from().iter().zip(network.links_to()).enumerate()
        {
            out[from as usize].push((link as u32, to));
        }
        Self { network, sources, scale, initial, out, visits: 0.0 }
    }

    /// The bound of each switch's own links, in and out, and of those around a pair of neighbours.
    fn around_switches(&self) -> f64 {
        let hosts = self.network.host_count();
        let switches = self.network.switch_count() as usize;
        let slot = |node: u32| (node - hosts) as usize;
        let mut capacity = [vec![0.0; switches], vec![0.0; switches]];
        let mut carried = [vec![0.0; switches], vec![0.0; switches]];
        let ends = self.network.links_from().iter().zip(self.network.links_to());
        for (link, (&from, &to)) in ends.enumerate() {
            if self.network.between_switches()[link] {
                for (side, node) in [(0, from), (1, to)] {
                    capacity[side][slot(node)] += 1.0 / self.scale[link];
                    carried[side][slot(node)] += self.initial[link] / self.scale[link];
                }
            }
        }
        for (src, sends) in self.sources.values() {
            for &(dst, bytes) in sends {
                let one = |host: u32| self.out[host as usize].first().map(|&(_, end)| end);
                let alone = self.network.enters_alone(*src) && self.network.enters_alone(dst);
                if let (Some(a), Some(b), true) = (one(*src), one(dst), alone) {
                    if a != b {
                        carried[0][slot(a)] += bytes;
                        carried[1][slot(b)] += bytes;
                    }
                }
            }
        }
        let mut best: f64 = 0.0;
        for side in 0..2 {
            for (bytes, capacity) in carried[side].iter().zip(&capacity[side]) {
                if *capacity > 0.0 {
                    best = best.max(bytes / capacity);
                }
            }
        }
        // A link's own load from before, too.
        let counted = self.network.between_switches().iter().zip(&self.initial);
        counted.filter(|(&is, _)| is).map(|(_, &load)| load).fold(best, f64::max)
    }

    /// Add the demands, by their cheapest ways, to `total`; the bound that the weights prove.
    fn send(&mut self, weights: &[f64], total: &mut [f64]) -> Result<f64, FlowError> {
        let nodes = self.network.names().len();
        let hosts = self.network.host_count() as usize;
        let mut distance = vec![f64::INFINITY; nodes];
        let mut before = vec![u32::MAX; nodes];
        let mut through = vec![0.0; nodes];
        let mut order = Vec::with_capacity(nodes);
        let mut heap = BinaryHeap::new();
        let between = self.network.between_switches();
        let weighed = between.iter().enumerate().filter(|(_, &is)| is);
        let mut value: f64 =
            weighed.map(|(link, _)| weights[link] * self.initial[link] / self.scale[link]).sum();
        for (src, sends) in self.sources.values() {
            distance.fill(f64::INFINITY);
            through.fill(0.0);
            order.clear();
            distance[*src as usize] = 0.0;
            heap.push(Reverse((Ordered(0.0), *src)));
            while let Some(Reverse((Ordered(cost), node))) = heap.pop() {
                if cost > distance[node as usize] {
                    continue;
                }
                order.push(node);
                if (node as usize) < hosts && node != *src {
                    continue;
                }
                self.visits += self.out[node as usize].len() as f64;
                for &(link, end) in &self.out[node as usize] {
                    let cost = cost + weights[link as usize];
                    if cost < distance[end as usize] {
                        distance[end as usize] = cost;
                        before[end as usize] = link;
                        heap.push(Reverse((Ordered(cost), end)));
                    }
                }
            }
            for &(dst, bytes) in sends {
                if distance[dst as usize].is_infinite() {
                    return Err(self.network.unreachable(*src, dst));
                }
                value += bytes * distance[dst as usize];
                through[dst as usize] += bytes;
            }
            // From the furthest node back, each hands on what goes through it.
            for &node in order.iter().rev() {
                let bytes = through[node as usize];
                if node != *src && bytes > 0.0 {
                    let link = before[node as usize] as usize;
                    total[link] += bytes * self.scale[link];
                    through[self.network.links_from()[link] as usize] += bytes;
                }
            }
        }
        Ok(value)
    }
}

/// A cost in a heap; costs are no NaN.
#[derive(Clone, Copy, PartialEq)]
struct Ordered(f64);

impl Eq for Ordered {}

impl PartialOrd for Ordered {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Ordered {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.0.total_cmp(&other.0)
    }
}
