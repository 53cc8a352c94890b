//! Routing for dragonflies and tori, against cases worked by hand, and bounds that hold for all routing.

#![allow(clippy::unwrap_used, reason = "a panic is how a test fails")]

mod common;

use common::{networks, shortest_paths};
use proptest::prelude::*;
use waystage_flowsim::generate::{dragonfly, fat_tree, torus, Capacities};
use waystage_flowsim::load::{any_path, route, splittable, Demands, RouteOptions, Router};
use waystage_flowsim::seeded::Random;
use waystage_flowsim::Network;

const CAPACITIES: Capacities = Capacities { host: 1.0, switch: 1.0 };

fn options(seed: u64) -> RouteOptions {
    RouteOptions { seed, keep_paths: true, ..RouteOptions::default() }
}

fn all_pairs(from: std::ops::Range<u32>, to: std::ops::Range<u32>) -> (Vec<u32>, Vec<u32>) {
    from.flat_map(|a| to.clone().map(move |b| (a, b))).filter(|(a, b)| a != b).unzip()
}

fn demands(network: &Network, (src, dst): (Vec<u32>, Vec<u32>)) -> Demands {
    let bytes = vec![1.0; src.len()];
    Demands::between_hosts(network, &src, &dst, &bytes).unwrap()
}

fn busiest(network: &Network, demands: &Demands, router: Router, seed: u64) -> f64 {
    network.max_load(&route(network, demands, router, &options(seed)).unwrap().loads)
}

/// Five groups of four switches with four hosts each; one cable between each two groups.
///
/// The 4 hosts of group 0 whose switch has the cable to group 1 send to all 16 there: 64 bytes over that cable by
/// shortest paths, which are the only ones; four cables leave the switch, so that no routing has less than 16 on one
/// of them.
#[test]
fn adversarial_traffic_of_two_groups_needs_detours() {
    let network = dragonfly(4, 1, 4, CAPACITIES).unwrap();
    let demands = demands(&network, all_pairs(0..4, 16..32));
    for router in [Router::DModK, Router::Joint, Router::AdaptiveMinimal, Router::GreedyMax] {
        assert_eq!(busiest(&network, &demands, router, 1), 64.0, "{}", router.name());
    }
    let global = |link: usize| {
        let group = |node: u32| (node - 80) / 4;
        let ends = (network.links_from()[link], network.links_to()[link]);
        network.between_switches()[link] && group(ends.0) != group(ends.1) && group(ends.0) == 0
    };
    let routes = route(&network, &demands, Router::Valiant, &options(1)).unwrap();
    let leaving: Vec<f64> =
        (0..network.link_count()).filter(|&l| global(l)).map(|l| routes.loads[l]).collect();
    // A fifth of the intermediates is in each group: 2/5 keep the cable to group 1, 1/5 take each other one.
    assert_eq!(leaving.len(), 4);
    assert!(leaving.iter().all(|&load| load > 0.0), "{leaving:?}");
    assert!(network.max_load(&routes.loads) <= 40.0, "{leaving:?}");
    let bound = any_path::bound(&network, &demands, &options(1)).unwrap();
    assert!(bound <= 16.0 + 1e-9 && bound > 15.0, "{bound}");
    let ugal = [Router::UgalL, Router::UgalG].map(|r| busiest(&network, &demands, r, 1));
    assert!(ugal.iter().all(|&most| (16.0..=32.0).contains(&most)), "{ugal:?}");
    let short = splittable::bound(&network, &demands, &options(1)).unwrap();
    assert!((short.least_max - 64.0).abs() < 1e-6, "{}", short.least_max);
}

/// Every host of a ring of eight sends to the one three further: shortest ways all go one way round.
#[test]
fn tornado_traffic_on_a_ring_uses_the_other_way_round() {
    let network = torus(&[8], 1, CAPACITIES).unwrap();
    let pairs = ((0..8).collect(), (0..8).map(|host: u32| (host + 3) % 8).collect());
    let demands = demands(&network, pairs);
    assert_eq!(busiest(&network, &demands, Router::Joint, 1), 3.0);
    // Volume: 3 hops clockwise with share x, 5 the other way with 1 - x: both directions carry 15/8.
    let bound = any_path::bound(&network, &demands, &options(1)).unwrap();
    assert!(bound <= 15.0 / 8.0 + 1e-9 && bound > 1.8, "{bound}");
}

#[test]
fn ugal_stays_on_shortest_paths_where_nothing_is_loaded() {
    let network = dragonfly(4, 1, 2, CAPACITIES).unwrap();
    for dst in [9u32, 22, 39] {
        let demands = demands(&network, (vec![0], vec![dst]));
        let shortest = shortest_paths(&network, 0, dst);
        for router in [Router::UgalL, Router::UgalG, Router::AdaptiveMinimal] {
            let routes = route(&network, &demands, router, &options(3)).unwrap();
            let path = routes.paths.unwrap().of(0).to_vec();
            assert!(shortest.contains(&path), "{}", router.name());
        }
    }
}

#[test]
fn ugal_avoids_links_that_are_loaded_already() {
    let network = dragonfly(4, 1, 2, CAPACITIES).unwrap();
    let demands = demands(&network, (vec![0], vec![9]));
    let free = route(&network, &demands, Router::UgalG, &options(1)).unwrap();
    let mut initial = vec![0.0; network.link_count()];
    let between_switches = network.between_switches();
    for (link, old) in initial.iter_mut().enumerate() {
        if free.loads[link] > 0.0 && between_switches[link] {
            *old = 1000.0;
        }
    }
    let asked = RouteOptions { initial: initial.clone(), candidates: 8, ..options(1) };
    let clear = route(&network, &demands, Router::UgalG, &asked).unwrap();
    let met =
        |loads: &[f64]| loads.iter().zip(&initial).any(|(&load, &old)| load > 0.0 && old > 0.0);
    assert!(met(&free.loads) && !met(&clear.loads));
}

#[test]
fn adaptive_routing_takes_the_emptier_of_two_ways() {
    // Two pairs of the same leaves of a fat tree, by two spines.
    let network = fat_tree(4, CAPACITIES).unwrap();
    let demands = demands(&network, (vec![0, 1], vec![4, 5]));
    assert_eq!(busiest(&network, &demands, Router::AdaptiveMinimal, 1), 1.0);
}

#[test]
fn algorithms_of_one_seed_draw_different_numbers() {
    let tree = fat_tree(4, CAPACITIES).unwrap();
    let demands = demands(&tree, all_pairs(0..16, 0..16));
    for seed in 0..20 {
        let loads = [Router::Random, Router::EcmpHash]
            .map(|r| route(&tree, &demands, r, &options(seed)).unwrap().loads);
        assert_ne!(loads[0], loads[1], "seed {seed}: one sample shown twice");
    }
    // Another seed is another sample, for each of them.
    for router in [Router::Random, Router::EcmpHash, Router::Valiant] {
        let one = route(&tree, &demands, router, &options(0)).unwrap().loads;
        assert_ne!(one, route(&tree, &demands, router, &options(1)).unwrap().loads);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(60))]

    #[test]
    fn every_path_joins_its_hosts_meets_no_node_twice_and_no_routing_beats_the_bound(
        plain in networks(), seed in any::<u64>()
    ) {
        let network = plain.build();
        let mut random = Random::new(seed);
        let hosts = network.host_count() as usize;
        let mut pick = || random.below(hosts) as u32;
        let pairs: (Vec<u32>, Vec<u32>) = (0..20).map(|_| (pick(), pick())).unzip();
        let bytes: Vec<f64> = (0..20).map(|_| random.below(50) as f64).collect();
        let demands = Demands::between_hosts(&network, &pairs.0, &pairs.1, &bytes).unwrap();
        for by_capacity in [false, true] {
            let asked = RouteOptions { by_capacity, effort: 0.05, ..options(seed) };
            let least = any_path::bound(&network, &demands, &asked).unwrap();
            let short = splittable::bound(&network, &demands, &asked).unwrap();
            prop_assert!(least <= short.split_max * (1.0 + 1e-9), "{least} {}", short.split_max);
            for (name, router) in Router::ALL {
                let routes = route(&network, &demands, router, &asked).unwrap();
                prop_assert_eq!(&route(&network, &demands, router, &asked).unwrap(), &routes);
                let scale = |link: usize| if by_capacity { 1.0 / network.capacity()[link] } else { 1.0 };
                let scaled: Vec<f64> =
                    routes.loads.iter().enumerate().map(|(link, load)| load * scale(link)).collect();
                let most = network.max_load(&scaled);
                prop_assert!(most >= least * (1.0 - 1e-9), "{name}: {most} below {least}");
                let paths = routes.paths.unwrap();
                let mut again = vec![0.0; network.link_count()];
                for at in 0..demands.len() {
                    let path = paths.of(at);
                    let mut nodes = vec![demands.src()[at]];
                    for &link in path {
                        prop_assert_eq!(network.links_from()[link as usize], nodes[nodes.len() - 1]);
                        nodes.push(network.links_to()[link as usize]);
                        again[link as usize] += demands.bytes()[at];
                    }
                    prop_assert_eq!(nodes[nodes.len() - 1], demands.dst()[at]);
                    let inner = &nodes[1..nodes.len() - 1];
                    prop_assert!(inner.iter().all(|&node| node >= network.host_count()), "{name}");
                    let mut sorted = nodes.clone();
                    sorted.sort_unstable();
                    sorted.dedup();
                    prop_assert_eq!(sorted.len(), nodes.len(), "{} visits a node twice", name);
                }
                for (load, carried) in routes.loads.iter().zip(&again) {
                    prop_assert!((load - carried).abs() < 1e-6);
                }
            }
        }
    }
}
