//! Asks the file system for a file's layout: the only place here that makes system calls.
//!
//! Which question to ask is found out once for each device, by the magic number of its file system.
//! A file system that runs in user space does not say what it is: there the questions are tried, and
//! what answered is kept. On a local file system no further question is needed: `fstat` is all.

use std::collections::HashMap;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::RwLock;

use rustix::fs::{fgetxattr, fstat, fstatfs, major, minor, FileType};
use rustix::io::Errno;

use super::{beegfs, ceph, gluster, local, lustre, Layout, LayoutError};

/// Questions without an answer after which a file system in user space is taken to have no layouts.
const MISSES: u8 = 8;

/// The longest value of an attribute that Linux hands out (`XATTR_SIZE_MAX`).
const LONGEST: usize = 64 << 10;

/// Enough for a Lustre layout of 160 objects, so that most files need no second call.
const USUAL: usize = 4 << 10;

/// Reads layouts; remembers of each device how. One serves all threads.
#[derive(Debug, Default)]
pub struct Reader {
    known: RwLock<HashMap<u64, How>>,
}

/// How a device's layouts are asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum How {
    /// Its device is the target.
    Local,
    Lustre,
    Ceph,
    BeeGfs,
    /// By the attribute of this name: the second is for users without privileges.
    Gluster(&'static str),
    /// In user space; so many questions went unanswered.
    Untold(u8),
    /// It has no layouts that anyone could read.
    Without,
}

const GLUSTER: [&str; 2] = ["trusted.glusterfs.pathinfo", "glusterfs.pathinfo"];

impl How {
    /// By the magic number of `statfs(2)`; numbers from linux/magic.h and the file systems' own headers.
    fn of_magic(magic: u64) -> Self {
        match magic {
            0x0BD0_0BD0 => Self::Lustre,
            0x00C3_6400 => Self::Ceph,
            0x1983_0326 => Self::BeeGfs,
            // FUSE: GlusterFS, Gfarm, emulations, and any other.
            0x6573_5546 => Self::Untold(0),
            // NFS, SMB (two), GPFS, AFS, 9P, Coda: the server keeps its layout for itself.
            0x6969 | 0xFF53_4D42 | 0xFE53_4D42 | 0x4750_4653 | 0x5346_414F | 0x0102_1997
            | 0x7375_7245 => Self::Without,
            _ => Self::Local,
        }
    }
}

impl Reader {
    /// A reader that knows no device yet.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// The layout of an open file or directory; None where its file system tells none, as of what is
    /// neither file nor directory, or of a file that has no object yet.
    ///
    /// # Errors
    /// Where the file system refuses to answer, or answers what cannot be understood.
    pub fn layout_of(&self, fd: impl AsFd) -> Result<Option<Layout>, LayoutError> {
        let fd = fd.as_fd();
        let stat = fstat(fd).map_err(|error| LayoutError::io("fstat", error))?;
        let directory = match FileType::from_raw_mode(stat.st_mode) {
            FileType::RegularFile => false,
            FileType::Directory => true,
            _ => return Ok(None),
        };
        let device = stat.st_dev;
        match self.how(device, fd)? {
            How::Local if directory => Ok(None),
            How::Local => Ok(Some(local::layout(major(device), minor(device)))),
            How::Without => Ok(None),
            How::Lustre => lustre_layout(fd),
            How::Ceph => {
                let name = if directory { "ceph.dir.layout" } else { "ceph.file.layout" };
                let made = attribute(fd, name, ceph::parse)?;
                Ok(if directory { made.map(Layout::into_template) } else { made })
            }
            How::BeeGfs if directory => Ok(None),
            How::BeeGfs => beegfs_layout(fd),
            How::Gluster(name) => gluster_layout(fd, name),
            How::Untold(misses) => self.find_out(device, misses, fd),
        }
    }

    /// Whether the files of this device are known to have no layouts that anyone could read.
    #[must_use]
    pub fn has_none(&self, device: u64) -> bool {
        self.known.read().is_ok_and(|known| known.get(&device) == Some(&How::Without))
    }

    fn how(&self, device: u64, fd: BorrowedFd<'_>) -> Result<How, LayoutError> {
        let known = self.known.read().map(|known| known.get(&device).copied());
        if let Ok(Some(how)) = known {
            return Ok(how);
        }
        let statfs = fstatfs(fd).map_err(|error| LayoutError::io("fstatfs", error))?;
        // The kernel's word is signed on some machines; magic numbers are of 32 bits.
        #[allow(clippy::cast_sign_loss)]
        let how = How::of_magic(statfs.f_type as u64 & 0xFFFF_FFFF);
        self.remember(device, how);
        Ok(how)
    }

    fn remember(&self, device: u64, how: How) {
        if let Ok(mut known) = self.known.write() {
            known.insert(device, how);
        }
    }

    /// Ask a file system in user space every question, and keep the one that it answers.
    fn find_out(
        &self,
        device: u64,
        misses: u8,
        fd: BorrowedFd<'_>,
    ) -> Result<Option<Layout>, LayoutError> {
        if let Some(layout) = lustre_layout(fd)? {
            self.remember(device, How::Lustre);
            return Ok(Some(layout));
        }
        for name in GLUSTER {
            if let Some(layout) = gluster_layout(fd, name)? {
                self.remember(device, How::Gluster(name));
                return Ok(Some(layout));
            }
        }
        let misses = misses + 1;
        self.remember(device, if misses < MISSES { How::Untold(misses) } else { How::Without });
        Ok(None)
    }
}

fn lustre_layout(fd: BorrowedFd<'_>) -> Result<Option<Layout>, LayoutError> {
    attribute(fd, "lustre.lov", lustre::parse)
}

/// Of a sharded file the place of its first block, unless the mount tells more.
fn gluster_layout(fd: BorrowedFd<'_>, name: &str) -> Result<Option<Layout>, LayoutError> {
    let Some(text) = bytes_of(fd, name)? else { return Ok(None) };
    let block_size = attribute(fd, "trusted.glusterfs.shard.block-size", |bytes| {
        let number = bytes.first_chunk().map(|number| u64::from_be_bytes(*number));
        number.ok_or_else(|| LayoutError::truncated("shard.block-size: fewer than 8 bytes"))
    })?;
    match block_size {
        Some(block_size) => shards::layout(fd, name, &text, block_size).map(Some),
        None => gluster::parse(&text).map(Some),
    }
}

/// What an attribute says; None where the file or the file system has none of this name.
fn bytes_of(fd: BorrowedFd<'_>, name: &str) -> Result<Option<Vec<u8>>, LayoutError> {
    attribute(fd, name, |bytes| Ok(bytes.to_vec()))
}

/// The same, parsed where it is read, without a copy.
fn attribute<T>(
    fd: BorrowedFd<'_>,
    name: &str,
    parse: impl Fn(&[u8]) -> Result<T, LayoutError>,
) -> Result<Option<T>, LayoutError> {
    let mut usual = [0; USUAL];
    let mut longest = Vec::new();
    let answer = match fgetxattr(fd, name, &mut usual[..]) {
        Err(Errno::RANGE) => {
            longest.resize(LONGEST, 0);
            fgetxattr(fd, name, &mut longest[..])
        }
        answer => answer,
    };
    match answer {
        Ok(length) if longest.is_empty() => parse(&usual[..length]).map(Some),
        Ok(length) => parse(&longest[..length]).map(Some),
        // A user without privileges is told of a trusted attribute that it is not there, or EPERM.
        Err(Errno::NODATA | Errno::OPNOTSUPP | Errno::NOSYS | Errno::PERM | Errno::INVAL) => {
            Ok(None)
        }
        Err(error) => Err(LayoutError::io(name, io::Error::from(error))),
    }
}

fn beegfs_layout(fd: BorrowedFd<'_>) -> Result<Option<Layout>, LayoutError> {
    match beegfs_answers(fd) {
        Ok(answers) => beegfs::parse(&answers).map(Some),
        Err(Errno::NOTTY | Errno::OPNOTSUPP) => Ok(None),
        Err(error) => Err(LayoutError::io("BeeGFS stripe info", io::Error::from(error))),
    }
}

/// The answers that [`beegfs::parse`] takes, from an open file.
fn beegfs_answers(fd: BorrowedFd<'_>) -> Result<Vec<u8>, Errno> {
    use rustix::ioctl::{ioctl, Updater};

    let mut info = [0_u8; beegfs::INFO_BYTES];
    // SAFETY: the request writes as many bytes as its number says, 12, and `info` has them.
    #[allow(unsafe_code)]
    unsafe {
        ioctl(fd, Updater::<{ beegfs::GET_STRIPE_INFO }, _>::new(&mut info))?;
    }
    let mut answers = info.to_vec();
    for index in 0..beegfs::target_count(&info).map_err(|_| Errno::IO)? {
        let mut target = [0_u8; beegfs::TARGET_BYTES];
        target[..2].copy_from_slice(&index.to_ne_bytes());
        // SAFETY: as above, with 262 bytes, the first two of which it reads.
        #[allow(unsafe_code)]
        unsafe {
            ioctl(fd, Updater::<{ beegfs::GET_STRIPE_TARGET }, _>::new(&mut target))?;
        }
        answers.extend(target);
    }
    Ok(answers)
}

mod shards;
#[cfg(test)]
mod tests;
