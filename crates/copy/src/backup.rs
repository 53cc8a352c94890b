//! Where files go that a copy replaces or deletes: under another name beside them, or to a separate directory.
//!
//! Arrives: an entry that is to be replaced or deleted. Leaves: the same entry under its other name. Must not know:
//! why.
//!
//! What is replaced gets a second name first, as a hard link, and only then is replaced: at no time is it missing.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};

use rustix::fs::{linkat, mkdirat, renameat, AtFlags, Mode};
use rustix::io::Errno;
use waystage_catalog::{join, Root};

use crate::ends::unwritable;
use crate::error::{At, CopyError, End, Failure};
use crate::sink::with_temporary_name;
use crate::stat::split;

/// How they are called.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Backup {
    /// The directory that they go to, each with its path below the destination; relative to the destination. None for
    /// beside them.
    pub directory: Option<PathBuf>,
    /// What is added to their names.
    pub suffix: Vec<u8>,
}

/// The same, open.
pub struct OpenBackup {
    root: Option<Root>,
    /// The directory, where it is in the destination: its entries are neither deleted nor backed up.
    within: Option<Vec<u8>>,
    suffix: Vec<u8>,
    /// In temporary names, as the copy's.
    session: u64,
}

impl Backup {
    /// Open it for this destination; the directory is made where it lacks.
    ///
    /// # Errors
    /// Where it cannot be made or opened.
    pub fn open(&self, destination: &Path, session: u64) -> Result<OpenBackup, CopyError> {
        let suffix = self.suffix.clone();
        let mut opened = OpenBackup { root: None, within: None, suffix, session };
        if let Some(directory) = &self.directory {
            use std::os::unix::ffi::OsStrExt;
            let path = destination.join(directory);
            std::fs::create_dir_all(&path).map_err(|error| unwritable(&path, &error))?;
            opened.root = Some(Root::open(&path).map_err(|error| unwritable(&path, &error))?);
            let real = |path: &Path| path.canonicalize().map_err(|error| unwritable(path, &error));
            let (whole, below) = (real(&path)?, real(destination)?);
            opened.within =
                whole.strip_prefix(&below).ok().map(|rest| rest.as_os_str().as_bytes().to_vec());
        }
        Ok(opened)
    }

    /// The same where another host has named the directory, which has to be below the destination: no symbolic link is
    /// followed to it.
    ///
    /// # Errors
    /// Where it cannot be made or opened.
    pub fn open_below(&self, destination: &Path, session: u64) -> Result<OpenBackup, CopyError> {
        use std::os::unix::ffi::OsStrExt;
        let suffix = self.suffix.clone();
        let mut opened = OpenBackup { root: None, within: None, suffix, session };
        if let Some(directory) = &self.directory {
            let written = |error: std::io::Error| unwritable(directory, &error);
            let path = directory.as_os_str().as_bytes();
            let root = Root::open(destination).map_err(written)?;
            let made = make(&root, path).map_err(|errno| written(errno.into()))?;
            let name = PathBuf::from(format!("/proc/self/fd/{}", made.as_raw_fd()));
            opened.root = Some(Root::open(&name).map_err(written)?);
            opened.within = Some(path.to_vec());
        }
        Ok(opened)
    }

    /// Whether an entry of the destination is such a backup, or its directory, where that is below the destination.
    #[must_use]
    pub fn is_own(&self, directory: &[u8], name: &[u8]) -> bool {
        use std::os::unix::ffi::OsStrExt;
        match &self.directory {
            Some(within) => is_within(within.as_os_str().as_bytes(), &join(directory, name)),
            None => name.ends_with(&self.suffix),
        }
    }
}

/// Whether a path is this directory, below it, or on the way to it.
fn is_within(within: &[u8], path: &[u8]) -> bool {
    path == within
        || (path.starts_with(within) && path.get(within.len()) == Some(&b'/'))
        || (within.starts_with(path) && within.get(path.len()) == Some(&b'/'))
}

impl OpenBackup {
    /// Whether an entry of the destination is a backup, or the directory of backups.
    #[must_use]
    pub fn is_own(&self, directory: &[u8], name: &[u8]) -> bool {
        match &self.within {
            Some(within) => is_within(within, &join(directory, name)),
            None => self.root.is_none() && name.ends_with(&self.suffix),
        }
    }

    /// The directory for the backup of an entry, None for the entry's own, and the backup's name.
    fn place(&self, directory: &[u8], name: &[u8]) -> Result<(Option<OwnedFd>, Vec<u8>), Failure> {
        let made = self.root.as_ref().map(|root| make(root, directory)).transpose();
        let there = made.at(End::Destination, "make backup directory")?;
        Ok((there, [name, &self.suffix[..]].concat()))
    }

    /// Give the entry its second name; an older backup is replaced.
    ///
    /// # Errors
    /// Where the file system makes no such link: the entry is then not to be replaced.
    pub fn keep(
        &self,
        folder: BorrowedFd<'_>,
        directory: &[u8],
        name: &[u8],
    ) -> Result<(), Failure> {
        let (there, other) = self.place(directory, name)?;
        let to = there.as_ref().map_or(folder, AsFd::as_fd);
        with_temporary_name(to, self.session, &other, |temporary| {
            match linkat(folder, name, to, temporary, AtFlags::empty()) {
                Err(Errno::NOENT) => Ok(()),
                linked => linked.at(End::Destination, "back up by a hard link"),
            }
        })
        .or_else(|failure| match failure {
            // It was gone before.
            Failure::Call { errno: Errno::NOENT, doing: "give name", .. } => Ok(()),
            failure => Err(failure),
        })
    }

    /// Give the entry its other name only; an older backup is replaced.
    ///
    /// # Errors
    /// Those of rename(2), also where the backups are on another file system.
    pub fn take_away(
        &self,
        folder: BorrowedFd<'_>,
        directory: &[u8],
        name: &[u8],
    ) -> Result<(), Failure> {
        let (there, other) = self.place(directory, name)?;
        let to = there.as_ref().map_or(folder, AsFd::as_fd);
        renameat(folder, name, to, &other[..]).at(End::Destination, "back up")
    }
}

/// The directory at `path`, made with those above it where it lacks; never through a symbolic link.
fn make(root: &Root, path: &[u8]) -> Result<std::os::fd::OwnedFd, Errno> {
    match root.directory(path) {
        Err(Errno::NOENT) if !path.is_empty() => {}
        other => return other,
    }
    let (above, name) = split(path);
    let parent = make(root, above)?;
    match mkdirat(&parent, name, Mode::from_raw_mode(0o700)) {
        Ok(()) | Err(Errno::EXIST) => root.directory(path),
        Err(errno) => Err(errno),
    }
}
