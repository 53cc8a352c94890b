//! The table of routes: key to resources, and which flows took which key.

use crate::error::FlowError;

const NONE: u32 = u32::MAX;

#[derive(Clone, Copy, Debug)]
struct Span {
    first: usize,
    length: usize,
    /// How many resources fit here without moving.
    room: usize,
    /// The first of the active flows of this key.
    head: u32,
}

/// Routes by key, with the flows of each key in a list that is threaded through two arrays.
#[derive(Debug, Default)]
pub(super) struct Routes {
    spans: Vec<Span>,
    resources: Vec<u32>,
    next: Vec<u32>,
    previous: Vec<u32>,
}

impl Routes {
    pub(super) fn len(&self) -> usize {
        self.spans.len()
    }

    pub(super) fn get(&self, key: u32) -> &[u32] {
        let span = self.spans[key as usize];
        &self.resources[span.first..span.first + span.length]
    }

    pub(super) fn push(&mut self, route: &[u32]) -> Result<u32, FlowError> {
        let key = u32::try_from(self.spans.len())
            .map_err(|_| FlowError::TooMany("routes, runs or flows"))?;
        self.spans.push(Span {
            first: self.resources.len(),
            length: route.len(),
            room: route.len(),
            head: NONE,
        });
        self.resources.extend_from_slice(route);
        Ok(key)
    }

    pub(super) fn replace(&mut self, key: u32, route: &[u32]) {
        let span = &mut self.spans[key as usize];
        if route.len() > span.room {
            span.first = self.resources.len();
            span.room = route.len();
            self.resources.extend_from_slice(route);
        } else {
            self.resources[span.first..span.first + route.len()].copy_from_slice(route);
        }
        span.length = route.len();
    }

    pub(super) fn enter(&mut self, key: u32, flow: u32) {
        let slot = flow as usize;
        if self.next.len() <= slot {
            self.next.resize(slot + 1, NONE);
            self.previous.resize(slot + 1, NONE);
        }
        let head = std::mem::replace(&mut self.spans[key as usize].head, flow);
        self.next[slot] = head;
        self.previous[slot] = NONE;
        if head != NONE {
            self.previous[head as usize] = flow;
        }
    }

    pub(super) fn leave(&mut self, key: u32, flow: u32) {
        let (next, previous) = (self.next[flow as usize], self.previous[flow as usize]);
        if previous == NONE {
            self.spans[key as usize].head = next;
        } else {
            self.next[previous as usize] = next;
        }
        if next != NONE {
            self.previous[next as usize] = previous;
        }
    }

    /// The active flows of a key.
    pub(super) fn flows(&self, key: u32) -> impl Iterator<Item = u32> + '_ {
        let first = self.spans[key as usize].head;
        std::iter::successors((first != NONE).then_some(first), |&flow| {
            let next = self.next[flow as usize];
            (next != NONE).then_some(next)
        })
    }
}
