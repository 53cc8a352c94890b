//! Synchronised queue drains: all flows reduce their windows at the same moment and measure the empty path.
//!
//! Arrives: acknowledgements. Leaves: whether a drain is in progress, the part of the window in use during it, and
//! its findings. Must not know: the controller.
//!
//! Flows that follow a queue keep one, and a later flow takes the queue of the others for a part of the path: its
//! minimum round trip is too long and its share too large (Low, Peterson, Wang: "Understanding TCP Vegas", JACM
//! 49(2), 2002, section 4). One flow that pauses does not empty the queue of sixteen. BBR's ProbeRTT has the same
//! aim, and its flows synchronise over time. Here all drain when their clocks show a multiple of five seconds, which
//! hosts with the time of day do within milliseconds. The queue empties for a part of a round trip, and each flow
//! measures the path itself. Clocks that disagree only lose the benefit.
//!
//! ```text
//! W_drain = 0.85 W min_rtt / RTT        until the first packet sent after the start is acknowledged
//! ```
//!
//! A host that acknowledges that packet late would seem to be a short queue of others, so there the shortest delay
//! counts of a moment from then on.

use super::controller::AckEvent;

/// The time between drains; doubled until it is at least [`ROUND_TRIPS`] long.
const INTERVAL_NS: u64 = 5_000_000_000;
const ROUND_TRIPS: u64 = 100;

/// The part of the path's bandwidth-delay product that stays in flight.
const KEPT: f64 = 0.85;

/// Every flow drains where less than `queue / GONE` remains of a queue longer than `min_rtt / LONG`. Beside flows
/// that do not drain and have the share `1 - s`, `(1 - s) queue - 0.15 s min_rtt` would remain.
const LONG: u64 = 2;
const GONE: u64 = 16;

/// A queue has emptied where less than `queue / EMPTY` remains. Less than `min_rtt / NO_QUEUE` is none of other flows:
/// hosts cause as much.
const EMPTY: u64 = 4;
const NO_QUEUE: u64 = 32;

/// A queue that is longer than before by this factor has grown.
const GREW: u64 = 2;

/// A queue shorter than `min_rtt / SHORT` is too short to judge. A longer one may empty once while others back off,
/// but not in two drains in a row.
const SHORT: u64 = 16;

/// What is left of a queue shorter than `min_rtt / HOSTS`, as a host may cause, is measured for this part of the
/// minimum round trip.
const HOSTS: u64 = 8;
const MEASURED: u64 = 16;

/// The state of the drain after an acknowledgement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DrainState {
    /// No drain is in progress.
    Idle,
    /// The window is reduced.
    Draining,
    /// This acknowledgement ended the drain.
    Complete(Findings),
}

/// The findings of a drain.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Findings {
    /// The minimum round trip turned out shorter than known before.
    pub shorter: bool,
    /// The queue emptied: every flow on the path drains.
    pub empty: bool,
    /// A queue remained, of flows that do not drain. One that grew meanwhile tells nothing: the capacity may have
    /// fallen.
    pub others: bool,
    /// Every flow that fills the path drains: a long queue emptied, or a queue did so for the second time in a row.
    pub all_drain: bool,
}

#[derive(Clone, Copy, Debug)]
struct Draining {
    /// The first packet sent after the start.
    first: u64,
    /// The part of the window in use.
    part: f64,
    /// The minimum and smoothed round trips before.
    min_rtt_ns: u64,
    smoothed_rtt_ns: u64,
    /// The shortest round trip of packets sent after the start, and until when it is measured.
    left_rtt_ns: Option<u64>,
    until_ns: Option<u64>,
}

/// Schedules drains and evaluates them.
#[derive(Clone, Debug, Default)]
pub struct QueueDrain {
    slot: Option<u64>,
    draining: Option<Draining>,
    /// Whether the last drain found a queue, and it emptied.
    emptied_before: bool,
}

impl QueueDrain {
    /// Processes an acknowledgement.
    pub fn on_ack(&mut self, ack: &AckEvent) -> DrainState {
        if let Some(drain) = &mut self.draining {
            if ack.largest_acknowledged < Some(drain.first) {
                return DrainState::Draining;
            }
            let min_rtt_ns = ack.min_rtt_ns;
            let queue_ns = drain.smoothed_rtt_ns.saturating_sub(min_rtt_ns);
            drain.left_rtt_ns = drain.left_rtt_ns.into_iter().chain(ack.rtt_ns).min();
            let left_rtt_ns = drain.left_rtt_ns.unwrap_or(drain.smoothed_rtt_ns);
            let left_ns = left_rtt_ns.saturating_sub(min_rtt_ns);
            let until_ns = *drain.until_ns.get_or_insert(ack.now_ns + min_rtt_ns / MEASURED);
            let may_be_host = queue_ns < min_rtt_ns / HOSTS && left_ns > queue_ns / GONE;
            if may_be_host && ack.now_ns < until_ns {
                return DrainState::Draining;
            }
            let shorter = min_rtt_ns < drain.min_rtt_ns - drain.min_rtt_ns / 32;
            self.draining = None;
            let least_ns = min_rtt_ns / NO_QUEUE;
            let empty = left_ns < queue_ns / EMPTY;
            let grew = left_ns > GREW * queue_ns.max(least_ns);
            let emptied = empty && queue_ns > min_rtt_ns / SHORT;
            let again = std::mem::replace(&mut self.emptied_before, emptied) && emptied;
            return DrainState::Complete(Findings {
                shorter,
                empty,
                others: !shorter && !empty && !grew && left_ns >= least_ns,
                all_drain: again || queue_ns > min_rtt_ns / LONG && left_ns < queue_ns / GONE,
            });
        }
        let mut interval_ns = INTERVAL_NS;
        while interval_ns < ROUND_TRIPS * ack.min_rtt_ns {
            interval_ns *= 2;
        }
        let slot = ack.now_ns / interval_ns;
        let due = self.slot.is_some_and(|before| before != slot);
        self.slot = Some(slot);
        if !due {
            return DrainState::Idle;
        }
        let part = ack.min_rtt_ns as f64 / ack.smoothed_rtt_ns.max(1) as f64;
        self.draining = Some(Draining {
            first: ack.next_packet_number,
            part: KEPT * part.min(1.0),
            min_rtt_ns: ack.min_rtt_ns,
            smoothed_rtt_ns: ack.smoothed_rtt_ns,
            left_rtt_ns: None,
            until_ns: None,
        });
        DrainState::Draining
    }

    /// The part of the window in use now.
    #[must_use]
    pub fn part(&self) -> f64 {
        self.draining.map_or(1.0, |drain| drain.part)
    }

    /// Cancels a drain in progress and the schedule.
    pub fn stop(&mut self) {
        (self.slot, self.draining) = (None, None);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    fn ack(now_ms: u64, min_rtt_ms: u64, rtt_ms: u64) -> AckEvent {
        AckEvent {
            now_ns: now_ms * MS,
            rtt_ns: Some(rtt_ms * MS),
            min_rtt_ns: min_rtt_ms * MS,
            smoothed_rtt_ns: rtt_ms * MS,
            ..AckEvent::default()
        }
    }

    #[test]
    fn two_flows_drain_at_the_same_moment_whenever_they_began() {
        for began_ms in [12_000, 14_999] {
            let mut drain = QueueDrain::default();
            let on = (began_ms..20_001)
                .find(|&ms| drain.on_ack(&ack(ms, 20, 30)) == DrainState::Draining);
            assert_eq!(on, Some(15_000));
            assert!((drain.part() - KEPT * 20.0 / 30.0).abs() < 1e-9);
        }
        let mut long = QueueDrain::default();
        let mut times = (0..50_000).filter(|&ms| match long.on_ack(&ack(ms, 200, 300)) {
            DrainState::Draining => std::mem::take(&mut long.draining).is_some(),
            _ => false,
        });
        let two = (times.next(), times.next());
        assert_eq!(two, (Some(20_000), Some(40_000)), "a hundred round trips");
    }

    #[test]
    fn a_drain_ends_after_the_first_packet_sent_in_it_and_reports_its_findings() {
        // The round trips before, the shortest one and those of the first packets; the findings.
        for (rtt_before_ms, min_rtt_ms, rtts_ms, shorter, empty, all_drain) in [
            (30, 20, vec![20], false, true, false),
            (32, 20, vec![20], false, true, true),
            (32, 20, vec![21], false, true, false),
            (22, 20, vec![29, 20], false, true, false),
            (22, 20, vec![21, 21], false, false, false),
            (30, 20, vec![29], false, false, false),
            (30, 15, vec![15], true, true, true),
        ] {
            let mut drain = QueueDrain::default();
            assert_eq!(drain.on_ack(&ack(9_999, 20, rtt_before_ms)), DrainState::Idle);
            let begin = AckEvent { next_packet_number: 7, ..ack(10_000, 20, rtt_before_ms) };
            assert_eq!(drain.on_ack(&begin), DrainState::Draining);
            let before =
                AckEvent { largest_acknowledged: Some(6), ..ack(10_010, 20, rtt_before_ms) };
            assert_eq!(drain.on_ack(&before), DrainState::Draining);
            // The second packet comes when the measurement is over.
            let states: Vec<_> = [10_020, 10_022]
                .into_iter()
                .zip(&rtts_ms)
                .map(|(now_ms, &rtt_ms)| AckEvent {
                    largest_acknowledged: Some(7),
                    ..ack(now_ms, min_rtt_ms, rtt_ms)
                })
                .map(|after| drain.on_ack(&after))
                .collect();
            let others = !shorter && !empty;
            let complete = DrainState::Complete(Findings { shorter, empty, others, all_drain });
            let mut expected = vec![DrainState::Draining; rtts_ms.len()];
            expected[rtts_ms.len() - 1] = complete;
            assert_eq!(states, expected);
            let later = AckEvent { largest_acknowledged: Some(9), ..ack(10_023, 20, 20) };
            assert_eq!((drain.part(), drain.on_ack(&later)), (1.0, DrainState::Idle));
        }
    }

    #[test]
    fn what_hosts_cause_is_no_queue_of_others() {
        // In us: the round trips before and in the drain, on a path of 40 ms.
        for (before_us, left_us, empty, others) in [
            (40_100, 40_090, false, false),
            (40_100, 41_200, false, false),
            (42_000, 41_200, false, false),
            (42_000, 41_300, false, true),
            (42_000, 40_400, true, false),
            (60_000, 44_900, true, false),
            (60_000, 45_100, false, true),
            // The capacity falls meanwhile.
            (42_000, 43_900, false, true),
            (42_000, 44_100, false, false),
        ] {
            let mut drain = QueueDrain::default();
            let before =
                AckEvent { smoothed_rtt_ns: before_us * 1000, ..ack(9_999, 40, before_us / 1000) };
            drain.on_ack(&before);
            drain.on_ack(&AckEvent { now_ns: 10_000 * MS, next_packet_number: 7, ..before });
            let in_drain = AckEvent {
                largest_acknowledged: Some(7),
                rtt_ns: Some(left_us * 1000),
                now_ns: 10_042 * MS,
                ..before
            };
            let later = AckEvent { now_ns: 10_045 * MS, ..in_drain };
            let states = [drain.on_ack(&in_drain), drain.on_ack(&later)];
            let findings = Findings { empty, others, ..Findings::default() };
            let complete = DrainState::Complete(findings);
            assert!(states.contains(&complete), "{before_us} {left_us}: {states:?}");
        }
    }

    #[test]
    fn a_short_queue_that_empties_twice_in_a_row_belongs_to_flows_that_drain() {
        let mut drain = QueueDrain::default();
        let mut at = |begin_ms: u64, rtt_before_ms, rtt_ms| {
            drain.on_ack(&ack(begin_ms - 1, 20, rtt_before_ms));
            drain.on_ack(&ack(begin_ms, 20, rtt_before_ms));
            let end = |ms| AckEvent { largest_acknowledged: Some(0), ..ack(ms, 20, rtt_ms) };
            let first = drain.on_ack(&end(begin_ms + 20));
            let second = drain.on_ack(&end(begin_ms + 22));
            match (first, second) {
                (DrainState::Complete(findings), _) | (_, DrainState::Complete(findings)) => {
                    findings.all_drain
                }
                other => panic!("{other:?}"),
            }
        };
        let drains = [(24, 20), (24, 23), (24, 20), (21, 20), (24, 20), (24, 20), (24, 20)];
        let found: Vec<bool> = (2..)
            .zip(drains)
            .map(|(slot, (before, left))| at(5_000 * slot, before, left))
            .collect();
        assert_eq!(found, [false, false, false, false, false, true, true]);
        drain.stop();
        assert!(drain.emptied_before, "a cut test does not reset it");
    }
}
