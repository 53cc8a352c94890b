//! What exchanging processes promises.

#![allow(clippy::unwrap_used, reason = "a panic is how a test fails")]

use proptest::prelude::*;
use waystage_flowsim::generate::{torus, xgft, Capacities};
use waystage_flowsim::mapping::{refine, Traffic};
use waystage_flowsim::seeded::Random;
use waystage_flowsim::{FlowError, Network};

const CAPACITIES: Capacities = Capacities { host: 1.0, switch: 1.0 };

fn networks() -> impl Strategy<Value = Network> {
    prop_oneof![
        Just(xgft(&[4, 4], &[1, 2], CAPACITIES).unwrap()),
        Just(xgft(&[2, 2, 4], &[1, 2, 2], CAPACITIES).unwrap()),
        Just(torus(&[4, 4], 1, CAPACITIES).unwrap()),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(40))]

    #[test]
    fn an_exchanged_mapping_fits_and_is_no_worse(
        network in networks(), processes in 1usize..40, seed in any::<u64>()
    ) {
        let mut random = Random::new(seed);
        let slots = vec![3u32; network.host_count() as usize];
        let mut places: Vec<u32> = (0..network.host_count()).flat_map(|host| [host; 3]).collect();
        random.shuffle(&mut places);
        places.truncate(processes);
        let entries = 3 * processes;
        let mut pick = |_| random.below(processes) as u32;
        let src: Vec<u32> = (0..entries).map(&mut pick).collect();
        let dst: Vec<u32> = (0..entries).map(&mut pick).collect();
        let bytes: Vec<f64> = (0..entries).map(|_| random.below(100) as f64).collect();
        let traffic = Traffic { src: &src, dst: &dst, bytes: &bytes };
        let before = refine(&network, traffic, &places, &slots, seed, 0.0).unwrap();
        let after = refine(&network, traffic, &places, &slots, seed, 0.1).unwrap();
        prop_assert!(after.busiest <= before.busiest, "{} {}", after.busiest, before.busiest);
        let mut used = vec![0u32; slots.len()];
        after.host_of.iter().for_each(|&host| used[host as usize] += 1);
        prop_assert!(used.iter().zip(&slots).all(|(used, slots)| used <= slots));
        prop_assert!(after.host_of.iter().all(|host| places.contains(host)), "a new host");
        let again = refine(&network, traffic, &places, &slots, seed, 0.1).unwrap();
        prop_assert_eq!(again, after);
    }
}

#[test]
fn neighbours_that_are_scattered_find_each_other() {
    // 16 processes in pairs, each pair on two edge switches: all can be on one.
    let network = xgft(&[4, 4], &[1, 2], CAPACITIES).unwrap();
    let src: Vec<u32> = (0..8).collect();
    let dst: Vec<u32> = (8..16).collect();
    let places: Vec<u32> = (0..16).collect();
    let traffic = Traffic { src: &src, dst: &dst, bytes: &[1.0; 8] };
    let found = refine(&network, traffic, &places, &[1; 16], 1, 1.0).unwrap();
    assert_eq!(found.busiest, 0.0);
}

#[test]
fn those_below_one_switch_gather_on_hosts() {
    let network = xgft(&[2, 1], &[1, 1], CAPACITIES).unwrap();
    let traffic = Traffic { src: &[0, 2], dst: &[1, 3], bytes: &[1.0, 1.0] };
    let found = refine(&network, traffic, &[0, 1, 0, 1], &[2, 2], 1, 1.0).unwrap();
    assert_eq!(found.host_of[0], found.host_of[1]);
    assert_eq!(found.host_of[2], found.host_of[3]);
}

#[test]
fn what_does_not_fit_is_refused() {
    let network = xgft(&[2, 1], &[1, 1], CAPACITIES).unwrap();
    let traffic = Traffic { src: &[0], dst: &[1], bytes: &[1.0] };
    let full = refine(&network, traffic, &[0, 0], &[1, 1], 1, 1.0).unwrap_err();
    assert!(full.to_string().contains("1 slots and 2 processes"), "{full}");
    let stranger = refine(&network, traffic, &[0, 9], &[1, 1], 1, 1.0).unwrap_err();
    assert_eq!(stranger, FlowError::NoHost(1, 9));
    let missing = refine(&network, traffic, &[0], &[1, 1], 1, 1.0).unwrap_err();
    assert!(missing.to_string().contains("process 1"), "{missing}");
}
