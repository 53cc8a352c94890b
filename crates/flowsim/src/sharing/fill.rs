//! The exact solver: progressive filling of the resources out of balance, until none is.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use super::flow::{LIMITED, UNSOLVED};
use super::scratch::{Share, NOWHERE};
use super::table::Sharing;

/// After this number of rounds the neighbours of all that was reached join at once, so that a change which runs along
/// a chain of resources does not cost a round for each of them.
const PATIENT_ROUNDS: u32 = 6;

impl Sharing {
    /// Bring all rates up to date with what changed since the last call.
    pub fn solve(&mut self) {
        self.work.moved.clear();
        self.work.relevelled.clear();
        if self.is_rough() && self.relax() {
            return;
        }
        self.begin();
        let mut round = 0;
        loop {
            self.fill();
            if !self.apply(round) {
                break;
            }
            round += 1;
        }
        self.finish();
    }

    /// Flows whose bottleneck the last `solve` changed, new flows among them.
    #[must_use]
    pub fn moved(&self) -> &[u32] {
        &self.work.moved
    }

    /// Resources whose level the last `solve` changed.
    #[must_use]
    pub fn relevelled(&self) -> &[u32] {
        &self.work.relevelled
    }

    /// Gather what is out of balance, and the new flows.
    fn begin(&mut self) {
        let mut fresh = std::mem::take(&mut self.fresh);
        fresh.retain(|&slot| {
            self.copies[slot as usize] > 0 && self.flows[slot as usize].bottleneck == UNSOLVED
        });
        for &slot in &fresh {
            self.share(slot);
        }
        let dirty = std::mem::take(&mut self.dirty);
        for &resource in &dirty {
            let r = resource as usize;
            self.is_dirty[r] = false;
            self.refresh(r);
            if !self.is_balanced(r) {
                self.open(resource);
            }
        }
        if self.work.sharing.len() * 2 > self.live {
            self.open_all();
        }
        for &slot in &fresh {
            self.hold_fresh(slot);
        }
        // Both lists keep their memory for the next changes.
        self.fresh = fresh;
        self.fresh.clear();
        self.dirty = dirty;
        self.dirty.clear();
    }

    /// What a resource gives follows the number of flows on it.
    pub(super) fn refresh(&mut self, r: usize) {
        let capacity = match &self.curve[r] {
            Some(curve) => curve.at(self.count[r] as f64),
            None => self.base[r],
        };
        // -0.0 would sort as the largest level.
        self.resources[r].capacity = capacity.abs();
    }

    /// A new flow must be held by something: by the resource with the least room, if none has a level.
    fn hold_fresh(&mut self, slot: u32) {
        let flow = self.flows[slot as usize];
        let mut tightest = (f64::INFINITY, None);
        if flow.limit.is_finite() {
            return;
        }
        for &resource in self.members.route(slot, &flow) {
            let r = resource as usize;
            if self.work.is_filling[r] || self.resources[r].level.is_finite() {
                return;
            }
            let room = self.resources[r].capacity - self.resources[r].used;
            if room < tightest.0 {
                tightest = (room, Some(resource));
            }
        }
        if let (_, Some(resource)) = tightest {
            self.open(resource);
        }
    }

    pub(super) fn is_balanced(&self, r: usize) -> bool {
        let resource = &self.resources[r];
        let slack = self.tolerance * resource.capacity;
        if resource.level.is_finite() {
            (resource.used - resource.capacity).abs() <= slack
        } else {
            resource.used <= resource.capacity + slack
        }
    }

    /// Let a resource be filled anew, with all the flows on it.
    fn open(&mut self, resource: u32) {
        let r = resource as usize;
        if self.work.is_filling[r] {
            return;
        }
        self.work.is_filling[r] = true;
        self.work.filling.push((resource, self.resources[r].level));
        for slot in self.members.on(r) {
            let place = &mut self.work.place[slot as usize];
            if *place == NOWHERE {
                *place = self.work.sharing.len() as u32;
                self.work.sharing.push(slot);
            }
        }
    }

    fn open_all(&mut self) {
        for resource in 0..self.base.len() as u32 {
            if self.members.has_any(resource as usize)
                || self.resources[resource as usize].level.is_finite()
            {
                self.open(resource);
            }
        }
    }

    fn share(&mut self, slot: u32) {
        let place = &mut self.work.place[slot as usize];
        if *place == NOWHERE {
            *place = self.work.sharing.len() as u32;
            self.work.sharing.push(slot);
        }
    }

    /// Progressive filling of the open resources, all other levels held.
    fn fill(&mut self) {
        self.lay_out();
        let mut next_ceiling = 0;
        loop {
            while let Some(&(_, i)) = self.work.ceilings.get(next_ceiling) {
                if !self.work.shares[i as usize].settled {
                    break;
                }
                next_ceiling += 1;
            }
            let ceiling = self.work.ceilings.get(next_ceiling).copied();
            match (self.tightest(ceiling.map(|c| f64::from_bits(c.0))), ceiling) {
                (Some((level, resource)), _) => self.saturate(resource, level),
                (None, Some((_, i))) => {
                    let share = self.work.shares[i as usize];
                    self.settle(i as usize, share.ceiling, share.ceiling_by);
                }
                (None, None) => break,
            }
        }
    }

    /// Sum up what stands on each open resource, and find what holds each flow from outside.
    fn lay_out(&mut self) {
        let work = &mut self.work;
        for &(resource, _) in &work.filling {
            let r = resource as usize;
            work.room[r] = self.resources[r].capacity;
            work.weight[r] = 0.0;
            work.pending[r] = 0;
            self.resources[r].level = f64::INFINITY;
        }
        work.shares.clear();
        work.ceilings.clear();
        for (i, &slot) in work.sharing.iter().enumerate() {
            let flow = &self.flows[slot as usize];
            let (mut ceiling, mut by) = (flow.limit, LIMITED);
            for &resource in self.members.route(slot, flow) {
                let r = resource as usize;
                if work.is_filling[r] {
                    work.weight[r] += flow.weight;
                    work.pending[r] += 1;
                } else if self.resources[r].level < ceiling {
                    (ceiling, by) = (self.resources[r].level, resource);
                }
            }
            work.shares.push(Share {
                ceiling,
                ceiling_by: by,
                level: 0.0,
                bottleneck: by,
                settled: false,
            });
            if ceiling.is_finite() {
                // Levels are never negative, so their bits sort as they do.
                work.ceilings.push((ceiling.to_bits(), i as u32));
            }
        }
        work.ceilings.sort_unstable();
        let mut queue = std::mem::take(&mut work.queue).into_vec();
        queue.clear();
        for &(resource, _) in &work.filling {
            let r = resource as usize;
            work.whole_weight[r] = work.weight[r];
            if work.pending[r] > 0 {
                let level = work.room[r] / work.weight[r];
                queue.push(Reverse((level.to_bits(), resource)));
            }
        }
        work.queue = BinaryHeap::from(queue);
    }

    /// The open resource that is full first, if that is before `ceiling`.
    ///
    /// Settling flows only raises levels, so a level in the queue is at most the true one.
    fn tightest(&mut self, ceiling: Option<f64>) -> Option<(f64, u32)> {
        while let Some(&Reverse((bits, resource))) = self.work.queue.peek() {
            let queued = f64::from_bits(bits);
            if ceiling.is_some_and(|c| c <= queued) {
                return None;
            }
            self.work.queue.pop();
            let r = resource as usize;
            if self.work.pending[r] == 0 {
                continue;
            }
            let level = self.level_of(r).max(queued);
            let before = self.work.queue.peek().map(|next| f64::from_bits(next.0 .0));
            if before.is_some_and(|b| b < level) || ceiling.is_some_and(|c| c <= level) {
                self.work.queue.push(Reverse((level.to_bits(), resource)));
                continue;
            }
            return Some((level, resource));
        }
        None
    }

    fn level_of(&mut self, r: usize) -> f64 {
        // Taking weights off one by one loses digits: sum up anew before too few are left.
        if self.work.weight[r] < 1e-6 * self.work.whole_weight[r] {
            let mut weight = 0.0;
            for slot in self.members.on(r) {
                if !self.work.shares[self.work.place[slot as usize] as usize].settled {
                    weight += self.flows[slot as usize].weight;
                }
            }
            self.work.weight[r] = weight;
            self.work.whole_weight[r] = weight;
        }
        self.work.room[r].max(0.0) / self.work.weight[r]
    }

    fn saturate(&mut self, resource: u32, level: f64) {
        let r = resource as usize;
        self.resources[r].level = level;
        for at in 0..self.members.len(r) {
            let slot = self.members.nth(r, at);
            let i = self.work.place[slot as usize] as usize;
            if !self.work.shares[i].settled {
                self.settle(i, level, resource);
            }
        }
    }

    fn settle(&mut self, i: usize, level: f64, bottleneck: u32) {
        let work = &mut self.work;
        let share = &mut work.shares[i];
        share.level = level;
        share.bottleneck = bottleneck;
        share.settled = true;
        let slot = work.sharing[i];
        let flow = &self.flows[slot as usize];
        let rate = flow.weight * level;
        for &resource in self.members.route(slot, flow) {
            let r = resource as usize;
            if work.is_filling[r] {
                work.room[r] -= rate;
                work.weight[r] -= flow.weight;
                work.pending[r] -= 1;
            }
        }
    }

    /// Let held resources feel the new rates; open those now out of balance. Whether there were any.
    fn apply(&mut self, round: u32) -> bool {
        let work = &mut self.work;
        for &(resource, _) in &work.filling {
            let r = resource as usize;
            self.resources[r].used = self.resources[r].capacity - work.room[r];
        }
        for (share, &slot) in work.shares.iter().zip(&work.sharing) {
            let flow = &mut self.flows[slot as usize];
            if share.level == flow.level {
                continue;
            }
            let change = flow.weight * (share.level - flow.level);
            flow.level = share.level;
            for &resource in self.members.route(slot, flow) {
                let r = resource as usize;
                if !work.is_filling[r] {
                    self.resources[r].used += change;
                    if !work.is_shifted[r] {
                        work.is_shifted[r] = true;
                        work.shifted.push(resource);
                    }
                }
            }
        }
        let shifted = std::mem::take(&mut self.work.shifted);
        let opened_before = self.work.filling.len();
        for &resource in &shifted {
            self.work.is_shifted[resource as usize] = false;
            if !self.is_balanced(resource as usize) {
                self.open(resource);
            }
        }
        let any = self.work.filling.len() > opened_before;
        if any && round >= PATIENT_ROUNDS {
            for &resource in &shifted {
                self.open(resource);
            }
        }
        if any && self.work.sharing.len() * 2 > self.live {
            self.open_all();
        }
        self.work.shifted = shifted;
        self.work.shifted.clear();
        any
    }

    /// Note what changed, and clear the marks.
    fn finish(&mut self) {
        let work = &mut self.work;
        for (share, &slot) in work.shares.iter().zip(&work.sharing) {
            work.place[slot as usize] = NOWHERE;
            let bottleneck = &mut self.flows[slot as usize].bottleneck;
            if *bottleneck != share.bottleneck {
                *bottleneck = share.bottleneck;
                work.moved.push(slot);
            }
        }
        work.sharing.clear();
        work.shares.clear();
        for &(resource, before) in &work.filling {
            let r = resource as usize;
            work.is_filling[r] = false;
            if self.resources[r].level != before {
                work.relevelled.push(resource);
            }
        }
        work.filling.clear();
    }
}
