//! One storage target: requests share it, and slow one another down by the curve g(x) (SwiftLoad, section III.A).
//!
//! A request that has the target for itself needs `latency + bytes / rate`. With x requests in service each goes on 1
//! / g(x) as fast. More than `slots` wait in the order in which they came. Progress is kept as one number for all,
//! the work that a request in service since the beginning would have got: a request ends when that number has grown
//! by its own work, so that an arrival costs a logarithm and no loop over the others (Demers, Keshav, Shenker 1989,
//! "Analysis and simulation of a fair queueing algorithm").

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};
use std::sync::Arc;

use waystage_flowsim::contention::Slowdown;

use super::request::{Ns, Ticket};
use crate::error::PfsError;

/// How a target serves: shared by all targets that are alike.
#[derive(Clone, Debug)]
pub struct Service {
    /// Bytes a second, read by one alone.
    pub read_rate_bps: f64,
    /// Bytes a second, written by one alone.
    pub write_rate_bps: f64,
    /// What a request costs besides its bytes.
    pub latency_ns: f64,
    /// Requests in service at once; more wait.
    pub slots: usize,
    /// g(x).
    pub slowdown: Arc<Slowdown>,
    /// This many times slower in all.
    pub slower: f64,
}

/// What a target did, since it was there or since it was reset.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct TargetCounts {
    /// Requests that came.
    pub requests: u64,
    /// Bytes read.
    pub read_bytes: u64,
    /// Bytes written.
    pub written_bytes: u64,
    /// Time in which it had something to do.
    pub busy_ns: u64,
    /// Sum over time of the requests in service: divided by `busy_ns` their mean number.
    pub in_service_ns: f64,
    /// Sum over time of the requests that waited for a slot.
    pub waiting_ns: f64,
    /// The most requests in service at once.
    pub most: usize,
}

/// A target: see the module.
#[derive(Debug)]
pub struct StorageTarget {
    service: Service,
    /// Work done for each request in service, in ns of a target for itself.
    progress: f64,
    /// The time of `progress`.
    since: Ns,
    active: BinaryHeap<Reverse<(Work, Ticket)>>,
    queue: VecDeque<(f64, Ticket)>,
    counts: TargetCounts,
}

/// Work as a number that can be ordered; it is never NaN.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Work(f64);

impl Eq for Work {}

impl PartialOrd for Work {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Work {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.0.total_cmp(&other.0)
    }
}

impl StorageTarget {
    /// An idle target.
    ///
    /// # Errors
    /// Where a rate, a latency, a factor or the number of slots is no such thing.
    pub fn new(service: Service) -> Result<Self, PfsError> {
        let positive = |value: f64| value.is_finite() && value > 0.0;
        if !positive(service.read_rate_bps) || !positive(service.write_rate_bps) {
            return Err(PfsError::Shape("a target needs rates above 0 bytes a second".into()));
        }
        if !service.latency_ns.is_finite() || service.latency_ns < 0.0 {
            return Err(PfsError::Shape("a target needs a latency of 0 or more".into()));
        }
        if !positive(service.slower) || service.slots == 0 {
            return Err(PfsError::Shape(
                "a target needs a factor above 0 and at least one slot".into(),
            ));
        }
        Ok(Self {
            service,
            progress: 0.0,
            since: 0,
            active: BinaryHeap::new(),
            queue: VecDeque::new(),
            counts: TargetCounts::default(),
        })
    }

    /// What it did up to its last event.
    #[must_use]
    pub fn counts(&self) -> TargetCounts {
        self.counts
    }

    pub(super) fn reset_counts(&mut self, now: Ns) {
        self.go_on(now);
        self.counts = TargetCounts { most: self.active.len(), ..TargetCounts::default() };
    }

    /// A request comes. Everything that ends up to `now` must have been taken with [`Self::finish`].
    pub(super) fn arrive(&mut self, now: Ns, ticket: Ticket, bytes: u64, write: bool) {
        self.go_on(now);
        let rate = if write { self.service.write_rate_bps } else { self.service.read_rate_bps };
        let alone = self.service.latency_ns + bytes as f64 * 1e9 / rate;
        let work = alone * self.service.slower;
        self.counts.requests += 1;
        if write {
            self.counts.written_bytes += bytes;
        } else {
            self.counts.read_bytes += bytes;
        }
        if self.active.len() < self.service.slots {
            self.begin(work, ticket);
        } else {
            self.queue.push_back((work, ticket));
        }
    }

    /// When the next request ends, if no other comes before.
    #[must_use]
    pub fn next_ns(&self) -> Option<Ns> {
        let Reverse((Work(end), _)) = self.active.peek()?;
        let left = (end - self.progress).max(0.0) * self.slowdown();
        // Rounded up: at that time it has ended, and not almost.
        Some(self.since.saturating_add(left.ceil() as u64))
    }

    /// A request that has ended at `now`; call it until there is none.
    pub(super) fn finish(&mut self, now: Ns) -> Option<Ticket> {
        if self.next_ns()? > now {
            return None;
        }
        self.go_on(now);
        let Reverse((_, ticket)) = self.active.pop()?;
        if let Some((work, waiting)) = self.queue.pop_front() {
            self.begin(work, waiting);
        }
        if self.active.is_empty() {
            self.progress = 0.0; // so that it never grows until ns are lost in it
        }
        Some(ticket)
    }

    fn begin(&mut self, work: f64, ticket: Ticket) {
        self.active.push(Reverse((Work(self.progress + work), ticket)));
        self.counts.most = self.counts.most.max(self.active.len());
    }

    fn slowdown(&self) -> f64 {
        self.service.slowdown.at(self.active.len())
    }

    fn go_on(&mut self, now: Ns) {
        let passed = now.saturating_sub(self.since);
        if passed > 0 && !self.active.is_empty() {
            self.progress += passed as f64 / self.slowdown();
            self.counts.busy_ns += passed;
            self.counts.in_service_ns += passed as f64 * self.active.len() as f64;
            self.counts.waiting_ns += passed as f64 * self.queue.len() as f64;
        }
        self.since = self.since.max(now);
    }
}
