//! The servers: a time and a request go in, the time when it is done comes out.
//!
//! Arrives: requests with the time at which they came, in nanoseconds of emulated time.
//! Leaves: which are done, and when.
//! Must not know: clocks, threads, files, FUSE.
//!
//! A late caller does not make the servers late: what ended at 5 ms lets the next begin at 5 ms, even where it is
//! only asked for at 7.

mod metadata;
mod request;
mod target;
#[cfg(test)]
mod tests;

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};

pub use metadata::{MetadataServer, Operation};
pub use request::{Ns, Part, Ticket};
pub use target::{Service, StorageTarget};

use crate::error::PfsError;

/// All servers of one file system.
#[derive(Debug)]
pub struct Model {
    targets: Vec<StorageTarget>,
    metadata: Vec<MetadataServer>,
    /// Parts of a request that are still at targets, and the end of the last part so far.
    open: HashMap<Ticket, (usize, Ns)>,
    /// Requests of which it is known when they end.
    ends: BinaryHeap<Reverse<(Ns, Ticket)>>,
    /// When each target has an event next; an entry is stale where the target says otherwise.
    events: BinaryHeap<Reverse<(Ns, usize)>>,
    next: u64,
}

impl Model {
    /// Servers that have nothing to do.
    ///
    /// # Errors
    /// Where there is no target or no metadata server.
    pub fn new(
        targets: Vec<StorageTarget>,
        metadata: Vec<MetadataServer>,
    ) -> Result<Self, PfsError> {
        if targets.is_empty() || metadata.is_empty() {
            return Err(PfsError::Shape("give at least one target and one metadata server".into()));
        }
        Ok(Self {
            targets,
            metadata,
            open: HashMap::new(),
            ends: BinaryHeap::new(),
            events: BinaryHeap::new(),
            next: 0,
        })
    }

    /// How many targets there are.
    #[must_use]
    pub fn target_count(&self) -> usize {
        self.targets.len()
    }

    /// The targets, by number.
    #[must_use]
    pub fn targets(&self) -> &[StorageTarget] {
        &self.targets
    }

    /// The metadata servers, by number.
    #[must_use]
    pub fn metadata(&self) -> &[MetadataServer] {
        &self.metadata
    }

    /// Reset the counts; requests in progress stay.
    pub fn reset_counts(&mut self, now: Ns) {
        self.targets.iter_mut().for_each(|target| target.reset_counts(now));
        self.metadata.iter_mut().for_each(MetadataServer::reset_counts);
    }

    /// A message to the metadata server that `key` belongs to.
    pub fn ask(&mut self, now: Ns, key: u64, operation: Operation) -> Ticket {
        self.ask_and_wait(now, key, operation, 0)
    }

    /// The same, and then a wait of a fixed time at no server.
    pub fn ask_and_wait(&mut self, now: Ns, key: u64, operation: Operation, wait: Ns) -> Ticket {
        let ticket = self.ticket();
        let end = self.server(key).ask(now, operation).saturating_add(wait);
        self.ends.push(Reverse((end, ticket)));
        ticket
    }

    /// The rest of an open whose lookup was answered just now: both are one message (an intent), and the lookup was
    /// its first half.
    pub fn open_looked_up(&mut self, now: Ns, key: u64) -> Ticket {
        let rest = self.server(key).open_looked_up();
        self.wait(now, rest)
    }

    /// A wait of a fixed time at no server.
    pub fn wait(&mut self, now: Ns, length: Ns) -> Ticket {
        let ticket = self.ticket();
        self.ends.push(Reverse((now.saturating_add(length), ticket)));
        ticket
    }

    /// Bytes to or from targets, all parts at once; done when the last is. No part: done at once.
    pub fn transfer(&mut self, now: Ns, parts: &[Part]) -> Ticket {
        let ticket = self.ticket();
        if parts.is_empty() {
            self.ends.push(Reverse((now, ticket)));
            return ticket;
        }
        // What a target is done with at this very moment must not slow down what comes now.
        self.run_targets(now);
        self.open.insert(ticket, (parts.len(), now));
        for part in parts {
            let number = part.target % self.targets.len();
            self.targets[number].arrive(now, ticket, part.bytes, part.write);
            self.plan(number);
        }
        ticket
    }

    /// When something ends next, as far as is known now.
    #[must_use]
    pub fn next_ns(&self) -> Option<Ns> {
        let end = self.ends.peek().map(|Reverse((end, _))| *end);
        let event = self.events.peek().map(|Reverse((at, _))| *at);
        [end, event].into_iter().flatten().min()
    }

    /// Let time go on to `now`, and take the request that ended first, with its end.
    pub fn take_done(&mut self, now: Ns) -> Option<(Ticket, Ns)> {
        self.run_targets(now);
        match self.ends.peek() {
            Some(Reverse((end, ticket))) if *end <= now => {
                let done = (*ticket, *end);
                self.ends.pop();
                Some(done)
            }
            _ => None,
        }
    }

    fn server(&mut self, key: u64) -> &mut MetadataServer {
        let number = key % self.metadata.len() as u64;
        &mut self.metadata[usize::try_from(number).unwrap_or(0)]
    }

    fn run_targets(&mut self, now: Ns) {
        while let Some(&Reverse((at, number))) = self.events.peek() {
            if at > now {
                return;
            }
            self.events.pop();
            if self.targets[number].next_ns() != Some(at) {
                continue; // planned anew since
            }
            while let Some(ticket) = self.targets[number].finish(at) {
                self.part_done(ticket, at);
            }
            self.plan(number);
        }
    }

    fn part_done(&mut self, ticket: Ticket, at: Ns) {
        if let Some((left, last)) = self.open.get_mut(&ticket) {
            *left -= 1;
            *last = at.max(*last);
            if *left == 0 {
                let end = *last;
                self.open.remove(&ticket);
                self.ends.push(Reverse((end, ticket)));
            }
        }
    }

    fn plan(&mut self, number: usize) {
        if let Some(at) = self.targets[number].next_ns() {
            self.events.push(Reverse((at, number)));
        }
    }

    fn ticket(&mut self) -> Ticket {
        self.next += 1;
        Ticket(self.next)
    }
}
