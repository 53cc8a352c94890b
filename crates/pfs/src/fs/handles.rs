//! Open files and directories, by handle number.

use std::collections::HashMap;
use std::ffi::OsStr;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::Arc;

use fuser::FileType;
use parking_lot::RwLock;

use crate::layout::Striping;
use crate::tree::Item;

/// Things by numbers that are given out once.
#[derive(Debug)]
pub(super) struct Handles<T> {
    next: AtomicU64,
    open: RwLock<HashMap<u64, Arc<T>>>,
}

impl<T> Default for Handles<T> {
    fn default() -> Self {
        Self { next: AtomicU64::new(1), open: RwLock::default() }
    }
}

impl<T> Handles<T> {
    pub(super) fn add(&self, thing: T) -> u64 {
        let handle = self.next.fetch_add(1, Ordering::Relaxed);
        self.open.write().insert(handle, Arc::new(thing));
        handle
    }

    pub(super) fn get(&self, handle: u64) -> Option<Arc<T>> {
        self.open.read().get(&handle).cloned()
    }

    pub(super) fn any(&self, is: impl Fn(&T) -> bool) -> bool {
        self.open.read().values().any(|thing| is(thing))
    }

    pub(super) fn remove(&self, handle: u64) -> Option<Arc<T>> {
        self.open.write().remove(&handle)
    }
}

/// An open file. Its layout is that of the moment when it was opened.
#[derive(Debug)]
pub(super) struct OpenFile {
    pub(super) ino: u64,
    pub(super) tree_handle: u64,
    pub(super) striping: Striping,
}

/// An open directory, as it was when it was opened.
#[derive(Debug)]
pub(super) struct Listing {
    items: Vec<Item>,
    /// Entries, `.` and `..` among them, that messages have brought so far.
    fetched: AtomicUsize,
}

impl Listing {
    pub(super) fn new(items: Vec<Item>) -> Self {
        Self { items, fetched: AtomicUsize::new(0) }
    }

    /// How many entries from `first` on are there to be given out, and whether that takes another message.
    pub(super) fn fetch(&self, first: usize, per_message: usize) -> (usize, bool) {
        let fetched = self.fetched.load(Ordering::Relaxed);
        let all = self.items.len() + 2;
        if first < fetched || fetched >= all {
            return (fetched.saturating_sub(first), false);
        }
        let fetched = first.saturating_add(per_message);
        self.fetched.store(fetched, Ordering::Relaxed);
        (fetched - first, true)
    }

    /// Entries with their positions, `.` and `..` first.
    pub(super) fn from(
        &self,
        first: usize,
        own: u64,
    ) -> impl Iterator<Item = (usize, (u64, FileType, &OsStr))> {
        let dots = [".", ".."].map(|name| (own, FileType::Directory, OsStr::new(name)));
        let items = self.items.iter().map(|item| (item.ino, item.kind, item.name.as_os_str()));
        dots.into_iter().chain(items).enumerate().skip(first)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_come_in_messages_of_bounded_size_and_none_is_requested_twice() {
        let item = |n| Item { ino: n, kind: FileType::RegularFile, name: format!("f{n}").into() };
        let listing = Listing::new((0..10).map(item).collect());
        let (mut at, mut messages, mut names) = (0, 0, Vec::new());
        loop {
            let (known, asked) = listing.fetch(at, 5);
            messages += u32::from(asked);
            // Two fit the buffer of each call.
            let got: Vec<_> = listing.from(at, 1).take(known.min(2)).collect();
            let Some((last, _)) = got.last() else { break };
            at = last + 1;
            names.extend(got.iter().map(|(_, (_, _, name))| name.to_string_lossy().into_owned()));
        }
        assert_eq!(messages, 3, "12 entries with the two dots");
        assert_eq!(names.len(), 12);
        assert_eq!(names[..3], [".", "..", "f0"]);
    }
}
