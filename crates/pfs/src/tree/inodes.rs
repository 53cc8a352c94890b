//! The last known path of each inode: the kernel uses inode numbers, the folder behind uses paths.

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
    parent: u64,
    name: OsString,
    lookups: u64,
}

impl Inodes {
    pub(super) fn new(top: PathBuf) -> Self {
        Self { top, places: RwLock::default() }
    }

    /// The path of an inode; None where its name is gone.
    pub(super) fn path(&self, ino: u64) -> Option<PathBuf> {
        let places = self.places.read();
        let mut names: Vec<&OsStr> = Vec::new();
        let mut at = ino;
        while at != ROOT {
            let place = places.get(&at)?;
            names.push(&place.name);
            at = place.parent;
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
        places.get(&ino).map_or(ROOT, |place| place.parent)
    }

    /// The kernel learns of an inode.
    pub(super) fn found(&self, ino: u64, parent: u64, name: &OsStr) {
        if ino == ROOT {
            return;
        }
        let mut places = self.places.write();
        let place = places.entry(ino).or_insert_with(|| Place {
            parent,
            name: name.to_owned(),
            lookups: 0,
        });
        place.lookups += 1;
        if place.parent != parent || place.name != name {
            place.parent = parent;
            place.name = name.to_owned();
        }
    }

    /// It has another name now.
    pub(super) fn moved(&self, ino: u64, parent: u64, name: &OsStr) {
        let mut places = self.places.write();
        if let Some(place) = places.get_mut(&ino) {
            place.parent = parent;
            place.name = name.to_owned();
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
