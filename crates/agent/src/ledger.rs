//! Which paths below the root changed, and what closing told of them. Pure: no file system, no clock.

use std::collections::HashMap;

use waystage_catalog::Facts;

use crate::event::Kind;

/// Closings whose opening has not been read yet, at most: it is in another lane. A hostile program may send them without end.
const EARLY: usize = 1 << 16;

/// Openings not closed yet that are remembered, at most. What is beyond is looked at.
const OPEN: usize = 1 << 20;

/// What is known of one path.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Touched {
    /// Records of it; 0 for a directory that is there only because something in it changed.
    pub(crate) times: u8,
    /// It was renamed, from or to: if it is a directory, all below is another.
    pub(crate) moved: bool,
    /// A link that it ends in was followed.
    pub(crate) followed: bool,
    /// What closing said.
    told: Option<Facts>,
}

impl Touched {
    /// To be looked at, without any record.
    pub(crate) fn asked_for() -> Self {
        Self { times: 1, ..Self::default() }
    }

    /// What needs no look any more: one opening, closed once, nothing else ever, and no other name to change it by.
    pub(crate) fn known(&self) -> Option<Facts> {
        self.told.filter(|facts| self.times == 1 && !self.moved && facts.links == 1)
    }
}

/// Paths are below the root, without slashes at their ends; the root's own is empty.
#[derive(Debug, Default)]
pub(crate) struct Ledger {
    paths: HashMap<Vec<u8>, Touched>,
    open: HashMap<u64, Vec<u8>>,
    early: HashMap<u64, Facts>,
}

impl Ledger {
    pub(crate) fn changed(&mut self, path: &[u8], kind: Kind, token: u64) {
        let touched = self.entry(path);
        touched.times = touched.times.saturating_add(1);
        touched.moved |= kind == Kind::Moved;
        touched.followed |= kind.follows();
        if token != 0 && kind == Kind::Opened {
            if let Some(facts) = self.early.remove(&token) {
                self.entry(path).told = Some(facts);
            } else if self.open.len() < OPEN {
                self.open.insert(token, path.to_vec());
            }
        }
    }

    pub(crate) fn closed(&mut self, token: u64, facts: Facts) {
        if let Some(path) = self.open.remove(&token) {
            self.entry(&path).told = Some(facts);
        } else if self.early.len() < EARLY {
            self.early.insert(token, facts);
        }
    }

    /// All paths, and what is known of each.
    pub(crate) fn into_paths(self) -> HashMap<Vec<u8>, Touched> {
        self.paths
    }

    pub(crate) fn len(&self) -> usize {
        self.paths.len()
    }

    /// The path's place. Its directories up to the root are there too: a change of names changes their times.
    fn entry(&mut self, path: &[u8]) -> &mut Touched {
        if !self.paths.contains_key(path) {
            let mut above = path;
            while let Some(parent) = parent(above) {
                if parent.is_empty() || self.paths.contains_key(parent) {
                    break;
                }
                self.paths.insert(parent.to_vec(), Touched::default());
                above = parent;
            }
        }
        self.paths.entry(path.to_vec()).or_default()
    }
}

/// The path of the directory that holds `path`; None for the root.
pub(crate) fn parent(path: &[u8]) -> Option<&[u8]> {
    if path.is_empty() {
        return None;
    }
    Some(split(path).0)
}

/// Directory and name.
pub(crate) fn split(path: &[u8]) -> (&[u8], &[u8]) {
    match path.iter().rposition(|byte| *byte == b'/') {
        Some(slash) => (&path[..slash], &path[slash + 1..]),
        None => (&[], path),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn facts(size: u64) -> Facts {
        Facts {
            mode: 0o100_644,
            size,
            mtime: 1,
            ctime: 1,
            atime: 1,
            uid: 0,
            gid: 0,
            inode: 2,
            device: 3,
            links: 1,
            blocks: 8,
            beyond: [None; 3],
        }
    }

    #[test]
    fn directories_on_the_way_are_there_too_but_not_the_root() {
        let mut ledger = Ledger::default();
        ledger.changed(b"a/b/c", Kind::Made, 0);
        let paths = ledger.into_paths();
        assert_eq!(paths.len(), 3);
        assert_eq!(paths[&b"a/b"[..]].times, 0);
        assert_eq!(paths[&b"a/b/c"[..]].times, 1);
    }

    #[test]
    fn a_closing_is_believed_where_nothing_else_happened_in_either_order() {
        let mut ledger = Ledger::default();
        ledger.changed(b"x", Kind::Opened, 7);
        ledger.closed(7, facts(10));
        ledger.closed(8, facts(20));
        ledger.changed(b"y", Kind::Opened, 8);
        let paths = ledger.into_paths();
        assert_eq!(paths[&b"x"[..]].known().map(|facts| facts.size), Some(10));
        assert_eq!(paths[&b"y"[..]].known().map(|facts| facts.size), Some(20));
    }

    #[test]
    fn what_is_touched_again_is_looked_at() {
        for kind in [Kind::Opened, Kind::Attributes, Kind::Truncated, Kind::Moved, Kind::Linked] {
            let mut ledger = Ledger::default();
            ledger.changed(b"x", Kind::Opened, 7);
            ledger.closed(7, facts(10));
            ledger.changed(b"x", kind, 0);
            assert_eq!(ledger.into_paths()[&b"x"[..]].known(), None, "{kind:?}");
        }
    }

    #[test]
    fn a_directory_in_which_something_changed_is_looked_at() {
        let mut ledger = Ledger::default();
        ledger.changed(b"a/x", Kind::Opened, 7);
        assert_eq!(ledger.into_paths()[&b"a"[..]].known(), None);
    }
}
