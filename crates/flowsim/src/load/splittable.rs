//! A lower bound for routing over shortest paths, even if every pair is split over all its paths.
//!
//! Arrives: demands.
//! Leaves: a [`Bound`]: a load that some link between switches carries at least, with weights of links that prove it.
//! Must not know: how paths are chosen.
//!
//! The least possible maximum is a linear program. Its dual gives every weighting `y` of links with `sum(y) = 1` a
//! bound: `sum over pairs of bytes * (length of the shortest path by y)`, because all bytes together weigh at least
//! that much, and the busiest link carries at least the weighted mean. The weights are found by Frank-Wolfe steps on
//! a smoothed maximum, starting from an even split at every switch, which is already optimal in an evenly loaded fat
//! tree; and each switch by itself gives a bound too, what it sends spread over its links. Whatever the steps did,
//! the bound is computed from the weights at the end of each, so it holds without trusting them. A simplex was
//! rejected: its last digits do not help routing with one path for each pair, and it is slow in large networks.

use std::collections::HashMap;
use std::rc::Rc;

use crate::error::FlowError;
use crate::load::greedy::scales;
use crate::load::shortest_paths::{Combine, PathDag, PathDagCache};
use crate::load::{Demands, RouteOptions};
use crate::network::Network;

/// A load that the busiest link between switches has at least.
#[derive(Clone, Debug, PartialEq)]
pub struct Bound {
    /// In bytes, or in seconds where loads are compared by capacity.
    pub least_max: f64,
    /// The weight of each link in the proof; `sum(weight * scale) = 1`, scale being 1, or the capacity.
    pub weights: Vec<f64>,
    /// The busiest link of the best split found: the true least maximum is between `least_max` and this.
    pub split_max: f64,
}

/// All that is sent between two groups of hosts.
pub(crate) struct Commodity {
    pub ways: Rc<PathDag>,
    pub bytes: f64,
}

/// Demands added up by their shortest ways; those within one switch are left out.
pub(crate) struct Commodities {
    pub all: Vec<Commodity>,
    /// The commodity of each demand, `u32::MAX` for none.
    pub of_demand: Vec<u32>,
}

/// Links of ways that may be held at once, for all pairs of groups: 1 GiB.
const MOST_LINKS: usize = 1 << 27;

impl Commodities {
    pub fn new(network: &Network, demands: &Demands) -> Result<Self, FlowError> {
        let mut cache = PathDagCache::new(network, MOST_LINKS);
        let mut known: HashMap<(u32, u32), u32> = HashMap::new();
        let mut commodities = Self { all: Vec::new(), of_demand: Vec::new() };
        for demand in 0..demands.len() as u32 {
            let (src, dst) = (demands.src[demand as usize], demands.dst[demand as usize]);
            let next = commodities.all.len() as u32;
            let key = (network.source_group(src), network.group(dst));
            let number = match known.get(&key) {
                Some(&number) => number,
                None => {
                    let ways = cache.of(demands, demand)?;
                    let number = if ways.length() == 0 { u32::MAX } else { next };
                    if number == next {
                        commodities.all.push(Commodity { ways, bytes: 0.0 });
                    }
                    known.insert(key, number);
                    number
                }
            };
            if number != u32::MAX {
                commodities.all[number as usize].bytes += demands.bytes[demand as usize];
            }
            commodities.of_demand.push(number);
        }
        Ok(commodities)
    }

    fn links(&self) -> usize {
        self.all.iter().map(|commodity| commodity.ways.links.len()).sum()
    }
}

/// The bound of `demands`; `initial`, `by_capacity` and `effort` of the options count.
///
/// # Errors
/// [`FlowError::Unreachable`] for a pair in two components, [`FlowError::Lengths`] for `initial`.
pub fn bound(
    network: &Network,
    demands: &Demands,
    options: &RouteOptions,
) -> Result<Bound, FlowError> {
    options.check(network)?;
    let commodities = Commodities::new(network, demands)?;
    Ok(Search::new(network, &commodities, options).run(options.effort))
}

/// Links that everything to or from one switch must cross.
#[derive(Default)]
struct Cut {
    bytes: f64,
    links: Vec<u32>,
}

impl Cut {
    fn add(&mut self, bytes: f64, links: &[(u32, u32)]) {
        self.bytes += bytes;
        self.links.extend(links.iter().map(|&(link, _)| link));
        // Far more than a switch has ports: the list must not grow with the pairs.
        if self.links.len() > 4096 {
            self.links.sort_unstable();
            self.links.dedup();
        }
    }
}

/// Link visits that one unit of effort pays for: about half a second.
const VISITS: f64 = 1e8;

/// Relative distance of bound and best split at which the search ends.
const CLOSE_ENOUGH: f64 = 1e-7;

pub(crate) struct Search<'a> {
    commodities: &'a Commodities,
    /// What a byte adds to each link's load, as loads are compared.
    scale: Vec<f64>,
    initial: Vec<f64>,
    /// Links between switches that any demand may take.
    used: Vec<u32>,
    counted: &'a [bool],
    busiest_initial: f64,
    best: Bound,
    costs: Vec<f64>,
    shares: Vec<f64>,
}

impl<'a> Search<'a> {
    pub fn new(network: &'a Network, commodities: &'a Commodities, options: &RouteOptions) -> Self {
        let scale = scales(network, options.by_capacity);
        let initial = match options.initial.len() {
            0 => vec![0.0; network.link_count()],
            _ => options.initial.iter().zip(&scale).map(|(load, scale)| load * scale).collect(),
        };
        let mut is_used = vec![false; network.link_count()];
        for commodity in &commodities.all {
            commodity.ways.links.iter().for_each(|&(link, _)| is_used[link as usize] = true);
        }
        let used = (0..network.link_count() as u32).filter(|&link| is_used[link as usize]);
        Self {
            commodities,
            used: used.collect(),
            counted: network.between_switches(),
            busiest_initial: network.max_load(&initial),
            scale,
            initial,
            best: Bound {
                least_max: 0.0,
                weights: vec![0.0; network.link_count()],
                split_max: f64::INFINITY,
            },
            costs: Vec::new(),
            shares: Vec::new(),
        }
    }

    /// Loads in the result are unscaled for the caller's comparison: bytes, or seconds.
    pub fn run(mut self, effort: f64) -> Bound {
        self.start_from_busiest_initial();
        if self.commodities.all.is_empty() {
            self.best.split_max = self.best.least_max;
            return self.best;
        }
        self.bound_by_levels();
        let mut loads = self.initial.clone();
        self.add_cheapest(&vec![0.0; loads.len()], &mut loads);
        let visits = 4.0 * self.commodities.links() as f64 + 20.0 * self.used.len() as f64;
        let most = ((VISITS * effort.max(0.0) / visits) as usize).clamp(8, 20_000);
        let mut weights = vec![0.0; loads.len()];
        let mut target = loads.clone();
        for step in 0..most {
            let busiest = self.busiest(&loads);
            self.best.split_max = self.best.split_max.min(busiest);
            // The smoothing error is ln(links) / sharpness: from a fifth down to a hundred-thousandth of the maximum.
            let sharpness = (self.used.len() as f64 + 2.0).ln()
                * (5.0 * 20_000.0_f64.powf(step as f64 / most as f64));
            self.soft_weights(&loads, sharpness, &mut weights);
            target.copy_from_slice(&self.initial);
            let value = self.add_cheapest(&weights, &mut target) + self.weigh_initial(&weights);
            self.keep(value, &weights);
            if self.best.split_max - self.best.least_max <= CLOSE_ENOUGH * self.best.split_max {
                break;
            }
            let share = self.line_search(&loads, &target, sharpness);
            for &link in &self.used {
                let link = link as usize;
                loads[link] += share * (target[link] - loads[link]);
            }
        }
        self.best
    }

    /// The busiest counted link as it is before any demand: the bound that a weight on it alone gives.
    fn start_from_busiest_initial(&mut self) {
        let counted = (0..self.initial.len()).filter(|&link| self.counted[link]);
        let busiest = counted.max_by(|&a, &b| self.initial[a].total_cmp(&self.initial[b]));
        if let Some(link) = busiest {
            self.best.least_max = self.initial[link];
            self.best.weights[link] = self.scale[link];
        }
    }

    /// The bound of each switch's own links: equal weights on all links that leave, or enter, one switch.
    fn bound_by_levels(&mut self) {
        let mut cuts: HashMap<(bool, u32), Cut> = HashMap::new();
        for commodity in &self.commodities.all {
            let ways = &commodity.ways;
            if ways.entries() == 1 {
                let cut = cuts.entry((false, ways.switches[0])).or_default();
                cut.add(commodity.bytes, ways.links_of(0));
            }
            let last_level = ways.levels[ways.length()] as usize;
            if ways.switches.len() - last_level == 1 {
                let before = ways.levels[ways.length() - 1] as usize;
                let cut = cuts.entry((true, ways.switches[last_level])).or_default();
                cut.add(commodity.bytes, &ways.links[ways.starts[before] as usize..]);
            }
        }
        let mut sorted: Vec<_> = cuts.into_iter().collect();
        sorted.sort_unstable_by_key(|(key, _)| *key);
        for (_, Cut { bytes, mut links }) in sorted {
            links.sort_unstable();
            links.dedup();
            // The weight of a link is proportional to what it can carry: sum(weight / scale) = 1.
            let capacity: f64 = links.iter().map(|&link| 1.0 / self.scale[link as usize]).sum();
            let initial: f64 = links
                .iter()
                .map(|&link| self.initial[link as usize] / self.scale[link as usize])
                .sum();
            let value = (bytes + initial) / capacity;
            if value > self.best.least_max {
                self.best.least_max = value;
                self.best.weights.fill(0.0);
                for &link in &links {
                    self.best.weights[link as usize] = 1.0 / capacity;
                }
            }
        }
    }

    fn busiest(&self, loads: &[f64]) -> f64 {
        let used = self.used.iter().map(|&link| loads[link as usize]);
        used.fold(self.busiest_initial, f64::max)
    }

    /// Weights for bytes: exp(sharpness * load / busiest used link), normalised so that sum(weight / scale) = 1.
    fn soft_weights(&self, loads: &[f64], sharpness: f64, weights: &mut [f64]) {
        let used = self.used.iter().map(|&link| loads[link as usize]);
        let busiest = used.fold(f64::MIN_POSITIVE, f64::max);
        let mut sum = 0.0;
        for &link in &self.used {
            let link = link as usize;
            let soft = (sharpness * (loads[link] / busiest - 1.0)).exp();
            weights[link] = soft;
            sum += soft;
        }
        for &link in &self.used {
            weights[link as usize] *= self.scale[link as usize] / sum;
        }
    }

    fn weigh_initial(&self, weights: &[f64]) -> f64 {
        let used = self.used.iter().map(|&link| link as usize);
        used.map(|link| weights[link] * self.initial[link] / self.scale[link]).sum()
    }

    /// Send each commodity by its cheapest ways, evenly where several are; the sum of bytes times cost.
    fn add_cheapest(&mut self, weights: &[f64], loads: &mut [f64]) -> f64 {
        let mut value = 0.0;
        for commodity in &self.commodities.all {
            let ways = &commodity.ways;
            let cost = |link: u32| weights[link as usize];
            let least = ways.costs(Combine::Sum, cost, &mut self.costs);
            value += least * commodity.bytes;
            // PathDag that differ in the last digits only are equal: symmetry is what makes the start optimal.
            let tolerance = least * 1e-12;
            self.shares.clear();
            self.shares.resize(ways.switches.len(), 0.0);
            let entries = (0..ways.entries()).filter(|&at| self.costs[at] <= least + tolerance);
            let share = commodity.bytes / entries.clone().count() as f64;
            entries.for_each(|at| self.shares[at] = share);
            for at in 0..ways.switches.len() {
                let links = ways.links_of(at);
                if self.shares[at] == 0.0 || links.is_empty() {
                    continue;
                }
                let (costs, here) = (&self.costs, self.costs[at] + tolerance);
                let cheap =
                    links.iter().filter(|&&(link, head)| cost(link) + costs[head as usize] <= here);
                let share = self.shares[at] / cheap.clone().count() as f64;
                for &(link, head) in cheap {
                    loads[link as usize] += share * self.scale[link as usize];
                    self.shares[head as usize] += share;
                }
            }
        }
        value
    }

    /// How far to go from `loads` to `target`: least smoothed maximum, by bisection of its derivative.
    fn line_search(&self, loads: &[f64], target: &[f64], sharpness: f64) -> f64 {
        let slope = |share: f64| {
            let at = |link: usize| loads[link] + share * (target[link] - loads[link]);
            let used = || self.used.iter().map(|&link| link as usize);
            let busiest = used().map(at).fold(f64::MIN_POSITIVE, f64::max);
            used()
                .map(|link| {
                    let soft = (sharpness * (at(link) / busiest - 1.0)).exp();
                    soft * (target[link] - loads[link])
                })
                .sum::<f64>()
        };
        let (mut low, mut high) = (0.0, 1.0);
        for _ in 0..16 {
            let middle = 0.5 * (low + high);
            if slope(middle) > 0.0 {
                high = middle;
            } else {
                low = middle;
            }
        }
        0.5 * (low + high)
    }

    fn keep(&mut self, value: f64, weights: &[f64]) {
        if value > self.best.least_max {
            self.best.least_max = value;
            self.best.weights.copy_from_slice(weights);
        }
    }
}
