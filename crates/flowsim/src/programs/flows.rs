//! Active flows: begin, move, end, and the bytes that they have carried.

use super::groups::Groups;
use super::lists::FlowLists;
use super::program::Demand;
use super::routes::Routes;
use crate::error::FlowError;
use crate::sharing::{Sharing, LIMITED, UNSOLVED};

/// An active flow, besides what `sharing` knows of it.
#[derive(Clone, Copy, Debug)]
struct ActiveFlow {
    /// Bytes of one copy.
    size: f64,
    /// In a group: what the group will have served when it ends. Outside of one: bytes left of one copy.
    tag: f64,
    /// Bytes of one copy that were put on the account of routes it has left.
    counted: f64,
    weight: f64,
    limit: f64,
    copies: u32,
    group: u32,
    route: u32,
    run: u32,
    class: u16,
}

/// The run of a slot that holds no flow.
const NO_RUN: u32 = u32::MAX;

/// All active flows, their rates and their groups.
#[derive(Debug)]
pub(super) struct ActiveFlows {
    pub(super) now: f64,
    precision: f64,
    pub(super) sharing: Sharing,
    pub(super) routes: Routes,
    runs: FlowLists,
    flows: Vec<ActiveFlow>,
    pub(super) groups: Groups,
    /// Groups whose next ending has to be written down anew.
    touched: Vec<u32>,
    limited_group: u32,
    /// By class, then by resource.
    totals: Vec<Vec<f64>>,
    pub(super) solutions: u64,
    /// The run of each flow that ended, until the clock takes it.
    pub(super) ended_of: Vec<u32>,
}

impl ActiveFlows {
    pub(super) fn new(sharing: Sharing, precision: f64) -> Self {
        let limited_group = sharing.len() as u32;
        let mut groups = Groups::new(sharing.len() + 1);
        groups.set_pace(limited_group, 0.0, 1.0);
        Self {
            now: 0.0,
            precision,
            sharing,
            routes: Routes::default(),
            runs: FlowLists::default(),
            flows: Vec::new(),
            groups,
            touched: Vec::new(),
            limited_group,
            totals: Vec::new(),
            solutions: 0,
            ended_of: Vec::new(),
        }
    }

    /// Begin the flows of a demand. False where they are over at once, as nothing holds them.
    pub(super) fn begin(&mut self, run: u32, demand: &Demand) -> Result<bool, FlowError> {
        let route = self.routes.get(demand.route);
        if route.is_empty() && demand.limit.is_infinite() {
            return Ok(false);
        }
        let slot = self.sharing.add(route, demand.copies, demand.weight, demand.limit)?;
        let flow = ActiveFlow {
            size: demand.bytes,
            tag: demand.bytes,
            counted: 0.0,
            weight: demand.weight,
            limit: demand.limit,
            copies: demand.copies,
            group: UNSOLVED,
            route: demand.route,
            run,
            class: demand.class,
        };
        match self.flows.get_mut(slot as usize) {
            Some(place) => *place = flow,
            None => self.flows.push(flow),
        }
        self.routes.enter(demand.route, slot);
        self.runs.enter(run, slot);
        Ok(true)
    }

    /// Bring rates, groups and the agenda up to date.
    pub(super) fn settle(&mut self) {
        if !self.sharing.is_changed() && self.touched.is_empty() {
            return;
        }
        self.solutions += 1;
        self.sharing.solve();
        for &resource in self.sharing.relevelled() {
            let level = self.sharing.level(resource);
            self.groups.set_pace(resource, self.now, if level.is_finite() { level } else { 0.0 });
            self.touched.push(resource);
        }
        for at in 0..self.sharing.moved().len() {
            let slot = self.sharing.moved()[at];
            let left = self.left(slot);
            self.leave_group(slot);
            let group = match self.sharing.bottleneck(slot) {
                LIMITED => self.limited_group,
                resource => resource,
            };
            let flow = &mut self.flows[slot as usize];
            flow.group = group;
            let served_each = if group == self.limited_group { flow.limit } else { flow.weight };
            flow.tag = self.groups.join(group, self.now, slot, left / served_each);
            self.touched.push(group);
        }
        self.touched.sort_unstable();
        self.touched.dedup();
        for &group in &self.touched {
            self.groups.schedule(group, self.now);
        }
        self.touched.clear();
    }

    /// Bytes of one copy that are left.
    pub(super) fn left(&self, slot: u32) -> f64 {
        let flow = &self.flows[slot as usize];
        if flow.group == UNSOLVED {
            return flow.tag;
        }
        let served_each = if flow.group == self.limited_group { flow.limit } else { flow.weight };
        let left = (flow.tag - self.groups.served(flow.group, self.now)) * served_each;
        left.clamp(0.0, flow.size)
    }

    fn leave_group(&mut self, slot: u32) {
        let left = self.left(slot);
        let flow = &mut self.flows[slot as usize];
        if flow.group != UNSOLVED {
            self.groups.leave(flow.group, self.now, slot);
            self.touched.push(flow.group);
            flow.group = UNSOLVED;
            flow.tag = left;
        }
    }

    /// End all flows that are due now, or have no more than `precision` of their bytes left.
    pub(super) fn end_due(&mut self) -> u64 {
        let mut ended = 0;
        while let Some((at, group)) = self.groups.next() {
            let mut certain = at <= self.now;
            let before = ended;
            while let Some(head) = self.groups.head(group) {
                let slot = head.flow;
                if !certain && self.left(slot) > self.precision * self.flows[slot as usize].size {
                    break;
                }
                // Only the head is due at the time written down; for the others it has to be worked out.
                certain = false;
                self.end(slot);
                ended += 1;
            }
            if ended == before {
                break;
            }
            self.groups.schedule(group, self.now);
        }
        ended
    }

    fn end(&mut self, slot: u32) {
        let run = self.flows[slot as usize].run;
        self.count_until(slot, 0.0);
        self.drop_flow(slot);
        self.ended_of.push(run);
    }

    fn drop_flow(&mut self, slot: u32) {
        self.leave_group(slot);
        let flow = &mut self.flows[slot as usize];
        self.runs.leave(flow.run, slot);
        flow.run = NO_RUN;
        self.routes.leave(flow.route, slot);
        self.sharing.remove(slot);
    }

    /// Take all flows of a run away.
    pub(super) fn drop_run(&mut self, run: u32) {
        for slot in self.flows_of(run) {
            self.count_until(slot, self.left(slot));
            self.drop_flow(slot);
        }
    }

    /// Let the active flows of a key go over `route` from now on.
    pub(super) fn move_flows(&mut self, key: u32, route: &[u32]) -> Result<(), FlowError> {
        let moving: Vec<u32> = self.routes.flows(key).collect();
        self.routes.replace(key, route);
        for slot in moving {
            self.count_until(slot, self.left(slot));
            self.leave_group(slot);
            let flow = self.flows[slot as usize];
            if route.is_empty() && flow.limit.is_infinite() {
                self.end(slot);
            } else {
                self.sharing.reroute(slot, route)?;
            }
        }
        Ok(())
    }

    /// Put what a flow has carried, up to `left` bytes before its end, on the account of its route.
    fn count_until(&mut self, slot: u32, left: f64) {
        let flow = &mut self.flows[slot as usize];
        let bytes = (flow.size - left - flow.counted) * f64::from(flow.copies);
        flow.counted = flow.size - left;
        let class = usize::from(flow.class);
        if self.totals.len() <= class {
            self.totals.resize(class + 1, Vec::new());
        }
        let total = &mut self.totals[class];
        if total.is_empty() {
            total.resize(self.sharing.len(), 0.0);
        }
        for &resource in self.sharing.route(slot) {
            total[resource as usize] += bytes;
        }
    }

    fn slots(&self) -> impl Iterator<Item = u32> + '_ {
        (0..self.flows.len() as u32).filter(|&slot| self.flows[slot as usize].run != NO_RUN)
    }

    /// Bytes that each resource has carried until now for a class.
    pub(super) fn totals(&self, class: u16) -> Vec<f64> {
        let mut total = self.totals.get(usize::from(class)).cloned().unwrap_or_default();
        total.resize(self.sharing.len(), 0.0);
        for slot in self.slots() {
            let flow = &self.flows[slot as usize];
            if flow.class == class {
                let bytes = (flow.size - self.left(slot) - flow.counted) * f64::from(flow.copies);
                for &resource in self.sharing.route(slot) {
                    total[resource as usize] += bytes;
                }
            }
        }
        total
    }

    /// Bytes a second that each resource carries now for a class.
    pub(super) fn class_rates(&mut self, class: u16) -> Vec<f64> {
        self.settle();
        let mut rates = vec![0.0; self.sharing.len()];
        for slot in self.slots().filter(|&slot| self.flows[slot as usize].class == class) {
            for &resource in self.sharing.route(slot) {
                rates[resource as usize] += self.sharing.rate(slot);
            }
        }
        rates
    }

    /// The active flows of a run, rising: sums over them have one order, whichever began first.
    fn flows_of(&self, run: u32) -> Vec<u32> {
        let mut found: Vec<u32> = self.runs.flows(run).collect();
        found.sort_unstable();
        found
    }

    /// Bytes that a run's active flows have left.
    pub(super) fn bytes_left(&self, run: u32) -> f64 {
        self.flows_of(run).iter().fold(0.0, |sum, &slot| {
            sum + self.left(slot) * f64::from(self.flows[slot as usize].copies)
        })
    }
}
