//! Joint routing against the optimum, which a search of all combinations of shortest paths proves.

#![allow(clippy::unwrap_used, reason = "a panic is how a test fails")]

mod common;

use common::shortest_paths;
use waystage_flowsim::generate::{dragonfly, torus, Capacities};
use waystage_flowsim::load::{route, splittable, Demands, RouteOptions, Router};
use waystage_flowsim::seeded::Random;
use waystage_flowsim::Network;

const CAPACITIES: Capacities = Capacities { host: 1.0, switch: 1.0 };

/// Depth-first over the paths of all pairs, the heaviest first; what reaches `best` is not gone on with.
struct Exact {
    paths: Vec<(f64, Vec<Vec<u32>>)>,
    loads: Vec<f64>,
    best: f64,
    least: f64,
    steps: u64,
}

impl Exact {
    fn search(&mut self, at: usize, most: f64) {
        self.steps += 1;
        if most >= self.best * (1.0 - 1e-9) || self.steps > 60_000 || self.best <= self.least {
            return;
        }
        if at == self.paths.len() {
            self.best = most;
            return;
        }
        let (bytes, paths) = self.paths[at].clone();
        let mut order: Vec<(f64, usize)> = paths
            .iter()
            .enumerate()
            .map(|(n, path)| {
                (path.iter().map(|&l| self.loads[l as usize] + bytes).fold(most, f64::max), n)
            })
            .collect();
        order.sort_by(|a, b| a.0.total_cmp(&b.0));
        for (reached, number) in order {
            paths[number].iter().for_each(|&l| self.loads[l as usize] += bytes);
            self.search(at + 1, reached);
            paths[number].iter().for_each(|&l| self.loads[l as usize] -= bytes);
        }
    }
}

/// The least busiest link found beginning with `reached`, and whether that is proven.
fn optimum(network: &Network, demands: &Demands, reached: f64, least: f64) -> (f64, bool) {
    let mut order: Vec<usize> = (0..demands.len()).collect();
    order.sort_by(|&a, &b| demands.bytes()[b].total_cmp(&demands.bytes()[a]));
    let paths = order
        .into_iter()
        .map(|at| {
            let mut paths = shortest_paths(network, demands.src()[at], demands.dst()[at]);
            let between = network.between_switches();
            paths.iter_mut().for_each(|path| path.retain(|&link| between[link as usize]));
            paths.dedup();
            (demands.bytes()[at], paths)
        })
        .collect();
    let loads = vec![0.0; network.link_count()];
    let mut exact = Exact { paths, loads, best: reached, least: least * (1.0 + 1e-9), steps: 0 };
    exact.search(0, 0.0);
    (exact.best, exact.steps <= 60_000)
}

fn some(network: &Network, count: usize, seed: u64) -> Demands {
    let mut random = Random::new(seed);
    let hosts = network.host_count() as usize;
    let src: Vec<u32> = (0..count).map(|_| random.below(hosts) as u32).collect();
    let dst: Vec<u32> = (0..count).map(|_| random.below(hosts) as u32).collect();
    let bytes: Vec<f64> = (0..count).map(|_| (1 + random.below(1000)) as f64).collect();
    Demands::between_hosts(network, &src, &dst, &bytes).unwrap()
}

#[test]
fn joint_routing_reaches_the_optimum_of_small_networks() {
    let networks = [
        ("torus 4x4", torus(&[4, 4], 1, CAPACITIES).unwrap(), 22),
        ("torus 3x3x3", torus(&[3, 3, 3], 1, CAPACITIES).unwrap(), 40),
        ("torus 5x5", torus(&[5, 5], 1, CAPACITIES).unwrap(), 36),
        ("dragonfly", dragonfly(4, 1, 1, CAPACITIES).unwrap(), 40),
    ];
    let mut proofs = 0;
    for (name, network, count) in &networks {
        for seed in 0..3 {
            let demands = some(network, *count, seed);
            let asked = RouteOptions { seed, ..RouteOptions::default() };
            let routes = route(network, &demands, Router::Joint, &asked).unwrap();
            let reached = network.max_load(&routes.loads);
            let least = splittable::bound(network, &demands, &asked).unwrap().least_max;
            let (best, proven) = optimum(network, &demands, reached, least);
            proofs += u32::from(proven);
            assert!(reached <= best, "{name}, seed {seed}: {reached} where {best} is possible");
        }
    }
    assert!(proofs >= 9, "only {proofs} of 12 optima are proven");
}

/// Where the optimum is out of reach of a proof, the gap to the bound says what is left. Without the removals of
/// several pairs at a time it is 1.220 and 1.154.
#[test]
fn joint_routing_comes_near_the_bound_of_larger_tori() {
    let cases = [(&[4usize, 4, 4][..], 400, 2, 1.03), (&[6, 6], 150, 2, 1.10)];
    for (dims, count, seed, most) in cases {
        let network = torus(dims, 1, CAPACITIES).unwrap();
        let demands = some(&network, count, seed);
        let asked = RouteOptions { seed, ..RouteOptions::default() };
        let routes = route(&network, &demands, Router::Joint, &asked).unwrap();
        let least = splittable::bound(&network, &demands, &asked).unwrap().least_max;
        let gap = network.max_load(&routes.loads) / least;
        assert!(gap <= most, "{dims:?}: {gap}");
    }
}
