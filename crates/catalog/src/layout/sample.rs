//! The storage targets of a tree, from a sample of its files: what a flow reads or writes.
//!
//! A tree of a file system of this machine has its device, without reading an entry. Of others some files are asked,
//! in the order of their directories; a file system that deals files to targets in turn shows most of them soon.

use std::collections::BTreeSet;
use std::fs::{self, File, Metadata, OpenOptions};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::{major, minor, OFlags};

use super::file_systems::Served;
use super::{local, FileSystems, Target};

/// Bounds of a sample: the time that it takes.
#[derive(Clone, Copy, Debug)]
pub struct Sample {
    /// Files opened at most.
    pub files: usize,
    /// Entries read at most.
    pub entries: usize,
}

impl Sample {
    /// The targets of the file or the tree at `path`, ordered. Of a path that does not exist yet, those of the device
    /// of its nearest directory, where it is a target itself. What cannot be read is passed over.
    #[must_use]
    pub fn targets(self, path: &Path) -> Vec<Target> {
        let mut found = Found { systems: FileSystems::new(), targets: BTreeSet::new(), left: self };
        match fs::metadata(path) {
            Ok(about) if about.is_dir() => found.tree(path.to_path_buf()),
            Ok(about) if about.is_file() => {
                found.ask(path, false);
            }
            Ok(_) => {}
            Err(_) => {
                let mut above = path.ancestors().skip(1).map(|above| {
                    if above.as_os_str().is_empty() {
                        Path::new(".")
                    } else {
                        above
                    }
                });
                if let Some(above) = above.find(|above| above.is_dir()) {
                    found.ask(above, true);
                }
            }
        }
        found.targets.into_iter().collect()
    }
}

struct Found {
    systems: FileSystems,
    targets: BTreeSet<Target>,
    left: Sample,
}

impl Found {
    fn tree(&mut self, root: PathBuf) {
        let mut folders = vec![root];
        while let Some(folder) = folders.pop() {
            if self.ask(&folder, true) {
                continue; // a device: files tell no more
            }
            for entry in fs::read_dir(&folder).into_iter().flatten().flatten() {
                if self.left.files == 0 || self.left.entries == 0 {
                    return;
                }
                self.left.entries -= 1;
                match entry.file_type() {
                    Ok(kind) if kind.is_dir() => folders.push(entry.path()),
                    Ok(kind) if kind.is_file() => {
                        self.left.files -= 1;
                        self.ask(&entry.path(), false);
                    }
                    _ => {}
                }
            }
        }
    }

    /// Add the targets of a file, or of the device of a folder; whether a device serves it as a whole.
    fn ask(&mut self, path: &Path, folder: bool) -> bool {
        let Some((file, about)) = open(path, folder) else { return false };
        let layout = self.systems.layout_of(&file);
        if let Some(Served::By(reader)) = self.systems.known(about.dev()) {
            if reader.name() == local::Reader::NAME {
                let device = about.dev();
                self.targets.insert(local::target(major(device), minor(device)));
                return true;
            }
        }
        if let (false, Ok(Some(layout))) = (folder, layout) {
            self.targets.extend(layout.targets().into_iter().cloned());
        }
        false
    }
}

/// Never a symbolic link to a file, nor what blocks when it is opened; neither is among the entries of `file_type`.
fn open(path: &Path, folder: bool) -> Option<(File, Metadata)> {
    let flags = if folder { OFlags::DIRECTORY } else { OFlags::NOFOLLOW } | OFlags::NONBLOCK;
    let flags = i32::try_from(flags.bits()).ok()?;
    let file = OpenOptions::new().read(true).custom_flags(flags).open(path).ok()?;
    let about = file.metadata().ok()?;
    Some((file, about))
}

#[cfg(test)]
mod tests {
    use super::*;

    const SMALL: Sample = Sample { files: 4, entries: 16 };

    #[test]
    fn a_tree_on_this_machine_has_its_device_as_its_target() {
        let folder = std::env::temp_dir().join(format!("waystage-sample-{}", std::process::id()));
        fs::create_dir_all(folder.join("a/b")).unwrap();
        fs::write(folder.join("a/b/file"), "x").unwrap();
        let device = fs::metadata(&folder).unwrap().dev();
        let wanted = vec![local::target(major(device), minor(device))];
        for path in ["", "a/b/file", "not/there/yet"] {
            assert_eq!(SMALL.targets(&folder.join(path)), wanted, "{path}");
        }
        fs::remove_dir_all(folder).unwrap();
    }

    #[test]
    fn what_is_no_file_has_no_target() {
        assert_eq!(SMALL.targets(Path::new("/dev/null")), vec![]);
    }
}
