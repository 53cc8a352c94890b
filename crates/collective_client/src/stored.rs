//! Storing a coupled name's versions as they pass, where they are files: `FOLDER/NAME.VERSION`.
//!
//! Arrives: bytes of a version at their offsets. Leaves: a file that appears once the version is complete.
//! Must not know: connections.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use crate::error::{Error, Result};

/// Where versions are stored.
pub(crate) struct Stored {
    folder: PathBuf,
    name: String,
}

/// The file of a version that is being written.
pub(crate) struct Part {
    path: PathBuf,
    file: File,
}

fn failed(path: &Path) -> impl Fn(io::Error) -> Error + '_ {
    move |error| Error::system(format!("store {}", path.display()), &error)
}

impl Stored {
    /// Stores versions of `name` in a folder.
    pub(crate) fn new(folder: PathBuf, name: &str) -> Self {
        Self { folder, name: name.to_owned() }
    }

    fn path(&self, version: u64, end: &str) -> PathBuf {
        self.folder.join(format!("{}.{version}{end}", self.name))
    }

    /// The file that all writers of a version write to.
    pub(crate) fn part(&self, version: u64) -> Result<Part> {
        std::fs::create_dir_all(&self.folder).map_err(failed(&self.folder))?;
        let path = self.path(version, ".part");
        let file = OpenOptions::new()
            .write(true)
            .create(true)
            .truncate(false)
            .custom_flags(libc::O_NOFOLLOW)
            .open(&path)
            .map_err(failed(&path))?;
        Ok(Part { path, file })
    }

    /// All writers have written: the file gets its length and its name.
    pub(crate) fn finish(&self, version: u64, bytes: u64) -> Result<()> {
        let part = self.part(version)?;
        part.file.set_len(bytes).map_err(failed(&part.path))?;
        let path = self.path(version, "");
        std::fs::rename(&part.path, &path).map_err(failed(&path))
    }
}

impl Part {
    /// Writes bytes at an offset.
    pub(crate) fn write(&self, offset: u64, bytes: &[u8]) -> Result<()> {
        self.file.write_all_at(bytes, offset).map_err(failed(&self.path))
    }

    /// Brings them to the storage.
    pub(crate) fn sync(&self) -> Result<()> {
        self.file.sync_data().map_err(failed(&self.path))
    }
}
