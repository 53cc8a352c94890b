//! Groups of flows by their bottleneck, and the group whose flow ends first.

use std::cmp::{Ordering, Reverse};
use std::collections::BinaryHeap;

/// A flow ends when its group has served `tag` bytes for each unit of weight.
#[derive(Clone, Copy, Debug)]
pub(super) struct Due {
    pub(super) tag: f64,
    pub(super) flow: u32,
    /// Stale unless it is the flow's own.
    stamp: u32,
}

impl PartialEq for Due {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}
impl Eq for Due {}
impl PartialOrd for Due {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}
impl Ord for Due {
    fn cmp(&self, other: &Self) -> Ordering {
        self.tag
            .total_cmp(&other.tag)
            .then(self.flow.cmp(&other.flow))
            .then(self.stamp.cmp(&other.stamp))
    }
}

#[derive(Debug, Default)]
struct Group {
    due: BinaryHeap<Reverse<Due>>,
    /// Bytes for each unit of weight that were served until `since`.
    served: f64,
    since: f64,
    /// Bytes for each unit of weight and second.
    pace: f64,
    live: usize,
    /// Number of the group's last entry in the agenda; older ones are stale.
    entry: u32,
}

/// All groups, and the agenda of their next endings.
#[derive(Debug)]
pub(super) struct Groups {
    groups: Vec<Group>,
    agenda: BinaryHeap<Reverse<(u64, u32, u32)>>,
    /// For each flow, the stamp of its one valid entry.
    stamps: Vec<u32>,
}

impl Groups {
    pub(super) fn new(count: usize) -> Self {
        Self {
            groups: (0..count).map(|_| Group::default()).collect(),
            agenda: BinaryHeap::new(),
            stamps: Vec::new(),
        }
    }

    /// What a group has served until `now`.
    pub(super) fn served(&self, group: u32, now: f64) -> f64 {
        let group = &self.groups[group as usize];
        group.served + group.pace * (now - group.since)
    }

    pub(super) fn set_pace(&mut self, group: u32, now: f64, pace: f64) {
        let served = self.served(group, now);
        let group = &mut self.groups[group as usize];
        group.served = served;
        group.since = now;
        group.pace = pace;
    }

    /// Put a flow in, to end after `units` more bytes for each unit of weight; its tag.
    pub(super) fn join(&mut self, id: u32, now: f64, flow: u32, units: f64) -> f64 {
        let tag = self.served(id, now) + units;
        if self.stamps.len() <= flow as usize {
            self.stamps.resize(flow as usize + 1, 0);
        }
        let stamp = self.stamps[flow as usize];
        let group = &mut self.groups[id as usize];
        if group.due.len() > 2 * group.live + 64 {
            let stamps = &self.stamps;
            group.due.retain(|Reverse(due)| stamps[due.flow as usize] == due.stamp);
        }
        group.due.push(Reverse(Due { tag, flow, stamp }));
        group.live += 1;
        tag
    }

    /// Take a flow out.
    pub(super) fn leave(&mut self, id: u32, now: f64, flow: u32) {
        let stamp = &mut self.stamps[flow as usize];
        *stamp = stamp.wrapping_add(1);
        let group = &mut self.groups[id as usize];
        group.live -= 1;
        if group.live == 0 {
            // Starting from 0 again keeps the digits of what is to come.
            group.due.clear();
            group.served = 0.0;
            group.since = now;
        }
    }

    /// The flow of a group that ends first.
    pub(super) fn head(&mut self, id: u32) -> Option<Due> {
        let due = &mut self.groups[id as usize].due;
        while let Some(&Reverse(head)) = due.peek() {
            if self.stamps[head.flow as usize] == head.stamp {
                return Some(head);
            }
            due.pop();
        }
        None
    }

    /// Write a group's next ending into the agenda.
    pub(super) fn schedule(&mut self, id: u32, now: f64) {
        let head = self.head(id);
        let served = self.served(id, now);
        let group = &mut self.groups[id as usize];
        group.entry = group.entry.wrapping_add(1);
        if let Some(head) = head {
            let at = now + (head.tag - served).max(0.0) / group.pace;
            if at.is_finite() {
                self.agenda.push(Reverse((at.to_bits(), id, group.entry)));
            }
        }
    }

    /// The time of the next ending, and its group.
    pub(super) fn next(&mut self) -> Option<(f64, u32)> {
        while let Some(&Reverse((bits, id, entry))) = self.agenda.peek() {
            if self.groups[id as usize].entry == entry {
                return Some((f64::from_bits(bits), id));
            }
            self.agenda.pop();
        }
        None
    }
}
