//! What each mode promises, in virtual time. `cargo run --example paths` has the same at full length.

use waystage_protocol::modes::ModeName;
use waystage_wansim::link::Loss;
use waystage_wansim::study::{reached_ns, run, seconds, Entry, Kind, PathSpec};

const MS: u64 = 1_000_000;

fn fair() -> Entry {
    Entry::now(Kind::Ours(ModeName::Fair))
}

#[test]
fn random_loss_costs_what_it_loses_and_no_more() {
    for (rtt_ms, share) in [(10, 0.0), (10, 0.01), (10, 0.1), (100, 0.05)] {
        let mut path = PathSpec::new(1e8, rtt_ms * MS, 1.0);
        path.forward.loss = Loss::Random(share);
        let outcome = run(path, &[fair()], seconds(4.0), seconds(12.0), 1);
        let fraction = outcome.bps[0] / (1e8 * (1.0 - share));
        let bar = if share < 0.1 { 0.94 } else { 0.90 };
        assert!(fraction > bar, "{rtt_ms} ms, loss {share}: {fraction:.3}");
        let duplicates = outcome.receiver[0].duplicate_bytes as f64;
        let unique = outcome.receiver[0].unique_bytes as f64;
        assert!(duplicates < 0.005 * unique, "{rtt_ms} ms, loss {share}: {duplicates} of {unique}");
    }
}

#[test]
fn a_path_of_half_a_second_is_filled_in_seconds_and_sooner_by_fast_start() {
    for (mode, within_s) in [(ModeName::Fair, 4.0), (ModeName::FastStart, 2.0)] {
        let path = PathSpec::new(3e8, 500 * MS, 1.0);
        let outcome = run(path, &[Entry::now(Kind::Ours(mode))], 0, seconds(5.0), 1);
        let reached = reached_ns(&outcome, 0, 0.9 * 0.957 * 3e8);
        assert!(reached.is_some_and(|ns| ns <= seconds(within_s)), "{mode}: {reached:?}");
    }
}

#[test]
fn packets_that_are_late_are_not_taken_for_lost() {
    let clean = PathSpec::new(1e8, 50 * MS, 1.0);
    let mut path = clean;
    (path.forward.reorder, path.forward.reorder_ns) = (0.25, 5 * MS);
    let measured = |path| run(path, &[fair()], seconds(3.0), seconds(10.0), 1);
    let (clean, reordered) = (measured(clean), measured(path));
    assert!(reordered.bps[0] > 0.9 * clean.bps[0], "{} of {}", reordered.bps[0], clean.bps[0]);
    let repaired = reordered.sender[0].repaired_bytes as f64;
    assert!(
        repaired < 0.02 * reordered.receiver[0].unique_bytes as f64,
        "{repaired} bytes sent again"
    );
}

#[test]
fn alone_it_keeps_the_queue_short() {
    let path = PathSpec::new(1e8, 40 * MS, 4.0);
    let outcome = run(path, &[fair()], seconds(5.0), seconds(12.0), 1);
    let late = &outcome.queued_bytes[outcome.queued_bytes.len() / 2..];
    let mean_ms = late.iter().sum::<u64>() as f64 / late.len() as f64 * 8.0 / 1e8 * 1e3;
    assert!(mean_ms < 5.0, "the queue is {mean_ms} ms, the buffer would hold 160");
    assert!(outcome.bps[0] > 0.94e8);
}

#[test]
fn connections_of_one_copy_take_together_what_one_would() {
    let one_of = Entry::now(Kind::OneOf(ModeName::Fair));
    let path = PathSpec::new(1e8, 20 * MS, 1.0);
    let alone = run(path, &[one_of; 3], seconds(4.0), seconds(12.0), 1);
    let sum: f64 = alone.bps.iter().sum();
    assert!(sum > 0.9e8, "alone they fill the path: {:?}", alone.bps);
    for other in [fair(), Entry::now(Kind::Cubic)] {
        let share = |ours: Entry, count: usize| {
            let entries: Vec<Entry> = [other].into_iter().chain(vec![ours; count]).collect();
            let outcome = run(path, &entries, seconds(15.0), seconds(75.0), 1);
            outcome.bps[1..].iter().sum::<f64>() / outcome.bps.iter().sum::<f64>()
        };
        let (one, three, apart) = (share(fair(), 1), share(one_of, 3), share(fair(), 3));
        assert!(three < one + 0.15, "{other:?}: {three} for three, {one} for one");
        assert!(three < apart - 0.05, "{other:?}: {three} coupled, {apart} each by itself");
        assert!(three > 0.3, "{other:?}: {three}");
    }
}

#[test]
fn connections_that_join_a_copy_hold_it_up_but_little() {
    let path = PathSpec::new(1e8, 500 * MS, 1.0);
    // As a copy makes them: two and a half round trips after the first contents.
    let begun = |begins: &[f64]| {
        let entry = |&begins_s: &f64| Entry {
            kind: Kind::OneOf(ModeName::Fair),
            begins_ns: seconds(begins_s),
        };
        let entries: Vec<Entry> = begins.iter().map(entry).collect();
        let outcome = run(path, &entries, 0, seconds(5.0), 1);
        outcome.bps.iter().sum::<f64>()
    };
    let (one, three) = (begun(&[0.0]), begun(&[0.0, 1.25, 1.25]));
    assert!(three > 0.93 * one, "{three} of three, {one} of one");
}
