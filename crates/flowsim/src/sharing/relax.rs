//! The approximate solver: one resource at a time, all others held, until each is balanced within the tolerance.
//!
//! With a tolerance that matters, most changes end where they began: a flow that ends gives a hundred others 1 % more
//! each, and what these cross feels a ten-thousandth. Filling one resource alone needs one pass over the flows on it
//! and no queue. Taken in turn, resources come to the max-min fair levels from any start (Charny, Clark and Jain,
//! 1995, "Congestion control with explicit rate indication"); there is no bound on how soon, so there is a budget,
//! and past it the exact method takes over from the state reached.

use super::flow::{LIMITED, UNSOLVED};
use super::scratch::Claim;
use super::table::Sharing;

/// From this tolerance on, the rough way is tried first. Below it, nearly everything is reached anyway.
pub const ROUGH: f64 = 1e-5;

/// Crossings visited, for each active flow, before the exact method takes over.
const PATIENCE: usize = 8;

impl Sharing {
    /// Whether the rough way is worth a try.
    pub(super) fn is_rough(&self) -> bool {
        self.tolerance >= ROUGH && self.fresh.len() * 4 <= self.live
    }

    /// Balance resources one by one. False where the budget did not suffice: `dirty` then has what is left to do.
    pub(super) fn relax(&mut self) -> bool {
        self.relaxation.is_queued.resize(self.base.len(), false);
        self.relaxation.is_relevelled.resize(self.base.len(), false);
        self.relaxation.is_moved.resize(self.flows.len(), false);
        let dirty = std::mem::take(&mut self.dirty);
        for &resource in &dirty {
            self.is_dirty[resource as usize] = false;
            self.refresh(resource as usize);
            self.enqueue_unbalanced(resource);
        }
        self.dirty = dirty;
        self.dirty.clear();
        let mut fresh = std::mem::take(&mut self.fresh);
        fresh.retain(|&slot| {
            self.copies[slot as usize] > 0 && self.flows[slot as usize].bottleneck == UNSOLVED
        });
        for &slot in &fresh {
            self.let_in(slot);
        }
        let mut budget = PATIENCE * self.live + 1000;
        while let Some(resource) = self.relaxation.queue.pop_front() {
            self.relaxation.is_queued[resource as usize] = false;
            if budget == 0 {
                self.touch(resource as usize);
            } else {
                budget = budget.saturating_sub(self.members.len(resource as usize) + 1);
                self.fill_alone(resource);
            }
        }
        for &slot in &self.work.moved {
            self.relaxation.is_moved[slot as usize] = false;
        }
        for &resource in &self.work.relevelled {
            self.relaxation.is_relevelled[resource as usize] = false;
        }
        if self.dirty.is_empty() {
            fresh.clear();
        }
        for &slot in &fresh {
            self.flows[slot as usize].bottleneck = UNSOLVED;
        }
        self.fresh = fresh;
        self.dirty.is_empty()
    }

    fn enqueue_unbalanced(&mut self, resource: u32) {
        if !self.is_balanced(resource as usize) {
            self.enqueue(resource);
        }
    }

    fn enqueue(&mut self, resource: u32) {
        let is_queued = &mut self.relaxation.is_queued[resource as usize];
        if !*is_queued {
            *is_queued = true;
            self.relaxation.queue.push_back(resource);
        }
    }

    /// Give a new flow what the levels on its route allow; where none has one, let the tightest be filled.
    fn let_in(&mut self, slot: u32) {
        let flow = self.flows[slot as usize];
        let (mut ceiling, mut by) = (flow.limit, LIMITED);
        let mut tightest = (f64::INFINITY, LIMITED);
        for &resource in self.members.route(slot, &flow) {
            let r = resource as usize;
            if self.resources[r].level < ceiling {
                (ceiling, by) = (self.resources[r].level, resource);
            }
            let room = self.resources[r].capacity - self.resources[r].used;
            if room < tightest.0 {
                tightest = (room, resource);
            }
        }
        if ceiling.is_finite() {
            self.set_level(slot, ceiling, LIMITED);
        } else {
            by = tightest.1;
            self.enqueue(by);
        }
        self.set_bottleneck(slot, by);
    }

    /// Fill one resource, all other levels held.
    fn fill_alone(&mut self, resource: u32) {
        let r = resource as usize;
        let mut claims = std::mem::take(&mut self.relaxation.claims);
        claims.clear();
        for slot in self.members.on(r) {
            let flow = &self.flows[slot as usize];
            let (mut ceiling, mut by) = (flow.limit, LIMITED);
            for &other in self.members.route(slot, flow) {
                if other != resource && self.resources[other as usize].level < ceiling {
                    (ceiling, by) = (self.resources[other as usize].level, other);
                }
            }
            claims.push(Claim { ceiling, weight: flow.weight, by, slot });
        }
        let level = fill_level(self.resources[r].capacity, &claims);
        self.resources[r].level = level;
        if !self.relaxation.is_relevelled[r] {
            self.relaxation.is_relevelled[r] = true;
            self.work.relevelled.push(resource);
        }
        let mut used = 0.0;
        for claim in &claims {
            let held = level < claim.ceiling;
            let new = if held { level } else { claim.ceiling };
            used += claim.weight * new;
            self.set_level(claim.slot, new, resource);
            self.set_bottleneck(claim.slot, if held { resource } else { claim.by });
        }
        self.resources[r].used = used;
        self.relaxation.claims = claims;
    }

    /// Change a flow's level; all resources on its route but `filling` feel it.
    fn set_level(&mut self, slot: u32, level: f64, filling: u32) {
        let flow = &mut self.flows[slot as usize];
        if flow.level == level {
            return;
        }
        let change = flow.weight * (level - flow.level);
        flow.level = level;
        let flow = *flow;
        for at in 0..flow.length as usize {
            let other = self.members.route(slot, &flow)[at];
            if other != filling {
                self.resources[other as usize].used += change;
                self.enqueue_unbalanced(other);
            }
        }
    }

    fn set_bottleneck(&mut self, slot: u32, by: u32) {
        let bottleneck = &mut self.flows[slot as usize].bottleneck;
        if *bottleneck != by {
            *bottleneck = by;
            let is_moved = &mut self.relaxation.is_moved[slot as usize];
            if !*is_moved {
                *is_moved = true;
                self.work.moved.push(slot);
            }
        }
    }
}

/// The level at which the claims take all of `capacity`; infinite where they cannot.
///
/// Each pass takes out the claims below the level and shares what they leave among the rest (Michelot, 1986); the
/// level only rises, and a few passes suffice.
fn fill_level(capacity: f64, claims: &[Claim]) -> f64 {
    let mut level = 0.0;
    loop {
        let (mut taken, mut weight) = (0.0, 0.0);
        for claim in claims {
            if claim.ceiling <= level {
                taken += claim.weight * claim.ceiling;
            } else {
                weight += claim.weight;
            }
        }
        if weight == 0.0 {
            return f64::INFINITY;
        }
        let next = (capacity - taken).max(0.0) / weight;
        if next <= level {
            return next;
        }
        level = next;
    }
}
