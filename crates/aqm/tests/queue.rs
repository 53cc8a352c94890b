//! A queue's management by what a sender sees of it.

use proptest::prelude::*;
use waystage_aqm::{Aqm, Management, Offered, Policer, QueueSpec, Verdict};

const BYTES: u64 = 1500;

/// A packet that finds a queue of `queued` bytes on a link of 12 Mbit/s, a packet a millisecond.
fn offered(now_ns: u64, queued: u64) -> Offered {
    Offered {
        now_ns,
        bytes: BYTES,
        crossing_ns: 1_000_000,
        queued_bytes: queued,
        free_ns: now_ns + queued * 1_000_000 / BYTES,
        buffer_bytes: 150_000,
        ecn_capable: false,
    }
}

/// The times, in ms, at which a queue that always holds `queued` bytes loses one of `count` packets.
fn losses(spec: QueueSpec, queued: u64, count: u64) -> Vec<u64> {
    let mut management = Management::default();
    let mut state = 1u64;
    (0..count)
        .filter(|ms| {
            let verdict =
                management.offer(&spec, &offered(ms * 1_000_000, queued), |probability| {
                    state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                    ((state >> 11) as f64 / (1u64 << 53) as f64) < probability
                });
            verdict == Verdict::Early
        })
        .collect()
}

#[test]
fn codel_leaves_short_waits_alone_and_drops_ever_faster_from_long_ones() {
    let spec = QueueSpec { aqm: Aqm::CoDel, ..QueueSpec::default() };
    assert!(losses(spec, 4 * BYTES, 2000).is_empty(), "4 ms are below the target");
    let lost = losses(spec, 20 * BYTES, 1000);
    assert_eq!(lost[0], 100, "after an interval above the target");
    let gaps: Vec<u64> = lost.windows(2).map(|pair| pair[1] - pair[0]).collect();
    // RFC 8289: the interval over the square root of the count.
    for (index, gap) in gaps.iter().enumerate() {
        let law = 100.0 / ((index + 1) as f64).sqrt();
        assert!((*gap as f64 - law).abs() <= 1.5, "gap {index}: {gap}, {law}");
    }
}

#[test]
fn codel_begins_anew_after_a_short_wait() {
    let spec = QueueSpec { aqm: Aqm::CoDel, ..QueueSpec::default() };
    let mut management = Management::default();
    let mut first = |from_ms: u64, queued| {
        (from_ms..from_ms + 500).find(|ms| {
            let packet = offered(ms * 1_000_000, queued);
            management.offer(&spec, &packet, |_| false) == Verdict::Early
        })
    };
    assert_eq!(first(0, 20 * BYTES), Some(100));
    assert_eq!(first(1000, BYTES), None);
    assert_eq!(first(9000, 20 * BYTES), Some(9100));
}

#[test]
fn red_loses_none_below_its_threshold_and_all_above_the_upper_one() {
    let spec = QueueSpec { aqm: Aqm::Red { min: 0.2, max: 0.6 }, ..QueueSpec::default() };
    assert!(losses(spec, 15_000, 20_000).is_empty());
    // The average has reached the queue.
    let half_way: Vec<u64> =
        losses(spec, 60_000, 60_000).into_iter().filter(|ms| *ms >= 10_000).collect();
    let share = half_way.len() as f64 / 50_000.0;
    // A single packet's probability is 0.05; gaps between drops are uniform up to its inverse, half of that on average.
    assert!((0.09..=0.11).contains(&share), "{share}");
    let gaps = half_way.windows(2).map(|pair| pair[1] - pair[0]).max();
    assert!(gaps.is_some_and(|gap| gap <= 21), "{gaps:?}");
    let above = losses(spec, 120_000, 20_000);
    assert!((5_000..20_000).all(|ms| above.binary_search(&ms).is_ok()));
}

#[test]
fn an_idle_link_lowers_the_average_of_red() {
    let spec = QueueSpec { aqm: Aqm::Red { min: 0.2, max: 0.6 }, ..QueueSpec::default() };
    let mut management = Management::default();
    for ms in 0..10_000 {
        management.offer(&spec, &offered(ms * 1_000_000, 60_000), |_| false);
    }
    let idle = Offered { free_ns: 10_000 * 1_000_000, ..offered(20_000 * 1_000_000, 0) };
    assert_eq!(management.offer(&spec, &idle, |_| true), Verdict::Pass);
    let after = offered(20_001 * 1_000_000, 60_000);
    assert_eq!(
        management.offer(&spec, &after, |_| true),
        Verdict::Pass,
        "the average is near zero"
    );
}

#[test]
fn marks_are_for_those_that_understand_them() {
    let spec = QueueSpec { mark_bytes: 30_000, ..QueueSpec::default() };
    let mut management = Management::default();
    let capable = |queued| Offered { ecn_capable: true, ..offered(0, queued) };
    assert_eq!(management.offer(&spec, &capable(30_000), |_| false), Verdict::Pass);
    assert_eq!(management.offer(&spec, &capable(30_001), |_| false), Verdict::Mark);
    assert_eq!(management.offer(&spec, &offered(0, 30_001), |_| false), Verdict::Pass);
    for aqm in [Aqm::CoDel, Aqm::Red { min: 0.0, max: 0.01 }] {
        let spec = QueueSpec { aqm, ecn: true, ..QueueSpec::default() };
        let verdicts = |ecn_capable| {
            let mut management = Management::default();
            let each =
                (0..3000).map(|ms| Offered { ecn_capable, ..offered(ms * 1_000_000, 90_000) });
            each.map(|packet| management.offer(&spec, &packet, |_| true)).collect::<Vec<_>>()
        };
        let count =
            |verdicts: &[Verdict], verdict| verdicts.iter().filter(|v| **v == verdict).count();
        let (capable, others) = (verdicts(true), verdicts(false));
        assert_eq!(count(&capable, Verdict::Early), 0);
        assert!(count(&capable, Verdict::Mark) > 10);
        assert_eq!(count(&capable, Verdict::Mark), count(&others, Verdict::Early));
    }
}

#[test]
fn properties_that_mean_nothing_are_refused() {
    for (min, max) in [(0.5, 0.5), (-0.1, 0.5), (0.1, 1.5), (f64::NAN, 0.5)] {
        let spec = QueueSpec { aqm: Aqm::Red { min, max }, ..QueueSpec::default() };
        assert!(spec.check().is_err_and(|text| text.starts_with("red")));
    }
    for (rate_bps, bucket_bytes) in [(0.0, 1000), (f64::INFINITY, 1000), (1e6, 0)] {
        let policer = Some(Policer { rate_bps, bucket_bytes });
        assert!(QueueSpec { policer, ..QueueSpec::default() }.check().is_err());
    }
    assert_eq!(QueueSpec::default().check(), Ok(()));
}

proptest! {
    #[test]
    fn a_policer_passes_its_rate_and_a_bucket(
        gaps_us in proptest::collection::vec(0u64..5_000, 1..400),
        begin_us in 0u64..1_000_000,
        rate_bps in 1e5..1e8f64,
        bucket_bytes in BYTES..100_000,
    ) {
        let policer = Policer { rate_bps, bucket_bytes };
        let spec = QueueSpec { policer: Some(policer), ..QueueSpec::default() };
        let mut management = Management::default();
        // The times of the packets that passed: since each, no more than a bucket and the rate.
        let (mut now_us, mut passed_us) = (begin_us, Vec::new());
        for gap in gaps_us {
            now_us += gap;
            let passes = management.offer(&spec, &offered(now_us * 1000, 0), |_| false) == Verdict::Pass;
            passed_us.push(now_us);
            let since = passed_us.iter().enumerate().map(|(index, from_us)| {
                let bytes = (passed_us.len() - index) as u64 * BYTES;
                bytes as f64 - (now_us - from_us) as f64 * rate_bps / 8e6
            });
            let over = since.fold(0.0, f64::max) - bucket_bytes as f64;
            prop_assert!(if passes { over <= 1.0 } else { over >= -1.0 }, "{passes}, {over}");
            if !passes {
                passed_us.pop();
            }
        }
    }
}
