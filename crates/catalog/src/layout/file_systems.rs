//! The registry of layout readers, and which of them serves a device.
//!
//! The magic number of statfs(2) names the file system, once for each device. FUSE hides it: there the readers that
//! are mounted through FUSE are tried in turn, and the one that answers is kept.

use std::collections::HashMap;
use std::os::fd::{AsFd, BorrowedFd};

use rustix::fs::{fstatfs, FileType};
use waystage_sync::RwLock;

use super::reader::{LayoutReader, OpenFile};
use super::{beegfs, ceph, gfarm, gluster, local, lustre, Layout, LayoutError};
use crate::stat::stat_known;

/// Every kind of file system. Catalogs number layouts by this order: append, never reorder.
pub static READERS: [&dyn LayoutReader; 6] = [
    &lustre::Reader,
    &ceph::Reader,
    &gluster::Reader,
    &gfarm::Reader,
    &beegfs::Reader,
    &local::Reader,
];

/// Files without an answer after which a FUSE file system is taken to have no layouts.
const MISSES: u8 = 8;

/// FUSE (linux/magic.h).
const FUSE: u64 = 0x6573_5546;

/// NFS, SMB (two), GPFS, AFS, 9P, Coda: the server does not disclose its layout (linux/magic.h).
const WITHOUT: [u64; 7] =
    [0x6969, 0xFF53_4D42, 0xFE53_4D42, 0x4750_4653, 0x5346_414F, 0x0102_1997, 0x7375_7245];

/// The reader of this name.
#[must_use]
pub fn reader_named(name: &str) -> Option<&'static dyn LayoutReader> {
    READERS.into_iter().find(|reader| reader.name() == name)
}

/// The reader of this number in a catalog; None for -1, which means no layout.
#[must_use]
pub fn reader_at(index: i8) -> Option<&'static dyn LayoutReader> {
    READERS.get(usize::try_from(index).ok()?).copied()
}

/// The number that a catalog gives to the layouts of the reader of this name; -1 where there is none.
#[must_use]
pub fn reader_index(name: &str) -> i8 {
    let index = READERS.iter().position(|reader| reader.name() == name);
    index.and_then(|index| i8::try_from(index).ok()).unwrap_or(-1)
}

/// How a device's layouts are read.
#[derive(Clone, Copy)]
pub(crate) enum Served {
    /// By this reader.
    By(&'static dyn LayoutReader),
    /// A FUSE file system that has not answered yet, after this number of files.
    Unknown(u8),
    /// It has no layouts that a client can read.
    Without,
}

impl std::fmt::Debug for Served {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::By(reader) => write!(f, "By({})", reader.name()),
            Self::Unknown(misses) => write!(f, "Unknown({misses})"),
            Self::Without => f.write_str("Without"),
        }
    }
}

impl Served {
    fn of_magic(magic: u64) -> Self {
        if magic == FUSE {
            return Self::Unknown(0);
        }
        if WITHOUT.contains(&magic) {
            return Self::Without;
        }
        let known = READERS.into_iter().find(|reader| reader.magic_numbers().contains(&magic));
        Self::By(known.unwrap_or(&local::Reader))
    }
}

/// Reads layouts, and remembers which reader serves a device. All threads may share one.
#[derive(Debug, Default)]
pub struct FileSystems {
    devices: RwLock<HashMap<u64, Served>>,
}

impl FileSystems {
    /// With no device known yet.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// The layout of an open file or directory; None where its file system discloses none, for anything that is
    /// neither a file nor a directory, and for a file that has no object yet.
    ///
    /// # Errors
    /// Where the file system fails, or its answer is not a layout.
    pub fn layout_of(&self, fd: impl AsFd) -> Result<Option<Layout>, LayoutError> {
        let fd = fd.as_fd();
        // Neither the type nor the device changes: no server is asked.
        let stat = stat_known(fd).map_err(|error| LayoutError::io("statx", error))?;
        let device = rustix::fs::makedev(stat.stx_dev_major, stat.stx_dev_minor);
        let directory = match FileType::from_raw_mode(stat.stx_mode.into()) {
            FileType::RegularFile => false,
            FileType::Directory => true,
            _ => return Ok(None),
        };
        let file = OpenFile { fd, device, directory };
        match self.serving(device, fd)? {
            Served::By(reader) => reader.read(&file),
            Served::Unknown(misses) => self.find_out(misses, &file),
            Served::Without => Ok(None),
        }
    }

    /// How the files of this device are read, where that has been settled.
    pub(crate) fn known(&self, device: u64) -> Option<Served> {
        let known = self.devices.read().get(&device).copied()?;
        (!matches!(known, Served::Unknown(_))).then_some(known)
    }

    fn serving(&self, device: u64, fd: BorrowedFd<'_>) -> Result<Served, LayoutError> {
        let known = self.devices.read().get(&device).copied();
        if let Some(served) = known {
            return Ok(served);
        }
        let statfs = fstatfs(fd).map_err(|error| LayoutError::io("fstatfs", error))?;
        // The kernel's word is signed on some machines; magic numbers have 32 bits.
        #[allow(clippy::cast_sign_loss)]
        let served = Served::of_magic(statfs.f_type as u64 & 0xFFFF_FFFF);
        self.remember(device, served);
        Ok(served)
    }

    fn remember(&self, device: u64, served: Served) {
        self.devices.write().insert(device, served);
    }

    fn find_out(&self, misses: u8, file: &OpenFile<'_>) -> Result<Option<Layout>, LayoutError> {
        for reader in READERS.into_iter().filter(|reader| reader.tried_on_fuse()) {
            if let Some(layout) = reader.read(file)? {
                self.remember(file.device, Served::By(reader));
                return Ok(Some(layout));
            }
        }
        let misses = misses + 1;
        let served = if misses < MISSES { Served::Unknown(misses) } else { Served::Without };
        self.remember(file.device, served);
        Ok(None)
    }
}

#[cfg(test)]
mod tests;
