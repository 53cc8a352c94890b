//! The routes of flows, and for each resource the flows on it.

use super::flow::{Flow, INLINE_HOPS};
use crate::error::FlowError;

/// One crossing of a resource by a flow.
#[derive(Clone, Copy, Debug)]
struct Crossing {
    flow: u32,
    /// The crossing's position in `hops`, to update `place` when it moves.
    hop: u32,
}

/// Routes and crossings, each in one array: adding and removing a flow allocates nothing once there was one of its
/// length.
#[derive(Debug)]
pub(super) struct Members {
    /// The routes of all flows, one after the other.
    hops: Vec<u32>,
    /// For each hop, where it stands in the list of its resource.
    place: Vec<u32>,
    /// For each flow, where its route begins in `hops`.
    first: Vec<u32>,
    /// For each length, where routes of that length have become free.
    free: Vec<Vec<u32>>,
    of_resource: Vec<Vec<Crossing>>,
}

impl Members {
    pub(super) fn new(resources: usize) -> Self {
        Self {
            hops: Vec::new(),
            place: Vec::new(),
            first: Vec::new(),
            free: Vec::new(),
            of_resource: vec![Vec::new(); resources],
        }
    }

    pub(super) fn route<'a>(&'a self, slot: u32, flow: &'a Flow) -> &'a [u32] {
        let length = flow.length as usize;
        if length <= INLINE_HOPS {
            return &flow.hops[..length];
        }
        let first = self.first[slot as usize] as usize;
        &self.hops[first..first + length]
    }

    pub(super) fn hop(&self, slot: u32, at: u32) -> u32 {
        self.hops[(self.first[slot as usize] + at) as usize]
    }

    pub(super) fn has_any(&self, resource: usize) -> bool {
        !self.of_resource[resource].is_empty()
    }

    /// The flows on a resource; one that crosses it twice is there twice.
    pub(super) fn on(&self, resource: usize) -> impl Iterator<Item = u32> + '_ {
        self.of_resource[resource].iter().map(|crossing| crossing.flow)
    }

    pub(super) fn len(&self, resource: usize) -> usize {
        self.of_resource[resource].len()
    }

    pub(super) fn nth(&self, resource: usize, at: usize) -> u32 {
        self.of_resource[resource][at].flow
    }

    /// The route's length.
    pub(super) fn attach(&mut self, slot: u32, route: &[u32]) -> Result<u32, FlowError> {
        let first = match self.free.get_mut(route.len()).and_then(Vec::pop) {
            Some(first) => first,
            None => {
                let first = u32::try_from(self.hops.len())
                    .map_err(|_| FlowError::TooMany("flows, resources or hops"))?;
                u32::try_from(self.hops.len() + route.len())
                    .map_err(|_| FlowError::TooMany("flows, resources or hops"))?;
                self.hops.resize(self.hops.len() + route.len(), 0);
                self.place.resize(self.hops.len(), 0);
                first
            }
        };
        for (hop, &resource) in (first..).zip(route) {
            let list = &mut self.of_resource[resource as usize];
            self.hops[hop as usize] = resource;
            self.place[hop as usize] = list.len() as u32;
            list.push(Crossing { flow: slot, hop });
        }
        if self.first.len() <= slot as usize {
            self.first.resize(slot as usize + 1, 0);
        }
        self.first[slot as usize] = first;
        Ok(route.len() as u32)
    }

    pub(super) fn detach(&mut self, slot: u32, length: u32) {
        let first = self.first[slot as usize];
        for hop in first..first + length {
            let list = &mut self.of_resource[self.hops[hop as usize] as usize];
            let place = self.place[hop as usize] as usize;
            list.swap_remove(place);
            if let Some(moved) = list.get(place) {
                self.place[moved.hop as usize] = place as u32;
            }
        }
        let length = length as usize;
        if self.free.len() <= length {
            self.free.resize(length + 1, Vec::new());
        }
        self.free[length].push(first);
    }
}
