//! Load mode against a naive model, on random networks and demands.

#![allow(clippy::unwrap_used, reason = "a panic is how a test fails")]

mod common;

use common::{networks, shortest_paths, Plain};
use proptest::prelude::*;
use waystage_flowsim::generate::{dragonfly, fat_tree, torus, xgft, Capacities};
use waystage_flowsim::load::{self, splittable, Demands, RouteOptions, Router};
use waystage_flowsim::seeded::Random;
use waystage_flowsim::{FlowError, Network};

/// Demands with a few weights only, so that there are ties.
fn some_demands(network: &Network, seed: u64) -> Demands {
    let mut random = Random::new(seed);
    let mut pick = |below: u32| random.below(below as usize) as u32;
    let entries: Vec<(u32, u32, f64)> = (0..40)
        .map(|_| {
            let hosts = network.host_count();
            (pick(hosts), pick(hosts), [0.0, 5.0, 7.0, 64.0][pick(4) as usize])
        })
        .collect();
    let src: Vec<u32> = entries.iter().map(|entry| entry.0).collect();
    let dst: Vec<u32> = entries.iter().map(|entry| entry.1).collect();
    let bytes: Vec<f64> = entries.iter().map(|entry| entry.2).collect();
    Demands::between_hosts(network, &src, &dst, &bytes).unwrap()
}

fn options() -> RouteOptions {
    RouteOptions { keep_paths: true, effort: 0.05, ..RouteOptions::default() }
}

fn loads_of(network: &Network, demands: &Demands, paths: &[Vec<u32>]) -> Vec<f64> {
    let mut loads = vec![0.0; network.link_count()];
    for (path, bytes) in paths.iter().zip(demands.bytes()) {
        path.iter().for_each(|&link| loads[link as usize] += bytes);
    }
    loads
}

/// PFSim's D-mod-K: at each node keep the paths over one of the sorted names.
fn naive_d_mod_k(network: &Network, src: u32, dst: u32) -> Vec<u32> {
    let mut paths = shortest_paths(network, src, dst);
    for hop in 0..paths[0].len() {
        let head = |path: &[u32]| network.links_to()[path[hop] as usize];
        let mut ways: Vec<(String, u32)> = paths
            .iter()
            .map(|path| (network.names()[head(path) as usize].clone(), path[hop]))
            .collect();
        ways.sort();
        ways.dedup();
        let link = ways[dst as usize % ways.len()].1;
        paths.retain(|path| path[hop] == link);
    }
    paths.remove(0)
}

/// Is cost made of the loads of links between switches only, as PFSim has it?
fn naive_greedy(network: &Network, demands: &Demands, most: bool) -> Vec<f64> {
    let mut order: Vec<usize> = (0..demands.len()).collect();
    order.sort_by(|&a, &b| demands.bytes()[b].total_cmp(&demands.bytes()[a]));
    let mut loads = vec![0.0; network.link_count()];
    for demand in order {
        let paths = shortest_paths(network, demands.src()[demand], demands.dst()[demand]);
        let cost = |path: &Vec<u32>| {
            let between = path.iter().filter(|&&link| network.between_switches()[link as usize]);
            let counted = between.map(|&link| loads[link as usize]);
            if most {
                counted.fold(0.0, f64::max)
            } else {
                counted.sum()
            }
        };
        let least = paths.iter().map(cost).fold(f64::INFINITY, f64::min);
        let path = paths.iter().find(|path| cost(path) <= least).unwrap();
        path.iter().for_each(|&link| loads[link as usize] += demands.bytes()[demand]);
    }
    loads
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(80))]

    #[test]
    fn every_path_is_a_shortest_one_and_loads_are_what_paths_carry(
        plain in networks(), seed in any::<u64>()
    ) {
        let network = plain.build();
        let demands = some_demands(&network, seed);
        for (name, router) in Router::ALL.into_iter().filter(|(_, router)| router.is_minimal()) {
            let options = RouteOptions { seed, ..options() };
            let routes = load::route(&network, &demands, router, &options).unwrap();
            let paths = routes.paths.clone().unwrap();
            prop_assert_eq!(paths.len(), demands.len());
            for demand in 0..demands.len() {
                let shortest =
                    shortest_paths(&network, demands.src()[demand], demands.dst()[demand]);
                prop_assert!(shortest.contains(&paths.of(demand).to_vec()), "{}", name);
            }
            let listed: Vec<Vec<u32>> =
                (0..paths.len()).map(|demand| paths.of(demand).to_vec()).collect();
            prop_assert_eq!(&loads_of(&network, &demands, &listed), &routes.loads, "{}", name);
            let again = load::route(&network, &demands, router, &options).unwrap();
            prop_assert_eq!(again, routes, "{} is not the same twice", name);
        }
    }

    #[test]
    fn d_mod_k_chooses_as_pfsim_does(plain in networks(), seed in any::<u64>()) {
        let network = plain.build();
        let demands = some_demands(&network, seed);
        let routes = load::route(&network, &demands, Router::DModK, &options()).unwrap();
        let paths = routes.paths.unwrap();
        for demand in 0..demands.len() {
            let expected = naive_d_mod_k(&network, demands.src()[demand], demands.dst()[demand]);
            prop_assert_eq!(paths.of(demand), &expected[..]);
        }
    }

    #[test]
    fn greedy_routing_is_that_over_listed_paths(plain in networks(), seed in any::<u64>()) {
        // With one cable a host: which of two equal host cables is taken does not matter to the loads that count.
        let mut plain = plain;
        let mut seen = vec![false; plain.hosts];
        let hosts = plain.hosts as u32;
        let keep: Vec<bool> = plain
            .cables
            .iter()
            .map(|&(a, _)| a >= hosts || !std::mem::replace(&mut seen[a as usize], true))
            .collect();
        let mut at = 0..;
        plain.cables.retain(|_| keep[at.next().unwrap()]);
        plain.capacity.truncate(plain.cables.len());
        let network = plain.build();
        let demands = some_demands(&network, seed);
        for (router, most) in [(Router::GreedyMax, true), (Router::GreedySum, false)] {
            let routes = load::route(&network, &demands, router, &options()).unwrap();
            prop_assert_eq!(routes.loads, naive_greedy(&network, &demands, most));
        }
    }

    #[test]
    fn no_routing_beats_the_bound_and_its_weights_prove_it(
        plain in networks(), seed in any::<u64>(), by_capacity in any::<bool>(), busy in any::<bool>()
    ) {
        let network = plain.build();
        let demands = some_demands(&network, seed);
        let initial: Vec<f64> = if busy {
            (0..network.link_count()).map(|link| (link * 37 % 11) as f64).collect()
        } else {
            Vec::new()
        };
        let options = RouteOptions { seed, by_capacity, initial: initial.clone(), ..options() };
        let bound = splittable::bound(&network, &demands, &options).unwrap();
        prop_assert!(bound.least_max <= bound.split_max * (1.0 + 1e-9));
        let scale = |link: usize| if by_capacity { 1.0 / network.capacity()[link] } else { 1.0 };
        let before = |link: usize| initial.get(link).copied().unwrap_or(0.0);
        for (name, router) in Router::ALL.into_iter().filter(|(_, router)| router.is_minimal()) {
            let routes = load::route(&network, &demands, router, &options).unwrap();
            let seen: Vec<f64> = (0..network.link_count())
                .map(|link| (routes.loads[link] + before(link)) * scale(link))
                .collect();
            let reached = network.max_load(&seen);
            prop_assert!(reached >= bound.least_max * (1.0 - 1e-9), "{} {}", name, reached);
            if router == Router::Joint {
                let greedy = load::route(&network, &demands, Router::GreedyMax, &options).unwrap();
                let greedy: Vec<f64> = (0..network.link_count())
                    .map(|link| (greedy.loads[link] + before(link)) * scale(link))
                    .collect();
                prop_assert!(reached <= network.max_load(&greedy) * (1.0 + 2e-6));
            }
        }
        if bound.least_max > 0.0 {
            let weights = &bound.weights;
            let sum: f64 = (0..weights.len()).map(|link| weights[link] / scale(link)).sum();
            prop_assert!((sum - 1.0).abs() < 1e-9, "the weights add up to {}", sum);
            let mut proved: f64 = (0..weights.len()).map(|link| weights[link] * before(link)).sum();
            for demand in 0..demands.len() {
                let paths = shortest_paths(&network, demands.src()[demand], demands.dst()[demand]);
                let weight = |path: &Vec<u32>| path.iter().map(|&link| weights[link as usize]).sum();
                let least = paths.iter().map(weight).fold(f64::INFINITY, f64::min);
                proved += least * demands.bytes()[demand];
            }
            prop_assert!(proved >= bound.least_max * (1.0 - 1e-9), "{} {:?}", proved, bound);
        }
    }
}

/// Two switches joined by `ways` cables, `hosts` hosts at each.
fn dumbbell(ways: usize, hosts: usize) -> Network {
    let mut cables: Vec<(u32, u32)> =
        (0..2 * hosts).map(|h| (h as u32, (2 * hosts + h / hosts) as u32)).collect();
    cables.extend(vec![(2 * hosts as u32, 2 * hosts as u32 + 1); ways]);
    let capacity = vec![1.0; cables.len()];
    Plain { hosts: 2 * hosts, switches: 2, cables, capacity }.build()
}

#[test]
fn destinations_below_interchangeable_switches_are_reached_by_shortest_paths() {
    // Twins: all edge switches of a pod. One search serves them all, and every path must still be right.
    let capacities = Capacities { host: 1.0, switch: 1.0 };
    for network in [
        fat_tree(6, capacities).unwrap(),
        xgft(&[3, 2, 2], &[2, 3, 2], capacities).unwrap(),
        dragonfly(2, 1, 2, capacities).unwrap(),
        torus(&[2, 2], 3, capacities).unwrap(),
    ] {
        let hosts = network.host_count();
        let pairs = (0..hosts).flat_map(|src| (0..hosts).map(move |dst| (src, dst)));
        let (src, dst): (Vec<u32>, Vec<u32>) = pairs.unzip();
        let bytes = vec![1.0; src.len()];
        let demands = Demands::between_processes(&network, &src, &dst, &bytes).unwrap();
        for router in [Router::DModK, Router::Random, Router::EcmpHash] {
            let routes = load::route(&network, &demands, router, &options()).unwrap();
            let paths = routes.paths.unwrap();
            for demand in (0..demands.len()).step_by(7) {
                let (src, dst) = (demands.src()[demand], demands.dst()[demand]);
                assert!(shortest_paths(&network, src, dst).contains(&paths.of(demand).to_vec()));
            }
        }
    }
}

#[test]
fn joint_routing_finds_a_partition_that_greedy_misses() {
    // 8 7 6 5 4 onto two cables: greedy gives 17 and 13, the best is 15 and 15.
    let network = dumbbell(2, 5);
    let demands = Demands::between_hosts(
        &network,
        &[0, 1, 2, 3, 4],
        &[5, 6, 7, 8, 9],
        &[8.0, 7.0, 6.0, 5.0, 4.0],
    )
    .unwrap();
    let max = |router| {
        let routes = load::route(&network, &demands, router, &RouteOptions::default()).unwrap();
        network.max_load(&routes.loads)
    };
    assert_eq!(max(Router::GreedyMax), 17.0);
    assert_eq!(max(Router::Joint), 15.0);
}

#[test]
fn greedy_and_joint_routing_avoid_links_that_are_loaded_already() {
    let network = dumbbell(2, 1);
    let between: Vec<usize> = (0..network.link_count())
        .filter(|&l| network.between_switches()[l] && network.links_from()[l] == 2)
        .collect();
    let demands = Demands::between_hosts(&network, &[0], &[1], &[10.0]).unwrap();
    for router in [Router::GreedySum, Router::GreedyMax, Router::Joint] {
        let mut initial = vec![0.0; network.link_count()];
        initial[between[0]] = 1.0;
        let options = RouteOptions { initial, ..RouteOptions::default() };
        let routes = load::route(&network, &demands, router, &options).unwrap();
        assert_eq!([routes.loads[between[0]], routes.loads[between[1]]], [0.0, 10.0]);
    }
}

#[test]
fn flows_of_one_pair_can_take_different_paths() {
    let network = dumbbell(4, 1);
    let demands = Demands::between_processes(&network, &[0; 8], &[1; 8], &[1.0; 8]).unwrap();
    let options = RouteOptions { per_flow: true, ..RouteOptions::default() };
    let routes = load::route(&network, &demands, Router::Joint, &options).unwrap();
    assert_eq!(network.max_load(&routes.loads), 2.0);
    let hashed = load::route(&network, &demands, Router::EcmpHash, &options).unwrap();
    assert!(network.max_load(&hashed.loads) < 8.0);
}

#[test]
fn random_paths_are_all_as_probable() {
    // One way on leads to three paths, the other to one: a choice by hops would give the one path half of all.
    let cables = vec![
        (0, 2),
        (2, 3),
        (2, 4),
        (3, 5),
        (3, 6),
        (3, 7),
        (4, 7),
        (5, 8),
        (6, 8),
        (7, 8),
        (1, 8),
    ];
    let capacity = vec![1.0; cables.len()];
    let network = Plain { hosts: 2, switches: 7, cables, capacity }.build();
    let demands = Demands::between_hosts(&network, &[0], &[1], &[1.0]).unwrap();
    let alone = (0..network.link_count())
        .find(|&l| network.links_from()[l] == 2 && network.links_to()[l] == 4)
        .unwrap();
    let draws = 4000;
    let taken: f64 = (0..draws)
        .map(|seed| {
            let options = RouteOptions { seed, ..RouteOptions::default() };
            load::route(&network, &demands, Router::Random, &options).unwrap().loads[alone]
        })
        .sum();
    let share = taken / draws as f64;
    // Five standard deviations of 4,000 draws at 1/4.
    assert!((share - 0.25).abs() < 0.035, "the single path has {share} of the draws");
}

#[test]
fn hosts_in_two_components_are_named() {
    let cables = vec![(0, 2), (1, 3)];
    let network = Plain { hosts: 2, switches: 2, cables, capacity: vec![1.0; 2] }.build();
    let demands = Demands::between_hosts(&network, &[0], &[1], &[1.0]).unwrap();
    for (name, router) in Router::ALL.into_iter().filter(|(_, router)| router.is_minimal()) {
        let error = load::route(&network, &demands, router, &RouteOptions::default()).unwrap_err();
        assert_eq!(error, FlowError::Unreachable("h0".into(), "h1".into()), "{name}");
    }
}

#[test]
fn numbers_that_cannot_be_are_refused() {
    let network = dumbbell(1, 1);
    for bytes in [f64::NAN, f64::INFINITY, -1.0] {
        let error = Demands::between_hosts(&network, &[0], &[1], &[bytes]).unwrap_err();
        assert!(matches!(error, FlowError::PairBytes(0, _)));
    }
    let error = Demands::between_hosts(&network, &[0], &[2], &[1.0]).unwrap_err();
    assert_eq!(error, FlowError::NoHost(0, 2));
    for capacity in [f64::NAN, 0.0, -1.0, f64::INFINITY, 1e19] {
        let names = vec!["h".into(), "s".into()];
        let error = Network::new(1, 1, vec![0], vec![1], vec![capacity], names).unwrap_err();
        assert!(error.to_string().contains("link h-s has the capacity"), "{error}");
    }
    let initial = vec![f64::NAN; network.link_count()];
    let demands = Demands::between_hosts(&network, &[0], &[1], &[1.0]).unwrap();
    let options = RouteOptions { initial, ..RouteOptions::default() };
    let error = load::route(&network, &demands, Router::Joint, &options).unwrap_err();
    assert!(matches!(error, FlowError::Load(0, _)));
}

#[test]
fn paths_that_are_none_are_refused() {
    let network = dumbbell(1, 1);
    let mut loads = vec![0.0; network.link_count()];
    let mut add = |offsets: &[u64], links: &[u32]| {
        let bytes = vec![1.0; offsets.len() - 1];
        load::paths::add_paths(&network, &mut loads, offsets, links, &bytes)
    };
    assert!(add(&[0, 3], &[0, 4, 3]).is_ok());
    assert!(matches!(add(&[0, 2], &[0, 3]), Err(FlowError::Path(0, _))), "links that do not meet");
    assert!(matches!(add(&[0, 1], &[99]), Err(FlowError::Path(0, _))), "no such link");
    assert!(matches!(add(&[0, 2, 1], &[0, 4]), Err(FlowError::Path(2, _))), "offsets fall");
    assert!(matches!(add(&[0, 9], &[0]), Err(FlowError::Path(1, _))), "offsets too far");
    assert_eq!(loads.iter().sum::<f64>(), 3.0, "what was refused is not added");
}
