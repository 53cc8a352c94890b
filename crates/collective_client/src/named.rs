//! A version of a coupled name as a file that a rank sees through a view.
//!
//! Arrives: data of a rank and their places. Leaves: bytes of the version, bytes moved. Must not know: MPI.
#![allow(unsafe_code)]

use std::path::{Path, PathBuf};

use waystage_collective::{Datatype, View};
use waystage_coupling::client::Coupling;

use crate::error::{argument, Result};
use crate::memory::{Data, Piece, Transfer};
use crate::stored::Stored;

/// The view of an open version.
pub(crate) struct Named {
    view: View,
    /// Where versions are stored as they pass.
    store: Option<Stored>,
}

impl Named {
    /// A stream of bytes; versions are stored in a folder.
    pub(crate) fn new(store: Option<(&Path, &str)>) -> Result<Self> {
        let view = View::stream(0).map_err(|error| argument(error.to_string()))?;
        let store = store.map(|(folder, name)| Stored::new(PathBuf::from(folder), name));
        Ok(Self { view, store })
    }

    /// Sets the view.
    pub(crate) fn set_view(
        &mut self,
        displacement: i64,
        etype: i64,
        filetype: Option<&Datatype>,
    ) -> Result<()> {
        let view = match filetype {
            None => View::stream(displacement),
            Some(filetype) => View::new(displacement, etype, filetype.clone()),
        };
        self.view = view.map_err(|error| argument(error.to_string()))?;
        Ok(())
    }

    fn range(&self, offset: i64, data: &Data) -> Result<std::ops::Range<u64>> {
        let start = u64::try_from(offset)
            .map_err(|_| argument(format!("the offset is {offset}; it must not be negative")))?;
        let end =
            start.checked_add(data.bytes()).ok_or_else(|| argument("an offset above 2^64"))?;
        Ok(start..end)
    }

    /// Writes data at an offset of the view; bytes written.
    pub(crate) fn write(&self, coupling: &mut Coupling, offset: i64, data: &Data) -> Result<u64> {
        let range = self.range(offset, data)?;
        let hull = self.view.hull(&range).map_err(|error| argument(error.to_string()))?;
        let Some(hull) = hull else { return Ok(0) };
        let mut result = Ok(());
        self.pieces(range, data, |piece| {
            // SAFETY: the caller of `Data::new` vouches for the address.
            let bytes = unsafe {
                std::slice::from_raw_parts(piece.address as *const u8, piece.bytes as usize)
            };
            result = coupling.write_at(piece.offset, bytes, hull.end);
            result.is_ok()
        });
        result.and_then(|()| coupling.settle())?;
        Ok(data.bytes())
    }

    /// Reads data at an offset of the view; bytes read, fewer where the file ends.
    pub(crate) fn read(&self, coupling: &mut Coupling, offset: i64, data: &Data) -> Result<u64> {
        let range = self.range(offset, data)?;
        self.view.hull(&range).map_err(|error| argument(error.to_string()))?;
        let mut result = Ok(0);
        let mut moved = 0;
        self.pieces(range, data, |piece| {
            // SAFETY: as in `write`, and for no other use of these bytes.
            let to = unsafe {
                std::slice::from_raw_parts_mut(piece.address as *mut u8, piece.bytes as usize)
            };
            result = coupling.read_at(piece.offset, to);
            let read = result.as_ref().map_or(0, |read| *read as u64);
            moved += read;
            read == piece.bytes
        });
        result?;
        Ok(moved)
    }

    fn pieces(&self, range: std::ops::Range<u64>, data: &Data, each: impl FnMut(Piece) -> bool) {
        let transfer = Transfer { view: &self.view, range: range.clone(), data };
        transfer.pieces(range, each);
    }

    /// Offset in the file of the byte of the view at `offset`.
    pub(crate) fn position(&self, offset: u64) -> Result<u64> {
        self.view.position(offset).ok_or_else(|| argument("an offset beyond the view"))
    }

    /// Bytes of the view before the end of the file.
    pub(crate) fn end(&self, coupling: &mut Coupling) -> Result<u64> {
        Ok(self.view.below(coupling.file_bytes()?))
    }

    /// Commits the version of a writer, and stores it where it is stored. All writers have ended their writes.
    pub(crate) fn commit(&self, coupling: &mut Coupling, keep: bool) -> Result<()> {
        let Some(version) = coupling.open_version() else {
            return Err(argument("no version is open as a file"));
        };
        let mut bytes = 0;
        if let Some(store) = &self.store {
            let part = store.part(version)?;
            bytes = coupling.own_bytes(|offset, bytes| part.write(offset, bytes))?;
            part.sync()?;
        }
        let complete = coupling.commit_file(keep)?;
        match &self.store {
            Some(store) if complete => store.finish(version, bytes),
            _ => Ok(()),
        }
    }
}
