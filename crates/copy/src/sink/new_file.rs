//! A file in one piece: made without its name, which it gets with its contents and attributes complete.

use std::os::fd::BorrowedFd;

use rustix::fs::{fdatasync, fsync};

use super::destination::Folder;
use super::temporary::TemporaryFile;
use super::Sink;
use crate::attributes::Attributes;
use crate::error::{join_lost, At, End, Failure, Lost};
use crate::options::Fsync;
use crate::stat::Metadata;

/// A file that is being written.
pub struct NewFile<'a> {
    sink: &'a Sink,
    temporary: TemporaryFile<'a>,
    mode_is_final: bool,
}

impl Sink {
    /// Begin a file in this directory. `readable` where its contents are read back.
    ///
    /// # Errors
    /// Those of open(2).
    pub fn new_file<'a>(
        &'a self,
        folder: &'a Folder,
        metadata: &Metadata,
        readable: bool,
    ) -> Result<NewFile<'a>, Failure> {
        let (mode, mode_is_final) = self.preserver.first_mode(metadata, folder.plain);
        let temporary = TemporaryFile::begin(folder.fd(), self.session, mode, readable)
            .at(End::Destination, "make file")?;
        let mode_is_final = mode_is_final && temporary.has_mode();
        Ok(NewFile { sink: self, temporary, mode_is_final })
    }

    /// Attributes and times onto the open file of a complete large file, and its data to storage where each file is
    /// forced there.
    ///
    /// # Errors
    /// Those of the calls that set them.
    pub fn complete(
        &self,
        file: BorrowedFd<'_>,
        attributes: &Attributes<'_>,
        metadata: &Metadata,
        mode_is_final: bool,
    ) -> Result<Lost, Failure> {
        let lost = self.preserver.apply(attributes, file, metadata, mode_is_final)?;
        let lost = join_lost(lost, self.preserver.times(file, metadata)?);
        if self.fsync == Fsync::Each {
            fdatasync(file).at(End::Destination, "sync")?;
        }
        Ok(lost)
    }

    /// Names are as durable as the directory they are in.
    ///
    /// # Errors
    /// Those of fsync(2).
    pub fn sync_names(&self, folder: &Folder) -> Result<(), Failure> {
        if self.fsync == Fsync::Each {
            fsync(folder.fd()).at(End::Destination, "sync directory")?;
        }
        Ok(())
    }
}

impl NewFile<'_> {
    /// It, open for writing.
    #[must_use]
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.temporary.fd()
    }

    /// Its contents are complete: set its attributes and give it its name, in place of the file that has it.
    ///
    /// # Errors
    /// Those of the calls that do so.
    pub fn finish(
        self,
        name: &[u8],
        attributes: &Attributes<'_>,
        metadata: &Metadata,
    ) -> Result<Lost, Failure> {
        let file = self.temporary.fd();
        let lost = self.sink.complete(file, attributes, metadata, self.mode_is_final)?;
        self.temporary.keep(name).at(End::Destination, "give name")?;
        Ok(lost)
    }
}
