//! The table of resources and flows, and the interface to it. `fill` and `relax` solve it.

use super::curve::Curve;
use super::flow::{Flow, Resource, INLINE_HOPS, UNSOLVED};
use super::members::Members;
use super::scratch::{Relaxation, Work};
use crate::error::{FlowError, MAX_CAPACITY};

/// Resources, flows on them, and the fair rates.
#[derive(Debug)]
pub struct Sharing {
    pub(super) tolerance: f64,
    // Of each resource.
    pub(super) resources: Vec<Resource>,
    pub(super) base: Vec<f64>,
    pub(super) curve: Vec<Option<Box<Curve>>>,
    pub(super) count: Vec<u64>,
    pub(super) members: Members,
    // Of each flow; a slot is used again after its flow has gone.
    pub(super) flows: Vec<Flow>,
    pub(super) copies: Vec<u32>,
    pub(super) free: Vec<u32>,
    pub(super) live: usize,
    // Since the last solution.
    pub(super) dirty: Vec<u32>,
    pub(super) is_dirty: Vec<bool>,
    pub(super) fresh: Vec<u32>,
    pub(super) work: Work,
    pub(super) relaxation: Relaxation,
}

impl Sharing {
    /// Resources with these capacities, and no flow.
    ///
    /// # Errors
    /// If a capacity or the tolerance is out of range.
    pub fn new(capacities: &[f64], tolerance: f64) -> Result<Self, FlowError> {
        if !(1e-12..=0.1).contains(&tolerance) {
            return Err(FlowError::Tolerance(tolerance));
        }
        if u32::try_from(capacities.len()).map_or(true, |n| n >= UNSOLVED) {
            return Err(FlowError::TooMany("flows, resources or hops"));
        }
        for &capacity in capacities {
            check_capacity(capacity)?;
        }
        let n = capacities.len();
        Ok(Self {
            tolerance,
            resources: capacities.iter().map(|c| Resource::idle(c.abs())).collect(),
            base: capacities.to_vec(),
            curve: vec![None; n],
            count: vec![0; n],
            members: Members::new(n),
            flows: Vec::new(),
            copies: Vec::new(),
            free: Vec::new(),
            live: 0,
            dirty: Vec::new(),
            is_dirty: vec![false; n],
            fresh: Vec::new(),
            work: Work::new(n),
            relaxation: Relaxation::default(),
        })
    }

    /// Add `copies` equal flows over `route` as one; its slot number. It has rate 0 until `solve`.
    ///
    /// A resource that `route` names twice is crossed twice. `weight` and `limit` are those of one copy.
    ///
    /// # Errors
    /// If the route, the weight or the limit is out of range, or nothing would hold the flow.
    pub fn add(
        &mut self,
        route: &[u32],
        copies: u32,
        weight: f64,
        limit: f64,
    ) -> Result<u32, FlowError> {
        self.check_flow(route, weight, limit)?;
        let slot = match self.free.pop() {
            Some(slot) => slot,
            None => self.new_slot()?,
        };
        let index = slot as usize;
        self.flows[index] =
            Flow { weight: weight * f64::from(copies), limit: limit / weight, ..Flow::NONE };
        self.copies[index] = copies;
        self.live += 1;
        self.attach(slot, route)?;
        Ok(slot)
    }

    /// Take a flow away; its slot may be given out again.
    pub fn remove(&mut self, slot: u32) {
        self.detach(slot);
        self.copies[slot as usize] = 0;
        self.free.push(slot);
        self.live -= 1;
    }

    /// Move a flow to another route. It has rate 0 until `solve`.
    ///
    /// # Errors
    /// If a resource does not exist, or nothing would hold the flow; the flow then stays where it is.
    pub fn reroute(&mut self, slot: u32, route: &[u32]) -> Result<(), FlowError> {
        let flow = self.flows[slot as usize];
        self.check_flow(route, 1.0, flow.limit)?;
        self.detach(slot);
        self.flows[slot as usize].level = 0.0;
        self.flows[slot as usize].bottleneck = UNSOLVED;
        self.attach(slot, route)
    }

    /// Give a resource another capacity; its contention curve, if it had one, is gone.
    ///
    /// # Errors
    /// If there is no such resource, or the capacity is out of range.
    pub fn set_capacity(&mut self, resource: u32, capacity: f64) -> Result<(), FlowError> {
        check_capacity(capacity)?;
        let r = self.index(resource)?;
        self.base[r] = capacity;
        self.curve[r] = None;
        self.touch(r);
        Ok(())
    }

    /// Let what a resource gives follow the number of flows on it.
    ///
    /// # Errors
    /// If there is no such resource.
    pub fn set_curve(&mut self, resource: u32, curve: Curve) -> Result<(), FlowError> {
        let r = self.index(resource)?;
        self.curve[r] = Some(Box::new(curve));
        self.touch(r);
        Ok(())
    }

    /// Whether anything changed since the last `solve`.
    #[must_use]
    pub fn is_changed(&self) -> bool {
        !self.dirty.is_empty() || !self.fresh.is_empty()
    }

    /// Rate of one copy of a flow, for each unit of its weight.
    #[must_use]
    pub fn flow_level(&self, slot: u32) -> f64 {
        self.flows[slot as usize].level
    }

    /// Rate of all copies of a flow together, bytes a second.
    #[must_use]
    pub fn rate(&self, slot: u32) -> f64 {
        let flow = &self.flows[slot as usize];
        flow.weight * flow.level
    }

    /// The resource that holds a flow, or `LIMITED`, or `UNSOLVED`.
    #[must_use]
    pub fn bottleneck(&self, slot: u32) -> u32 {
        self.flows[slot as usize].bottleneck
    }

    /// The resources that a flow crosses.
    #[must_use]
    pub fn route(&self, slot: u32) -> &[u32] {
        self.members.route(slot, &self.flows[slot as usize])
    }

    /// The level of a resource: infinite where it is no bottleneck.
    #[must_use]
    pub fn level(&self, resource: u32) -> f64 {
        self.resources[resource as usize].level
    }

    /// What each resource gives now, bytes a second.
    #[must_use]
    pub fn used(&self) -> Vec<f64> {
        self.resources.iter().map(|resource| resource.used).collect()
    }

    /// What a resource gives now, bytes a second.
    #[must_use]
    pub fn used_of(&self, resource: u32) -> f64 {
        self.resources[resource as usize].used
    }

    /// What a resource could give now, bytes a second.
    #[must_use]
    pub fn capacity(&self, resource: u32) -> f64 {
        self.resources[resource as usize].capacity
    }

    /// How many resources there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.resources.len()
    }

    /// Whether there is no resource.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.resources.is_empty()
    }

    /// How many flows there are, merged ones counted once.
    #[must_use]
    pub fn live(&self) -> usize {
        self.live
    }

    pub(super) fn index(&self, resource: u32) -> Result<usize, FlowError> {
        let r = resource as usize;
        if r < self.base.len() {
            Ok(r)
        } else {
            Err(FlowError::Resource(resource))
        }
    }

    fn check_flow(&self, route: &[u32], weight: f64, limit: f64) -> Result<(), FlowError> {
        if !(1e-9..=1e9).contains(&weight) {
            return Err(FlowError::Weight(weight));
        }
        if limit.is_nan() || limit <= 0.0 {
            return Err(FlowError::Limit(limit));
        }
        if route.is_empty() && limit.is_infinite() {
            return Err(FlowError::Unbounded);
        }
        for &resource in route {
            self.index(resource)?;
        }
        Ok(())
    }

    fn new_slot(&mut self) -> Result<u32, FlowError> {
        let slot = u32::try_from(self.flows.len())
            .map_err(|_| FlowError::TooMany("flows, resources or hops"))?;
        if slot >= UNSOLVED {
            return Err(FlowError::TooMany("flows, resources or hops"));
        }
        self.flows.push(Flow::NONE);
        self.copies.push(0);
        self.work.add_flow();
        Ok(slot)
    }

    fn attach(&mut self, slot: u32, route: &[u32]) -> Result<(), FlowError> {
        let index = slot as usize;
        let flow = &mut self.flows[index];
        flow.length = self.members.attach(slot, route)?;
        if route.len() <= INLINE_HOPS {
            flow.hops[..route.len()].copy_from_slice(route);
        }
        for &resource in route {
            self.count[resource as usize] += u64::from(self.copies[index]);
            if self.curve[resource as usize].is_some() {
                self.touch(resource as usize);
            }
        }
        // A slot may stand here twice, or stand for a flow that has gone again: `solve` looks.
        self.fresh.push(slot);
        Ok(())
    }

    fn detach(&mut self, slot: u32) {
        let index = slot as usize;
        let flow = self.flows[index];
        let rate = flow.weight * flow.level;
        for at in 0..flow.length {
            let r = self.members.hop(slot, at) as usize;
            self.count[r] -= u64::from(self.copies[index]);
            let resource = &mut self.resources[r];
            resource.used = if self.count[r] == 0 { 0.0 } else { resource.used - rate };
            self.touch(r);
        }
        self.members.detach(slot, flow.length);
    }

    pub(super) fn touch(&mut self, r: usize) {
        if !self.is_dirty[r] {
            self.is_dirty[r] = true;
            self.dirty.push(r as u32);
        }
    }
}

fn check_capacity(capacity: f64) -> Result<(), FlowError> {
    if (0.0..=MAX_CAPACITY).contains(&capacity) {
        Ok(())
    } else {
        Err(FlowError::Capacity(capacity))
    }
}
