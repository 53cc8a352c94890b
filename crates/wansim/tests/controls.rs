//! Changes of a running connection, in virtual time: a pause, a rate, another mode.

use waystage_protocol::congestion::Mode;
use waystage_wansim::bulk::{Bulk, BulkSpec};
use waystage_wansim::scenario::{seconds, PathSpec};
use waystage_wansim::simulation::{End, Simulation};

const MS: u64 = 1_000_000;
const RATE_BPS: f64 = 1e8;
const RTT_NS: u64 = 40 * MS;

fn started(mode: Mode) -> Simulation<Bulk> {
    let path = PathSpec::new(RATE_BPS, RTT_NS, 1.0);
    let mut simulation = Simulation::new(path.forward, path.backward, 1);
    simulation.add(0, Bulk::new(0, &BulkSpec::endless(mode, RTT_NS)));
    simulation.run_until(seconds(5.0));
    simulation
}

/// The share of the path that arrives in this time.
fn share(simulation: &mut Simulation<Bulk>, seconds_long: f64) -> f64 {
    let arrived = |simulation: &Simulation<Bulk>| {
        simulation.flows()[0].end(End::Receiver).counters().unique_bytes
    };
    let before = arrived(simulation);
    simulation.run_until(simulation.now_ns() + seconds(seconds_long));
    8.0 * (arrived(simulation) - before) as f64 / seconds_long / RATE_BPS
}

fn lost(simulation: &Simulation<Bulk>) -> u64 {
    simulation.flows()[0].end(End::Sender).counters().lost_packets
}

fn limit(simulation: &mut Simulation<Bulk>, rate_bps: f64) {
    simulation.change(0, |flow, _| flow.end_mut(End::Sender).limit_rate(rate_bps));
}

#[test]
fn a_pause_of_any_length_moves_nothing_ends_no_connection_and_is_no_congestion() {
    for mode in Mode::all() {
        for pause_s in [0.2, 20.0, 3600.0] {
            let mut simulation = started(mode);
            let lost_at_first = lost(&simulation);
            let before = share(&mut simulation, 2.0);
            let lost_before = lost(&simulation);
            limit(&mut simulation, 0.0);
            simulation.run_until(simulation.now_ns() + 2 * RTT_NS);
            assert_eq!(share(&mut simulation, pause_s), 0.0, "{mode}");
            let sender = simulation.flows()[0].end(End::Sender);
            assert!(!sender.is_closed(), "{mode}, {pause_s} s");
            assert!(sender.rtt().smoothed_ns() < 2 * RTT_NS, "{mode}: the pause is no round trip");
            limit(&mut simulation, f64::INFINITY);
            let after = share(&mut simulation, 2.0);
            // What an hour ago was measured of the path no longer counts for all.
            let kept = if pause_s > 60.0 { 0.6 } else { 0.8 };
            assert!(after > kept * before, "{mode}, {pause_s} s: {after:.3} after {before:.3}");
            // Resuming is no burst: the buffer of the path holds it.
            // What `aggressive` loses, it loses without a pause as well.
            let (lost, usual) = (lost(&simulation) - lost_before, lost_before - lost_at_first);
            assert!(lost < 2 * usual + 50, "{mode}, {pause_s} s: {lost} lost, before {usual}");
        }
    }
}

#[test]
fn a_rate_holds_after_it_changes_and_the_path_is_filled_again_after_it() {
    let mut simulation = started(Mode::Fair);
    limit(&mut simulation, 0.1 * RATE_BPS);
    simulation.run_until(simulation.now_ns() + 2 * RTT_NS);
    let limited = share(&mut simulation, 3.0);
    assert!((0.08..=0.102).contains(&limited), "{limited:.3}");
    limit(&mut simulation, f64::INFINITY);
    simulation.run_until(simulation.now_ns() + 2 * RTT_NS);
    assert!(share(&mut simulation, 3.0) > 0.85);
}

#[test]
fn another_mode_begins_from_what_the_path_carries() {
    for from in Mode::all() {
        for to in Mode::all() {
            let mut simulation = started(from);
            let before = share(&mut simulation, 2.0);
            let lost_before = lost(&simulation);
            simulation.change(0, |flow, now_ns| {
                flow.end_mut(End::Sender).change_controller(now_ns, || to.start(RTT_NS, 10e9));
            });
            // From the first round trips on: a start from nothing takes eight of them for this path.
            let after = share(&mut simulation, 4.0 * RTT_NS as f64 / 1e9);
            assert!(after > 0.8 * before, "{from} to {to}: {after:.3} after {before:.3}");
            // The change itself is no burst; `aggressive` later fills the buffer, as it always does.
            let lost = lost(&simulation) - lost_before;
            // What `aggressive` had in flight too much is lost under whatever follows.
            let most = if from == Mode::Aggressive { 1000 } else { 50 };
            assert!(lost < most, "{from} to {to}: {lost} lost");
            let later = share(&mut simulation, 3.0);
            assert!(later > 0.8, "{from} to {to}: {later:.3}");
            let phase = simulation.flows()[0].end(End::Sender).controller().phase();
            assert_ne!(phase, "startup", "{from} to {to}");
        }
    }
}

#[test]
fn a_mode_that_changes_in_a_pause_begins_when_it_ends() {
    let mut simulation = started(Mode::Fair);
    limit(&mut simulation, 0.0);
    simulation.run_until(simulation.now_ns() + seconds(1.0));
    simulation.change(0, |flow, now_ns| {
        let sender = flow.end_mut(End::Sender);
        sender.change_controller(now_ns, || Mode::Modest.start(RTT_NS, 10e9));
    });
    assert_eq!(share(&mut simulation, 1.0), 0.0);
    limit(&mut simulation, f64::INFINITY);
    simulation.run_until(simulation.now_ns() + 2 * RTT_NS);
    assert!(share(&mut simulation, 2.0) > 0.8);
}
