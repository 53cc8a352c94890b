//! A large file at the destination: a temporary file of its full size, whose extents the journal remembers.

use std::os::fd::{AsFd, OwnedFd};

use rustix::fs::{ftruncate, renameat, unlinkat, AtFlags};

use super::destination::Folder;
use super::journal::Record;
use super::Sink;
use crate::counts::{add, Report};
use crate::error::{At, End, Failure};
use crate::own_names::{create, large_name, map_name, reopen};
use crate::part_set::PartSet;
use crate::plan::{extents_of, Resume};
use crate::stat::FileState;

/// A large file in progress.
#[derive(Debug)]
pub struct LargeFile {
    /// Its number in the journal.
    pub id: u32,
    /// The random number in its temporary name.
    key: u64,
    /// Its path at the source.
    path: Vec<u8>,
    seen: FileState,
    extent_bytes: u64,
}

/// A large file whose extents other processes write.
#[derive(Debug, Clone)]
pub struct DividedFile {
    /// Its path at the source.
    pub path: Vec<u8>,
    /// The directory at the destination that its temporary file is in.
    pub directory: Vec<u8>,
    /// The name of the temporary file.
    pub temporary: Vec<u8>,
    /// The name of the map of written extents.
    pub map: Vec<u8>,
    /// Its state.
    pub seen: FileState,
    /// Extents that are not written.
    pub missing: PartSet,
}

/// Bytes of its map: one for each extent.
fn map_bytes(file: &LargeFile) -> u64 {
    u64::from(extents_of(file.seen.size, file.extent_bytes))
}

/// A large file that an earlier run began, or a new one.
pub struct Expected {
    /// It.
    pub file: LargeFile,
    /// Extents that are still to be written.
    pub missing: PartSet,
    /// Its directory and temporary file, where an earlier run made them.
    pub opened: Option<(Folder, OwnedFd)>,
}

impl Sink {
    /// Prepare for a large file that is to be copied: open what an earlier run wrote, as planned, or start from
    /// nothing.
    ///
    /// # Errors
    /// Where the system gives no random number.
    pub fn expect_large(
        &self,
        path: &[u8],
        seen: &FileState,
        extent_bytes: u64,
        planned: (PartSet, Resume),
        report: &Report,
    ) -> Result<Expected, Failure> {
        let (missing, resume) = planned;
        let file =
            |(id, key)| LargeFile { id, key, path: path.to_vec(), seen: *seen, extent_bytes };
        let partial = self.partial_files.lock().remove(path);
        if let Some(partial) = partial {
            let continued = file((partial.id, partial.key));
            let opened =
                (resume == Resume::Continue).then(|| self.reopen_large(&continued)).flatten();
            if let Some((folder, _)) = &opened {
                let mut missing = missing;
                if let Some(map) = self.open_map(&continued, folder) {
                    for extent in super::extent_map::written(map.as_fd(), End::Destination)?.iter()
                    {
                        missing.remove(extent);
                    }
                }
                let extents = u64::from(extents_of(seen.size, extent_bytes));
                let bytes = (extents - missing.len()).saturating_mul(extent_bytes);
                add(&report.tally.resumed_bytes, bytes.min(seen.size));
                return Ok(Expected { file: continued, missing, opened });
            }
            self.discard(&partial, report);
        }
        let missing = PartSet::below(extents_of(seen.size, extent_bytes));
        Ok(Expected { file: file(self.new_ids()?), missing, opened: None })
    }

    /// The temporary file that an earlier run left, if it is still what it was.
    fn reopen_large(&self, file: &LargeFile) -> Option<(Folder, OwnedFd)> {
        let folder = self.destination.find(self.place(&file.path).0).ok()??;
        let temporary = reopen(folder.fd(), &self.temporary_name(file), file.seen.size)?;
        Some((folder, temporary))
    }

    /// Make its temporary file.
    ///
    /// # Errors
    /// Those of open(2) and ftruncate(2), and where the journal cannot be written.
    pub fn create_large(
        &self,
        file: &LargeFile,
        report: &Report,
    ) -> Result<(Folder, OwnedFd), Failure> {
        let (directory, _) = self.place(&file.path);
        let folder = self.destination.make(directory, report)?;
        self.record(&Record::Begun {
            id: file.id,
            key: file.key,
            directory: directory.to_vec(),
            path: file.path.clone(),
            seen: file.seen.numbers(),
            extent_bytes: file.extent_bytes,
        })?;
        let temporary =
            create(folder.fd(), &self.temporary_name(file)).at(End::Destination, "make file")?;
        ftruncate(&temporary, file.seen.size).at(End::Destination, "set size")?;
        Ok((folder, temporary))
    }

    /// It is complete: give it its name.
    ///
    /// # Errors
    /// Those of rename(2), and where the journal cannot be written.
    pub fn name_large(&self, file: &LargeFile, folder: &Folder) -> Result<(), Failure> {
        let (_, name) = self.place(&file.path);
        if let Some(map) = self.open_map(file, folder) {
            // A process that its scheduler has lost may still write what this one has taken for written.
            super::extent_map::lock_alone(map.as_fd())?;
        }
        renameat(folder.fd(), &self.temporary_name(file)[..], folder.fd(), name)
            .at(End::Destination, "give name")?;
        self.remove_map(file, folder);
        self.record(&Record::Ended { id: file.id })
    }

    /// It will not be completed: remove its temporary file.
    pub fn abandon_large(&self, file: &LargeFile) {
        if let Ok(Some(folder)) = self.destination.find(self.place(&file.path).0) {
            // Where it was never made there is nothing to remove.
            let _ = unlinkat(folder.fd(), &self.temporary_name(file)[..], AtFlags::empty());
            self.remove_map(file, &folder);
            let _ = self.record(&Record::Ended { id: file.id });
        }
    }

    /// Leave its extents to other processes: make its temporary file, and the map of what they have written. It is
    /// completed by a later run, which finds both by the journal.
    ///
    /// # Errors
    /// Those of open(2) and ftruncate(2), and where the journal cannot be written.
    pub fn divide(&self, expected: Expected, report: &Report) -> Result<DividedFile, Failure> {
        let Expected { file, missing, opened } = expected;
        let (folder, _) = match opened {
            Some(opened) => opened,
            None => self.create_large(&file, report)?,
        };
        if self.open_map(&file, &folder).is_none() {
            self.remove_map(&file, &folder);
            let map = create(folder.fd(), &map_name(self.session, file.key));
            let map = map.at(End::Destination, "make file")?;
            ftruncate(&map, map_bytes(&file)).at(End::Destination, "set size")?;
        }
        Ok(DividedFile {
            directory: self.place(&file.path).0.to_vec(),
            temporary: self.temporary_name(&file),
            map: map_name(self.session, file.key),
            path: file.path,
            seen: file.seen,
            missing,
        })
    }

    /// The map of what other processes have written of it, where there is one.
    fn open_map(&self, file: &LargeFile, folder: &Folder) -> Option<OwnedFd> {
        reopen(folder.fd(), &map_name(self.session, file.key), map_bytes(file))
    }

    fn remove_map(&self, file: &LargeFile, folder: &Folder) {
        // Most have none.
        let _ = unlinkat(folder.fd(), &map_name(self.session, file.key)[..], AtFlags::empty());
    }

    fn temporary_name(&self, file: &LargeFile) -> Vec<u8> {
        large_name(self.session, file.key)
    }
}
