//! One direction of a path.
//!
//! Arrives: packets by size and time. Leaves: when each arrives at the far end, if at all, and how often.
//! Must not know: the contents of a packet, its sender.
//!
//! A packet queues behind earlier ones in a drop-tail buffer, leaves at the link's rate, may be lost at random, and
//! arrives after the delay. The queue is not simulated packet by packet: the time at which the link is idle again gives
//! its length.

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

/// Which packets a buffer drops before it is full.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub enum Dropping {
    /// None.
    #[default]
    Tail,
    /// Random early detection (Floyd, Jacobson, ToN 1(4), 1993): none below the first part of the buffer, on average,
    /// a tenth at the second part, all above.
    Red {
        /// The two parts.
        thresholds: (f64, f64),
    },
    /// CoDel (RFC 8289) with its default target of 5 ms and interval of 100 ms.
    CoDel,
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
    /// What is dropped before the buffer is full.
    pub dropping: Dropping,
    /// A policer before the buffer, which drops what exceeds a rate in bits a second by more than a number of bytes.
    pub policer: Option<(f64, u64)>,
    /// Random loss, after the buffer.
    pub loss: Loss,
    /// The share of packets that are delayed by `reorder_ns`.
    pub reorder: f64,
    /// Their additional delay.
    pub reorder_ns: u64,
    /// The share of packets that arrive twice.
    pub duplicate: f64,
    /// The share of packets in which a bit flips.
    pub corrupt: f64,
    /// Packets that find more than this many bytes in the queue get an ECN mark.
    pub mark_bytes: u64,
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
            dropping: Dropping::Tail,
            policer: None,
            loss: Loss::Never,
            reorder: 0.0,
            reorder_ns: 0,
            duplicate: 0.0,
            corrupt: 0.0,
            mark_bytes: u64::MAX,
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
    /// Packets that found the buffer full.
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
    bad_state: bool,
    /// The policer's tokens in bytes, and when they were counted.
    tokens: (f64, u64),
    average_queue: f64,
    codel: CoDel,
    counts: Counts,
}

/// The state of RFC 8289's law.
#[derive(Clone, Copy, Debug, Default)]
struct CoDel {
    /// When the queue will have been above the target for an interval; zero while it is below.
    first_above_ns: u64,
    dropping: bool,
    next_ns: u64,
    count: u64,
}

impl CoDel {
    const TARGET_NS: u64 = 5_000_000;
    const INTERVAL_NS: u64 = 100_000_000;

    fn after(&self, at_ns: u64) -> u64 {
        at_ns + (Self::INTERVAL_NS as f64 / (self.count.max(1) as f64).sqrt()) as u64
    }

    /// Whether a packet that leaves at `now_ns` after waiting `waited_ns` is dropped.
    fn drops(&mut self, now_ns: u64, waited_ns: u64) -> bool {
        if waited_ns < Self::TARGET_NS {
            (self.first_above_ns, self.dropping) = (0, false);
            return false;
        }
        if self.first_above_ns == 0 {
            self.first_above_ns = now_ns + Self::INTERVAL_NS;
        }
        if now_ns < self.first_above_ns {
            return false;
        }
        if !self.dropping {
            self.dropping = true;
            let recent = now_ns < self.next_ns + 16 * Self::INTERVAL_NS;
            self.count = if recent && self.count > 2 { self.count - 2 } else { 1 };
            self.next_ns = self.after(now_ns);
            return true;
        }
        if now_ns < self.next_ns {
            return false;
        }
        self.count += 1;
        self.next_ns = self.after(self.next_ns);
        true
    }
}

impl Link {
    /// An idle link.
    #[must_use]
    pub fn new(spec: LinkSpec, seed: u64) -> Self {
        let random = Random::new(seed);
        let tokens = spec.policer.map_or(0.0, |(_, bucket)| bucket as f64);
        Self {
            spec,
            random,
            free_ns: 0,
            bad_state: false,
            tokens: (tokens, 0),
            average_queue: 0.0,
            codel: CoDel::default(),
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
        (self.free_ns.saturating_sub(now_ns) as f64 * self.spec.rate_bps / 8e9) as u64
    }

    /// Sends a packet; returns its arrivals: none, one or two.
    pub fn send(&mut self, now_ns: u64, bytes: usize) -> [Option<Arrival>; 2] {
        self.counts.packets += 1;
        let queued = self.queued_bytes(now_ns);
        let full = queued + bytes as u64 > self.spec.buffer_bytes.max(bytes as u64);
        if full || self.exceeds_policer(now_ns, bytes) || self.drops_early(now_ns, queued) {
            self.counts.overflowed += 1;
            return [None, None];
        }
        let crossing_ns = (bytes as f64 * 8e9 / self.spec.rate_bps) as u64;
        self.free_ns = self.free_ns.max(now_ns) + crossing_ns;
        self.counts.bytes += bytes as u64;
        if bytes > self.spec.largest_packet || self.is_lost() {
            self.counts.lost += 1;
            return [None, None];
        }
        let marked = queued > self.spec.mark_bytes;
        let first = self.arrival(marked);
        let again = self.chance(self.spec.duplicate).then(|| self.arrival(marked));
        [Some(first), again]
    }

    fn exceeds_policer(&mut self, now_ns: u64, bytes: usize) -> bool {
        let Some((rate_bps, bucket)) = self.spec.policer else { return false };
        let (tokens, counted_ns) = self.tokens;
        let earned = (now_ns - counted_ns) as f64 * rate_bps / 8e9;
        let tokens = (tokens + earned).min(bucket as f64);
        let exceeds = tokens < bytes as f64;
        self.tokens = (if exceeds { tokens } else { tokens - bytes as f64 }, now_ns);
        exceeds
    }

    fn drops_early(&mut self, now_ns: u64, queued: u64) -> bool {
        match self.spec.dropping {
            Dropping::Tail => false,
            Dropping::Red { thresholds: (least, most) } => {
                let part = queued as f64 / self.spec.buffer_bytes as f64;
                self.average_queue += 0.002 * (part - self.average_queue);
                let above = (self.average_queue - least) / (most - least);
                above >= 1.0 || self.chance(0.1 * above)
            }
            Dropping::CoDel => {
                let waited_ns = self.free_ns.saturating_sub(now_ns);
                self.codel.drops(self.free_ns, waited_ns)
            }
        }
    }

    fn arrival(&mut self, marked: bool) -> Arrival {
        let mut at_ns = self.free_ns + self.spec.delay_ns;
        if self.spec.jitter_ns > 0 {
            at_ns += (self.random.unit() * self.spec.jitter_ns as f64) as u64;
        }
        if self.chance(self.spec.reorder) {
            at_ns += self.spec.reorder_ns;
        }
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
