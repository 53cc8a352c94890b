//! The servers against hand-worked cases, and against a naive simulation in small steps.

use std::sync::Arc;

use proptest::prelude::*;
use waystage_flowsim::contention::Slowdown;

use super::*;

const MS: u64 = 1_000_000;

fn service(slots: usize, curve: &[(f64, f64)]) -> Service {
    Service {
        read_rate_bps: 1e6, // 1 byte a microsecond
        write_rate_bps: 5e5,
        latency_ns: 0.0,
        slots,
        slowdown: Arc::new(Slowdown::new(curve, 64).unwrap()),
        slower: 1.0,
    }
}

fn model(services: &[Service]) -> Model {
    let targets = services.iter().map(|s| StorageTarget::new(s.clone()).unwrap()).collect();
    let metadata = vec![
        MetadataServer::new(1000.0, [MS; 6]).unwrap(),
        MetadataServer::new(1000.0, [2 * MS; 6]).unwrap(),
    ];
    Model::new(targets, metadata).unwrap()
}

fn read(target: usize, bytes: u64) -> Part {
    Part { target, bytes, write: false }
}

fn all_done(model: &mut Model) -> Vec<(Ticket, Ns)> {
    std::iter::from_fn(|| model.take_done(u64::MAX / 4)).collect()
}

#[test]
fn one_alone_takes_latency_and_bytes_over_rate() {
    let mut alone = service(4, &[(1.0, 1.0)]);
    alone.latency_ns = 3e6;
    let mut model = model(&[alone]);
    let ticket = model.transfer(5 * MS, &[read(0, 1000)]);
    assert_eq!(model.next_ns(), Some(9 * MS));
    assert_eq!(model.take_done(9 * MS - 1), None);
    assert_eq!(model.take_done(20 * MS), Some((ticket, 9 * MS)));
    assert_eq!(model.next_ns(), None);
}

#[test]
fn writing_has_its_own_rate_and_a_slow_target_its_factor() {
    let mut slow = service(4, &[(1.0, 1.0)]);
    slow.slower = 4.0;
    let mut model = model(&[slow]);
    model.transfer(0, &[Part { target: 0, bytes: 1000, write: true }]);
    assert_eq!(model.next_ns(), Some(8 * MS));
}

#[test]
fn two_on_a_target_slow_each_other_down_by_the_curve() {
    let mut model = model(&[service(4, &[(1.0, 1.0), (2.0, 3.0)])]);
    let first = model.transfer(0, &[read(0, 1000)]);
    let second = model.transfer(MS / 2, &[read(0, 1000)]);
    // The first has half of it left, at a third of the speed; the second then has half of it left, alone.
    assert_eq!(all_done(&mut model), [(first, 2 * MS), (second, 5 * MS / 2)]);
}

#[test]
fn what_finds_no_slot_waits_in_order_and_begins_when_another_ends() {
    let mut model = model(&[service(1, &[(1.0, 1.0), (8.0, 8.0)])]);
    let tickets: Vec<Ticket> = (0..3).map(|_| model.transfer(0, &[read(0, 1000)])).collect();
    let expected: Vec<_> = tickets.into_iter().zip([MS, 2 * MS, 3 * MS]).collect();
    assert_eq!(all_done(&mut model), expected);
    let counts = model.targets()[0].counts();
    assert_eq!((counts.requests, counts.busy_ns, counts.most), (3, 3 * MS, 1));
    assert!((counts.waiting_ns - 3e6).abs() < 1.0, "two waited 1 ms, one of them 1 ms more");
}

#[test]
fn a_request_over_two_targets_ends_with_the_slower_part() {
    let mut model = model(&[service(4, &[(1.0, 1.0)]), service(4, &[(1.0, 1.0)])]);
    let ticket = model.transfer(0, &[read(0, 1000), read(1, 7000)]);
    assert_eq!(all_done(&mut model), [(ticket, 7 * MS)]);
}

#[test]
fn metadata_servers_take_turns_by_key_and_each_answers_in_order() {
    let mut model = model(&[service(4, &[(1.0, 1.0)])]);
    let a = model.ask(0, 0, Operation::Lookup);
    let b = model.ask(0, 2, Operation::Open);
    let c = model.ask(0, 1, Operation::Lookup);
    // 1 ms of work each, then 1 ms of latency at server 0 and 2 ms at server 1.
    assert_eq!(all_done(&mut model), [(a, 2 * MS), (b, 3 * MS), (c, 3 * MS)]);
    assert_eq!(model.metadata()[0].asked[Operation::Open as usize], 1);
    assert!((model.metadata()[0].waiting_ns - 1e6).abs() < 1.0);
}

#[test]
fn invalid_services_are_refused() {
    for broken in [
        Service { read_rate_bps: 0.0, ..service(1, &[(1.0, 1.0)]) },
        Service { write_rate_bps: f64::NAN, ..service(1, &[(1.0, 1.0)]) },
        Service { latency_ns: -1.0, ..service(1, &[(1.0, 1.0)]) },
        Service { slower: f64::INFINITY, ..service(1, &[(1.0, 1.0)]) },
        Service { slots: 0, ..service(1, &[(1.0, 1.0)]) },
    ] {
        assert!(StorageTarget::new(broken).is_err());
    }
    assert!(MetadataServer::new(f64::NAN, [0; 6]).is_err());
    assert!(Model::new(Vec::new(), Vec::new()).is_err());
}

/// In a microsecond: the coarser they are, the more is lost at each change of the number in service.
const STEPS: u64 = 20;

/// The same target in `STEPS` of a microsecond, each looking at every request; ends in microseconds.
fn naive(arrivals: &[(u64, u64)], slots: usize, curve: &Slowdown) -> Vec<f64> {
    let mut left: Vec<f64> = arrivals.iter().map(|(_, bytes)| *bytes as f64).collect();
    let mut ends = vec![f64::NAN; arrivals.len()];
    let mut at = 0_u64;
    while ends.iter().any(|end| end.is_nan()) {
        let here: Vec<usize> = (0..arrivals.len())
            .filter(|&i| arrivals[i].0 * STEPS <= at && ends[i].is_nan())
            .take(slots)
            .collect();
        at += 1;
        for &i in &here {
            left[i] -= 1.0 / (STEPS as f64 * curve.at(here.len()));
            if left[i] <= 1e-9 {
                ends[i] = at as f64 / STEPS as f64;
            }
        }
    }
    ends
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// Late asking changes nothing, and the fast way gives what the slow one gives.
    #[test]
    fn as_a_simulation_in_small_steps(
        mut arrivals in prop::collection::vec((0_u64..400, 1_u64..200), 1..12),
        slots in 1_usize..6,
        steepness in 1.0_f64..3.0,
        late_us in 1_u64..300,
    ) {
        arrivals.sort();
        let points = [(1.0, 1.0), (6.0, 1.0 + 5.0 * steepness)];
        let mut model = model(&[service(slots, &points)]);
        let mut ends = vec![0; arrivals.len()];
        let mut took = |model: &mut Model, now| {
            while let Some((ticket, end)) = model.take_done(now) {
                ends[usize::try_from(ticket.0 - 1).unwrap()] = end;
            }
        };
        for (at, bytes) in &arrivals {
            // Looked at only now and then, as by a thread that oversleeps.
            if at / late_us % 2 == 0 {
                took(&mut model, at * 1000);
            }
            model.transfer(at * 1000, &[read(0, *bytes)]);
        }
        took(&mut model, u64::MAX / 4);
        let expected = naive(&arrivals, slots, &Slowdown::new(&points, 64).unwrap());
        for (end, expected) in ends.iter().zip(expected) {
            // A step of 1 us at each change of the number in service.
            let allowed = 1.0 + arrivals.len() as f64 * 2.0;
            prop_assert!((*end as f64 / 1e3 - expected).abs() <= allowed, "{end} against {expected} us");
        }
    }
}
