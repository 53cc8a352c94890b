//! Loaders that read whole files: the event loop.

use std::collections::VecDeque;

use super::entropy::Tally;
use super::{Placement, Slowdown};
use crate::error::FlowError;

/// What came of a run.
#[derive(Clone, Debug, PartialEq)]
pub struct Outcome {
    /// When each loader had read its last file, in units of time.
    pub ended: Vec<f64>,
    /// The contention imbalance, averaged over the time in which all loaders read the second half of the objects. In
    /// the first half it still shows where the loaders began: with many loaders it settles slowly.
    pub imbalance: f64,
    /// Objects read.
    pub objects: u64,
}

/// A target and the loaders on it, the one that is served first in front: all objects are one unit, and all loaders
/// on a target go at one pace, so they leave in the order in which they came.
#[derive(Clone, Debug, Default)]
struct Target {
    queue: VecDeque<(f64, u32)>,
    /// Units that a loader that was always here would have read until `since`.
    served: f64,
    since: f64,
    pace: f64,
}

#[derive(Clone, Copy, Debug)]
struct Loader {
    file: usize,
    object: u32,
}

/// Who reads which file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Dealing {
    /// A loader that has read a file takes the next one from the queue.
    Queue,
    /// Loader `l` of `n` reads files `l`, `l + n`, `l + 2 n`, ...
    Cyclic,
}

/// A run at file level.
#[derive(Debug)]
pub struct FileLevel<'a> {
    placement: &'a Placement,
    slowdown: &'a Slowdown,
    dealing: Dealing,
    /// The next file in the queue.
    next_file: usize,
    loaders: Vec<Loader>,
    targets: Vec<Target>,
    /// When the first loader of each target is served.
    next: Vec<f64>,
    tally: Tally,
    now: f64,
    reading: usize,
    /// Integral of the imbalance, and up to when.
    imbalance: f64,
    measured: f64,
    all_reading: bool,
    /// Objects after which the imbalance counts.
    begun: u64,
    ended: Vec<f64>,
    objects: u64,
}

impl<'a> FileLevel<'a> {
    /// `loaders` begin at time 0, each with its first file; those without a file have ended.
    ///
    /// # Errors
    /// If there is no loader, or there are too many.
    pub fn new(
        placement: &'a Placement,
        slowdown: &'a Slowdown,
        loaders: usize,
        dealing: Dealing,
    ) -> Result<Self, FlowError> {
        if loaders == 0 || loaders > 1 << 24 {
            return Err(FlowError::Loaders(loaders));
        }
        let targets = placement.targets();
        let mut run = Self {
            placement,
            slowdown,
            dealing,
            next_file: loaders,
            loaders: (0..loaders).map(|l| Loader { file: l, object: 0 }).collect(),
            targets: vec![Target::default(); targets],
            next: vec![f64::INFINITY; targets],
            tally: Tally::new(loaders, targets),
            now: 0.0,
            reading: loaders.min(placement.files()),
            imbalance: 0.0,
            measured: 0.0,
            all_reading: true,
            begun: placement.objects_of_targets().iter().sum::<u64>() / 2,
            ended: vec![0.0; loaders],
            objects: 0,
        };
        for loader in 0..run.reading {
            run.arrive(placement.target(loader, 0), loader as u32);
        }
        for target in 0..targets {
            run.repace(target);
        }
        Ok(run)
    }

    /// Let up to `budget` objects be read; whether there are more.
    pub fn advance(&mut self, budget: u64) -> bool {
        for _ in 0..budget {
            let Some(target) = self.first_target() else {
                return false;
            };
            self.serve(target);
        }
        self.reading > 0
    }

    /// What came of it, so far.
    #[must_use]
    pub fn outcome(&self) -> Outcome {
        Outcome {
            ended: self.ended.clone(),
            imbalance: if self.measured > 0.0 { self.imbalance / self.measured } else { 0.0 },
            objects: self.objects,
        }
    }

    fn first_target(&self) -> Option<usize> {
        let mut first = (f64::INFINITY, None);
        for (target, &at) in self.next.iter().enumerate() {
            if at < first.0 {
                first = (at, Some(target));
            }
        }
        first.1
    }

    /// The first loader of a target has its object: it goes on.
    fn serve(&mut self, target: usize) {
        let at = self.next[target].max(self.now);
        if self.all_reading && self.objects >= self.begun {
            self.imbalance += self.tally.imbalance() * (at - self.now);
            self.measured += at - self.now;
        }
        self.now = at;
        let Some((tag, id)) = self.targets[target].queue.pop_front() else {
            return;
        };
        self.objects += 1;
        let on = self.targets[target].queue.len();
        self.tally.change(on + 1, on);
        self.targets[target].served = tag;
        self.targets[target].since = at;
        let all = self.loaders.len();
        let loader = &mut self.loaders[id as usize];
        loader.object += 1;
        if loader.object == self.placement.objects(loader.file) {
            let file = match self.dealing {
                Dealing::Cyclic => loader.file + all,
                Dealing::Queue => self.next_file,
            };
            self.next_file += 1;
            *loader = Loader { file, object: 0 };
        }
        if loader.file < self.placement.files() {
            let to = self.placement.target(loader.file, loader.object);
            self.arrive(to, id);
            if to != target {
                self.repace(to);
            }
        } else {
            self.ended[id as usize] = at;
            self.reading -= 1;
            self.all_reading = false;
        }
        self.repace(target);
    }

    fn arrive(&mut self, to: usize, id: u32) {
        let target = &mut self.targets[to];
        target.served += target.pace * (self.now - target.since);
        target.since = self.now;
        target.queue.push_back((target.served + 1.0, id));
        let on = target.queue.len();
        self.tally.change(on - 1, on);
    }

    /// The number of loaders on a target has changed, and with it how fast they are.
    fn repace(&mut self, id: usize) {
        let target = &mut self.targets[id];
        if target.queue.is_empty() {
            target.served = 0.0;
        }
        target.pace = 1.0 / self.slowdown.at(target.queue.len());
        self.next[id] = match target.queue.front() {
            Some(&(tag, _)) => self.now + (tag - target.served).max(0.0) / target.pace,
            None => f64::INFINITY,
        };
    }
}
