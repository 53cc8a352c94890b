//! The delay line: packets in flight, returned when they are due.
//!
//! Arrives: entries with their due times. Leaves: the same entries ordered by due time, equal ones in order of arrival.
//! Must not know: clocks, the meaning of an entry.
//!
//! Nearly all packets leave in the order of their arrival and wait in a queue. Only those that break it go to a heap.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};

/// Ordered by `(due, number)` alone.
#[derive(Clone, Debug)]
struct Waiting<T> {
    due_ns: u64,
    number: u64,
    entry: T,
}

impl<T> Waiting<T> {
    fn key(&self) -> (u64, u64) {
        (self.due_ns, self.number)
    }
}

impl<T> PartialEq for Waiting<T> {
    fn eq(&self, other: &Self) -> bool {
        self.key() == other.key()
    }
}

impl<T> Eq for Waiting<T> {}

impl<T> PartialOrd for Waiting<T> {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl<T> Ord for Waiting<T> {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.key().cmp(&other.key())
    }
}

/// Entries that wait for their due times.
#[derive(Clone, Debug)]
pub struct DelayLine<T> {
    ordered: VecDeque<Waiting<T>>,
    heap: BinaryHeap<Reverse<Waiting<T>>>,
    next: u64,
}

impl<T> Default for DelayLine<T> {
    fn default() -> Self {
        Self { ordered: VecDeque::new(), heap: BinaryHeap::new(), next: 0 }
    }
}

impl<T> DelayLine<T> {
    /// The number of entries.
    #[must_use]
    pub fn len(&self) -> usize {
        self.ordered.len() + self.heap.len()
    }

    /// Whether it is empty.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Adds an entry. `out_of_order` marks one that is due later than its successors.
    pub fn push(&mut self, due_ns: u64, out_of_order: bool, entry: T) {
        let waiting = Waiting { due_ns, number: self.next, entry };
        self.next += 1;
        if !out_of_order && self.ordered.back().is_none_or(|last| last.due_ns <= due_ns) {
            self.ordered.push_back(waiting);
        } else {
            self.heap.push(Reverse(waiting));
        }
    }

    /// When the first entry is due.
    #[must_use]
    pub fn next_due_ns(&self) -> Option<u64> {
        let ordered = self.ordered.front().map(|w| w.due_ns);
        let other = self.heap.peek().map(|w| w.0.due_ns);
        ordered.into_iter().chain(other).min()
    }

    /// Removes the first entry if it is due by `now_ns`; returns its due time and the entry.
    pub fn pop_due(&mut self, now_ns: u64) -> Option<(u64, T)> {
        let ordered = self.ordered.front().map(Waiting::key);
        let other = self.heap.peek().map(|w| w.0.key());
        let out_of_order = match (ordered, other) {
            (None, None) => return None,
            (Some(a), Some(b)) => b < a,
            (None, Some(_)) => true,
            (Some(_), None) => false,
        };
        if (if out_of_order { other } else { ordered }).is_none_or(|(due_ns, _)| due_ns > now_ns) {
            return None;
        }
        let taken =
            if out_of_order { self.heap.pop().map(|w| w.0) } else { self.ordered.pop_front() };
        taken.map(|w| (w.due_ns, w.entry))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn entries_leave_as_from_a_sorted_list(
            steps in proptest::collection::vec((0u64..50, any::<bool>(), any::<bool>()), 1..200)
        ) {
            let mut line = DelayLine::default();
            let mut list: Vec<(u64, usize)> = Vec::new();
            let mut now = 0;
            for (index, (ahead, out_of_order, advance)) in steps.into_iter().enumerate() {
                line.push(now + ahead, out_of_order, index);
                list.push((now + ahead, index));
                if advance {
                    now += 10;
                    list.sort_unstable();
                    while let Some(found) = line.pop_due(now) {
                        prop_assert_eq!(found, list.remove(0));
                    }
                    prop_assert!(list.first().is_none_or(|first| first.0 > now));
                }
                prop_assert_eq!(line.len(), list.len());
                prop_assert_eq!(line.next_due_ns(), list.iter().map(|w| w.0).min());
            }
        }
    }
}
