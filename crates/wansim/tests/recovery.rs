//! Every byte arrives once and unchanged, whatever the network does.

use proptest::prelude::*;
use waystage_protocol::congestion::Mode;
use waystage_protocol::connection::{CloseReason, Event};
use waystage_wansim::bulk::{Bulk, BulkSpec};
use waystage_wansim::link::Loss;
use waystage_wansim::scenario::{seconds, PathSpec};
use waystage_wansim::simulation::{End, Simulation};

const MS: u64 = 1_000_000;

fn verified(mode: Mode, rtt_ns: u64, extents: Vec<u64>) -> BulkSpec {
    BulkSpec { extents, verify: true, ..BulkSpec::endless(mode, rtt_ns) }
}

fn transfer(path: PathSpec, spec: &BulkSpec, seed: u64, within_s: f64) -> Simulation<Bulk> {
    let mut simulation = Simulation::new(path.forward, path.backward, seed);
    simulation.add(0, Bulk::new(0, spec));
    let step_ns = 50 * MS;
    while simulation.now_ns() < seconds(within_s)
        && !simulation.flows()[0].end(End::Sender).all_delivered()
    {
        simulation.run_until(simulation.now_ns() + step_ns);
    }
    simulation
}

fn assert_complete(simulation: &Simulation<Bulk>, spec: &BulkSpec) {
    let flow = &simulation.flows()[0];
    let total: u64 = spec.extents.iter().sum();
    let mode = flow.end(End::Sender).controller();
    assert!(
        flow.end(End::Sender).all_delivered(),
        "not complete after {} ms: {} of {total} bytes, {}, {:?}",
        simulation.now_ns() / MS,
        flow.end(End::Receiver).counters().unique_bytes,
        mode.phase(),
        mode.control()
    );
    assert_eq!(flow.wrong_bytes(), 0);
    assert_eq!(flow.end(End::Receiver).counters().unique_bytes, total);
    let mut complete: Vec<(u64, u64)> = flow
        .events(End::Receiver)
        .iter()
        .filter_map(|event| match event {
            Event::Complete { extent, length } => Some((*extent, *length)),
            _ => None,
        })
        .collect();
    complete.sort_unstable();
    let expected: Vec<(u64, u64)> = (0..).zip(spec.extents.iter().copied()).collect();
    assert_eq!(complete, expected, "each extent is reported once, with its length");
}

#[test]
fn a_harsh_path_delivers_every_byte_once() {
    let mut path = PathSpec::new(1e8, 30 * MS, 0.5);
    for link in [&mut path.forward, &mut path.backward] {
        link.loss = Loss::Random(0.1);
        (link.reorder, link.reorder_ns, link.jitter_ns) = (0.2, 4 * MS, MS);
        (link.duplicate, link.corrupt) = (0.05, 0.02);
    }
    for mode in Mode::all() {
        let spec = verified(mode, 30 * MS, vec![4_000_000, 0, 1, 1_000_000]);
        assert_complete(&transfer(path, &spec, 3, 60.0), &spec);
    }
}

#[test]
fn many_small_extents_share_packets() {
    let path = PathSpec::new(1e8, 20 * MS, 1.0);
    let spec = verified(Mode::Fair, 20 * MS, vec![100; 4000]);
    let simulation = transfer(path, &spec, 1, 20.0);
    assert_complete(&simulation, &spec);
    let sent = simulation.flows()[0].end(End::Sender).counters().sent_packets;
    assert!(sent < 700, "{sent} packets for 400 kB in 4,000 extents");
}

#[test]
fn an_outage_is_survived_and_a_dead_peer_is_reported() {
    let path = PathSpec::new(5e7, 40 * MS, 1.0);
    let spec = verified(Mode::Fair, 40 * MS, vec![12_000_000]);
    let mut simulation = Simulation::new(path.forward, path.backward, 1);
    simulation.add(0, Bulk::new(0, &spec));
    simulation.run_until(seconds(1.0));
    let before = simulation.flows()[0].end(End::Receiver).counters().unique_bytes;
    (simulation.forward.spec.loss, simulation.backward.spec.loss) =
        (Loss::Random(1.0), Loss::Random(1.0));
    simulation.run_until(seconds(6.0));
    assert!(before > 0 && !simulation.flows()[0].end(End::Sender).all_delivered());
    (simulation.forward.spec.loss, simulation.backward.spec.loss) = (Loss::Never, Loss::Never);
    simulation.run_until(seconds(16.0));
    assert_complete(&simulation, &spec);
    simulation.forward.spec.loss = Loss::Random(1.0);
    simulation.run_until(seconds(120.0));
    for end in [End::Sender, End::Receiver] {
        assert_eq!(
            simulation.flows()[0].events(end).last(),
            Some(&Event::Closed(CloseReason::IdleTimeout)),
            "{end:?}"
        );
    }
}

#[test]
fn a_quiet_connection_stays_alive() {
    let path = PathSpec::new(1e8, 20 * MS, 1.0);
    let spec = verified(Mode::Fair, 20 * MS, vec![10]);
    let mut simulation = Simulation::new(path.forward, path.backward, 1);
    simulation.add(0, Bulk::new(0, &spec));
    simulation.run_until(seconds(300.0));
    let flow = &simulation.flows()[0];
    assert!(!flow.end(End::Sender).is_closed() && !flow.end(End::Receiver).is_closed());
    assert!(
        flow.end(End::Sender).counters().sent_packets < 120,
        "one ping in ten seconds, not a storm"
    );
}

#[test]
fn both_ends_report_the_close_reason() {
    for (code, reason) in [(0, ""), (7, "the disk is full")] {
        let path = PathSpec::new(1e8, 20 * MS, 1.0);
        let spec = verified(Mode::Fair, 20 * MS, vec![100_000_000]);
        let mut simulation = Simulation::new(path.forward, path.backward, 1);
        simulation.add(0, Bulk::new(0, &spec));
        simulation.run_until(seconds(0.5));
        simulation
            .change(0, |flow, now_ns| flow.end_mut(End::Receiver).close(now_ns, code, reason));
        simulation.run_until(seconds(2.0));
        let flow = &simulation.flows()[0];
        let reported = Event::Closed(CloseReason::Peer(code, reason.to_owned()));
        assert_eq!(flow.events(End::Sender).iter().filter(|event| **event == reported).count(), 1);
        assert_eq!(
            flow.events(End::Receiver).last(),
            Some(&Event::Closed(CloseReason::Local(code)))
        );
        assert!(flow.end(End::Sender).is_closed() && flow.end(End::Receiver).is_closed());
    }
}

#[test]
fn a_slow_disk_limits_the_sender_and_loses_nothing() {
    let path = PathSpec::new(1e8, 20 * MS, 1.0);
    let mut spec = verified(Mode::Fair, 20 * MS, vec![5_000_000]);
    (spec.disk_bps, spec.memory_bytes) = (Some(1e7), 500_000);
    let simulation = transfer(path, &spec, 1, 20.0);
    assert_complete(&simulation, &spec);
    let took_s = simulation.now_ns() as f64 / 1e9;
    assert!((3.5..5.5).contains(&took_s), "4.5 MB at 10 Mbit/s take 3.6 s, and it took {took_s}");
    let repaired = simulation.flows()[0].end(End::Sender).counters().retransmitted_bytes;
    assert!(repaired < 50_000, "{repaired} bytes were sent again");
}

#[test]
fn a_peer_with_a_new_address_is_followed_once_it_has_answered() {
    let path = PathSpec::new(1e8, 20 * MS, 1.0);
    let spec = verified(Mode::Fair, 20 * MS, vec![20_000_000]);
    let mut simulation = Simulation::new(path.forward, path.backward, 1);
    simulation.add(0, Bulk::new(0, &spec));
    simulation.run_until(seconds(0.5));
    let elsewhere = "198.51.100.9:41000".parse().unwrap();
    simulation.change(0, |flow, _| flow.move_sender(elsewhere));
    simulation.run_until(seconds(10.0));
    assert_complete(&simulation, &spec);
    assert!(simulation.flows()[0].events(End::Receiver).contains(&Event::PeerMigrated(elsewhere)));
}

#[test]
fn the_largest_packet_that_passes_is_found_and_a_narrower_path_too() {
    for (link, expected) in [(1500, 1472), (9000, 8972), (1420, 1392), (1300, 1232)] {
        let mut path = PathSpec::new(1e8, 20 * MS, 1.0);
        path.forward.largest_packet = link;
        let mut spec = verified(Mode::Fair, 20 * MS, vec![4_000_000]);
        spec.largest_datagram = 8972;
        let simulation = transfer(path, &spec, 1, 20.0);
        assert_complete(&simulation, &spec);
        assert_eq!(
            simulation.flows()[0].end(End::Sender).datagram_size(),
            expected,
            "link of {link}"
        );
    }
    let path = PathSpec::new(5e7, 20 * MS, 1.0);
    let spec = verified(Mode::Fair, 20 * MS, vec![12_000_000]);
    let mut simulation = Simulation::new(path.forward, path.backward, 1);
    simulation.add(0, Bulk::new(0, &spec));
    simulation.run_until(seconds(1.0));
    assert_eq!(simulation.flows()[0].end(End::Sender).datagram_size(), 1472);
    simulation.forward.spec.largest_packet = 1400;
    simulation.run_until(seconds(20.0));
    assert_complete(&simulation, &spec);
}

#[test]
fn the_same_seed_gives_the_same_run() {
    let mut path = PathSpec::new(1e8, 20 * MS, 0.3);
    path.forward.loss = Loss::Bursts { begin: 0.002, end: 0.1, loss: 0.7 };
    let spec = verified(Mode::Fair, 20 * MS, vec![3_000_000]);
    let run = |seed| transfer(path, &spec, seed, 20.0).flows()[0].end(End::Sender).counters();
    assert_eq!(run(5), run(5));
    assert_ne!(run(5), run(6));
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, ..ProptestConfig::default() })]

    #[test]
    fn any_extents_arrive_complete_over_any_path(
        rate_mbps in 2_u32..200,
        rtt_ms in 1_u64..120,
        buffer_percent in 2_u32..300,
        loss in 0.0..0.3_f64,
        back_loss in 0.0..0.5_f64,
        late in 0.0..0.5_f64,
        late_ms in 0_u64..30,
        twice in 0.0..0.2_f64,
        damaged in 0.0..0.1_f64,
        lengths in prop::collection::vec(prop_oneof![0_u64..3, 0_u64..5000, 0_u64..300_000], 1..6),
        seed in any::<u64>(),
        mode in 0_usize..4,
    ) {
        let mut path = PathSpec::new(f64::from(rate_mbps) * 1e6, rtt_ms * MS, f64::from(buffer_percent) / 100.0);
        path.forward.loss = Loss::Random(loss);
        path.backward.loss = Loss::Random(back_loss);
        for link in [&mut path.forward, &mut path.backward] {
            (link.reorder, link.reorder_ns, link.duplicate, link.corrupt) = (late, late_ms * MS, twice, damaged);
        }
        let spec = verified(Mode::all().nth(mode).expect("one of four"), rtt_ms * MS, lengths);
        assert_complete(&transfer(path, &spec, seed, 120.0), &spec);
    }
}
