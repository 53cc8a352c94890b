//! The table of routes: key to resources, and which flows took which key.

use super::lists::FlowLists;
use crate::error::FlowError;

#[derive(Clone, Copy, Debug)]
struct Span {
    first: usize,
    length: usize,
    /// How many resources fit here without moving.
    room: usize,
}

/// Routes by key, with the flows of each key.
#[derive(Debug, Default)]
pub(super) struct Routes {
    spans: Vec<Span>,
    resources: Vec<u32>,
    lists: FlowLists,
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
        self.lists.enter(key, flow);
    }

    pub(super) fn leave(&mut self, key: u32, flow: u32) {
        self.lists.leave(key, flow);
    }

    /// The active flows of a key.
    pub(super) fn flows(&self, key: u32) -> impl Iterator<Item = u32> + '_ {
        self.lists.flows(key)
    }
}
