//! Calls of the storage in progress, and those that have taken too long.
//!
//! Arrives: the begin and end of calls, the time. Leaves: what those were about that are late, once each. Must not
//! know:
//! threads, files.

use std::collections::HashMap;

struct Call<T> {
    since_ns: u64,
    /// None once it was reported as late.
    about: Option<T>,
}

/// Calls in progress.
pub(crate) struct Calls<T> {
    next: u64,
    running: HashMap<u64, Call<T>>,
}

impl<T> Default for Calls<T> {
    fn default() -> Self {
        Self { next: 0, running: HashMap::new() }
    }
}

impl<T> Calls<T> {
    /// A call begins; its number.
    pub(crate) fn begin(&mut self, now_ns: u64, about: T) -> u64 {
        self.next += 1;
        self.running.insert(self.next, Call { since_ns: now_ns, about: Some(about) });
        self.next
    }

    /// It has ended; whether it was reported as late.
    pub(crate) fn end(&mut self, number: u64) -> bool {
        self.running.remove(&number).is_some_and(|call| call.about.is_none())
    }

    /// Those that have become late.
    pub(crate) fn late(&mut self, now_ns: u64, limit_ns: u64) -> Vec<T> {
        let late = |call: &&mut Call<T>| now_ns.saturating_sub(call.since_ns) > limit_ns;
        self.running.values_mut().filter(late).filter_map(|call| call.about.take()).collect()
    }

    /// Whether all calls in progress are late: nothing else is worth waiting for.
    pub(crate) fn only_late(&self) -> bool {
        self.running.values().all(|call| call.about.is_none())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_late_call_is_reported_once_and_its_end_says_that_it_was_late() {
        let mut calls = Calls::default();
        let (first, second) = (calls.begin(0, "first"), calls.begin(50, "second"));
        assert!(calls.late(100, 100).is_empty());
        assert_eq!(calls.late(101, 100), ["first"]);
        assert!(calls.late(120, 100).is_empty() && !calls.only_late());
        assert!(!calls.end(second) && calls.only_late());
        assert!(calls.end(first));
        assert!(!calls.end(first));
    }
}
