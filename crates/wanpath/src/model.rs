//! One direction of a path: what becomes of each packet, decided by its number.
//!
//! Arrives: packets by size and time. Leaves: when each comes out, if at all, how often, and whether damaged.
//! Must not know: clocks, what is in a packet.
//!
//! It is the link of `waystage-wansim`, so that what holds in virtual time can be tried on real packets: the tail of a full buffer is
//! dropped, what remains crosses at the link's rate, may be lost behind it, and arrives after the delay. It differs in one thing:
//! every decision follows from the seed and the packet's number alone. Which packets are lost does not depend on
//! what the buffer dropped before, nor on when packets came.

use waystage_flowsim::seeded::{hash, unit};

/// Gilbert and Elliott's two states, packet by packet.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Bursts {
    /// The probability that a good spell ends.
    pub begin: f64,
    /// The probability that a bad spell ends; its mean length is the inverse.
    pub end: f64,
    /// The loss in a bad spell.
    pub loss: f64,
}

/// What one direction of a path is like.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Spec {
    /// Bits a second, of whole IP packets; infinite for none.
    pub rate_bps: f64,
    /// From the end of the link's queue to the other end.
    pub delay_ns: u64,
    /// Each packet arrives later by up to this, evenly spread; packets may overtake each other.
    pub jitter_ns: u64,
    /// How many bytes may wait for the link, the packet on the link among them.
    pub buffer_bytes: u64,
    /// The share of packets lost at random, behind the buffer.
    pub loss: f64,
    /// Loss in bursts, besides.
    pub bursts: Option<Bursts>,
    /// The share of packets that arrive later by `reorder_ns`.
    pub reorder: f64,
    /// How much later.
    pub reorder_ns: u64,
    /// The share of packets that arrive twice.
    pub duplicate: f64,
    /// The share of packets in which a bit changes.
    pub corrupt: f64,
    /// Larger IP packets do not pass.
    pub mtu: u64,
}

impl Default for Spec {
    /// A path that does nothing.
    fn default() -> Self {
        Self {
            rate_bps: f64::INFINITY,
            delay_ns: 0,
            jitter_ns: 0,
            buffer_bytes: u64::MAX,
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
    /// What makes no sense, in a sentence.
    ///
    /// # Errors
    /// Where there is such a thing.
    pub fn check(&self) -> Result<(), String> {
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
                return Err(format!("{name} of {share} is not between 0 and 1"));
            }
        }
        if self.rate_bps.is_nan() || self.rate_bps < 1.0 {
            return Err(format!("a rate of {} bit/s is none", self.rate_bps));
        }
        if self.longest_ns() > MOST_NS {
            return Err("delay, jitter and reordering are more than ten minutes together".into());
        }
        Ok(())
    }

    /// How long a packet is under way at most, once it has crossed the link.
    #[must_use]
    pub fn longest_ns(&self) -> u64 {
        self.delay_ns.saturating_add(self.jitter_ns).saturating_add(self.reorder_ns)
    }
}

/// Ten minutes: what a packet between planets would take, and what memory can hold at low rates.
const MOST_NS: u64 = 600_000_000_000;

/// Why a packet does not arrive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lost {
    /// Larger than the path's MTU. No ICMP message tells the sender.
    TooLarge,
    /// The buffer was full.
    Buffer,
    /// By chance.
    Random,
    /// In a bad spell.
    Burst,
}

/// How a packet comes out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Arrival {
    /// When.
    pub at_ns: u64,
    /// Kept back by `reorder_ns`.
    pub held: bool,
    /// Which of its bits is changed: a random word, to be taken modulo the bits that may change.
    pub flip: Option<u64>,
}

/// What becomes of one packet: lost, or it arrives once or twice.
pub type Fate = Result<(Arrival, Option<Arrival>), Lost>;

/// What a link has done so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Packets that went in; the next one's number.
    pub packets: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Larger than the MTU.
    pub too_large: u64,
    /// Found the buffer full.
    pub overflowed: u64,
    /// Lost by chance.
    pub lost_random: u64,
    /// Lost in a bad spell.
    pub lost_burst: u64,
    /// Arrive twice.
    pub duplicated: u64,
    /// Kept back.
    pub held: u64,
    /// Arrive with a bit changed; copies count for themselves.
    pub corrupted: u64,
    /// Most bytes that waited.
    pub most_queued: u64,
}

/// Each decision has a stream of its own.
#[derive(Clone, Copy)]
enum Die {
    Loss = 1,
    Spell = 2,
    BurstLoss = 3,
    Duplicate = 4,
    /// And the copy's, by adding one.
    Jitter = 6,
    Reorder = 8,
    Corrupt = 10,
    Flip = 12,
}

/// A link at work.
#[derive(Clone, Debug)]
pub struct Link {
    spec: Spec,
    seed: u64,
    free_ns: u64,
    /// What of a nanosecond the link is busy beyond `free_ns`: without it, small packets would pass too fast.
    fraction: f64,
    bad_spell: bool,
    counts: Counts,
}

impl Link {
    /// An idle link. The two directions of a path want different seeds.
    #[must_use]
    pub fn new(spec: Spec, seed: u64) -> Self {
        Self { spec, seed, free_ns: 0, fraction: 0.0, bad_spell: false, counts: Counts::default() }
    }

    /// What it is like.
    #[must_use]
    pub fn spec(&self) -> &Spec {
        &self.spec
    }

    /// Change it at work: packets that wait for the link keep their turn as it was computed, and those behind it their time.
    pub fn change(&mut self, spec: Spec) {
        self.spec = spec;
    }

    /// What it has done.
    #[must_use]
    pub fn counts(&self) -> Counts {
        self.counts
    }

    /// Bytes that wait.
    #[must_use]
    pub fn queued_bytes(&self, now_ns: u64) -> u64 {
        if self.spec.rate_bps.is_finite() {
            (self.free_ns.saturating_sub(now_ns) as f64 * self.spec.rate_bps / 8e9) as u64
        } else {
            0
        }
    }

    /// The next packet goes in.
    pub fn send(&mut self, now_ns: u64, bytes: u64) -> Fate {
        let number = self.counts.packets;
        self.counts.packets += 1;
        self.counts.bytes += bytes;
        // Spells go on whatever becomes of the packet: they depend on its number alone.
        let burst = self.in_burst(number);
        if bytes > self.spec.mtu {
            self.counts.too_large += 1;
            return Err(Lost::TooLarge);
        }
        if !self.crosses(now_ns, bytes) {
            self.counts.overflowed += 1;
            return Err(Lost::Buffer);
        }
        if self.chance(self.spec.loss, Die::Loss as u64, number) {
            self.counts.lost_random += 1;
            return Err(Lost::Random);
        }
        if burst {
            self.counts.lost_burst += 1;
            return Err(Lost::Burst);
        }
        let first = self.arrival(number, 0);
        let again = self.chance(self.spec.duplicate, Die::Duplicate as u64, number).then(|| {
            self.counts.duplicated += 1;
            self.arrival(number, 1)
        });
        Ok((first, again))
    }

    /// Take the packet's turn on the link, unless the buffer is full. A packet larger than the whole buffer may cross an idle link.
    fn crosses(&mut self, now_ns: u64, bytes: u64) -> bool {
        let queued = self.queued_bytes(now_ns);
        if queued > 0 && queued + bytes > self.spec.buffer_bytes {
            return false;
        }
        self.counts.most_queued = self.counts.most_queued.max(queued + bytes);
        if self.free_ns < now_ns {
            self.free_ns = now_ns;
            self.fraction = 0.0;
        }
        if self.spec.rate_bps.is_finite() {
            let crossing = bytes as f64 * 8e9 / self.spec.rate_bps + self.fraction;
            self.free_ns += crossing as u64;
            self.fraction = crossing.fract();
        }
        true
    }

    fn arrival(&mut self, number: u64, copy: u64) -> Arrival {
        // Never early: what is left of a nanosecond counts as a whole one.
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
        Arrival { at_ns, held, flip }
    }

    fn in_burst(&mut self, number: u64) -> bool {
        let Some(Bursts { begin, end, loss }) = self.spec.bursts else {
            self.bad_spell = false;
            return false;
        };
        let turn = if self.bad_spell { end } else { begin };
        if self.chance(turn, Die::Spell as u64, number) {
            self.bad_spell = !self.bad_spell;
        }
        self.bad_spell && self.chance(loss, Die::BurstLoss as u64, number)
    }

    fn die(&self, die: u64, number: u64) -> u64 {
        hash(self.seed, &[die, number])
    }

    fn chance(&self, probability: f64, die: u64, number: u64) -> bool {
        probability > 0.0 && unit(self.die(die, number)) < probability
    }
}
