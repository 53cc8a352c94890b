//! Which active flows belong to a run.

const NONE: u32 = u32::MAX;

/// The flows of each run, in a list that is threaded through two arrays.
#[derive(Debug, Default)]
pub(super) struct Runs {
    /// The first of the active flows of each run.
    heads: Vec<u32>,
    next: Vec<u32>,
    previous: Vec<u32>,
}

impl Runs {
    pub(super) fn enter(&mut self, run: u32, flow: u32) {
        let (at, slot) = (run as usize, flow as usize);
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

    pub(super) fn leave(&mut self, run: u32, flow: u32) {
        let (next, previous) = (self.next[flow as usize], self.previous[flow as usize]);
        if previous == NONE {
            self.heads[run as usize] = next;
        } else {
            self.next[previous as usize] = next;
        }
        if next != NONE {
            self.previous[next as usize] = previous;
        }
    }

    /// The active flows of a run, rising: sums over them have one order, whichever began first.
    pub(super) fn flows(&self, run: u32) -> Vec<u32> {
        let mut found = Vec::new();
        let mut flow = self.heads.get(run as usize).copied().unwrap_or(NONE);
        while flow != NONE {
            found.push(flow);
            flow = self.next[flow as usize];
        }
        found.sort_unstable();
        found
    }
}
