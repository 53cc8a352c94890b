//! What is neither file nor directory: symbolic links, devices, FIFOs, with their attributes.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::fs::{mknodat, openat, symlinkat, FileType, Mode, OFlags};
use rustix::io::Errno;

use super::destination::Folder;
use super::temporary::with_temporary_name;
use super::Sink;
use crate::attributes::{AttributePreserver, Xattr};
use crate::error::{At, End, Failure, Lost};
use crate::own_names::made;
use crate::stat::{letter, stat_fd, Metadata};

/// What is made.
#[derive(Debug, Clone, Copy)]
pub enum Special<'a> {
    /// A symbolic link with this target.
    Symlink(&'a [u8]),
    /// A FIFO (`p`), or a device (`b`, `c`) of this number.
    Node(u8, u64),
}

impl Special<'_> {
    fn letter(&self) -> u8 {
        match self {
            Self::Symlink(_) => b'l',
            Self::Node(letter, _) => *letter,
        }
    }
}

impl Sink {
    /// Make a symbolic link, device or FIFO with its attributes, in place of the file or link that has its name.
    ///
    /// # Errors
    /// Those of the calls that make it.
    pub fn make_special(
        &self,
        folder: &Folder,
        name: &[u8],
        what: Special<'_>,
        metadata: &Metadata,
        (preserver, xattrs): (&AttributePreserver, &[Xattr]),
    ) -> Result<Lost, Failure> {
        let folder = folder.fd();
        with_temporary_name(folder, self.session, name, |temporary| {
            make(folder, temporary, what)?;
            // Others may write in the directory: the attributes are those of the very inode that was made, even where
            // its name comes to mean another.
            let node = made(folder, temporary, what.letter()).map_err(taken)?;
            let has_mode = what.letter() != b'l';
            preserver.apply_special(xattrs, node.as_fd(), metadata, has_mode)
        })
    }

    /// Fix the attributes of a symbolic link, device or FIFO that is there.
    ///
    /// # Errors
    /// Those of the calls that read and set them.
    pub fn repair_special(
        folder: &Folder,
        name: &[u8],
        letter_of_type: u8,
        metadata: &Metadata,
        (preserver, xattrs): (&AttributePreserver, &[Xattr]),
    ) -> Result<Lost, Failure> {
        let node = open_path(folder.fd(), name).at(End::Destination, "open")?;
        let stat = stat_fd(node.as_fd()).at(End::Destination, "stat")?;
        if letter(stat.stx_mode) != letter_of_type {
            return Err(Failure::Clash("another entry has taken its name at the destination"));
        }
        preserver.repair_special(xattrs, node.as_fd(), metadata, letter_of_type != b'l')
    }
}

fn make(folder: BorrowedFd<'_>, name: &[u8], what: Special<'_>) -> Result<(), Failure> {
    let (letter, device) = match what {
        Special::Symlink(target) => {
            return symlinkat(target, folder, name).at(End::Destination, "make link")
        }
        Special::Node(letter, device) => (letter, device),
    };
    let kind = match letter {
        b'p' => FileType::Fifo,
        b'b' => FileType::BlockDevice,
        _ => FileType::CharacterDevice,
    };
    mknodat(folder, name, kind, Mode::from_raw_mode(0o600), device)
        .at(End::Destination, "make device or FIFO")
}

fn taken(errno: Errno) -> Failure {
    match errno {
        Errno::STALE | Errno::NOENT | Errno::LOOP => Failure::Clash(
            "another process took away what was made at the destination: keep others out of its directory",
        ),
        errno => Failure::Call { end: End::Destination, doing: "open", errno },
    }
}

/// Open an entry of any type itself, neither followed nor opened for reading.
///
/// # Errors
/// Those of open(2).
pub(crate) fn open_path(folder: BorrowedFd<'_>, name: &[u8]) -> Result<OwnedFd, Errno> {
    openat(folder, name, OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC, Mode::empty())
}
