//! Work by storage target: whose turn it is says `waystage-load`, as for its loaders.
//!
//! Arrives: entries and parts of large files by target, workers that ask.
//! Leaves: a task of the target that the worker is to read from. Must not know: files, threads, clocks.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use waystage_load::binding::{Binding, Bindings, PIECE_BYTES};

use super::large_file::Large;
use super::task::Task;
use crate::source::Item;

/// Entries that may wait, all targets together: some 40 MB of memory. The walk runs so far ahead that all targets have
/// work also where one of them is slow.
const WAITING_ENTRIES: usize = 1 << 17;

/// Targets of one copy at most: more are taken for the first one.
const MOST_TARGETS: usize = 1 << 15;

#[derive(Default)]
struct Line {
    groups: VecDeque<(Vec<Item>, u64)>,
    /// Large files with parts here, and which of their shares it is.
    large: VecDeque<(Arc<Large>, usize)>,
}

pub(super) struct ByTarget {
    index_of: HashMap<u32, usize>,
    lines: Vec<Line>,
    bindings: Bindings,
    /// Entries that wait.
    entries: usize,
}

impl ByTarget {
    pub(super) fn new(workers: usize, readers: Option<u32>) -> Self {
        let workers = u32::try_from(workers).unwrap_or(u32::MAX);
        Self {
            index_of: HashMap::new(),
            lines: Vec::new(),
            bindings: Bindings::new(workers, Binding::Steal, readers),
            entries: 0,
        }
    }

    pub(super) fn has_room(&self) -> bool {
        self.entries < WAITING_ENTRIES
    }

    pub(super) fn is_empty(&self) -> bool {
        self.entries == 0 && self.lines.iter().all(|line| line.large.is_empty())
    }

    pub(super) fn limit_readers(&mut self, each: u32) {
        self.bindings.set_most_readers(each);
    }

    pub(super) fn limit_readers_of(&mut self, most: &HashMap<u32, u32>) {
        for (target, most) in most {
            let index = self.index(*target);
            self.bindings.limit_readers(index, *most);
        }
    }

    pub(super) fn push(&mut self, target: u32, items: Vec<Item>, bytes: u64) {
        let index = self.index(target);
        self.entries += items.len();
        let cost = bytes + items.len() as u64 * PIECE_BYTES;
        self.lines[index].groups.push_back((items, cost));
        self.bindings.add_work(index, cost);
        self.bindings.queued(index);
    }

    pub(super) fn push_large(&mut self, large: &Arc<Large>) {
        let Some(striped) = &large.striped else { return };
        for (share, (target, bytes)) in
            striped.targets().into_iter().zip(striped.bytes()).enumerate()
        {
            if bytes > 0 {
                let index = self.index(target);
                self.lines[index].large.push_back((Arc::clone(large), share));
                self.bindings.add_work(index, bytes);
                self.bindings.queued(index);
            }
        }
    }

    /// The next task of a worker; none where every target with work has as many readers as it takes.
    ///
    /// With `shares`, because other workers have nothing to do, half of the last group of a target waits for them.
    pub(super) fn take(&mut self, worker: usize, shares: bool, now_ns: u64) -> Option<Task> {
        if self.lines.is_empty() {
            return None;
        }
        let loader = u32::try_from(worker).unwrap_or(u32::MAX);
        let first = self.bindings.first(loader);
        for index in first.into_iter().flatten() {
            if let Some(task) = self.task_of(loader, index, shares, now_ns) {
                return Some(task);
            }
        }
        let others = self.bindings.by_end(loader);
        others.into_iter().find_map(|index| self.task_of(loader, index, shares, now_ns))
    }

    /// A worker has done what it took.
    pub(super) fn ended(&mut self, worker: usize, now_ns: u64) {
        self.bindings.ended(u32::try_from(worker).unwrap_or(u32::MAX), now_ns);
    }

    fn task_of(&mut self, loader: u32, index: usize, shares: bool, now_ns: u64) -> Option<Task> {
        let (task, cost) = self.large_of(index).or_else(|| self.group_of(index, shares))?;
        self.bindings.began(loader, index, cost, now_ns);
        Some(task)
    }

    /// The first group in line.
    fn group_of(&mut self, index: usize, shares: bool) -> Option<(Task, u64)> {
        let groups = &mut self.lines[index].groups;
        let (mut items, mut cost) = groups.pop_front()?;
        if shares && groups.is_empty() && items.len() > 1 {
            let rest = items.split_off(items.len().div_ceil(2));
            let bytes: u64 = rest.iter().map(|item| item.seen.size).sum();
            let left = (bytes + rest.len() as u64 * PIECE_BYTES).min(cost);
            cost -= left;
            groups.push_front((rest, left));
        } else {
            self.bindings.taken(index);
        }
        self.entries -= items.len();
        Some((Task::Items(items), cost))
    }

    /// A part of a large file, the first in line that is not too far ahead.
    fn large_of(&mut self, index: usize) -> Option<(Task, u64)> {
        let mut at = 0;
        while let Some((large, share)) = self.lines[index].large.get(at) {
            let claimed = large.striped.as_ref().map_or(Ok(None), |striped| striped.claim(*share));
            match claimed {
                Ok(Some(part)) => return Some((Task::Part(Arc::clone(large), part), part.bytes)),
                Ok(None) => {
                    self.lines[index].large.remove(at);
                    self.bindings.taken(index);
                }
                Err(_) => at += 1,
            }
        }
        None
    }

    fn index(&mut self, target: u32) -> usize {
        if let Some(index) = self.index_of.get(&target) {
            return *index;
        }
        if self.lines.len() >= MOST_TARGETS {
            return 0;
        }
        let index = self.lines.len();
        self.lines.push(Line::default());
        self.index_of.insert(target, index);
        self.bindings.set_targets(index + 1);
        index
    }
}
