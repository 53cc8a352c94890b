//! Steps of the path's own delay: a longer way, as after a handover between satellites or a change of route.
//!
//! Arrives: round trips, with the times of sending. Leaves: by how much the path has become longer. Must not know:
//! windows, rates.
//!
//! The shortest round trip of half a minute takes a longer way for a queue. A queue differs in two ways. It grows no
//! faster than packets arrive beyond the rate of its link: to grow by `d` between two packets sent `s` apart, they must
//! arrive at `1 + d / s` times that rate. And it shrinks where the flow yields. A step therefore
//!
//! - is between two packets sent at most a half of it apart: no start of another flow is that steep (BBR's Startup
//!   sends at 2.9 times the rate of the link, draft-cardwell-iccrg-bbr),
//! - and stays for two round trips, in which the flow yields as to a queue: no packet is faster by an eighth of it and
//!   a short queue, and in the second one not all are slower by an eighth. Where the capacity falls, a queue begins as
//!   steeply, and grows.

/// A step is longer than this multiple of the time between the packets before and after it.
const STEEP: u64 = 2;

/// Of the shortest round trip: what a queue that `fair` aims at may hide.
const LEAST_PART: u64 = 64;
/// A busy host delays packets by this much.
const LEAST_NS: u64 = 500_000;

/// Of the shortest round trip: the queue that it may contain where none was drained since the path became shorter.
const SLACK_PART: u64 = 16;

/// It is watched for this many round trips, and for a time in which a host catches up.
const WATCH_ROUNDS: u64 = 2;
const WATCH_NS: u64 = 50_000_000;

/// Steps watched at a time: one in each direction, and what jitter adds.
const MOST: usize = 4;

#[derive(Clone, Copy, Debug)]
struct Step {
    rise_ns: u64,
    /// A round trip below this one shows that it was a queue, or one late packet.
    least_ns: u64,
    /// The round trip before it, without those watched already.
    before_ns: u64,
    /// The shortest one of the second half of the watch.
    lowest_ns: u64,
    watch_ns: u64,
    /// Believed with the first packet sent after this time.
    until_ns: u64,
}

/// Finds steps.
#[derive(Clone, Debug, Default)]
pub struct DelaySteps {
    /// The newest packet: when it was sent, and its round trip.
    last: Option<(u64, u64)>,
    /// Each one begins on top of those before it.
    watched: Vec<Step>,
}

impl DelaySteps {
    /// Processes the round trip of a packet sent at `sent_ns`, where the shortest one is `min_ns`. Returns by how much
    /// the path has become longer, once that is certain.
    pub fn on_sample(&mut self, sent_ns: u64, rtt_ns: u64, min_ns: u64) -> Option<u64> {
        let (last_ns, before_ns) = self.last.unwrap_or((sent_ns, rtt_ns));
        if sent_ns < last_ns {
            return None;
        }
        self.last = Some((sent_ns, rtt_ns));
        let below = self.watched.iter().position(|step| rtt_ns < step.least_ns);
        self.watched.truncate(below.unwrap_or(MOST));
        let rise_ns = rtt_ns.saturating_sub(before_ns);
        let steep = STEEP * (sent_ns - last_ns) <= rise_ns;
        // Within a longer queue a small step is chance, and the queue of others stays whether this flow yields or not.
        let clear = before_ns <= min_ns + self.rises_ns() + rise_ns;
        if steep
            && clear
            && rise_ns >= (min_ns / LEAST_PART).max(LEAST_NS)
            && self.watched.len() < MOST
        {
            let above_ns = self.rises_ns();
            let slack_ns = rise_ns / 8 + (min_ns / SLACK_PART).min(3 * rise_ns / 8);
            let watch_ns = (WATCH_ROUNDS * rtt_ns).max(WATCH_NS);
            self.watched.push(Step {
                rise_ns,
                least_ns: (min_ns + above_ns + rise_ns - slack_ns).max(before_ns),
                before_ns: before_ns.saturating_sub(above_ns),
                lowest_ns: u64::MAX,
                watch_ns,
                until_ns: sent_ns + watch_ns,
            });
            return None;
        }
        for step in &mut self.watched {
            if sent_ns + step.watch_ns / 2 >= step.until_ns {
                step.lowest_ns = step.lowest_ns.min(rtt_ns);
            }
        }
        let first = *self.watched.first().filter(|step| sent_ns >= step.until_ns)?;
        let rises_ns = self.rises_ns();
        if first.lowest_ns > first.before_ns + rises_ns + rises_ns / 8 {
            self.watched.clear();
            return None;
        }
        self.watched.remove(0);
        self.watched.iter_mut().for_each(|step| step.before_ns += first.rise_ns);
        Some(first.rise_ns)
    }

    fn rises_ns(&self) -> u64 {
        self.watched.iter().map(|step| step.rise_ns).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;
    const MIN_NS: u64 = 40 * MS;

    /// A packet each millisecond, whose queueing delays are these in tenths of a millisecond: when a step was believed,
    /// and how long it was.
    fn believed(queues: impl IntoIterator<Item = u64>) -> Vec<(u64, u64)> {
        let mut steps = DelaySteps::default();
        let mut min_ns = MIN_NS;
        let mut found = Vec::new();
        for (at, queue) in queues.into_iter().enumerate() {
            let rtt_ns = MIN_NS + queue * MS / 10;
            min_ns = min_ns.min(rtt_ns);
            if let Some(rise_ns) = steps.on_sample(at as u64 * MS, rtt_ns, min_ns) {
                min_ns += rise_ns;
                found.push((at as u64, rise_ns / MS));
            }
        }
        found
    }

    #[test]
    fn a_longer_way_is_known_after_two_round_trips() {
        for step in [50, 200, 1000] {
            let found = believed((0..1000).map(|at| if at < 100 { 0 } else { step }));
            let after = 100 + 2 * (40 + step / 10);
            assert_eq!(found, [(after, step / 10)], "{step}");
        }
    }

    #[test]
    fn both_directions_and_a_queue_that_ends_with_the_step_count_as_they_should() {
        let both = |at| match at {
            0..100 => 15,
            100..103 => 115,
            103..110 => 215,
            _ => 200,
        };
        let found = believed((0..1000).map(both));
        assert_eq!(found.iter().map(|step| step.1).collect::<Vec<_>>(), [10, 10]);
    }

    #[test]
    fn a_queue_is_no_longer_way() {
        // It grows by a millisecond a millisecond, as where packets arrive at twice the rate of the link.
        assert_eq!(believed((0..1000).map(|at: u64| 10 * at.saturating_sub(100).min(20))), []);
        // A burst, which the flow's yielding shortens.
        assert_eq!(
            believed((0..1000).map(|at| if at < 100 { 0 } else { 200 - (at - 100).min(200) })),
            []
        );
        // The capacity falls to an eighth.
        assert_eq!(believed((0..1000).map(|at: u64| 70 * at.saturating_sub(100).min(40))), []);
        // A host that stood still for 20 ms.
        assert_eq!(
            believed((0..1000).map(|at| 10 * (120 - at.clamp(100, 120)) * u64::from(at >= 100))),
            []
        );
    }

    #[test]
    fn jitter_is_no_longer_way_and_hides_none() {
        let jitter = |at: u64| if at % 7 == 3 || at % 11 == 5 { 50 } else { 0 };
        assert_eq!(believed((0..1000).map(jitter)), []);
        let step = |at: u64| jitter(at) + if at < 102 { 0 } else { 200 };
        let found = believed((0..1000).map(step));
        assert_eq!(found.iter().map(|step| step.1).sum::<u64>(), 20, "{found:?}");
        assert!(found.iter().all(|step| step.0 <= 222), "{found:?}");
    }
}
