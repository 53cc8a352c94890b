//! Memory that the solvers keep between calls.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};

/// What a flow that is being shared anew comes to.
#[derive(Clone, Copy, Debug)]
pub(super) struct Share {
    /// The largest level that its own limit and the resources held allow, and which of them.
    pub(super) ceiling: f64,
    pub(super) ceiling_by: u32,
    pub(super) level: f64,
    pub(super) bottleneck: u32,
    pub(super) settled: bool,
}

/// Scratch of `solve`, kept between calls; all but the marks is empty then.
#[derive(Debug)]
pub(super) struct Work {
    /// Resources being filled, with the levels they had, and a mark for each resource.
    pub(super) filling: Vec<(u32, f64)>,
    pub(super) is_filling: Vec<bool>,
    /// Flows being shared anew, and for each flow its place in this list, or `NOWHERE`.
    pub(super) sharing: Vec<u32>,
    pub(super) shares: Vec<Share>,
    pub(super) place: Vec<u32>,
    /// Of each resource being filled: what is left of it, and the weight and number of flows not settled.
    pub(super) room: Vec<f64>,
    pub(super) weight: Vec<f64>,
    pub(super) whole_weight: Vec<f64>,
    pub(super) pending: Vec<u32>,
    /// Held resources whose use has changed in this round.
    pub(super) shifted: Vec<u32>,
    pub(super) is_shifted: Vec<bool>,
    pub(super) ceilings: Vec<(u64, u32)>,
    pub(super) queue: BinaryHeap<Reverse<(u64, u32)>>,
    /// What the last call changed.
    pub(super) moved: Vec<u32>,
    pub(super) relevelled: Vec<u32>,
}

pub(super) const NOWHERE: u32 = u32::MAX;

impl Work {
    pub(super) fn new(resources: usize) -> Self {
        Self {
            filling: Vec::new(),
            is_filling: vec![false; resources],
            sharing: Vec::new(),
            shares: Vec::new(),
            place: Vec::new(),
            room: vec![0.0; resources],
            weight: vec![0.0; resources],
            whole_weight: vec![0.0; resources],
            pending: vec![0; resources],
            shifted: Vec::new(),
            is_shifted: vec![false; resources],
            ceilings: Vec::new(),
            queue: BinaryHeap::new(),
            moved: Vec::new(),
            relevelled: Vec::new(),
        }
    }

    pub(super) fn add_flow(&mut self) {
        self.place.push(NOWHERE);
    }
}

/// A flow on the resource that is being filled.
#[derive(Clone, Copy, Debug)]
pub(super) struct Claim {
    /// The level that everything but this resource allows, and what sets it.
    pub(super) ceiling: f64,
    pub(super) weight: f64,
    pub(super) by: u32,
    pub(super) slot: u32,
}

/// Scratch, empty between calls.
#[derive(Debug, Default)]
pub(super) struct Relaxation {
    pub(super) queue: VecDeque<u32>,
    pub(super) is_queued: Vec<bool>,
    pub(super) claims: Vec<Claim>,
    pub(super) is_moved: Vec<bool>,
    pub(super) is_relevelled: Vec<bool>,
}
