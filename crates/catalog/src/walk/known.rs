//! The directories of an earlier walk.

use std::collections::HashMap;

use rustix::fs::Statx;

use crate::batch::{device, nanoseconds};

/// A directory as an earlier walk found it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KnownDirectory {
    /// Inode number.
    pub inode: u64,
    /// Device number.
    pub device: u64,
    /// Last change of its names, ns since 1970.
    pub mtime: i64,
    /// Last change of it at all, ns since 1970.
    pub ctime: i64,
}

/// Directories by path, each with the paths of the directories in it.
#[derive(Debug, Default)]
pub struct Known {
    directories: HashMap<Vec<u8>, (KnownDirectory, Vec<Vec<u8>>)>,
}

impl Known {
    /// Take directories by their path below the root, parents and children in any order.
    ///
    /// A directory whose parent is not among them is kept; it is reached only when the parent is read.
    pub fn new(directories: impl IntoIterator<Item = (Vec<u8>, KnownDirectory)>) -> Self {
        let mut all: HashMap<Vec<u8>, (KnownDirectory, Vec<Vec<u8>>)> =
            directories.into_iter().map(|(path, known)| (path, (known, Vec::new()))).collect();
        let paths: Vec<Vec<u8>> = all.keys().filter(|path| !path.is_empty()).cloned().collect();
        for path in paths {
            let parent =
                path.iter().rposition(|byte| *byte == b'/').map_or(&b""[..], |at| &path[..at]);
            if let Some((_, children)) = all.get_mut(parent) {
                children.push(path);
            }
        }
        Self { directories: all }
    }

    /// The directories in the one at `path`, where it is still what it was; None where it has to be read.
    pub(super) fn unchanged(&self, path: &[u8], stat: &Statx) -> Option<&[Vec<u8>]> {
        let (known, children) = self.directories.get(path)?;
        let now = KnownDirectory {
            inode: stat.stx_ino,
            device: device(stat),
            mtime: nanoseconds(&stat.stx_mtime),
            ctime: nanoseconds(&stat.stx_ctime),
        };
        (*known == now).then_some(&children[..])
    }
}
