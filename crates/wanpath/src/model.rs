//! The model of one direction of a path: the fate of each packet, decided by its number.
//!
//! Arrives: packets by size and time. Leaves: when each arrives, if at all, how often, and whether damaged.
//! Must not know: clocks, the contents of a packet.
//!
//! It is the link of `waystage-wansim`, so that results in virtual time can be checked with real packets: a buffer
//! with its management, the link's rate, random loss after it, then the delay. It differs in one respect: every random
//! draw depends on the seed and the packet's number alone, and not on drops of the buffer or on arrival times.

use waystage_aqm::{Backlog, Management, Offered, QueueSpec, Verdict};
use waystage_flowsim::seeded::{hash, unit};

use crate::error::PathError;

/// The two states of Gilbert and Elliott, packet by packet.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Bursts {
    /// The probability that the good state ends.
    pub begin: f64,
    /// The probability that the bad state ends; its mean length is the inverse.
    pub end: f64,
    /// The loss in the bad state.
    pub loss: f64,
}

/// The properties of one direction of a path.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Spec {
    /// The rate in bits a second, of IP packets; infinite for no limit.
    pub rate_bps: f64,
    /// The propagation delay, after the queue.
    pub delay_ns: u64,
    /// Each packet is delayed further by up to this, uniformly; packets may overtake each other.
    pub jitter_ns: u64,
    /// The size of the buffer, which includes the packet on the link.
    pub buffer_bytes: u64,
    /// What is lost or marked before the buffer is full.
    pub queue: QueueSpec,
    /// The share of packets lost at random, after the buffer.
    pub loss: f64,
    /// Additional loss in bursts.
    pub bursts: Option<Bursts>,
    /// The share of packets that are delayed by `reorder_ns`.
    pub reorder: f64,
    /// Their additional delay.
    pub reorder_ns: u64,
    /// The share of packets that arrive twice.
    pub duplicate: f64,
    /// The share of packets in which a bit flips.
    pub corrupt: f64,
    /// The largest IP packet that passes.
    pub mtu: u64,
}

impl Default for Spec {
    /// A path that changes nothing.
    fn default() -> Self {
        Self {
            rate_bps: f64::INFINITY,
            delay_ns: 0,
            jitter_ns: 0,
            buffer_bytes: u64::MAX,
            queue: QueueSpec::default(),
            loss: 0.0,
            bursts: None,
            reorder: 0.0,
            reorder_ns: 0,
            duplicate: 0.0,
            corrupt: 0.0,
            mtu: u64::MAX,
        }
    }
}

impl Spec {
    /// Checks the properties.
    ///
    /// # Errors
    /// [`PathError::Spec`] with a sentence about the first invalid one.
    pub fn check(&self) -> Result<(), PathError> {
        let mut shares = vec![
            ("loss", self.loss),
            ("reorder", self.reorder),
            ("duplicate", self.duplicate),
            ("corrupt", self.corrupt),
        ];
        if let Some(bursts) = self.bursts {
            shares.extend([
                ("bursts: begin", bursts.begin),
                ("bursts: end", bursts.end),
                ("bursts: loss", bursts.loss),
            ]);
        }
        for (name, share) in shares {
            if !(0.0..=1.0).contains(&share) {
                return Err(PathError::Spec(format!("{name} of {share} is not between 0 and 1")));
            }
        }
        if self.rate_bps.is_nan() || self.rate_bps < 1.0 {
            return Err(PathError::Spec(format!("a rate of {} bit/s is none", self.rate_bps)));
        }
        self.queue.check().map_err(PathError::Spec)?;
        if self.max_flight_ns() > MAX_NS {
            let sum = "delay, jitter and reordering are more than ten minutes together";
            return Err(PathError::Spec(sum.to_owned()));
        }
        Ok(())
    }

    /// The longest time in flight, after the link.
    #[must_use]
    pub fn max_flight_ns(&self) -> u64 {
        self.delay_ns.saturating_add(self.jitter_ns).saturating_add(self.reorder_ns)
    }
}

/// Ten minutes: the delay between planets, and the most that memory holds at low rates.
const MAX_NS: u64 = 600_000_000_000;

/// The cause of a loss.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lost {
    /// Larger than the path's MTU. No ICMP message tells the sender.
    TooLarge,
    /// The buffer was full.
    Buffer,
    /// The policer dropped it.
    Policed,
    /// The queue's management dropped it before the buffer was full.
    Early,
    /// Random loss.
    Random,
    /// Loss in the bad state.
    Burst,
}

/// The arrival of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Arrival {
    /// The time.
    pub at_ns: u64,
    /// Whether it was delayed by `reorder_ns`.
    pub held: bool,
    /// Whether it gets an ECN mark.
    pub marked: bool,
    /// The bit that flips: a random word, modulo the bits that may flip.
    pub flip: Option<u64>,
}

/// The fate of a packet: lost, or it arrives once or twice.
pub type Fate = Result<(Arrival, Option<Arrival>), Lost>;

/// Counters of a link.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Packets sent, and the number of the next one.
    pub packets: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Packets larger than the MTU.
    pub too_large: u64,
    /// Packets that found the buffer full.
    pub overflowed: u64,
    /// Packets that the policer dropped.
    pub policed: u64,
    /// Packets that the queue's management dropped before the buffer was full.
    pub dropped_early: u64,
    /// Packets that got an ECN mark, before any loss behind the queue.
    pub marked: u64,
    /// Packets lost at random.
    pub lost_random: u64,
    /// Lost in a bad spell.
    pub lost_burst: u64,
    /// Packets that arrive twice.
    pub duplicated: u64,
    /// Packets delayed by `reorder_ns`.
    pub held: u64,
    /// Packets that arrive with a flipped bit; copies count separately.
    pub corrupted: u64,
    /// The longest queue in bytes.
    pub max_queued: u64,
}

/// Each decision has its own random stream.
#[derive(Clone, Copy)]
enum Die {
    Loss = 1,
    State = 2,
    BurstLoss = 3,
    Duplicate = 4,
    /// The next value is for the copy.
    Jitter = 6,
    Reorder = 8,
    Corrupt = 10,
    Flip = 12,
    Early = 14,
}

/// A link.
#[derive(Clone, Debug)]
pub struct Link {
    spec: Spec,
    seed: u64,
    free_ns: u64,
    backlog: Backlog,
    /// The fraction of a nanosecond beyond `free_ns`: without it, small packets would pass too fast.
    fraction: f64,
    bad_state: bool,
    management: Management,
    counts: Counts,
}

impl Link {
    /// An idle link. The two directions of a path need different seeds.
    #[must_use]
    pub fn new(spec: Spec, seed: u64) -> Self {
        Self {
            spec,
            seed,
            free_ns: 0,
            backlog: Backlog::new(spec.rate_bps),
            fraction: 0.0,
            bad_state: false,
            management: Management::default(),
            counts: Counts::default(),
        }
    }

    /// Its properties.
    #[must_use]
    pub fn spec(&self) -> &Spec {
        &self.spec
    }

    /// Changes the properties. Packets in the queue and in flight keep their times.
    pub fn change(&mut self, spec: Spec) {
        self.backlog.at_rate(spec.rate_bps, self.free_ns);
        self.spec = spec;
    }

    /// Its counters.
    #[must_use]
    pub fn counts(&self) -> Counts {
        self.counts
    }

    /// Bytes in the queue.
    #[must_use]
    pub fn queued_bytes(&self, now_ns: u64) -> u64 {
        self.backlog.bytes(now_ns, self.free_ns)
    }

    /// Sends the next packet. `ecn_capable` is whether its IP header has an ECN-capable code point.
    pub fn send(&mut self, now_ns: u64, bytes: u64, ecn_capable: bool) -> Fate {
        let number = self.counts.packets;
        self.counts.packets += 1;
        self.counts.bytes += bytes;
        // The state advances whatever the fate of the packet: it depends on the number alone.
        let burst = self.in_burst(number);
        if bytes > self.spec.mtu {
            self.counts.too_large += 1;
            return Err(Lost::TooLarge);
        }
        let marked = self.enqueue(now_ns, bytes, number, ecn_capable)?;
        if self.chance(self.spec.loss, Die::Loss as u64, number) {
            self.counts.lost_random += 1;
            return Err(Lost::Random);
        }
        if burst {
            self.counts.lost_burst += 1;
            return Err(Lost::Burst);
        }
        let first = self.arrival(number, 0, marked);
        let again = self.chance(self.spec.duplicate, Die::Duplicate as u64, number).then(|| {
            self.counts.duplicated += 1;
            self.arrival(number, 1, marked)
        });
        Ok((first, again))
    }

    /// Queues the packet for the link, unless the buffer is full or its management drops it; returns whether it is
    /// marked. An idle link takes even a packet larger than the buffer.
    fn enqueue(
        &mut self,
        now_ns: u64,
        bytes: u64,
        number: u64,
        ecn_capable: bool,
    ) -> Result<bool, Lost> {
        let queued_bytes = self.queued_bytes(now_ns);
        if queued_bytes > 0 && queued_bytes + bytes > self.spec.buffer_bytes {
            self.counts.overflowed += 1;
            return Err(Lost::Buffer);
        }
        let crossing = if self.spec.rate_bps.is_finite() {
            bytes as f64 * 8e9 / self.spec.rate_bps
        } else {
            0.0
        };
        let packet = Offered {
            now_ns,
            bytes,
            crossing_ns: crossing as u64,
            queued_bytes,
            free_ns: self.free_ns,
            buffer_bytes: self.spec.buffer_bytes,
            ecn_capable,
        };
        let marked = self.managed(&packet, number)?;
        self.counts.max_queued = self.counts.max_queued.max(queued_bytes + bytes);
        if self.free_ns < now_ns {
            self.free_ns = now_ns;
            self.fraction = 0.0;
        }
        let crossing = crossing + self.fraction;
        self.free_ns += crossing as u64;
        self.fraction = crossing.fract();
        Ok(marked)
    }

    fn managed(&mut self, packet: &Offered, number: u64) -> Result<bool, Lost> {
        let seed = self.seed;
        let verdict = self.management.offer(&self.spec.queue, packet, |probability| {
            unit(hash(seed, &[Die::Early as u64, number])) < probability
        });
        let (count, found) = match verdict {
            Verdict::Pass => return Ok(false),
            Verdict::Mark => (&mut self.counts.marked, Ok(true)),
            Verdict::Policed => (&mut self.counts.policed, Err(Lost::Policed)),
            Verdict::Early => (&mut self.counts.dropped_early, Err(Lost::Early)),
        };
        *count += 1;
        found
    }

    fn arrival(&mut self, number: u64, copy: u64, marked: bool) -> Arrival {
        // Never early: a fraction of a nanosecond counts as a complete one.
        let mut at_ns = self.free_ns + u64::from(self.fraction > 0.0) + self.spec.delay_ns;
        if self.spec.jitter_ns > 0 {
            let part = unit(self.die(Die::Jitter as u64 + copy, number));
            at_ns += (part * self.spec.jitter_ns as f64) as u64;
        }
        let held = self.chance(self.spec.reorder, Die::Reorder as u64 + copy, number);
        if held {
            at_ns += self.spec.reorder_ns;
            self.counts.held += 1;
        }
        let flip = self
            .chance(self.spec.corrupt, Die::Corrupt as u64 + copy, number)
            .then(|| self.die(Die::Flip as u64 + copy, number));
        self.counts.corrupted += u64::from(flip.is_some());
        Arrival { at_ns, held, marked, flip }
    }

    fn in_burst(&mut self, number: u64) -> bool {
        let Some(Bursts { begin, end, loss }) = self.spec.bursts else {
            self.bad_state = false;
            return false;
        };
        let turn = if self.bad_state { end } else { begin };
        if self.chance(turn, Die::State as u64, number) {
            self.bad_state = !self.bad_state;
        }
        self.bad_state && self.chance(loss, Die::BurstLoss as u64, number)
    }

    fn die(&self, die: u64, number: u64) -> u64 {
        hash(self.seed, &[die, number])
    }

    fn chance(&self, probability: f64, die: u64, number: u64) -> bool {
        probability > 0.0 && unit(self.die(die, number)) < probability
    }
}
