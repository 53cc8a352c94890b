//! Shapes of generated interconnects against what their papers say of them.

#![allow(clippy::unwrap_used, reason = "a panic is how a test fails")]

mod common;

use common::shortest_paths;
use waystage_flowsim::generate::{dragonfly, fat_tree, torus, xgft, Capacities};
use waystage_flowsim::{FlowError, Network};

const CAPACITIES: Capacities = Capacities { host: 1.0, switch: 2.0 };

/// How many links to switches leave each switch.
fn switch_degrees(network: &Network) -> Vec<usize> {
    let mut degrees = vec![0; network.names().len()];
    for (link, &from) in network.links_from().iter().enumerate() {
        degrees[from as usize] += usize::from(network.between_switches()[link]);
    }
    degrees.split_off(network.host_count() as usize)
}

fn hops(network: &Network, src: u32, dst: u32) -> u16 {
    let hops = network.hops_to(network.group(dst));
    network.switch_hops(&hops, src).unwrap()
}

#[test]
fn a_fat_tree_of_8_port_switches_is_that_of_the_paper() {
    let network = fat_tree(8, CAPACITIES).unwrap();
    assert_eq!((network.host_count(), network.switch_count()), (128, 80));
    assert_eq!(network.link_count(), 2 * 3 * 128);
    assert_eq!(shortest_paths(&network, 0, 127).len(), 16, "between pods, one for each core");
    assert_eq!(shortest_paths(&network, 0, 15).len(), 4, "within a pod");
    assert_eq!(shortest_paths(&network, 0, 3).len(), 1, "below one switch");
    let capacity = |link: usize| network.capacity()[link];
    assert!((0..network.link_count())
        .all(|link| capacity(link) == if network.between_switches()[link] { 2.0 } else { 1.0 }));
}

#[test]
fn an_xgft_has_the_nodes_and_parents_of_its_definition() {
    // XGFT(3; 3,2,2; 2,2,3): hosts 12; level 1: 4 * 2, level 2: 2 * 4, level 3: 12.
    let network = xgft(&[3, 2, 2], &[2, 2, 3], CAPACITIES).unwrap();
    assert_eq!((network.host_count(), network.switch_count()), (12, 8 + 8 + 12));
    let degrees = switch_degrees(&network);
    assert!(degrees[..8].iter().all(|&degree| degree == 2));
    assert!(degrees[8..16].iter().all(|&degree| degree == 2 + 3));
    assert!(degrees[16..].iter().all(|&degree| degree == 2));
    assert_eq!(shortest_paths(&network, 0, 11).len(), 2 * 2 * 3);
}

#[test]
fn any_two_groups_of_a_dragonfly_share_one_cable_and_no_way_is_longer_than_three() {
    let network = dragonfly(4, 2, 2, CAPACITIES).unwrap();
    assert_eq!((network.host_count(), network.switch_count()), (72, 36));
    assert!(switch_degrees(&network).iter().all(|&degree| degree == 3 + 2));
    let longest = (0..72).map(|host| hops(&network, 0, host)).max();
    assert_eq!(longest, Some(3));
    let mut pairs: Vec<(u32, u32)> = (0..network.link_count())
        .filter(|&link| network.between_switches()[link])
        .map(|link| ((network.links_from()[link] - 72) / 4, (network.links_to()[link] - 72) / 4))
        .filter(|(a, b)| a < b)
        .collect();
    pairs.sort_unstable();
    pairs.dedup();
    assert_eq!(pairs.len(), 9 * 8 / 2);
}

#[test]
fn distances_on_a_torus_are_those_around_its_rings() {
    let dims = [4, 2, 5];
    let network = torus(&dims, 1, CAPACITIES).unwrap();
    assert!(switch_degrees(&network).iter().all(|&degree| degree == 2 + 1 + 2));
    let place = |host: usize| [host / 10, host / 5 % 2, host % 5];
    for (one, other) in [(0, 39), (0, 20), (7, 33), (12, 12), (3, 29)] {
        let expected: usize = (0..3)
            .map(|d| {
                let apart = place(one)[d].abs_diff(place(other)[d]);
                apart.min(dims[d] - apart)
            })
            .sum();
        assert_eq!(usize::from(hops(&network, one as u32, other as u32)), expected);
    }
}

#[test]
fn names_sort_as_numbers_do() {
    let network = xgft(&[2, 12], &[1, 11], CAPACITIES).unwrap();
    let mut sorted = network.names().to_vec();
    sorted.sort();
    assert_eq!(sorted, network.names());
}

#[test]
fn shapes_that_cannot_be_are_refused() {
    let refused = [
        fat_tree(3, CAPACITIES),
        fat_tree(0, CAPACITIES),
        xgft(&[], &[], CAPACITIES),
        xgft(&[2, 2], &[1], CAPACITIES),
        xgft(&[2, 0], &[1, 1], CAPACITIES),
        xgft(&[usize::MAX, 2], &[1, 1], CAPACITIES),
        xgft(&[1 << 13, 1 << 13], &[1, 1 << 13], CAPACITIES),
        dragonfly(0, 1, 1, CAPACITIES),
        dragonfly(1 << 20, 1 << 20, 1, CAPACITIES),
        torus(&[], 1, CAPACITIES),
        torus(&[3, 0], 1, CAPACITIES),
        torus(&[1 << 10, 1 << 10, 1 << 10], 1, CAPACITIES),
    ];
    for network in refused {
        assert!(matches!(network, Err(FlowError::Shape(_))));
    }
    let negative = Capacities { host: -1.0, switch: 1.0 };
    assert!(matches!(torus(&[3], 1, negative), Err(FlowError::LinkCapacity(_, _))));
}
