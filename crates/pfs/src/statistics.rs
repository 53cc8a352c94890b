//! What the servers did and how late the emulation was, as JSON.

use std::fmt::Write;

use crate::model::{Model, Ns, Operation};

/// Bins of lateness: bin b counts what was less than 2^b microseconds late, the last all others.
const BINS: usize = 32;

/// How late answers were, in emulated time. Copying the answer into the kernel counts as lateness too.
#[derive(Clone, Copy, Debug, Default)]
pub struct Lateness {
    answers: u64,
    waits_ns: u64,
    late_ns: u64,
    most_ns: u64,
    bins: [u64; BINS],
}

impl Lateness {
    /// An answer that should have taken `wait` and came `late` after that.
    pub fn count(&mut self, wait: Ns, late: Ns) {
        self.answers += 1;
        self.waits_ns += wait;
        self.late_ns += late;
        self.most_ns = self.most_ns.max(late);
        let bin = (u64::BITS - (late / 1000).leading_zeros()) as usize;
        self.bins[bin.min(BINS - 1)] += 1;
    }

    /// An upper bound of what 99 of 100 answers were late, in nanoseconds.
    #[must_use]
    pub fn p99_ns(&self) -> u64 {
        let mut below = 0;
        for (bin, count) in self.bins.iter().enumerate() {
            below += count;
            if below * 100 >= self.answers * 99 {
                return (1000_u64 << bin).min(self.most_ns);
            }
        }
        self.most_ns
    }
}

/// Everything that was counted, as one JSON object.
#[must_use]
pub fn json(model: &Model, lateness: &Lateness, now: Ns, since: Ns, dilation: f64) -> String {
    let mut text = String::with_capacity(256 + model.target_count() * 200);
    let seconds = |ns: f64| ns / 1e9;
    // Writing into a String does not fail.
    let _ = write!(
        text,
        "{{\"emulated_s\":{},\"dilation\":{dilation},\"answers\":{},\"waits_s\":{},\"late_s\":{},\"late_p99_s\":{},\"late_most_s\":{},\"targets\":[",
        seconds(now.saturating_sub(since) as f64),
        lateness.answers,
        seconds(lateness.waits_ns as f64),
        seconds(lateness.late_ns as f64),
        seconds(lateness.p99_ns() as f64),
        seconds(lateness.most_ns as f64),
    );
    for (index, target) in model.targets().iter().enumerate() {
        let counts = target.counts();
        let busy = counts.busy_ns as f64;
        let mean = if busy > 0.0 { counts.in_service_ns / busy } else { 0.0 };
        let _ = write!(
            text,
            "{}{{\"target\":{index},\"requests\":{},\"read_bytes\":{},\"written_bytes\":{},\"busy_s\":{},\"mean_in_service\":{mean},\"most_in_service\":{},\"waited_s\":{}}}",
            if index == 0 { "" } else { "," },
            counts.requests,
            counts.read_bytes,
            counts.written_bytes,
            seconds(busy),
            counts.most,
            seconds(counts.waiting_ns),
        );
    }
    text.push_str("],\"metadata\":[");
    for (index, server) in model.metadata().iter().enumerate() {
        let _ = write!(
            text,
            "{}{{\"server\":{index},\"busy_s\":{},\"waited_s\":{}",
            if index == 0 { "" } else { "," },
            seconds(server.busy_ns),
            seconds(server.waiting_ns),
        );
        for operation in Operation::ALL {
            let _ = write!(text, ",\"{}\":{}", operation.name(), server.asked[operation as usize]);
        }
        text.push('}');
    }
    text.push_str("]}\n");
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_hundredth_latest_is_bounded_from_above_within_a_factor_of_two() {
        let mut lateness = Lateness::default();
        for late_us in 1..=1000 {
            lateness.count(0, late_us * 1000);
        }
        assert!((990_000..=1_024_000).contains(&lateness.p99_ns()), "{}", lateness.p99_ns());
        assert_eq!(Lateness::default().p99_ns(), 0);
    }
}
