//! Active queue management: which packets a link drops or marks before its buffer is full.
//!
//! Arrives: packets by size and time, what the queue holds. Leaves: whether each passes, gets an ECN mark, or is lost.
//! Must not know: clocks, the contents of packets, random numbers (the caller draws them).
//!
//! A queue that is not held packet by packet decides when a packet enters it, by the time at which the packet will
//! leave. A drop at the head (CoDel) leaves the same gap at the same time that way; the queue is a packet shorter.

mod backlog;
mod codel;
mod packet;
mod red;

pub use backlog::Backlog;
use codel::CoDel;
pub use packet::Offered;
use red::Red;

/// A token bucket before the queue: what exceeds the rate by more than the bucket is lost.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Policer {
    /// In bits a second.
    pub rate_bps: f64,
    /// The bucket, full at the beginning.
    pub bucket_bytes: u64,
}

/// Which packets are lost before the buffer is full.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub enum Aqm {
    /// None.
    #[default]
    Tail,
    /// Random early detection (Floyd, Jacobson, ToN 1(4), 1993) with their weight of 0.002: none while the average
    /// queue is below `min`, a tenth at `max`, all above. Both are shares of the buffer.
    Red {
        /// The lower threshold.
        min: f64,
        /// The upper threshold.
        max: f64,
    },
    /// CoDel (RFC 8289) with its defaults: a target of 5 ms, an interval of 100 ms.
    CoDel,
}

/// The properties of a queue, beside the size of its buffer.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct QueueSpec {
    /// The policer before it.
    pub policer: Option<Policer>,
    /// What is lost early.
    pub aqm: Aqm,
    /// Whether ECN-capable packets that `aqm` would drop are marked instead (RFC 3168).
    pub ecn: bool,
    /// ECN-capable packets that find more than this many bytes in the queue are marked.
    pub mark_bytes: u64,
}

impl Default for QueueSpec {
    /// A drop-tail queue.
    fn default() -> Self {
        Self { policer: None, aqm: Aqm::Tail, ecn: false, mark_bytes: u64::MAX }
    }
}

impl QueueSpec {
    /// Checks the properties; a sentence about the first invalid one.
    ///
    /// # Errors
    /// A threshold that is no share of the buffer or not below the other, a policer without a rate or a bucket.
    pub fn check(&self) -> Result<(), String> {
        if let Aqm::Red { min, max } = self.aqm {
            if !(0.0..=1.0).contains(&min) || !(0.0..=1.0).contains(&max) || min >= max {
                return Err(format!(
                    "red: {min} and {max} are not two shares of the buffer, the lower one first"
                ));
            }
        }
        if let Some(Policer { rate_bps, bucket_bytes }) = self.policer {
            if !rate_bps.is_finite() || rate_bps < 1.0 || bucket_bytes == 0 {
                return Err(format!("policer: {rate_bps} bit/s with a bucket of {bucket_bytes} bytes passes nothing"));
            }
        }
        Ok(())
    }
}

/// What becomes of a packet in front of a queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// It is queued.
    Pass,
    /// It is queued with an ECN mark.
    Mark,
    /// The policer drops it.
    Policed,
    /// It is lost before the buffer is full.
    Early,
}

/// The state of a queue's management.
#[derive(Clone, Copy, Debug, Default)]
pub struct Management {
    /// The policer's tokens in bytes, and when they were counted; none before the first packet.
    tokens: Option<(f64, u64)>,
    red: Red,
    codel: CoDel,
}

impl Management {
    /// Decides on a packet that fits into the buffer. `chance` draws: true with the given probability.
    pub fn offer(
        &mut self,
        spec: &QueueSpec,
        packet: &Offered,
        chance: impl FnOnce(f64) -> bool,
    ) -> Verdict {
        if spec.policer.is_some_and(|policer| self.exceeds(policer, packet)) {
            return Verdict::Policed;
        }
        let early = match spec.aqm {
            Aqm::Tail => false,
            Aqm::Red { min, max } => self.red.drops(min, max, packet, chance),
            Aqm::CoDel => self.codel.drops(packet),
        };
        if early && !(spec.ecn && packet.ecn_capable) {
            return Verdict::Early;
        }
        let over = packet.ecn_capable && packet.queued_bytes > spec.mark_bytes;
        if early || over {
            Verdict::Mark
        } else {
            Verdict::Pass
        }
    }

    fn exceeds(&mut self, policer: Policer, packet: &Offered) -> bool {
        let bucket = policer.bucket_bytes as f64;
        let (tokens, counted_ns) = self.tokens.unwrap_or((bucket, packet.now_ns));
        let earned = packet.now_ns.saturating_sub(counted_ns) as f64 * policer.rate_bps / 8e9;
        let tokens = (tokens + earned).min(bucket);
        let exceeds = tokens < packet.bytes as f64;
        self.tokens =
            Some((if exceeds { tokens } else { tokens - packet.bytes as f64 }, packet.now_ns));
        exceeds
    }
}
