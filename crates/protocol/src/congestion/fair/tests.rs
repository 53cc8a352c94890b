//! The phases and their transitions, acknowledgement by acknowledgement.

use super::super::controller::Delivery;
use super::*;

const MS: u64 = 1_000_000;
const RTT_NS: u64 = 20 * MS;

/// A path with one acknowledgement a round trip.
struct Path {
    fair: Fair,
    round: u64,
}

impl Path {
    /// A flow past its startup, in the phase `delay`.
    fn new(packets: f64) -> Self {
        let mut fair = Fair::new(RTT_NS, 1e10);
        fair.window = packets * PACKET;
        fair.enter_delay();
        fair.rounds.restart(1000);
        Self { fair, round: 1 }
    }

    fn packets(&self) -> f64 {
        self.fair.window / PACKET
    }

    /// The next round trip: its queueing delay, and packets lost of 1,000.
    fn ack(&self, queue_ns: u64, lost_packets: u64) -> AckEvent {
        let bytes = 1000 * PACKET as u64;
        AckEvent {
            now_ns: self.round * RTT_NS,
            rtt_ns: Some(RTT_NS + queue_ns),
            min_rtt_ns: RTT_NS,
            smoothed_rtt_ns: RTT_NS + queue_ns,
            acked_bytes: bytes,
            acked_packets: 1000 - lost_packets,
            lost_packets,
            largest_lost: (lost_packets > 0).then_some(1000 * self.round),
            largest_acknowledged: Some(1000 * self.round),
            next_packet_number: 1000 * (self.round + 1),
            delivery: Some(Delivery { bytes, interval_ns: RTT_NS, ..Delivery::default() }),
            ..AckEvent::default()
        }
    }

    fn round(&mut self, ack: &AckEvent) {
        self.fair.on_ack(ack);
        self.round += 1;
    }

    fn rounds(&mut self, count: u64, queue_ns: u64, lost_packets: u64) {
        for _ in 0..count {
            let ack = self.ack(queue_ns, lost_packets);
            self.round(&ack);
        }
    }
}

#[test]
fn the_window_follows_the_queue_and_grows_ever_faster_while_it_is_empty() {
    let mut path = Path::new(100.0);
    path.rounds(1, 0, 0);
    let first = path.packets() - 100.0;
    path.rounds(9, 0, 0);
    let before = path.packets();
    path.rounds(1, 0, 0);
    assert!(first > 0.0 && path.packets() - before > 4.0 * first, "the step doubles");
    let before = path.packets();
    path.rounds(3, 10 * MS, 0);
    assert!(path.packets() < before);
    assert_eq!(path.fair.phase(), "delay");
}

#[test]
fn an_application_limited_round_does_not_grow_the_window() {
    let mut path = Path::new(100.0);
    let ack = AckEvent { app_limited: true, ..path.ack(0, 0) };
    path.round(&ack);
    assert_eq!(path.packets(), 100.0);
}

#[test]
fn a_queue_that_stands_while_the_flow_yields_begins_the_tcp_friendly_phase() {
    let mut path = Path::new(100.0);
    path.rounds(5, 15 * MS, 0);
    assert_eq!(path.fair.phase(), "delay");
    assert!(path.packets() < 100.0, "it yields at first");
    path.rounds(2, 15 * MS, 0);
    assert_eq!(path.fair.phase(), "tcp-friendly");
    assert!(path.packets() >= 100.0, "and claims its window back");
}

#[test]
fn a_mark_reduces_the_window_once_a_round_trip() {
    let mut path = Path::new(100.0);
    let marked = AckEvent { marked_packets: 1, ..path.ack(0, 0) };
    path.fair.on_ack(&AckEvent { largest_acknowledged: Some(900), ..marked });
    assert_eq!(path.fair.phase(), "tcp-friendly");
    assert!((path.packets() - 85.0).abs() < 1e-6, "{}", path.packets());
    path.fair.on_ack(&AckEvent { largest_acknowledged: Some(1900), ..marked });
    assert!(path.packets() >= 85.0, "packets sent before the response");
}

#[test]
fn marks_of_packets_that_return_after_a_drain_say_nothing_and_later_ones_do() {
    for beside_others in [false, true] {
        let mut path = Path::new(100.0);
        if beside_others {
            path.fair.enter_tcp_friendly(0);
            path.fair.tcp_friendly.hold(path.fair.window);
        }
        let drained = path.ack(0, 0);
        path.fair.on_drained(&drained, Findings { empty: true, ..Findings::default() });
        path.round += 1;
        for answered in [false, true] {
            let before = path.packets();
            let marked = AckEvent { marked_packets: 1, ..path.ack(0, 0) };
            path.round(&marked);
            let fell = path.packets() < 0.9 * before;
            assert_eq!(fell, answered, "beside others: {beside_others}, {}", path.packets());
        }
    }
}

#[test]
fn a_path_that_stops_for_a_moment_changes_nothing_and_one_that_keeps_stopping_counts() {
    let in_a_row = |path: &Path| AckEvent { lost_squares: 900, ..path.ack(5 * MS, 30) };
    let mut path = Path::new(100.0);
    let stopped = in_a_row(&path);
    path.round(&stopped);
    assert_eq!((path.fair.phase(), path.packets()), ("delay", 100.0));
    let scattered = AckEvent { lost_squares: 150, ..path.ack(5 * MS, 150) };
    path.round(&scattered);
    assert_eq!(path.fair.phase(), "tcp-friendly", "a full buffer");

    let mut path = Path::new(100.0);
    path.fair.phase = Phase::Hold(held::Hold::begin(&held::Beginning {
        bps: 5e8,
        lost: 0.1,
        ..Default::default()
    }));
    path.rounds(6, 0, 0);
    let kept_bps = path.fair.carried_bps();
    for _ in 0..4 {
        let stopped = in_a_row(&path);
        path.round(&stopped);
        path.rounds(4, 0, 0);
    }
    assert_eq!(path.fair.phase(), "hold");
    assert!(path.fair.carried_bps() >= kept_bps, "what arrived meanwhile is no rate");
}

#[test]
fn losses_that_all_arrive_after_all_are_undone() {
    let mut path = Path::new(100.0);
    path.rounds(1, 5 * MS, 30);
    assert_eq!(path.fair.phase(), "tcp-friendly");
    let reduced = path.packets();
    let late = AckEvent { late_packets: 30, largest_acknowledged: Some(1100), ..path.ack(0, 0) };
    path.fair.on_ack(&late);
    assert_eq!(path.fair.phase(), "delay");
    assert!(path.packets() > reduced / 0.75, "{reduced} to {}", path.packets());
}

#[test]
fn random_loss_that_a_quiet_round_confirms_is_undone() {
    let mut path = Path::new(100.0);
    path.rounds(1, 5 * MS, 60);
    assert_eq!(path.fair.phase(), "tcp-friendly");
    // The first round still acknowledges packets sent before the response. The next one is quiet and loses as many.
    path.rounds(2, 0, 60);
    assert_eq!(path.fair.phase(), "delay");
    assert!((path.fair.floor.share() - 0.06).abs() < 0.01, "{}", path.fair.floor.share());
}

#[test]
fn a_flow_that_is_alone_returns_to_delay_after_a_cut_test() {
    let mut path = Path::new(1000.0);
    path.fair.enter_tcp_friendly(0);
    path.fair.tcp_friendly.hold(path.fair.window);
    let mut phases = Vec::new();
    // The path delivers the same whatever the window: the queue belongs to this flow.
    for _ in 0..900 {
        path.rounds(1, 10 * MS, 0);
        if phases.last() != Some(&path.fair.phase()) {
            phases.push(path.fair.phase());
        }
        if phases.last() == Some(&"delay") {
            break;
        }
    }
    assert_eq!(phases, ["tcp-friendly", "cut-test", "delay"]);
}

#[test]
fn timeouts_halve_the_window_and_another_path_starts_anew() {
    let mut path = Path::new(100.0);
    path.fair.on_timeout(0);
    assert_eq!(path.packets(), 50.0);
    (0..20).for_each(|_| path.fair.on_timeout(0));
    assert_eq!(path.fair.window, MIN_WINDOW);
    path.fair.on_path_change(0, RTT_NS);
    assert_eq!(path.fair.phase(), "startup");
}

#[test]
fn one_long_burst_is_no_evidence_and_as_many_single_losses_are() {
    let mut path = Path::new(100.0);
    path.rounds(1, 8 * MS, 0);
    path.rounds(2, 0, 0);
    let burst = AckEvent { lost_squares: 200 * 200, ..path.ack(0, 200) };
    path.round(&burst);
    assert_eq!(path.fair.phase(), "delay");
    let mut path = Path::new(100.0);
    path.rounds(1, 8 * MS, 0);
    path.rounds(2, 0, 0);
    let single = AckEvent { lost_squares: 200, ..path.ack(0, 200) };
    path.round(&single);
    assert_ne!(path.fair.phase(), "delay");
}

#[test]
fn a_path_that_loses_what_exceeds_its_rate_is_held_at_it_until_another_flow_comes() {
    let mut path = Path::new(100.0);
    path.fair.path_is_known = true;
    path.rounds(3, 0, 0);
    path.rounds(1, 0, 200);
    assert_eq!(path.fair.phase(), "hold");
    let rate = path.fair.carried_bps();
    assert!((rate / (1000.0 * PACKET * 8e9 / RTT_NS as f64) - 1.0).abs() < 0.01, "{rate}");
    assert!(path.fair.control().rate_bps < 0.9 * rate, "a test");
    path.rounds(8, 0, 0);
    assert_eq!(path.fair.control().rate_bps, rate);
    let mut probed = false;
    for _ in 0..10 {
        path.rounds(1, 0, 0);
        probed |= path.fair.control().rate_bps > rate;
    }
    assert!(probed);
    path.rounds(7, 0, 0);
    assert!((path.fair.carried_bps() / rate - 1.0).abs() < 0.02, "which delivered no more");
    let held = path.fair.carried_bps();
    path.rounds(10, 0, 200);
    assert_eq!(path.fair.phase(), "hold", "the losses go on: the rate was too high");
    let lowered = path.fair.carried_bps() / held;
    assert!((0.97..0.995).contains(&lowered), "{lowered}");
    path.rounds(4, 0, 0);
    path.rounds(1, 0, 200);
    path.rounds(9, 0, 0);
    assert_eq!(path.fair.phase(), "tcp-friendly", "the losses end by themselves");
}

#[test]
fn a_longer_path_gets_a_longer_window_for_the_same_rate() {
    let mut path = Path::new(100.0);
    path.rounds(2, 10 * MS, 0);
    assert!(path.packets() < 95.0, "it yields to what may be a queue");
    let longer =
        AckEvent { min_rtt_ns: RTT_NS + 10 * MS, longer_ns: 10 * MS, ..path.ack(10 * MS, 0) };
    path.round(&longer);
    assert!((140.0..160.0).contains(&path.packets()), "{}", path.packets());
    assert_eq!(path.fair.phase(), "delay");
}

#[test]
fn slow_start_leads_back_to_the_window_before_an_outage() {
    let mut path = Path::new(100.0);
    (0..5).for_each(|_| path.fair.on_timeout(0));
    assert!(path.packets() < 5.0);
    path.rounds(1, 0, 0);
    assert!((0.95..1.3).contains(&(path.packets() / 100.0)), "{}", path.packets());
}

/// A flow whose capacity falls to a quarter, in a buffer that overflows, and is followed.
fn fallen() -> Path {
    fallen_after(Findings { empty: true, ..Findings::default() })
}

/// The same some rounds after a drain with these findings.
fn fallen_after(findings: Findings) -> Path {
    let mut path = Path::new(100.0);
    let drained = path.ack(MS, 0);
    path.fair.on_drained(&drained, findings);
    path.round += 1;
    path.rounds(3, MS, 0);
    path.fair.window = 100.0 * PACKET;
    let quarter = |path: &Path, lost| AckEvent {
        delivery: Some(Delivery {
            bytes: 25 * PACKET as u64,
            interval_ns: RTT_NS,
            ..Delivery::default()
        }),
        ..path.ack(8 * MS, lost)
    };
    let losing = quarter(&path, 500);
    path.round(&losing);
    path
}

#[test]
fn a_capacity_that_falls_is_followed_and_returned_to() {
    let mut path = fallen();
    assert_eq!(path.fair.phase(), "delay");
    assert!((24.0..32.0).contains(&path.packets()), "{}", path.packets());
    path.rounds(9, 3 * MS, 0);
    assert_eq!(path.fair.phase(), "delay");
    assert!(path.packets() < 50.0, "as long as there is a queue: {}", path.packets());
    path.rounds(6, 0, 0);
    assert!(path.packets() > 85.0, "{}", path.packets());
}

#[test]
fn a_fall_after_a_drain_is_another_flow_s_only_where_that_drain_found_one() {
    for (others, phase) in [(false, "delay"), (true, "tcp-friendly")] {
        let path = fallen_after(Findings { others, ..Findings::default() });
        assert_eq!(path.fair.phase(), phase, "others: {others}");
    }
}

#[test]
fn a_queue_that_stands_after_a_fall_is_another_flow_s() {
    let mut path = fallen();
    path.rounds(8, 15 * MS, 0);
    assert_eq!(path.fair.phase(), "tcp-friendly");
    assert!(path.packets() >= 69.0, "with the window of CUBIC: {}", path.packets());
}

#[test]
fn a_loss_without_a_queue_is_no_fall_of_the_capacity() {
    let mut path = Path::new(100.0);
    path.rounds(3, 6 * MS, 0);
    path.rounds(1, MS, 500);
    assert_eq!(path.fair.phase(), "tcp-friendly");
}
