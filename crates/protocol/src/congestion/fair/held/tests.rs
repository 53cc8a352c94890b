//! The rate held, round by round: the test, probes, losses and queues.

use super::*;

const MIN_RTT_NS: u64 = 20_000_000;

/// After its test, with a buffer that overflowed at 1 ms.
fn held() -> Hold {
    let from = Beginning { bps: 1e8, lost: 0.01, queue_ns: 1e6, ..Beginning::default() };
    let mut hold = Hold::begin(&from);
    for _ in 0..TEST_ROUNDS + SETTLED_ROUNDS + 1 {
        assert!(!hold.shows_others(&round(0, 0, 0), MIN_RTT_NS, Some(1e8)));
    }
    hold
}

/// A round that loses packets: the shortest and the longest queueing delay.
fn round(lost: u64, shortest_ns: u64, longest_ns: u64) -> Round {
    Round {
        acked: 1000 - lost,
        lost,
        lost_squares: lost,
        min_rtt_ns: Some(MIN_RTT_NS + shortest_ns),
        max_rtt_ns: MIN_RTT_NS + longest_ns,
        ..Round::default()
    }
}

#[test]
fn a_queue_that_stands_at_the_rate_held_is_another_flows() {
    for (queue_ns, found) in [(100_000, false), (200_000, true)] {
        let mut hold = held();
        let standing = round(0, queue_ns, 900_000);
        let others = (0..40).any(|_| hold.shows_others(&standing, MIN_RTT_NS, Some(1e8)));
        assert_eq!(others, found, "{queue_ns} ns");
    }
}

#[test]
fn what_hosts_delay_by_themselves_is_no_queue_that_stands() {
    for (queue_ns, found) in [(350_000, false), (500_000, true)] {
        let from = Beginning { bps: 1e8, lost: 0.01, queue_ns: 1e6, ..Beginning::default() };
        let mut hold = Hold::begin(&from);
        for _ in 0..TEST_ROUNDS {
            hold.shows_others(&round(0, 300_000, 500_000), MIN_RTT_NS, Some(1e8));
        }
        let standing = round(0, queue_ns, 900_000);
        let others = (0..60).any(|_| hold.shows_others(&standing, MIN_RTT_NS, Some(1e8)));
        assert_eq!(others, found, "{queue_ns} ns");
    }
}

#[test]
fn losses_of_a_full_buffer_in_the_test_are_another_flows() {
    // Whether the path is known, rounds of the test that lose packets, their queueing delay.
    for (path_is_known, losing, queue_ns, found) in [
        (true, 4, 900_000, true),
        (true, 2, 900_000, false),
        (true, 4, 100_000, false),
        (false, 1, 900_000, true),
        (false, 4, 100_000, false),
    ] {
        let from =
            Beginning { bps: 1e8, lost: 0.2, queue_ns: 1e6, path_is_known, ..Beginning::default() };
        let mut hold = Hold::begin(&from);
        let others = (0..TEST_ROUNDS).any(|number| {
            let lost = if (1..=losing).contains(&number) { 20 } else { 0 };
            hold.shows_others(&round(lost, 0, queue_ns), MIN_RTT_NS, Some(1e8))
        });
        assert_eq!(others, found, "{path_is_known}, {losing} rounds, {queue_ns} ns");
        assert_eq!(hold.is_certain, path_is_known || !found);
    }
}

#[test]
fn losses_that_end_are_another_flows_only_where_the_buffer_was_full() {
    for (queue_ns, found) in [(100_000, false), (900_000, true)] {
        let mut hold = held();
        let lossy = round(100, 0, queue_ns);
        assert!(!hold.shows_others(&lossy, MIN_RTT_NS, Some(1e8)), "watched");
        let quiet = round(0, 0, 0);
        let others = (0..20).any(|_| hold.shows_others(&quiet, MIN_RTT_NS, Some(1e8)));
        assert_eq!(others, found, "{queue_ns} ns");
    }
}

#[test]
fn after_another_flow_a_probe_waits_until_it_would_show_itself() {
    for (after_others, waited) in [(false, PROBE_ROUNDS[0]), (true, 500)] {
        let from = Beginning {
            bps: 1e8,
            lost: 0.01,
            after_others,
            regain_rounds: 500,
            ..Beginning::default()
        };
        let mut hold = Hold::begin(&from);
        let mut rounds = 0;
        while hold.gain <= 1.0 {
            assert!(!hold.shows_others(&round(0, 0, 0), MIN_RTT_NS, Some(1e8)));
            hold.probe(&round(0, 0, 0), Some(1e8));
            rounds += 1;
        }
        assert_eq!(rounds, TEST_ROUNDS + waited);
    }
}

/// The rate held after a probe from 1e8, in whose rounds, and in those after it, this many packets are lost and
/// this much arrives.
fn held_after_probe(rounds: &[(u64, Option<f64>)]) -> f64 {
    let mut hold = held();
    hold.bps = 1e8;
    let quiet = round(0, 0, 0);
    while hold.gain <= 1.0 {
        hold.shows_others(&quiet, MIN_RTT_NS, Some(1e8));
        hold.probe(&quiet, Some(1e8));
    }
    for &(lost, bps) in rounds {
        assert!(!hold.shows_others(&round(lost, 0, 0), MIN_RTT_NS, bps));
        hold.probe(&round(lost, 0, 0), bps);
    }
    hold.bps
}

#[test]
fn a_probe_in_which_a_host_is_late_has_found_no_limit() {
    let sent = (0, Some(1e8));
    for (rounds, held_bps) in [
        // It loses nothing, and more arrives later, or never.
        ([(0, Some(0.9e8)), (0, Some(1.05e8)), (0, Some(1.05e8)), (0, Some(1.05e8))], 1.05e8),
        ([(0, Some(0.9e8)); 4], 1e8),
        // It loses packets; what came late arrives in the next round, or the path carries less.
        ([(9, Some(0.9e8)), (0, Some(1.1e8)), sent, sent], 1e8),
        ([(9, Some(0.9e8)), (0, Some(0.9e8)), sent, sent], 0.891e8),
        // A host was so late that what arrived says nothing.
        ([(9, None), (0, None), sent, sent], 1e8),
    ] {
        let rounds: Vec<_> = [sent].into_iter().chain(rounds).collect();
        let bps = held_after_probe(&rounds);
        assert!((bps / held_bps - 1.0).abs() < 2e-3, "{rounds:?}: {bps}");
    }
}

#[test]
fn what_a_bucket_has_let_through_is_not_held() {
    // Two steps up, of which the second one emptied the bucket.
    let more = [(0, Some(1e8)), (0, Some(1.05e8)), (0, Some(1.05e8)), (0, Some(1.15e8))];
    for (carried_bps, held_bps) in [(1.1e8, 1.089e8), (1.02e8, 1.05e8)] {
        let after = [(30, Some(1.15e8)), (30, Some(1.15e8)), (0, Some(carried_bps))];
        let rounds: Vec<_> = more.into_iter().chain(after).collect();
        let bps = held_after_probe(&rounds);
        assert!((bps / held_bps - 1.0).abs() < 1e-3, "{carried_bps}: {bps}");
    }
}

#[test]
fn where_much_more_was_sent_than_arrived_and_no_queue_seen_the_first_probe_goes_halfway_at_once() {
    for (unqueued_bps, waited, gain) in [
        (0.0, PROBE_ROUNDS[0], PROBE),
        (1.02e8, PROBE_ROUNDS[0], PROBE),
        (1.2e8, PROBE_ROUNDS[0], 1.1),
        (1.4e8, 0, 1.2),
        (9e8, 0, MOST_PROBE),
    ] {
        let from = Beginning { bps: 1e8, lost: 0.1, unqueued_bps, ..Beginning::default() };
        let mut hold = Hold::begin(&from);
        let mut rounds = 0;
        while hold.gain <= 1.0 {
            hold.shows_others(&round(0, 0, 0), MIN_RTT_NS, Some(1e8));
            hold.probe(&round(0, 0, 0), Some(1e8));
            rounds += 1;
        }
        assert_eq!(rounds, TEST_ROUNDS + waited, "{unqueued_bps}");
        assert!((hold.gain - gain).abs() < 1e-9, "{unqueued_bps}: {}", hold.gain);
        hold.end_probe(Some(1e8));
        assert_eq!(hold.wait_rounds, 2 * PROBE_ROUNDS[0], "{unqueued_bps}");
    }
}

#[test]
fn a_rate_held_is_what_is_sent_where_packets_are_lost_at_random() {
    const CARRIES: f64 = 1e8;
    // A tenth more was sent than the path carries, and a twentieth is lost at random.
    let from = Beginning { bps: 0.95 * CARRIES, lost: 0.14, ..Beginning::default() };
    let mut hold = Hold::begin(&from);
    for _ in 0..500 {
        let sent = hold.gain * hold.bps;
        let delivered = 0.95 * sent.min(CARRIES);
        let lost = (1000.0 * (1.0 - delivered / sent)) as u64;
        let round = Round { acked: 1000 - lost, lost, lost_squares: lost, ..Round::default() };
        assert!(!hold.shows_others(&round, 0, Some(delivered)), "none");
        hold.probe(&round, Some(delivered));
    }
    assert!((0.95..1.06).contains(&(hold.bps / CARRIES)), "{}", hold.bps / CARRIES);
}

#[test]
fn a_host_is_late_where_it_delays_by_more_than_it_always_does() {
    // The delays in the test, those in the two rounds after it, and whether these say what arrives.
    for (usual_ns, longest_ns, found) in [
        (100_000, [900_000, 900_000], [true, true]),
        (100_000, [3_000_000, 900_000], [false, false]),
        (2_000_000, [3_000_000, 900_000], [true, true]),
        (2_000_000, [5_000_000, 900_000], [false, false]),
    ] {
        let mut hold = Hold::begin(&Beginning { bps: 1e8, lost: 0.01, ..Beginning::default() });
        for _ in 0..TEST_ROUNDS {
            hold.shows_others(&round(0, 0, usual_ns), MIN_RTT_NS, Some(1e8));
        }
        let undelayed = longest_ns.map(|longest_ns| hold.is_undelayed(longest_ns as f64, 2.5e6));
        assert_eq!(undelayed, found, "{usual_ns} {longest_ns:?}");
    }
}
