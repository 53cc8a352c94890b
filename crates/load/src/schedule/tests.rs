use proptest::prelude::*;

use super::*;
use crate::plan::{units, Share, Uneven};
use crate::simulate::{lower_bound_s, run, Outcome, Service};
use crate::testing::files_of;

const SHARE: Share =
    Share { seed: 1, epoch: 0, shuffle: true, rank: 0, world: 1, uneven: Uneven::Keep };

fn rules(loaders: u32) -> Rules {
    Rules {
        delivery: Delivery::Objects,
        ordered: false,
        memory_bytes: 1 << 30,
        piece_bytes: 1 << 20,
        loaders,
        binding: Binding::Steal,
        most_readers: None,
        resized: true,
    }
}

/// `count` files of one object each, dealt to targets in turn.
fn singles(count: u64, size: u64, targets: u64) -> Files {
    let objects: Vec<[(u32, u64, u64); 1]> =
        (0..count).map(|n| [((n % targets) as u32, 0, size)]).collect();
    let described: Vec<_> = objects.iter().map(|o| ("d/f", size, &o[..])).collect();
    files_of(&described)
}

/// `count` files in two stripes on neighbouring targets.
fn striped(count: u64, unit: u64, targets: u64) -> Files {
    let objects: Vec<[(u32, u64, u64); 2]> = (0..count)
        .map(|n| [((n % targets) as u32, 0, unit), (((n + 1) % targets) as u32, unit, unit)])
        .collect();
    let described: Vec<_> = objects.iter().map(|o| ("d/f", 2 * unit, &o[..])).collect();
    files_of(&described)
}

fn simulated(files: &Files, services: &[Service], rules: Rules) -> Outcome {
    let units = units(files, rules.delivery, &SHARE, rules.loaders, None).unwrap();
    let (loaders, delivery, ordered) = (rules.loaders, rules.delivery, rules.ordered);
    let scheduler = Scheduler::new(files, units, Progress::default(), rules);
    run(scheduler, files, services, loaders, delivery, ordered).expect("all is delivered")
}

/// Two of `count` targets serve four times slower; two readers get nearly twice as much as one.
fn services(count: usize) -> Vec<Service> {
    let rates = |slower: f64| vec![1e8 / slower, 1.8e8 / slower, 2e8 / slower];
    (0..count)
        .map(|n| Service { rates: rates(if n < 2 { 4.0 } else { 1.0 }), latency_s: 0.0 })
        .collect()
}

fn bytes_of(files: &Files) -> Vec<u64> {
    let mut bytes = vec![0; files.targets().len()];
    for object in 0..files.objects() as u32 {
        let (target, length) = files.object(object);
        bytes[usize::from(target)] += length;
    }
    bytes
}

#[test]
fn stealing_ends_near_the_bound_where_two_targets_straggle_and_strict_binding_does_not() {
    let files = singles(2_400, 1 << 20, 24);
    let services = services(24);
    let bound = lower_bound_s(&bytes_of(&files), &services, 24);
    let steal = simulated(&files, &services, Rules { most_readers: Some(3), ..rules(24) });
    let strict = simulated(&files, &services, Rules { binding: Binding::Strict, ..rules(24) });
    assert!(steal.makespan_s <= 1.15 * bound, "{} against {bound}", steal.makespan_s);
    assert!(strict.makespan_s > 1.5 * bound, "{} against {bound}", strict.makespan_s);
    assert!(steal.stolen > 0 && strict.stolen == 0);
}

#[test]
fn memory_bounds_what_is_held_and_a_larger_item_comes_alone() {
    for (ordered, delivery) in
        [(false, Delivery::Files), (true, Delivery::Files), (true, Delivery::Objects)]
    {
        let rules = Rules { ordered, delivery, memory_bytes: 8 << 20, ..rules(24) };
        let files = striped(480, 1 << 20, 24);
        let outcome = simulated(&files, &services(24), rules.clone());
        assert!(outcome.most_held <= 8 << 20, "{}", outcome.most_held);
        let tight = simulated(&files, &services(24), Rules { memory_bytes: 1, ..rules });
        let item = if delivery == Delivery::Files { 2 << 20 } else { 1 << 20 };
        assert_eq!(tight.most_held, item + ITEM_BYTES);
    }
}

#[test]
fn little_memory_does_not_keep_a_straggler_from_being_read_all_the_time() {
    let files = singles(2_400, 1 << 20, 24);
    let services = services(24);
    let bound = lower_bound_s(&bytes_of(&files), &services, 24);
    // Memory for fewer items than there are loaders: a loader that admits its own items first keeps the stragglers
    // waiting.
    let rules = Rules { most_readers: Some(3), memory_bytes: 20 << 20, ..rules(24) };
    let outcome = simulated(&files, &services, rules);
    assert!(outcome.makespan_s <= 1.15 * bound, "{} against {bound}", outcome.makespan_s);
}

#[test]
fn what_was_delivered_before_is_not_delivered_again() {
    let files = singles(100, 10, 3);
    let units = units(&files, Delivery::Objects, &SHARE, 3, None).unwrap();
    let before = Progress::new(&[(0, 40), (70, 100)], &[]);
    let scheduler = Scheduler::new(&files, units, before, rules(3));
    let free = vec![Service { rates: vec![1e9], latency_s: 0.0 }; 3];
    let outcome = run(scheduler, &files, &free, 3, Delivery::Objects, false).unwrap();
    assert_eq!(outcome.bytes, 300);
}

#[test]
fn the_bound_is_exact_where_it_can_be_worked_out() {
    let rates = Service { rates: vec![10.0, 15.0, 12.0], latency_s: 0.0 };
    // One target: two readers at 15 are best, whatever else there is.
    assert!((lower_bound_s(&[150], std::slice::from_ref(&rates), 9) - 10.0).abs() < 1e-6);
    assert!((lower_bound_s(&[150], std::slice::from_ref(&rates), 1) - 15.0).abs() < 1e-6);
    // Two alike and two readers: one each.
    assert!((lower_bound_s(&[100, 100], &[rates.clone(), rates], 2) - 10.0).abs() < 1e-6);
}

proptest! {
    /// Whatever the rules, every byte is read once and memory is bounded: the simulation fails where a loader is
    /// stuck.
    #[test]
    fn everything_is_read_once_whatever_the_rules(
        count in 0_u64..60, targets in 1_u64..7, loaders in 1_u32..12, unit in 0_u64..3000,
        piece_bytes in 1_u64..2000, memory_bytes in 1_u64..20_000, most in prop::option::of(1_u32..4),
        ordered: bool, steal: bool, whole: bool,
    ) {
        let files = if unit == 0 { singles(count, 0, targets) } else { striped(count, unit, targets) };
        let rules = Rules {
            delivery: if whole { Delivery::Files } else { Delivery::Objects },
            ordered,
            memory_bytes,
            piece_bytes: piece_bytes.max(unit / 16),
            loaders,
            binding: if steal { Binding::Steal } else { Binding::Strict },
            most_readers: most,
            resized: true,
        };
        let services = vec![Service { rates: vec![1e6, 1.5e6], latency_s: 1e-4 }; targets as usize];
        let outcome = simulated(&files, &services, rules);
        prop_assert_eq!(outcome.bytes, count * 2 * unit);
        let alone = if whole { 2 * unit } else { unit.min(piece_bytes.max(unit / 16)) };
        prop_assert!(outcome.most_held <= memory_bytes.max(alone + ITEM_BYTES));
    }
}

#[test]
fn small_pieces_are_given_together_once_they_are_known_to_be_quick() {
    let files = singles(1000, 4096, 2);
    let given = |piece_ns: u64| {
        let units = units(&files, Delivery::Objects, &SHARE, 2, None).unwrap();
        let rules = Rules { ordered: true, ..rules(2) };
        let mut scheduler = Scheduler::new(&files, units, Progress::default(), rules);
        let mut seen = Vec::new();
        let mut now_ns = 0;
        let mut most = 0;
        while let Turn::Read(first) = scheduler.turn(0, &files, now_ns) {
            let mut pieces = vec![first];
            scheduler.more(0, first, &mut pieces);
            assert!(pieces.iter().all(|piece| piece.target == first.target));
            most = most.max(pieces.len());
            now_ns += piece_ns * pieces.len() as u64;
            scheduler.ended(0, now_ns);
            for piece in pieces {
                let (_, sequence, held) = scheduler.read(piece, None).unwrap();
                seen.push(sequence);
                scheduler.release(held);
            }
        }
        seen.sort_unstable();
        assert_eq!(seen, (0..1000).collect::<Vec<_>>());
        most
    };
    assert_eq!(given(500_000), 1, "slower than what is read together");
    let quick = given(10_000);
    assert!((20..=30).contains(&quick), "{quick} pieces of 10 us in 250 us");
}

#[test]
fn an_epoch_of_many_files_is_not_let_in_before_its_first_piece_is_given() {
    let files = singles(100_000, 4096, 2);
    let units = units(&files, Delivery::Files, &SHARE, 2, None).unwrap();
    let rules = Rules { ordered: true, memory_bytes: u64::MAX, ..rules(2) };
    let mut scheduler = Scheduler::new(&files, units, Progress::default(), rules);
    assert!(matches!(scheduler.turn(0, &files, 0), Turn::Read(_)));
    // Others wait for the lock meanwhile.
    assert!(scheduler.queued() < 1000, "{} files were let in", scheduler.queued());
}
