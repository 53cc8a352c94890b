//! One direction of a path.
//!
//! Arrives: packets by size and time. Leaves: when each arrives at the far end, if at all, and how often.
//! Must not know: the contents of a packet, its sender.
//!
//! A packet queues behind earlier ones in a drop-tail buffer, leaves at the link's rate, may be lost at random, and
//! arrives after the delay. The queue is not simulated packet by packet: the time at which the link is idle again gives
//! its length.

use waystage_aqm::{Backlog, Management, Offered, QueueSpec, Verdict};
use waystage_flowsim::seeded::Random;

/// The model of random loss.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub enum Loss {
    /// None.
    #[default]
    Never,
    /// Each packet independently with this probability.
    Random(f64),
    /// The two states of Gilbert and Elliott: in the bad one packets are lost with probability `loss`.
    Bursts {
        /// The probability per packet that the good state ends.
        begin: f64,
        /// The probability per packet that the bad state ends.
        end: f64,
        /// The loss in the bad state.
        loss: f64,
    },
}

impl Loss {
    /// Loses this share of all packets in bursts of geometric length, `mean` packets long on average.
    #[must_use]
    pub fn in_bursts(share: f64, mean: f64) -> Self {
        let end = 1.0 / mean;
        Self::Bursts { begin: share / (1.0 - share) * end, end, loss: 1.0 }
    }
}

/// A link that stops now and then, as a radio that is reassigned or a virtual machine that waits for its processor:
/// packets queue meanwhile.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stalls {
    /// The mean time between two of them, exponentially distributed; 0 for none.
    pub every_ns: u64,
    /// The length of each.
    pub length_ns: u64,
}

/// A host that is busy now and then when packets arrive: it processes them when it runs again. None is lost.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HostDelays {
    /// The mean time between two of them, exponentially distributed; 0 for none.
    pub every_ns: u64,
    /// The mean length, exponentially distributed.
    pub mean_ns: u64,
}

/// The properties of one direction of a path.
#[derive(Clone, Copy, Debug)]
pub struct LinkSpec {
    /// The rate in bits a second, of IP packets.
    pub rate_bps: f64,
    /// The propagation delay, after the queue.
    pub delay_ns: u64,
    /// Each packet is delayed further by up to this, uniformly; packets may overtake each other.
    pub jitter_ns: u64,
    /// The size of the buffer.
    pub buffer_bytes: u64,
    /// What is lost or marked before the buffer is full. Every packet is ECN-capable.
    pub queue: QueueSpec,
    /// Random loss, after the buffer.
    pub loss: Loss,
    /// When it sends nothing.
    pub stalls: Stalls,
    /// When the host that receives is busy.
    pub host: HostDelays,
    /// The share of packets that are delayed by `reorder_ns`.
    pub reorder: f64,
    /// Their additional delay.
    pub reorder_ns: u64,
    /// The share of packets that arrive twice.
    pub duplicate: f64,
    /// The share of packets in which a bit flips.
    pub corrupt: f64,
    /// The largest packet that passes.
    pub largest_packet: usize,
}

impl LinkSpec {
    /// A clean link.
    #[must_use]
    pub fn new(rate_bps: f64, delay_ns: u64, buffer_bytes: u64) -> Self {
        Self {
            rate_bps,
            delay_ns,
            jitter_ns: 0,
            buffer_bytes,
            queue: QueueSpec::default(),
            loss: Loss::Never,
            stalls: Stalls::default(),
            host: HostDelays::default(),
            reorder: 0.0,
            reorder_ns: 0,
            duplicate: 0.0,
            corrupt: 0.0,
            largest_packet: 1500,
        }
    }
}

/// The arrival of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Arrival {
    /// The time.
    pub at_ns: u64,
    /// Whether it has an ECN mark.
    pub marked: bool,
    /// Whether a bit has flipped.
    pub corrupt: bool,
}

/// Counters of a link.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Packets sent.
    pub packets: u64,
    /// Packets that found the buffer full, or that its management dropped.
    pub overflowed: u64,
    /// Packets lost at random.
    pub lost: u64,
    /// Bytes sent.
    pub bytes: u64,
}

/// A link.
#[derive(Clone, Debug)]
pub struct Link {
    /// Its properties, which may change at any time.
    pub spec: LinkSpec,
    random: Random,
    free_ns: u64,
    backlog: Backlog,
    /// The beginning of the next stall, and the end of the last.
    stall: (u64, u64),
    /// The present or next time in which the receiving host is busy.
    busy: (u64, u64),
    bad_state: bool,
    management: Management,
    counts: Counts,
}

impl Link {
    /// An idle link.
    #[must_use]
    pub fn new(spec: LinkSpec, seed: u64) -> Self {
        let random = Random::new(seed);
        Self {
            spec,
            random,
            free_ns: 0,
            backlog: Backlog::new(spec.rate_bps),
            stall: (0, 0),
            busy: (0, 0),
            bad_state: false,
            management: Management::default(),
            counts: Counts::default(),
        }
    }

    /// Its counters.
    #[must_use]
    pub fn counts(&self) -> Counts {
        self.counts
    }

    /// Bytes in the queue.
    #[must_use]
    pub fn queued_bytes(&self, now_ns: u64) -> u64 {
        self.backlog.bytes(now_ns.max(self.stall.1), self.free_ns)
    }

    /// Sends a packet; returns its arrivals: none, one or two.
    pub fn send(&mut self, now_ns: u64, bytes: usize) -> [Option<Arrival>; 2] {
        self.counts.packets += 1;
        self.stall(now_ns);
        self.backlog.at_rate(self.spec.rate_bps, self.free_ns);
        let queued = self.queued_bytes(now_ns);
        let crossing_ns = (bytes as f64 * 8e9 / self.spec.rate_bps) as u64;
        let full = queued + bytes as u64 > self.spec.buffer_bytes.max(bytes as u64);
        let marked = match (!full).then(|| self.offer(now_ns, bytes as u64, crossing_ns, queued)) {
            Some(Verdict::Pass) => false,
            Some(Verdict::Mark) => true,
            None | Some(Verdict::Policed | Verdict::Early) => {
                self.counts.overflowed += 1;
                return [None, None];
            }
        };
        self.free_ns = self.free_ns.max(now_ns) + crossing_ns;
        self.counts.bytes += bytes as u64;
        if bytes > self.spec.largest_packet || self.is_lost() {
            self.counts.lost += 1;
            return [None, None];
        }
        let first = self.arrival(marked);
        let again = self.chance(self.spec.duplicate).then(|| self.arrival(marked));
        [Some(first), again]
    }

    /// Lets stalls begin that are due. Packets that were queued before one are on their way already.
    fn stall(&mut self, now_ns: u64) {
        let Stalls { every_ns, length_ns } = self.spec.stalls;
        while every_ns > 0 && now_ns >= self.stall.0 {
            let (begins_ns, ends_ns) = (self.stall.0, self.stall.0 + length_ns);
            if begins_ns > 0 {
                self.free_ns = self.free_ns.max(begins_ns) + length_ns;
                self.stall.1 = ends_ns;
            }
            self.stall.0 = ends_ns + self.exponential(every_ns);
        }
    }

    /// When the receiving host processes what reaches it now.
    fn processed_ns(&mut self, at_ns: u64) -> u64 {
        let HostDelays { every_ns, mean_ns } = self.spec.host;
        while every_ns > 0 && at_ns >= self.busy.1 {
            let begins_ns = self.busy.1 + self.exponential(every_ns);
            self.busy = (begins_ns, begins_ns + self.exponential(mean_ns));
        }
        if at_ns < self.busy.0 {
            at_ns
        } else {
            at_ns.max(self.busy.1)
        }
    }

    fn exponential(&mut self, mean_ns: u64) -> u64 {
        (-(1.0 - self.random.unit()).ln() * mean_ns as f64) as u64
    }

    fn offer(&mut self, now_ns: u64, bytes: u64, crossing_ns: u64, queued_bytes: u64) -> Verdict {
        let packet = Offered {
            now_ns,
            bytes,
            crossing_ns,
            queued_bytes,
            free_ns: self.free_ns,
            buffer_bytes: self.spec.buffer_bytes,
            ecn_capable: true,
        };
        let random = &mut self.random;
        self.management.offer(&self.spec.queue, &packet, |probability| random.unit() < probability)
    }

    fn arrival(&mut self, marked: bool) -> Arrival {
        let mut at_ns = self.free_ns + self.spec.delay_ns;
        if self.spec.jitter_ns > 0 {
            at_ns += (self.random.unit() * self.spec.jitter_ns as f64) as u64;
        }
        if self.chance(self.spec.reorder) {
            at_ns += self.spec.reorder_ns;
        }
        at_ns = self.processed_ns(at_ns);
        Arrival { at_ns, marked, corrupt: self.chance(self.spec.corrupt) }
    }

    fn is_lost(&mut self) -> bool {
        match self.spec.loss {
            Loss::Never => false,
            Loss::Random(share) => self.chance(share),
            Loss::Bursts { begin, end, loss } => {
                if self.chance(if self.bad_state { end } else { begin }) {
                    self.bad_state = !self.bad_state;
                }
                self.bad_state && self.chance(loss)
            }
        }
    }

    fn chance(&mut self, probability: f64) -> bool {
        probability > 0.0 && self.random.unit() < probability
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shares(spec: LinkSpec) -> (f64, f64, f64) {
        let mut link = Link::new(spec, 7);
        let (mut once, mut twice, mut late) = (0.0, 0.0, 0.0);
        for index in 0..100_000_u64 {
            let now_ns = index * 20_000;
            let [first, again] = link.send(now_ns, 1500);
            once += f64::from(u8::from(first.is_some())) / 1e5;
            twice += f64::from(u8::from(again.is_some())) / 1e5;
            let is_late = first.is_some_and(|a| a.at_ns > now_ns + 12_000 + 1_000_000);
            late += f64::from(u8::from(is_late)) / 1e5;
        }
        (once, twice, late)
    }

    #[test]
    fn a_link_that_stalls_queues_meanwhile_and_drops_what_its_buffer_does_not_hold() {
        let stalls = Stalls { every_ns: 50_000_000, length_ns: 5_000_000 };
        // Half of the link's rate: 208 packets arrive in a stall, of which the small buffer holds 166.
        let small = LinkSpec { stalls, ..LinkSpec::new(1e9, 0, 250_000) };
        for (spec, lost) in [(small, 0.018), (LinkSpec { buffer_bytes: 10_000_000, ..small }, 0.0)]
        {
            let mut link = Link::new(spec, 7);
            let (mut latest_ns, mut arrived) = (0, 0.0_f64);
            for index in 0..100_000_u64 {
                let now_ns = index * 24_000;
                if let [Some(first), _] = link.send(now_ns, 1500) {
                    assert!(first.at_ns >= latest_ns, "overtaken");
                    latest_ns = first.at_ns;
                    arrived += 1e-5;
                }
                assert!(link.queued_bytes(now_ns) <= spec.buffer_bytes);
            }
            assert!((1.0 - arrived - lost).abs() < 0.006, "{arrived}");
        }
    }

    #[test]
    fn a_busy_host_processes_all_that_came_meanwhile_at_once_and_loses_none() {
        let host = HostDelays { every_ns: 50_000_000, mean_ns: 5_000_000 };
        let mut link = Link::new(LinkSpec { host, ..LinkSpec::new(1e9, 0, 250_000) }, 7);
        let mut before_ns = 0;
        let mut waited_ns = 0;
        for index in 0..200_000_u64 {
            let now_ns = index * 24_000;
            let at_ns = link.send(now_ns, 1500)[0].expect("none is lost").at_ns;
            assert!(at_ns >= before_ns, "in order");
            before_ns = at_ns;
            waited_ns += at_ns - now_ns - 12_000;
        }
        // Busy for 5 of 55 ms; what comes then waits for 5 ms on average: lengths are exponential.
        let mean_ns = waited_ns as f64 / 2e5;
        assert!((3e5..6e5).contains(&mean_ns), "{mean_ns}");
    }

    #[test]
    fn a_link_does_what_it_says() {
        let clean = LinkSpec::new(1e9, 1_000_000, 100_000);
        assert!(shares(clean).0 > 0.999_999);
        let harsh = LinkSpec {
            loss: Loss::Random(0.1),
            duplicate: 0.02,
            reorder: 0.25,
            reorder_ns: 5_000_000,
            ..clean
        };
        let (once, twice, late) = shares(harsh);
        assert!((once - 0.9).abs() < 0.005, "{once}");
        assert!((twice - 0.018).abs() < 0.002, "{twice}");
        assert!((late - 0.225).abs() < 0.005, "{late}");
        let bursts =
            LinkSpec { loss: Loss::Bursts { begin: 0.001, end: 0.02, loss: 0.8 }, ..clean };
        let expected = 1.0 - 0.8 * 0.001 / 0.021;
        assert!((shares(bursts).0 - expected).abs() < 0.01);
    }

    #[test]
    fn the_buffer_holds_what_it_holds_and_the_rate_is_kept() {
        let mut link = Link::new(LinkSpec::new(12e6, 0, 15_000), 1);
        let out: Vec<u64> =
            (0..100).filter_map(|_| link.send(0, 1500)[0]).map(|a| a.at_ns).collect();
        assert_eq!(out.len(), 10, "ten packets fit the buffer");
        assert_eq!(out, (1..=10).map(|index| index * 1_000_000).collect::<Vec<u64>>());
        assert_eq!(link.counts().overflowed, 90);
    }
}
