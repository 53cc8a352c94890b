//! The model against what it promises, and against the link of the virtual-time network.

use proptest::prelude::*;
use waystage_aqm::{Policer, QueueSpec};
use waystage_wanpath::model::{Bursts, Fate, Link, Lost, Spec};
use waystage_wansim::link::{Link as OtherLink, LinkSpec, Loss};

const PACKETS: u64 = 200_000;

fn spec() -> Spec {
    Spec { rate_bps: 1e9, delay_ns: 5_000_000, buffer_bytes: 100_000, ..Spec::default() }
}

/// Packets of 1,500 bytes at a pace the link takes.
fn fates(spec: Spec, seed: u64, packets: u64) -> Vec<Fate> {
    let mut link = Link::new(spec, seed);
    (0..packets).map(|index| link.send(index * 15_000, 1500, false)).collect()
}

/// Within five standard deviations of a share.
fn near(count: usize, share: f64, of: u64) -> bool {
    let of = of as f64;
    (count as f64 - share * of).abs() <= 5.0 * (of * share * (1.0 - share)).sqrt()
}

#[test]
fn shares_are_what_was_asked_for() {
    let harsh = Spec {
        loss: 0.1,
        duplicate: 0.02,
        reorder: 0.25,
        reorder_ns: 3_000_000,
        corrupt: 0.01,
        ..spec()
    };
    let fates = fates(harsh, 7, PACKETS);
    let arrived: Vec<_> = fates.iter().flatten().collect();
    let there = arrived.len() as u64;
    assert!(near(fates.len() - arrived.len(), 0.1, PACKETS));
    assert!(near(arrived.iter().filter(|a| a.1.is_some()).count(), 0.02, there));
    assert!(near(arrived.iter().filter(|a| a.0.held).count(), 0.25, there));
    assert!(near(arrived.iter().filter(|a| a.0.flip.is_some()).count(), 0.01, there));
}

#[test]
fn bursts_last_as_long_as_they_should() {
    let bursts = Bursts { begin: 0.01, end: 0.2, loss: 1.0 };
    let fates = fates(Spec { bursts: Some(bursts), ..spec() }, 3, PACKETS);
    let lost: Vec<bool> = fates.iter().map(|fate| *fate == Err(Lost::Burst)).collect();
    let runs = lost.windows(2).filter(|pair| !pair[0] && pair[1]).count();
    let all = lost.iter().filter(|lost| **lost).count();
    let mean = all as f64 / runs as f64;
    assert!((mean - 5.0).abs() < 0.5, "{mean} packets a burst");
    let share = all as f64 / PACKETS as f64;
    assert!((share - 0.01 / 0.21).abs() < 0.004, "{share}");
}

#[test]
fn what_happens_to_a_packet_follows_from_seed_and_number() {
    let harsh = Spec {
        loss: 0.05,
        bursts: Some(Bursts { begin: 0.01, end: 0.1, loss: 0.5 }),
        duplicate: 0.1,
        corrupt: 0.1,
        reorder: 0.1,
        reorder_ns: 1_000_000,
        ..spec()
    };
    assert_eq!(fates(harsh, 5, 10_000), fates(harsh, 5, 10_000));
    assert_ne!(fates(harsh, 5, 10_000), fates(harsh, 6, 10_000));
    // All at once, so that most find the buffer full: those that pass meet the same fate as before.
    let mut crowded = Link::new(harsh, 5);
    for fate in fates(harsh, 5, 10_000) {
        match (crowded.send(0, 1500, false), fate) {
            (Err(Lost::Buffer), _) => {}
            (Err(why), before) => assert_eq!(Err(why), before),
            (Ok((first, again)), before) => {
                let (before, before_again) = before.unwrap();
                assert_eq!((first.held, first.flip), (before.held, before.flip));
                assert_eq!(again.is_some(), before_again.is_some());
            }
        }
    }
}

#[test]
fn the_buffer_holds_what_it_holds() {
    let mut link = Link::new(Spec { rate_bps: 12e6, buffer_bytes: 15_000, ..Spec::default() }, 1);
    let out: Vec<u64> = (0..100)
        .filter_map(|_| link.send(0, 1500, false).ok())
        .map(|(first, _)| first.at_ns)
        .collect();
    assert_eq!(out, (1..=10).map(|index| index * 1_000_000).collect::<Vec<u64>>());
    assert_eq!((link.counts().overflowed, link.counts().max_queued), (90, 15_000));
    assert!(
        link.send(100_000_000, 40_000, false).is_ok(),
        "an idle link takes a packet of any size"
    );
}

#[test]
fn larger_packets_than_the_mtu_do_not_pass_and_take_no_time() {
    let mut link = Link::new(Spec { mtu: 1400, ..spec() }, 1);
    assert_eq!(link.send(0, 1401, false), Err(Lost::TooLarge));
    assert_eq!(link.send(0, 1400, false).unwrap().0.at_ns, 5_000_000 + 11_200);
}

#[test]
fn a_change_at_work_holds_for_what_follows() {
    let mut link = Link::new(spec(), 1);
    assert_eq!(link.send(0, 1500, false).unwrap().0.at_ns, 5_012_000);
    link.change(Spec { rate_bps: 1e8, delay_ns: 0, ..spec() });
    assert_eq!(
        link.send(0, 1500, false).unwrap().0.at_ns,
        12_000 + 120_000,
        "it waits for the one before"
    );
    assert_eq!(link.counts().packets, 2);
}

#[test]
fn a_rate_that_rises_makes_a_queue_no_fuller() {
    let mut link = Link::new(Spec { rate_bps: 1e7, buffer_bytes: 30_000, ..spec() }, 1);
    (0..15).for_each(|_| assert!(link.send(0, 1500, false).is_ok()));
    link.change(Spec { rate_bps: 1e8, buffer_bytes: 30_000, ..spec() });
    (0..5).for_each(|_| assert!(link.send(0, 1500, false).is_ok()));
    assert_eq!(link.queued_bytes(0), 30_000);
    assert_eq!(link.send(0, 1500, false), Err(Lost::Buffer));
}

#[test]
fn invalid_properties_are_named() {
    assert!(spec().check().is_ok());
    for (bad, word) in [
        (Spec { loss: 1.5, ..spec() }, "loss"),
        (Spec { corrupt: f64::NAN, ..spec() }, "corrupt"),
        (Spec { rate_bps: 0.0, ..spec() }, "rate"),
        (Spec { delay_ns: u64::MAX, ..spec() }, "ten minutes"),
        (Spec { bursts: Some(Bursts { begin: 0.1, end: -1.0, loss: 1.0 }), ..spec() }, "end"),
    ] {
        let said = bad.check().unwrap_err().to_string();
        assert!(said.contains(word), "{said}");
    }
}

proptest! {
    /// Never above the rate, over any stretch of time, whatever comes when; never before the delay; in order without
    /// jitter.
    #[test]
    fn the_rate_is_kept_and_nothing_is_early(
        packets in proptest::collection::vec((0u64..40_000, 20u64..9000), 1..300),
        rate_mbit in 1u64..5000,
        buffer in 2_000u64..200_000,
    ) {
        let spec = Spec {
            rate_bps: rate_mbit as f64 * 1e6,
            delay_ns: 700_000,
            buffer_bytes: buffer,
            ..Spec::default()
        };
        let mut link = Link::new(spec, 9);
        let (mut now, mut last) = (0, 0);
        let mut crossed: Vec<(u64, u64)> = Vec::new();
        for (gap, bytes) in packets {
            now += gap;
            prop_assert!(link.queued_bytes(now) <= buffer.max(9000));
            if let Ok((first, again)) = link.send(now, bytes, false) {
                let on_link_ns = (bytes as f64 * 8e9 / spec.rate_bps) as u64;
                prop_assert!(again.is_none() && first.at_ns >= now + 700_000 + on_link_ns);
                prop_assert!(first.at_ns >= last);
                last = first.at_ns;
                crossed.push((first.at_ns, bytes));
            }
        }
        for (index, (begin, _)) in crossed.iter().enumerate() {
            let mut bits = 0;
            for (end, bytes) in &crossed[index + 1..] {
                bits += bytes * 8;
                // The arrival of the first is the end of its crossing: what follows crossed since.
                let most = (end - begin + 2) as f64 * spec.rate_bps / 1e9;
                prop_assert!(bits as f64 <= most + 1.0, "{bits} bits in {} ns", end - begin);
            }
        }
    }

    /// The virtual-time network's link gives the same times, to rounding, and drops the same packets.
    #[test]
    fn it_agrees_with_the_link_in_virtual_time(
        packets in proptest::collection::vec((0u64..40_000, 100u64..1500), 1..300),
        rate_mbit in 10u64..2000,
        buffer in 3_000u64..100_000,
        lost in 0u8..2,
        policed in any::<bool>(),
        mark_bytes in 3_000u64..100_000,
    ) {
        let rate_bps = rate_mbit as f64 * 1e6;
        let loss = f64::from(lost);
        let policer = Policer { rate_bps: rate_bps / 2.0, bucket_bytes: 10_000 };
        let queue = QueueSpec { policer: policed.then_some(policer), mark_bytes, ..QueueSpec::default() };
        let mut ours = Link::new(
            Spec { rate_bps, delay_ns: 1_000_000, buffer_bytes: buffer, queue, loss, ..Spec::default() },
            1,
        );
        let mut other = OtherLink::new(
            LinkSpec {
                loss: Loss::Random(loss),
                queue,
                ..LinkSpec::new(rate_bps, 1_000_000, buffer)
            },
            1,
        );
        let (mut now, mut passed) = (0, 0);
        for (gap, bytes) in packets {
            now += gap;
            // Where the buffer is full to the last byte, or the queue as long as a mark's, one rounding decides.
            let queued = ours.queued_bytes(now);
            if (queued + bytes).abs_diff(buffer) <= 300 || queued.abs_diff(mark_bytes) <= 300 {
                continue;
            }
            let mine = ours.send(now, bytes, true);
            let theirs = other.send(now, bytes as usize)[0];
            if mine == Err(Lost::Random) {
                prop_assert!(theirs.is_none());
                continue;
            }
            prop_assert_eq!(mine.is_ok(), theirs.is_some());
            if let (Ok((first, _)), Some(theirs)) = (mine, theirs) {
                passed += 1;
                prop_assert_eq!(first.marked, theirs.marked);
                prop_assert!(first.at_ns.abs_diff(theirs.at_ns) <= 1 + passed, "{} {}", first.at_ns, theirs.at_ns);
            }
        }
    }
}
