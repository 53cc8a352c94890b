//! The paths of all demands while they are being moved.
//!
//! Arrives: demands with their shortest paths; moves.
//! Leaves: paths between switches, loads as they are compared.
//! Must not know: when to stop.

use crate::load::greedy::scales;
use crate::load::shortest_paths::{Combine, PathDag};
use crate::load::splittable::Commodities;
use crate::load::{Demands, RouteOptions};
use crate::network::Network;
use crate::seeded::Random;

/// Exponents are cut off here: products of two such exponentials are still finite.
const MOST_EXPONENT: f64 = 300.0;

/// Pairs of one link that are tried in exchange for one pair.
const MOST_EXCHANGES: usize = 64;

/// Loads that differ by less are equal: sums of bytes below 2^53 are exact, quotients by capacity are not.
const SAME: f64 = 1e-12;

pub(super) struct Placement<'a> {
    demands: &'a Demands,
    commodities: &'a Commodities,
    scale: Vec<f64>,
    /// All links between switches have one scale.
    uniform: bool,
    counted: Vec<u32>,
    loads: Vec<f64>,
    /// The load to aim at, above zero: the unit of sharpness.
    aim: f64,
    /// Demands that cross links between switches and carry something, the heaviest first.
    order: Vec<u32>,
    starts: Vec<u64>,
    links: Vec<u32>,
    /// The demands on each link, while `lists` is set: rounds move too many to keep them.
    on_link: Vec<Vec<u32>>,
    lists: bool,
    /// exp(sharpness * (load / aim - 1)), cut off; only for the sharpness of the round.
    weights: Vec<f64>,
    costs: Vec<f64>,
    /// Links looked at so far.
    pub visits: f64,
}

/// Paths to come back to.
#[derive(Clone)]
pub(super) struct Snapshot {
    pub rank: (f64, usize),
    links: Vec<u32>,
}

impl<'a> Placement<'a> {
    pub fn new(
        network: &Network,
        demands: &'a Demands,
        commodities: &'a Commodities,
        aim: f64,
        options: &RouteOptions,
    ) -> Self {
        let scale = scales(network, options.by_capacity);
        let mut loads = vec![0.0; network.link_count()];
        for (link, load) in options.initial.iter().enumerate() {
            loads[link] = load * scale[link];
        }
        let mut starts = Vec::with_capacity(demands.len() + 1);
        starts.push(0);
        let mut total = 0;
        for &number in &commodities.of_demand {
            total += commodities.all.get(number as usize).map_or(0, |c| c.ways.length() as u64);
            starts.push(total);
        }
        let moves = |demand: u32| {
            let number = commodities.of_demand[demand as usize];
            number != u32::MAX && demands.bytes[demand as usize] > 0.0
        };
        let counted = network.between_switches().iter().enumerate();
        let counted: Vec<u32> = counted.filter(|(_, &is)| is).map(|(l, _)| l as u32).collect();
        let first = counted.first().map_or(1.0, |&link| scale[link as usize]);
        let mut placement = Self {
            demands,
            commodities,
            uniform: counted.iter().all(|&link| scale[link as usize] == first),
            scale,
            counted,
            order: demands.heaviest_first().into_iter().filter(|&d| moves(d)).collect(),
            starts,
            links: vec![0; total as usize],
            on_link: vec![Vec::new(); network.link_count()],
            lists: false,
            weights: vec![0.0; network.link_count()],
            loads,
            aim,
            costs: Vec::new(),
            visits: 0.0,
        };
        placement.place_idle();
        placement
    }

    /// The links between switches of a demand.
    pub fn path(&self, demand: u32) -> &[u32] {
        let range =
            self.starts[demand as usize] as usize..self.starts[demand as usize + 1] as usize;
        &self.links[range]
    }

    /// What a round costs at most.
    pub fn visits_per_round(&self) -> f64 {
        self.order.iter().map(|&demand| self.ways(demand).links.len() as f64).sum()
    }

    pub fn busiest(&self) -> f64 {
        self.counted.iter().map(|&link| self.loads[link as usize]).fold(0.0, f64::max)
    }

    /// The busiest load and how many links have it: less is better.
    pub fn rank(&self) -> (f64, usize) {
        let busiest = self.busiest();
        let near = busiest * (1.0 - SAME);
        (busiest, self.counted.iter().filter(|&&l| self.loads[l as usize] >= near).count())
    }

    /// Give every demand its first path, in the potential of `sharpness`, the heaviest first.
    pub fn place_all(&mut self, sharpness: f64) {
        self.weigh_all(sharpness);
        let mut path = Vec::new();
        for at in 0..self.order.len() {
            let demand = self.order[at];
            self.cheapest_by_weight(demand, sharpness, &mut path);
            self.put(demand, &path);
            self.weigh(&path, sharpness);
        }
    }

    /// Offer every demand a better path; how many moved.
    pub fn round(&mut self, sharpness: f64) -> usize {
        self.lists = false;
        self.weigh_all(sharpness);
        let (mut path, mut old, mut moved) = (Vec::new(), Vec::new(), 0);
        for at in 0..self.order.len() {
            let demand = self.order[at];
            self.take(demand, &mut old);
            self.weigh(&old, sharpness);
            let least = self.cheapest_by_weight(demand, sharpness, &mut path);
            let bytes = self.demands.bytes[demand as usize];
            let now: f64 =
                old.iter().map(|&l| self.marginal(l, self.growth(l, bytes, sharpness))).sum();
            let better = least < now * (1.0 - 1e-9);
            let chosen = if better { &path } else { &old };
            moved += usize::from(better);
            self.put(demand, chosen);
            let chosen = std::mem::take(if better { &mut path } else { &mut old });
            self.weigh(&chosen, sharpness);
        }
        moved
    }

    /// Move pairs off the busiest link until it is `good`, nothing helps, or the budget is spent.
    pub fn relieve(&mut self, good: f64, budget: f64) {
        self.make_lists();
        while self.visits < budget {
            let busiest = self.busiest();
            let near = busiest * (1.0 - SAME);
            let link = self.counted.iter().copied().find(|&l| self.loads[l as usize] >= near);
            let Some(link) = link else { return };
            self.visits += self.counted.len() as f64;
            if busiest <= good || !self.relieve_link(link, near, budget) {
                return;
            }
        }
    }

    /// Whether any demand can be moved at all.
    pub fn can_kick(&self) -> bool {
        self.order.iter().any(|&demand| {
            let ways = self.ways(demand);
            ways.links.len() > ways.length()
        })
    }

    /// Move pairs at random, half of them from the busiest link.
    pub fn kick(&mut self, pairs: usize, random: &mut Random) {
        self.make_lists();
        let near = self.busiest() * (1.0 - SAME);
        let busy = self.counted.iter().copied().find(|&link| self.loads[link as usize] >= near);
        let (mut old, mut path) = (Vec::new(), Vec::new());
        for turn in 0..pairs {
            let there = busy.map_or(&[][..], |link| &self.on_link[link as usize]);
            let from = if turn % 2 == 0 && !there.is_empty() { there } else { &self.order };
            let demand = from[random.below(from.len())];
            self.take(demand, &mut old);
            path.clear();
            let ways = self.ways(demand);
            let mut at = random.below(ways.entries());
            while !ways.links_of(at).is_empty() {
                let links = ways.links_of(at);
                let (link, head) = links[random.below(links.len())];
                path.push(link);
                at = head as usize;
            }
            self.put(demand, &path);
        }
    }

    /// Take pairs off the busiest link, and others that are in their way, and put all of them back one after the
    /// other.
    pub fn ruin(&mut self, pairs: usize, sharpness: f64, random: &mut Random) {
        self.make_lists();
        let near = self.busiest() * (1.0 - SAME);
        let busy: Vec<u32> =
            self.counted.iter().copied().filter(|&l| self.loads[l as usize] >= near).collect();
        let mut taken: Vec<u32> = Vec::with_capacity(pairs);
        let mut path = Vec::new();
        let mut from = busy.get(random.below(busy.len().max(1))).copied();
        // A link on which every pair is taken already gives none: the tries are bounded.
        for _ in 0..3 * pairs {
            if taken.len() == pairs {
                break;
            }
            let there = from.map_or(&self.order[..], |link| &self.on_link[link as usize]);
            let demand = match there.len() {
                0 => self.order[random.below(self.order.len())],
                count => there[random.below(count)],
            };
            // The next one comes from a link that this one could take.
            let ways = self.ways(demand);
            from = match random.below(3) {
                0 => None,
                1 => busy.get(random.below(busy.len().max(1))).copied(),
                _ => (!ways.links.is_empty()).then(|| ways.links[random.below(ways.links.len())].0),
            };
            if !taken.contains(&demand) {
                taken.push(demand);
            }
        }
        let mut old = Vec::new();
        for &demand in &taken {
            self.take(demand, &mut old);
            self.visits += old.len() as f64;
        }
        // Mostly the heaviest first; sometimes in another order, which is what finds other arrangements.
        if random.below(3) > 0 {
            let bytes = &self.demands.bytes;
            taken.sort_by(|&a, &b| bytes[b as usize].total_cmp(&bytes[a as usize]));
        }
        self.weigh_all(sharpness);
        self.visits += self.counted.len() as f64;
        for &demand in &taken {
            self.cheapest_by_weight(demand, sharpness, &mut path);
            self.put(demand, &path);
            self.weigh(&path, sharpness);
        }
    }

    pub fn snapshot(&self) -> Snapshot {
        Snapshot { rank: self.rank(), links: self.links.clone() }
    }

    /// Put every demand that moved since back to its path of the snapshot.
    pub fn restore(&mut self, snapshot: &Snapshot) {
        let mut old = Vec::new();
        for at in 0..self.order.len() {
            let demand = self.order[at];
            let range =
                self.starts[demand as usize] as usize..self.starts[demand as usize + 1] as usize;
            if self.links[range.clone()] != snapshot.links[range.clone()] {
                self.take(demand, &mut old);
                self.put(demand, &snapshot.links[range]);
            }
        }
        self.visits += self.links.len() as f64;
    }

    /// Demands without bytes take the first of their ways.
    fn place_idle(&mut self) {
        let mut path = Vec::new();
        for demand in 0..self.demands.len() as u32 {
            let number = self.commodities.of_demand[demand as usize];
            if number == u32::MAX || self.demands.bytes[demand as usize] > 0.0 {
                continue;
            }
            let ways = &self.commodities.all[number as usize].ways;
            ways.cheapest(Combine::Sum, |_| 0.0, &mut self.costs, &mut path);
            let start = self.starts[demand as usize] as usize;
            self.links[start..start + path.len()].copy_from_slice(&path);
        }
    }

    fn relieve_link(&mut self, link: u32, near: f64, budget: f64) -> bool {
        let mut here = self.on_link[link as usize].clone();
        here.sort_unstable();
        let (mut old, mut path) = (Vec::new(), Vec::new());
        for &demand in &here {
            self.take(demand, &mut old);
            let least = self.cheapest_by_load(demand, &mut path);
            if least < near {
                self.put(demand, &path);
                return true;
            }
            self.put(demand, &old);
        }
        for &demand in &here {
            if self.visits > budget {
                return false;
            }
            if self.exchange(demand, near) {
                return true;
            }
        }
        false
    }

    /// Put `demand` on its best other path, and a demand that is in the way there on another one.
    fn exchange(&mut self, demand: u32, near: f64) -> bool {
        let (mut old, mut path) = (Vec::new(), Vec::new());
        self.take(demand, &mut old);
        self.cheapest_by_load(demand, &mut path);
        let bytes = self.demands.bytes[demand as usize];
        let full = path.iter().copied().find(|&link| self.with(link, bytes) >= near);
        let mut candidates = full.map_or(Vec::new(), |link| self.on_link[link as usize].clone());
        candidates.sort_unstable();
        candidates.truncate(MOST_EXCHANGES);
        let (mut others, mut other_path) = (Vec::new(), Vec::new());
        for other in candidates {
            self.take(other, &mut others);
            if self.cheapest_by_load(demand, &mut path) < near {
                self.put(demand, &path);
                if self.cheapest_by_load(other, &mut other_path) < near {
                    self.put(other, &other_path);
                    return true;
                }
                self.take(demand, &mut path);
            }
            self.put(other, &others);
        }
        self.put(demand, &old);
        false
    }

    fn ways(&self, demand: u32) -> &'a PathDag {
        let number = self.commodities.of_demand[demand as usize];
        &self.commodities.all[number as usize].ways
    }

    fn with(&self, link: u32, bytes: f64) -> f64 {
        self.loads[link as usize] + bytes * self.scale[link as usize]
    }

    fn cheapest_by_load(&mut self, demand: u32, path: &mut Vec<u32>) -> f64 {
        let ways = self.ways(demand);
        self.visits += ways.links.len() as f64;
        let bytes = self.demands.bytes[demand as usize];
        let mut costs = std::mem::take(&mut self.costs);
        let least = ways.cheapest(Combine::Max, |link| self.with(link, bytes), &mut costs, path);
        self.costs = costs;
        least
    }

    fn cheapest_by_weight(&mut self, demand: u32, sharpness: f64, path: &mut Vec<u32>) -> f64 {
        let ways = self.ways(demand);
        self.visits += ways.links.len() as f64;
        let bytes = self.demands.bytes[demand as usize];
        let mut costs = std::mem::take(&mut self.costs);
        let least = if self.uniform {
            let growth = ways.links.first().map_or(0.0, |&(l, _)| self.growth(l, bytes, sharpness));
            ways.cheapest(Combine::Sum, |l| self.marginal(l, growth), &mut costs, path)
        } else {
            let cost = |l: u32| self.marginal(l, self.growth(l, bytes, sharpness));
            ways.cheapest(Combine::Sum, cost, &mut costs, path)
        };
        self.costs = costs;
        least
    }

    /// By what factor, less one, `bytes` more raise the weight of a link.
    fn growth(&self, link: u32, bytes: f64, sharpness: f64) -> f64 {
        (sharpness * bytes * self.scale[link as usize] / self.aim).min(MOST_EXPONENT).exp_m1()
    }

    fn marginal(&self, link: u32, growth: f64) -> f64 {
        self.weights[link as usize] * growth
    }

    fn weigh_all(&mut self, sharpness: f64) {
        let counted = std::mem::take(&mut self.counted);
        self.weigh(&counted, sharpness);
        self.counted = counted;
    }

    fn weigh(&mut self, links: &[u32], sharpness: f64) {
        for &link in links {
            let over = self.loads[link as usize] / self.aim - 1.0;
            self.weights[link as usize] = (sharpness * over).min(MOST_EXPONENT).exp();
        }
    }

    fn take(&mut self, demand: u32, path: &mut Vec<u32>) {
        path.clear();
        path.extend_from_slice(self.path(demand));
        let bytes = self.demands.bytes[demand as usize];
        for &link in path.iter() {
            let load = self.loads[link as usize] - bytes * self.scale[link as usize];
            self.loads[link as usize] = load.max(0.0);
            if !self.lists {
                continue;
            }
            let there = &mut self.on_link[link as usize];
            if let Some(position) = there.iter().position(|&other| other == demand) {
                there.swap_remove(position);
            }
        }
    }

    fn put(&mut self, demand: u32, path: &[u32]) {
        let bytes = self.demands.bytes[demand as usize];
        let start = self.starts[demand as usize] as usize;
        self.links[start..start + path.len()].copy_from_slice(path);
        for &link in path {
            self.loads[link as usize] += bytes * self.scale[link as usize];
            if self.lists {
                self.on_link[link as usize].push(demand);
            }
        }
    }

    fn make_lists(&mut self) {
        if self.lists {
            return;
        }
        self.on_link.iter_mut().for_each(Vec::clear);
        for at in 0..self.order.len() {
            let demand = self.order[at];
            let range =
                self.starts[demand as usize] as usize..self.starts[demand as usize + 1] as usize;
            for &link in &self.links[range] {
                self.on_link[link as usize].push(demand);
            }
        }
        self.lists = true;
        self.visits += self.links.len() as f64;
    }
}
