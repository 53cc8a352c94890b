//! `FlowClock`: runs of programs, events, and the public interface.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};
use std::sync::Arc;

use super::flows::ActiveFlows;
use super::program::Program;
use crate::error::FlowError;
use crate::sharing::{Curve, Sharing, ROUGH};

/// The part of `precision` that rates may be off by where both are too small to matter: what ends together in truth
/// then does so here.
const RATE_SHARE: f64 = 0.25;

/// Why `advance` came back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pause {
    /// Programs ended; `take_ended` has them.
    Ended,
    /// The time limit was reached.
    Limit,
    /// Nothing will ever happen again: no flow moves and no pause runs.
    Idle,
    /// As many events as allowed were worked through; call again.
    Budget,
}

#[derive(Debug)]
struct Run {
    /// None once the run has ended or was cancelled.
    program: Option<Arc<Program>>,
    step: usize,
    lap: u64,
    active_flows: u64,
    stage: Stage,
    started_s: f64,
    ended_s: Option<f64>,
}

/// Where a run is in its step.
#[derive(Clone, Copy, Debug)]
enum Stage {
    Before,
    Pausing,
    Flowing,
}

/// A clock that goes from event to event: the time mode's engine.
#[derive(Debug)]
pub struct FlowClock {
    flows: ActiveFlows,
    runs: Vec<Run>,
    timers: BinaryHeap<Reverse<(u64, u64, u32)>>,
    timers_set: u64,
    /// Runs whose pause is over, or whose flows are.
    ready: VecDeque<u32>,
    ended: Vec<(f64, u32)>,
}

impl FlowClock {
    /// A clock at 0 s over resources with these capacities, bytes a second.
    ///
    /// `precision` is how exact the answers are: a flow may end with this share of its bytes left, and a resource may
    /// give this share more or less than it has. 1e-9 is exact for all purposes; 1e-3 is much faster where a million
    /// flows of different sizes share a network.
    ///
    /// # Errors
    /// If a capacity or the precision is out of range.
    pub fn new(capacities: &[f64], precision: f64) -> Result<Self, FlowError> {
        if !(1e-11..=0.1).contains(&precision) {
            return Err(FlowError::Precision(precision));
        }
        let tolerance = if precision < ROUGH { precision * RATE_SHARE } else { precision };
        let sharing = Sharing::new(capacities, tolerance)?;
        Ok(Self {
            flows: ActiveFlows::new(sharing, precision),
            runs: Vec::new(),
            timers: BinaryHeap::new(),
            timers_set: 0,
            ready: VecDeque::new(),
            ended: Vec::new(),
        })
    }

    /// Add routes: `resources[offsets[i]..offsets[i + 1]]` is the i-th. The key of the first; the others follow.
    ///
    /// # Errors
    /// If the offsets do not fit, or a resource does not exist.
    pub fn add_routes(&mut self, offsets: &[u64], resources: &[u32]) -> Result<u32, FlowError> {
        self.check_routes(offsets, resources)?;
        let first = u32::try_from(self.flows.routes.len())
            .map_err(|_| FlowError::TooMany("routes, runs or flows"))?;
        for pair in offsets.windows(2) {
            self.flows.routes.push(&resources[pair[0] as usize..pair[1] as usize])?;
        }
        Ok(first)
    }

    /// Let `keys[i]` stand for the i-th of these routes from now on. Active flows move over with the bytes they have
    /// left.
    ///
    /// # Errors
    /// If a key or a resource does not exist, or the offsets do not fit; nothing has changed then.
    pub fn set_routes(
        &mut self,
        keys: &[u32],
        offsets: &[u64],
        resources: &[u32],
    ) -> Result<(), FlowError> {
        self.check_routes(offsets, resources)?;
        if keys.len() + 1 != offsets.len() {
            return Err(FlowError::Uneven(keys.len(), offsets.len().saturating_sub(1)));
        }
        if let Some(&key) = keys.iter().find(|&&key| key as usize >= self.flows.routes.len()) {
            return Err(FlowError::Route(key));
        }
        for (&key, pair) in keys.iter().zip(offsets.windows(2)) {
            let route = &resources[pair[0] as usize..pair[1] as usize];
            if self.flows.routes.get(key) != route {
                self.flows.move_flows(key, route)?;
                self.take_ended_flows();
            }
        }
        Ok(())
    }

    /// The route that a key stands for.
    ///
    /// # Errors
    /// If there is no such key.
    pub fn route(&self, key: u32) -> Result<&[u32], FlowError> {
        if (key as usize) < self.flows.routes.len() {
            Ok(self.flows.routes.get(key))
        } else {
            Err(FlowError::Route(key))
        }
    }

    /// Give a resource another capacity from now on.
    ///
    /// # Errors
    /// If there is no such resource, or the capacity is out of range.
    pub fn set_capacity(&mut self, resource: u32, capacity: f64) -> Result<(), FlowError> {
        self.flows.sharing.set_capacity(resource, capacity)
    }

    /// Let what a resource gives follow the number of flows on it from now on.
    ///
    /// # Errors
    /// If there is no such resource.
    pub fn set_curve(&mut self, resource: u32, curve: Curve) -> Result<(), FlowError> {
        self.flows.sharing.set_curve(resource, curve)
    }

    /// Start a program at a time not before now; the number of this run of it.
    ///
    /// # Errors
    /// If the time has passed, or the program names a route that is not in the table.
    pub fn start(&mut self, program: Arc<Program>, at_s: f64) -> Result<u32, FlowError> {
        if !at_s.is_finite() || at_s < self.flows.now {
            return Err(FlowError::Time(at_s));
        }
        if let Some(key) = program.largest_route() {
            self.route(key)?;
        }
        let id = u32::try_from(self.runs.len())
            .map_err(|_| FlowError::TooMany("routes, runs or flows"))?;
        if id == u32::MAX {
            return Err(FlowError::TooMany("routes, runs or flows"));
        }
        self.runs.push(Run {
            program: Some(program),
            step: 0,
            lap: 0,
            active_flows: 0,
            stage: Stage::Before,
            started_s: at_s,
            ended_s: None,
        });
        self.set_timer(at_s, id);
        Ok(id)
    }

    /// Stop a run and take its flows away; it is not among those that ended. Nothing happens if it is over.
    ///
    /// # Errors
    /// If there is no such run.
    pub fn cancel(&mut self, run: u32) -> Result<(), FlowError> {
        self.run(run)?;
        if self.runs[run as usize].program.take().is_some() {
            self.flows.drop_run(run);
        }
        Ok(())
    }

    /// Go on until a program ends, or to `limit_s`, or for `budget` events.
    ///
    /// # Errors
    /// If the limit is before now or no number. Infinity is allowed.
    pub fn advance(&mut self, limit_s: f64, mut budget: u64) -> Result<Pause, FlowError> {
        if limit_s.is_nan() || limit_s < self.flows.now {
            return Err(FlowError::Time(limit_s));
        }
        loop {
            while let Some(run) = self.ready.pop_front() {
                self.go_on(run)?;
                budget = budget.saturating_sub(1);
                if budget == 0 {
                    return Ok(Pause::Budget);
                }
            }
            if !self.ended.is_empty() {
                return Ok(Pause::Ended);
            }
            self.flows.settle();
            let timer = self.timers.peek().map(|&Reverse((bits, _, _))| f64::from_bits(bits));
            let ending = self.flows.groups.next().map(|(at, _)| at);
            let next = match (timer, ending) {
                (Some(a), Some(b)) => a.min(b),
                (Some(at), None) | (None, Some(at)) => at,
                (None, None) => {
                    if limit_s.is_finite() {
                        self.flows.now = limit_s;
                    }
                    return Ok(Pause::Idle);
                }
            };
            if next > limit_s {
                self.flows.now = limit_s;
                return Ok(Pause::Limit);
            }
            self.flows.now = self.flows.now.max(next);
            let ended = self.flows.end_due();
            self.take_ended_flows();
            self.wake_timers();
            budget = budget.saturating_sub(ended.max(1));
            if budget == 0 {
                return Ok(Pause::Budget);
            }
        }
    }

    /// `(time, run)` of each program that ended since the last call, in this order.
    pub fn take_ended(&mut self) -> Vec<(f64, u32)> {
        let mut ended = std::mem::take(&mut self.ended);
        ended.sort_by(|a, b| a.0.total_cmp(&b.0).then(a.1.cmp(&b.1)));
        ended
    }

    /// The clock's time.
    #[must_use]
    pub fn now(&self) -> f64 {
        self.flows.now
    }

    /// Active flows, merged ones counted once.
    #[must_use]
    pub fn active_flows(&self) -> usize {
        self.flows.sharing.live()
    }

    /// How often rates were worked out.
    #[must_use]
    pub fn solutions(&self) -> u64 {
        self.flows.solutions
    }

    /// Bytes a second that each resource carries now.
    pub fn rates(&mut self) -> Vec<f64> {
        self.flows.settle();
        self.flows.sharing.used()
    }

    /// Whether any of these resources carries at least its rate, bytes a second, now.
    ///
    /// # Errors
    /// If there is no such resource, or not a rate for each.
    pub fn any_carries(&mut self, resources: &[u32], rates: &[f64]) -> Result<bool, FlowError> {
        if resources.len() != rates.len() {
            return Err(FlowError::Uneven(resources.len(), rates.len()));
        }
        let count = self.flows.sharing.len();
        if let Some(&resource) = resources.iter().find(|&&r| r as usize >= count) {
            return Err(FlowError::Resource(resource));
        }
        self.flows.settle();
        let sharing = &self.flows.sharing;
        Ok(resources.iter().zip(rates).any(|(&resource, &rate)| sharing.used_of(resource) >= rate))
    }

    /// Bytes that each resource has carried until now for a class.
    #[must_use]
    pub fn totals(&self, class: u16) -> Vec<f64> {
        self.flows.totals(class)
    }

    /// Bytes a second that each resource carries now for a class.
    #[must_use]
    pub fn class_rates(&mut self, class: u16) -> Vec<f64> {
        self.flows.class_rates(class)
    }

    /// Bytes that a run's active flows have left.
    ///
    /// # Errors
    /// If there is no such run.
    pub fn bytes_left(&self, run: u32) -> Result<f64, FlowError> {
        self.run(run)?;
        Ok(self.flows.bytes_left(run))
    }

    /// Bytes that the active flows of each of these runs have left.
    ///
    /// # Errors
    /// If there is no such run.
    pub fn left(&self, runs: &[u32]) -> Result<Vec<f64>, FlowError> {
        for &run in runs {
            self.run(run)?;
        }
        Ok(runs.iter().map(|&run| self.flows.bytes_left(run)).collect())
    }

    /// When a run was to start, and when it ended if it has.
    ///
    /// # Errors
    /// If there is no such run.
    pub fn times(&self, run: u32) -> Result<(f64, Option<f64>), FlowError> {
        self.run(run)?;
        let run = &self.runs[run as usize];
        Ok((run.started_s, run.ended_s))
    }

    fn run(&self, run: u32) -> Result<(), FlowError> {
        if (run as usize) < self.runs.len() {
            Ok(())
        } else {
            Err(FlowError::Run(run))
        }
    }

    /// Runs without an active flow go on.
    fn take_ended_flows(&mut self) {
        for run in self.flows.ended_of.drain(..) {
            let entry = &mut self.runs[run as usize];
            entry.active_flows -= 1;
            if entry.active_flows == 0 {
                self.ready.push_back(run);
            }
        }
    }

    fn check_routes(&self, offsets: &[u64], resources: &[u32]) -> Result<(), FlowError> {
        let fits = offsets.first() == Some(&0)
            && offsets.last() == Some(&(resources.len() as u64))
            && offsets.windows(2).all(|pair| pair[0] <= pair[1]);
        if !fits {
            return Err(FlowError::Offsets);
        }
        let count = self.flows.sharing.len();
        match resources.iter().find(|&&r| r as usize >= count) {
            Some(&resource) => Err(FlowError::Resource(resource)),
            None => Ok(()),
        }
    }

    fn set_timer(&mut self, at_s: f64, run: u32) {
        // Times are never negative, so their bits sort as they do; abs() is for -0.0.
        self.timers.push(Reverse((at_s.abs().to_bits(), self.timers_set, run)));
        self.timers_set += 1;
    }

    /// Wake the runs whose time has come.
    fn wake_timers(&mut self) {
        while let Some(&Reverse((bits, _, run))) = self.timers.peek() {
            if f64::from_bits(bits) > self.flows.now {
                break;
            }
            self.timers.pop();
            self.ready.push_back(run);
        }
    }

    /// A run's start, pause or flows are over: do what comes next.
    fn go_on(&mut self, id: u32) -> Result<(), FlowError> {
        let run = &mut self.runs[id as usize];
        let Some(program) = run.program.clone() else {
            return Ok(());
        };
        if program.is_empty() {
            self.finish(id);
            return Ok(());
        }
        match run.stage {
            Stage::Before if program.steps[run.step].pause_s > 0.0 => {
                run.stage = Stage::Pausing;
                let at_s = self.flows.now + program.steps[run.step].pause_s;
                self.set_timer(at_s, id);
                Ok(())
            }
            Stage::Before | Stage::Pausing => self.begin_flows(id, &program),
            Stage::Flowing => {
                self.end_step(id, &program);
                Ok(())
            }
        }
    }

    fn begin_flows(&mut self, id: u32, program: &Program) -> Result<(), FlowError> {
        let step = self.runs[id as usize].step;
        let mut active_flows = 0;
        for demand in program.demands_of(step) {
            active_flows += u64::from(self.flows.begin(id, demand)?);
        }
        let run = &mut self.runs[id as usize];
        run.stage = Stage::Flowing;
        run.active_flows = active_flows;
        if active_flows == 0 {
            self.end_step(id, program);
        }
        Ok(())
    }

    fn end_step(&mut self, id: u32, program: &Program) {
        let run = &mut self.runs[id as usize];
        run.stage = Stage::Before;
        run.step += 1;
        if run.step == program.steps.len() {
            run.step = 0;
            run.lap += 1;
        }
        if run.lap == program.repeat {
            self.finish(id);
        } else {
            self.ready.push_back(id);
        }
    }

    fn finish(&mut self, id: u32) {
        let run = &mut self.runs[id as usize];
        run.program = None;
        run.ended_s = Some(self.flows.now);
        self.ended.push((self.flows.now, id));
    }
}
