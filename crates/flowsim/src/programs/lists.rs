//! Which active flows belong to a route or a run.

const NONE: u32 = u32::MAX;

/// Lists of flows by key, each flow in at most one of them, threaded through two arrays.
#[derive(Debug, Default)]
pub(super) struct FlowLists {
    /// The first flow of each key.
    heads: Vec<u32>,
    next: Vec<u32>,
    previous: Vec<u32>,
}

impl FlowLists {
    pub(super) fn enter(&mut self, key: u32, flow: u32) {
        let (at, slot) = (key as usize, flow as usize);
        if self.heads.len() <= at {
            self.heads.resize(at + 1, NONE);
        }
        if self.next.len() <= slot {
            self.next.resize(slot + 1, NONE);
            self.previous.resize(slot + 1, NONE);
        }
        let head = std::mem::replace(&mut self.heads[at], flow);
        self.next[slot] = head;
        self.previous[slot] = NONE;
        if head != NONE {
            self.previous[head as usize] = flow;
        }
    }

    pub(super) fn leave(&mut self, key: u32, flow: u32) {
        let (next, previous) = (self.next[flow as usize], self.previous[flow as usize]);
        if previous == NONE {
            self.heads[key as usize] = next;
        } else {
            self.next[previous as usize] = next;
        }
        if next != NONE {
            self.previous[next as usize] = previous;
        }
    }

    /// The flows of a key, the newest first.
    pub(super) fn flows(&self, key: u32) -> impl Iterator<Item = u32> + '_ {
        let first = self.heads.get(key as usize).copied().unwrap_or(NONE);
        std::iter::successors((first != NONE).then_some(first), |&flow| {
            let next = self.next[flow as usize];
            (next != NONE).then_some(next)
        })
    }
}
