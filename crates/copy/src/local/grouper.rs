//! Entries on their way from the walk to the workers, in groups of one directory.
//!
//! Arrives: entries in the order of the walk. Leaves: tasks, those of small files by storage target where that is
//! known; names of hard links, for later. Must not know: who works on them.

use std::collections::BTreeMap;

use super::context::Context;
use super::task::Task;
use crate::source::{Consumer, Item};

/// Entries that one worker takes at once: enough that opening their directory costs nothing, few enough that no worker
/// is left with all.
const GROUP: usize = 128;

/// Entries from which a group is given to a worker that waits, where names come slowly.
const GROUP_FOR_IDLE: usize = 8;

/// Bytes of a group on one storage target: a few requests, so that readers leave a target soon when others need them.
const GROUP_BYTES: u64 = 4 << 20;

/// Makes groups of entries of one directory.
pub(super) struct Grouper<'a> {
    context: &'a Context,
    group: Vec<Item>,
    /// Small files by storage target, with their bytes.
    on: BTreeMap<u32, (Vec<Item>, u64)>,
    /// Names of one file, by device and inode, in the order of their paths: the same in every run.
    pub(super) linked: BTreeMap<(u64, u64), Vec<Item>>,
}

impl<'a> Grouper<'a> {
    pub(super) fn of(context: &'a Context) -> Self {
        Self { context, group: Vec::new(), on: BTreeMap::new(), linked: BTreeMap::new() }
    }

    /// A file that is copied in one piece: to its target's group.
    fn on_target(&mut self, target: u32, item: Item) -> bool {
        let (items, bytes) = self.on.entry(target).or_default();
        *bytes += item.seen.size;
        items.push(item);
        let full = items.len() >= GROUP || *bytes >= GROUP_BYTES;
        !full || self.give(target)
    }

    fn give(&mut self, target: u32) -> bool {
        let (items, bytes) = self.on.remove(&target).unwrap_or_default();
        items.is_empty() || self.context.queue.push_on(target, items, bytes)
    }

    /// Give what is gathered where the next entry is in another directory.
    fn leave(&mut self, next: &Item) -> bool {
        let group = self.group.first();
        let on = self.on.values().find_map(|(items, _)| items.first());
        group.or(on).is_none_or(|first| first.directory == next.directory) || self.flush()
    }
}

impl Consumer for Grouper<'_> {
    fn entry(&mut self, item: Item) -> bool {
        let has_links = matches!(item.letter, b'f' | b'l' | b'p' | b'b' | b'c') && item.links > 1;
        if has_links && self.context.options.hard_links {
            self.linked.entry((item.seen.device, item.seen.inode)).or_default().push(item);
            return true;
        }
        if !self.leave(&item) {
            return false;
        }
        let small = item.letter == b'f' && item.seen.size <= self.context.policy.extent_bytes;
        if let (true, true, Some(first)) = (self.context.by_target, small, item.objects.first()) {
            return self.on_target(first.target, item);
        }
        self.group.push(item);
        let size = self.group.len();
        let is_due = size >= GROUP || (size >= GROUP_FOR_IDLE && self.context.queue.has_idle());
        !is_due || self.flush()
    }

    fn flush(&mut self) -> bool {
        let group = std::mem::take(&mut self.group);
        let given = group.is_empty() || self.context.queue.push(Task::Items(group));
        let targets: Vec<u32> = self.on.keys().copied().collect();
        given && targets.into_iter().all(|target| self.give(target))
    }
}
