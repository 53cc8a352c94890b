//! The counts of one direction, and whether they measure the path or this machine.
//!
//! Arrives: counts and lateness. Leaves: the same, and a verdict. Must not know: how packets travel.

use std::time::Duration;

use waystage_lab::LatencyHistogram;

use crate::model::Counts;

/// The share of packets that may be late or lost because of this machine. Beyond it, a run is not valid.
pub const INVALID_SHARE: f64 = 0.001;

/// Upper bounds of the classes of lateness in microseconds; the last class has none.
pub const LATENESS_US: [u64; 11] =
    [50, 100, 200, 500, 1_000, 2_000, 5_000, 10_000, 20_000, 50_000, 100_000];

/// The counts of one direction since its start.
#[derive(Clone, Debug)]
pub struct Report {
    /// The decisions of the model.
    pub counts: Counts,
    /// Packets that left, including copies.
    pub out: u64,
    /// Their bytes.
    pub out_bytes: u64,
    /// Packets that left after one with a higher number.
    pub reordered: u64,
    /// Packets that left later than due by more than the bound.
    pub late: u64,
    /// Packets that may have waited longer than the bound to be read.
    pub read_late: u64,
    /// Packets that the kernel dropped because they were not read in time.
    pub unread: u64,
    /// Packets that the far end did not accept.
    pub refused: u64,
    /// Packets dropped for lack of memory.
    pub no_memory: u64,
    /// Frames that could not be parsed.
    pub unusable: u64,
    /// The lateness of packets.
    pub lateness: LatencyHistogram,
    /// The same in classes, with the upper bounds of [`LATENESS_US`].
    pub classes: [u64; LATENESS_US.len() + 1],
    /// The sum of the lateness.
    pub late_sum_ns: u64,
    /// Bytes in the queue now.
    pub queued_bytes: u64,
    /// Packets in flight now, including those in the queue.
    pub in_flight: u64,
    /// Memory for packets in bytes.
    pub memory_bytes: u64,
    /// Why the forwarder has ended on an error.
    pub ended: Option<String>,
    bound: Duration,
}

impl Report {
    /// An empty report. A packet later than `bound` is late.
    #[must_use]
    pub fn new(bound: Duration) -> Self {
        Self {
            counts: Counts::default(),
            out: 0,
            out_bytes: 0,
            reordered: 0,
            late: 0,
            read_late: 0,
            unread: 0,
            refused: 0,
            no_memory: 0,
            unusable: 0,
            lateness: LatencyHistogram::default(),
            classes: [0; LATENESS_US.len() + 1],
            late_sum_ns: 0,
            queued_bytes: 0,
            in_flight: 0,
            memory_bytes: 0,
            ended: None,
            bound,
        }
    }

    /// Records packets that left together.
    pub fn on_left(&mut self, late_ns: u64, packets: u64) {
        for _ in 0..packets {
            self.lateness.record(late_ns);
        }
        self.classes[LATENESS_US.partition_point(|bound| bound * 1000 < late_ns)] += packets;
        self.late_sum_ns = self.late_sum_ns.saturating_add(late_ns.saturating_mul(packets));
        if Duration::from_nanos(late_ns) > self.bound {
            self.late += packets;
        }
    }

    /// Packets that this machine lost.
    #[must_use]
    pub fn overflow(&self) -> u64 {
        self.unread + self.refused + self.no_memory + self.unusable
    }

    /// The share of packets that were late or lost because of this machine.
    #[must_use]
    pub fn wrong_share(&self) -> f64 {
        let wrong = self.late + self.read_late + self.overflow();
        let all = self.counts.packets + self.unread + self.no_memory + self.unusable;
        if wrong == 0 {
            0.0
        } else {
            wrong as f64 / all.max(1) as f64
        }
    }

    /// Whether the counts measure the path.
    #[must_use]
    pub fn valid(&self) -> bool {
        self.ended.is_none() && self.wrong_share() <= INVALID_SHARE
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_in_a_thousand_may_be_late_and_no_more() {
        let mut report = Report::new(Duration::from_millis(1));
        report.counts.packets = 2000;
        assert!(report.valid());
        report.on_left(1_000_000, 100);
        assert_eq!((report.late, report.lateness.total()), (0, 100));
        assert_eq!(report.classes[4], 100, "at most a millisecond, and more than half of one");
        report.on_left(1_000_001, 2);
        assert!(report.valid() && report.late == 2);
        report.unread = 1;
        assert!(!report.valid());
    }

    #[test]
    fn a_path_that_has_ended_is_not_valid() {
        let mut report = Report::new(Duration::ZERO);
        assert!(report.valid());
        report.ended = Some("gone".into());
        assert!(!report.valid());
    }
}
