//! What hosts send to each other.
//!
//! Arrives: a list of sender, receiver, bytes; any pair any number of times.
//! Leaves: [`Demands`], each of which gets one path, in the order of first appearance.
//! Must not know: processes, jobs, traces.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};

use crate::error::FlowError;
use crate::network::{same_length, Network};
use crate::seeded::mix;

/// Demands in order; no host sends to itself. Positions are those of the three lists.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Demands {
    pub(crate) src: Vec<u32>,
    pub(crate) dst: Vec<u32>,
    pub(crate) bytes: Vec<f64>,
}

/// Pairs of hosts that always get a table: 16 KiB.
const TABLE_PAIRS: usize = 1 << 12;

/// No position.
const NONE: u32 = u32::MAX;

/// One demand by itself.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Demand {
    pub position: u32,
    pub src: u32,
    pub dst: u32,
    pub bytes: f64,
}

impl Demands {
    /// One demand for each pair of hosts: what is sent between the same two hosts is added up.
    ///
    /// This is PFSim's grain: routes are between hosts, for any number of processes on them.
    ///
    /// # Errors
    /// [`FlowError`] names the entry whose host or bytes cannot be.
    pub fn between_hosts(
        network: &Network,
        src: &[u32],
        dst: &[u32],
        bytes: &[f64],
    ) -> Result<Self, FlowError> {
        check(network, src, dst, bytes)?;
        let hosts = network.host_count() as usize;
        let pairs = hosts.saturating_mul(hosts);
        let mut demands = Self::default();
        // Where most pairs occur a table of all of them is smaller and several times as fast.
        if pairs <= TABLE_PAIRS.max(2 * src.len()) {
            let mut known = vec![NONE; pairs];
            demands.add_up(src, dst, bytes, |a, b, next| {
                let place = &mut known[a as usize * hosts + b as usize];
                if *place == NONE {
                    *place = next;
                }
                *place
            });
        } else {
            let hasher = BuildHasherDefault::<PairHasher>::default();
            let mut known: HashMap<u64, u32, _> =
                HashMap::with_capacity_and_hasher(src.len(), hasher);
            demands.add_up(src, dst, bytes, |a, b, next| {
                *known.entry((u64::from(a) << 32) | u64::from(b)).or_insert(next)
            });
        }
        Ok(demands)
    }

    /// One demand for each entry, as if each were a flow with a separate path.
    ///
    /// # Errors
    /// [`FlowError`] names the entry whose host or bytes cannot be.
    pub fn between_processes(
        network: &Network,
        src: &[u32],
        dst: &[u32],
        bytes: &[f64],
    ) -> Result<Self, FlowError> {
        check(network, src, dst, bytes)?;
        let mut demands = Self::default();
        for ((&a, &b), &amount) in src.iter().zip(dst).zip(bytes) {
            if a != b {
                demands.push(a, b, amount);
            }
        }
        Ok(demands)
    }

    /// How many demands.
    #[must_use]
    pub fn len(&self) -> usize {
        self.src.len()
    }

    /// Whether nothing is sent.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.src.is_empty()
    }

    /// The sending host of each demand.
    #[must_use]
    pub fn src(&self) -> &[u32] {
        &self.src
    }

    /// The receiving host of each demand.
    #[must_use]
    pub fn dst(&self) -> &[u32] {
        &self.dst
    }

    /// The bytes of each demand.
    #[must_use]
    pub fn bytes(&self) -> &[f64] {
        &self.bytes
    }

    /// Positions of demands, the heaviest first, equal ones in their own order.
    pub(crate) fn heaviest_first(&self) -> Vec<u32> {
        let mut order: Vec<u32> = (0..self.len() as u32).collect();
        order.sort_by(|&a, &b| self.bytes[b as usize].total_cmp(&self.bytes[a as usize]));
        order
    }

    /// All demands, those to the same group of hosts together, and among these by the sending group.
    ///
    /// They are copied and sorted by both ends: routed in any order, ten million between a hundred thousand hosts
    /// would wait for memory at every link.
    pub(crate) fn by_group(&self, network: &Network) -> Vec<Demand> {
        let demands: Vec<Demand> = (0..self.len())
            .map(|at| Demand {
                position: at as u32,
                src: self.src[at],
                dst: self.dst[at],
                bytes: self.bytes[at],
            })
            .collect();
        let groups = network.host_count() as usize;
        let by_source = sorted_by(&demands, groups, |demand| network.source_group(demand.src));
        sorted_by(&by_source, groups, |demand| network.group(demand.dst))
    }

    /// `place` gives the position of a pair, which is `next` for one that it has not seen.
    fn add_up(
        &mut self,
        src: &[u32],
        dst: &[u32],
        bytes: &[f64],
        mut place: impl FnMut(u32, u32, u32) -> u32,
    ) {
        for ((&a, &b), &amount) in src.iter().zip(dst).zip(bytes) {
            if a == b {
                continue;
            }
            let next = self.src.len() as u32;
            let position = place(a, b, next);
            if position == next {
                self.push(a, b, amount);
            } else {
                self.bytes[position as usize] += amount;
            }
        }
    }

    fn push(&mut self, src: u32, dst: u32, bytes: f64) {
        self.src.push(src);
        self.dst.push(dst);
        self.bytes.push(bytes);
    }
}

/// A stable counting sort by numbers below `count`.
fn sorted_by(demands: &[Demand], count: usize, key: impl Fn(&Demand) -> u32) -> Vec<Demand> {
    let mut starts = vec![0u32; count + 1];
    for demand in demands {
        starts[key(demand) as usize + 1] += 1;
    }
    for number in 0..count {
        starts[number + 1] += starts[number];
    }
    let mut sorted = vec![Demand::default(); demands.len()];
    for demand in demands {
        let next = &mut starts[key(demand) as usize];
        sorted[*next as usize] = *demand;
        *next += 1;
    }
    sorted
}

/// Hashes a pair of hosts by mixing its bits: ten million pairs take a second less than with the default, which
/// guards against keys that an attacker chose; host numbers are positions in a list.
#[derive(Default)]
struct PairHasher(u64);

impl Hasher for PairHasher {
    fn write_u64(&mut self, pair: u64) {
        self.0 = mix(pair);
    }

    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|&byte| self.0 = mix(self.0 ^ u64::from(byte)));
    }

    fn finish(&self) -> u64 {
        self.0
    }
}

fn check(network: &Network, src: &[u32], dst: &[u32], bytes: &[f64]) -> Result<(), FlowError> {
    same_length("receiving hosts", src.len(), dst.len())?;
    same_length("bytes", src.len(), bytes.len())?;
    if src.len() > (1 << 31) {
        return Err(FlowError::TooLarge);
    }
    for (pair, (&a, &b)) in src.iter().zip(dst).enumerate() {
        for host in [a, b] {
            if host >= network.host_count() {
                return Err(FlowError::NoHost(pair, host));
            }
        }
    }
    match bytes.iter().position(|amount| !(amount.is_finite() && *amount >= 0.0)) {
        Some(pair) => Err(FlowError::PairBytes(pair, bytes[pair])),
        None => Ok(()),
    }
}
