//! The known names of each inode: the kernel uses inode numbers, the folder behind uses paths.

use std::collections::HashMap;
use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};

use parking_lot::RwLock;

use super::ROOT;

/// Places by inode number, each counting the lookups that the kernel has not taken back.
#[derive(Debug)]
pub(super) struct Inodes {
    top: PathBuf,
    places: RwLock<HashMap<u64, Place>>,
}

#[derive(Debug)]
struct Place {
    /// Its names that the kernel has seen: the directory's inode, and the name in it. The last is the latest.
    names: Vec<(u64, OsString)>,
    lookups: u64,
}

impl Place {
    fn remove(&mut self, parent: u64, name: &OsStr) {
        self.names.retain(|(of, known)| *of != parent || known != name);
    }

    fn add(&mut self, parent: u64, name: &OsStr) {
        if self.names.last().is_none_or(|(of, known)| *of != parent || known != name) {
            self.remove(parent, name);
            self.names.push((parent, name.to_owned()));
        }
    }
}

impl Inodes {
    pub(super) fn new(top: PathBuf) -> Self {
        Self { top, places: RwLock::default() }
    }

    /// The path of an inode, by the latest of its names; None where all are gone.
    pub(super) fn path(&self, ino: u64) -> Option<PathBuf> {
        if ino == ROOT {
            return Some(self.top.clone());
        }
        let places = self.places.read();
        let (parent, name) = places.get(&ino)?.names.last()?;
        self.path_below(&places, *parent, name)
    }

    /// The paths of an inode by all of its names that the kernel has seen, the latest first.
    pub(super) fn paths(&self, ino: u64) -> Vec<PathBuf> {
        let places = self.places.read();
        let names = places.get(&ino).map_or(&[][..], |place| &place.names);
        let path = |(parent, name): &(u64, OsString)| self.path_below(&places, *parent, name);
        names.iter().rev().filter_map(path).collect()
    }

    fn path_below(
        &self,
        places: &HashMap<u64, Place>,
        parent: u64,
        name: &OsStr,
    ) -> Option<PathBuf> {
        let mut names = vec![name];
        let mut at = parent;
        while at != ROOT {
            let (parent, name) = places.get(&at)?.names.last()?;
            names.push(name);
            at = *parent;
            if names.len() > 4096 {
                return None; // directories moved into one another meanwhile
            }
        }
        let mut path = self.top.clone();
        path.extend(names.into_iter().rev().map(Path::new));
        Some(path)
    }

    pub(super) fn parent(&self, ino: u64) -> u64 {
        let places = self.places.read();
        let latest = places.get(&ino).and_then(|place| place.names.last());
        latest.map_or(ROOT, |(parent, _)| *parent)
    }

    /// The kernel learns of an inode.
    pub(super) fn found(&self, ino: u64, parent: u64, name: &OsStr) {
        if ino == ROOT {
            return;
        }
        let mut places = self.places.write();
        let place = places.entry(ino).or_insert_with(|| Place { names: Vec::new(), lookups: 0 });
        place.lookups += 1;
        place.add(parent, name);
    }

    /// One of its names is another now.
    pub(super) fn moved(&self, ino: u64, from: (u64, &OsStr), to: (u64, &OsStr)) {
        if let Some(place) = self.places.write().get_mut(&ino) {
            place.remove(from.0, from.1);
            place.add(to.0, to.1);
        }
    }

    /// One of its names is gone; others may be left.
    pub(super) fn removed(&self, ino: u64, parent: u64, name: &OsStr) {
        if let Some(place) = self.places.write().get_mut(&ino) {
            place.remove(parent, name);
        }
    }

    pub(super) fn forget(&self, ino: u64, lookups: u64) {
        let mut places = self.places.write();
        if let Some(place) = places.get_mut(&ino) {
            place.lookups = place.lookups.saturating_sub(lookups);
            if place.lookups == 0 {
                places.remove(&ino);
            }
        }
    }
}
