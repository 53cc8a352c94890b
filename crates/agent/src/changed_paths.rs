//! The paths below the root that changed, and the attributes reported on close. Pure: no file system, no clock.

use std::collections::HashMap;

use waystage_catalog::Attributes;

use crate::event::Kind;

/// Closes kept whose open is still unread in another ring. A hostile program may send any number.
const EARLY: usize = 1 << 16;

/// Open files that are kept. Paths beyond that are looked up.
const OPEN: usize = 1 << 20;

/// The changes of one path.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct PathState {
    /// Records of it, up to 255; 0 for a directory that is listed only because an entry in it changed.
    pub(crate) records: u8,
    /// It was renamed, from or to: everything below a directory is then replaced.
    pub(crate) moved: bool,
    /// It was followed as a symbolic link.
    pub(crate) followed: bool,
    /// The attributes reported on close.
    closed_with: Option<Attributes>,
}

impl PathState {
    /// To be looked up, without any record.
    pub(crate) fn requested() -> Self {
        Self { records: 1, ..Self::default() }
    }

    /// The attributes, where no look-up is needed: one open, one close, no other record, and no other name.
    pub(crate) fn known(&self) -> Option<Attributes> {
        self.closed_with
            .filter(|attributes| self.records == 1 && !self.moved && attributes.links == 1)
    }
}

/// Paths are below the root, without slashes at their ends; the root's own is empty.
#[derive(Debug, Default)]
pub(crate) struct ChangedPaths {
    paths: HashMap<Vec<u8>, PathState>,
    open: HashMap<u64, Vec<u8>>,
    early: HashMap<u64, Attributes>,
}

impl ChangedPaths {
    pub(crate) fn changed(&mut self, path: &[u8], kind: Kind, token: u64) {
        let state = self.entry(path);
        state.records = state.records.saturating_add(1);
        state.moved |= kind == Kind::Moved;
        state.followed |= kind.follows();
        if token != 0 && kind == Kind::Opened {
            if let Some(attributes) = self.early.remove(&token) {
                self.entry(path).closed_with = Some(attributes);
            } else if self.open.len() < OPEN {
                self.open.insert(token, path.to_vec());
            }
        }
    }

    pub(crate) fn closed(&mut self, token: u64, attributes: Attributes) {
        if let Some(path) = self.open.remove(&token) {
            self.entry(&path).closed_with = Some(attributes);
        } else if self.early.len() < EARLY {
            self.early.insert(token, attributes);
        }
    }

    /// All paths, and what is known of each.
    pub(crate) fn into_paths(self) -> HashMap<Vec<u8>, PathState> {
        self.paths
    }

    pub(crate) fn len(&self) -> usize {
        self.paths.len()
    }

    /// The state of a path. Its directories up to the root are listed too: a change of names changes their times.
    fn entry(&mut self, path: &[u8]) -> &mut PathState {
        if !self.paths.contains_key(path) {
            let mut above = path;
            while let Some(parent) = parent(above) {
                if parent.is_empty() || self.paths.contains_key(parent) {
                    break;
                }
                self.paths.insert(parent.to_vec(), PathState::default());
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

    fn attributes(size: u64) -> Attributes {
        Attributes {
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
    fn directories_above_are_listed_but_not_the_root() {
        let mut changed = ChangedPaths::default();
        changed.changed(b"a/b/c", Kind::Made, 0);
        let paths = changed.into_paths();
        assert_eq!(paths.len(), 3);
        assert_eq!(paths[&b"a/b"[..]].records, 0);
        assert_eq!(paths[&b"a/b/c"[..]].records, 1);
    }

    #[test]
    fn attributes_on_close_are_used_when_there_was_no_other_change_in_either_order() {
        let mut changed = ChangedPaths::default();
        changed.changed(b"x", Kind::Opened, 7);
        changed.closed(7, attributes(10));
        changed.closed(8, attributes(20));
        changed.changed(b"y", Kind::Opened, 8);
        let paths = changed.into_paths();
        assert_eq!(paths[&b"x"[..]].known().map(|attributes| attributes.size), Some(10));
        assert_eq!(paths[&b"y"[..]].known().map(|attributes| attributes.size), Some(20));
    }

    #[test]
    fn a_path_changed_again_is_looked_up() {
        for kind in [Kind::Opened, Kind::Attributes, Kind::Truncated, Kind::Moved, Kind::Linked] {
            let mut changed = ChangedPaths::default();
            changed.changed(b"x", Kind::Opened, 7);
            changed.closed(7, attributes(10));
            changed.changed(b"x", kind, 0);
            assert_eq!(changed.into_paths()[&b"x"[..]].known(), None, "{kind:?}");
        }
    }

    #[test]
    fn a_directory_with_a_changed_entry_is_looked_up() {
        let mut changed = ChangedPaths::default();
        changed.changed(b"a/x", Kind::Opened, 7);
        assert_eq!(changed.into_paths()[&b"a"[..]].known(), None);
    }
}
