//! The content of the file system: one interface to generated files or a real folder.
//!
//! Arrives: inode numbers and names, bytes to write.
//! Leaves: attributes, entries, bytes, the striping of files.
//! Must not know: servers, time, FUSE's messages.

mod folder;
mod generated;
mod inodes;

use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};

use fuser::{Errno, FileAttr, FileType};

pub use folder::Folder;
pub use generated::{Generated, Made};

use crate::layout::{Striping, Template};

/// The inode number of the top, as FUSE has it.
pub const ROOT: u64 = 1;

/// An entry of a directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Item {
    /// Its inode number.
    pub ino: u64,
    /// What it is.
    pub kind: FileType,
    /// Its name.
    pub name: OsString,
}

/// What is to be made by [`Tree::make`].
#[derive(Clone, Copy, Debug)]
pub enum Making<'a> {
    /// A regular file, FIFO, socket or device: its mode with its type, and its device number.
    Node(u32, u32),
    /// A directory with this mode.
    Directory(u32),
    /// A symbolic link to this.
    Symlink(&'a Path),
    /// Another name of this inode.
    Link(u64),
}

/// Attributes that are to change.
#[derive(Clone, Copy, Debug, Default)]
pub struct Changes {
    /// Permissions.
    pub mode: Option<u32>,
    /// Owner.
    pub uid: Option<u32>,
    /// Group.
    pub gid: Option<u32>,
    /// Length of the file.
    pub size: Option<u64>,
    /// Last access.
    pub atime: Option<fuser::TimeOrNow>,
    /// Last change of the content.
    pub mtime: Option<fuser::TimeOrNow>,
}

/// Files and directories by inode number. What is not answered by default cannot be changed.
#[allow(missing_docs, reason = "they are the system calls of the same names")]
pub trait Tree: Send + Sync + 'static {
    fn lookup(&self, parent: u64, name: &OsStr) -> Result<FileAttr, Errno>;
    fn attributes(&self, ino: u64) -> Result<FileAttr, Errno>;
    /// All entries but `.` and `..`, in the order in which they are given out.
    fn entries(&self, ino: u64) -> Result<Vec<Item>, Errno>;
    /// Gives the bytes to `give`, once: fewer than asked for at the end of the file.
    fn read(
        &self,
        ino: u64,
        handle: u64,
        offset: u64,
        length: usize,
        give: &mut dyn FnMut(&[u8]),
    ) -> Result<(), Errno>;
    /// The striping of a file.
    fn striping(&self, ino: u64) -> Result<Striping, Errno>;
    /// How new files of a directory are striped.
    fn template(&self, ino: u64) -> Result<Template, Errno>;
    /// What decides which metadata server knows this inode: the number of its directory.
    fn directory_of(&self, ino: u64) -> u64;
    /// A number for reading and writing this file until [`Tree::close`].
    fn open(&self, _ino: u64, write: bool) -> Result<u64, Errno> {
        if write {
            Err(Errno::EROFS)
        } else {
            Ok(0)
        }
    }
    fn close(&self, _handle: u64) {}
    /// The kernel no longer knows this inode.
    fn forget(&self, _ino: u64, _lookups: u64) {}

    fn set_template(&self, _ino: u64, _template: &Template) -> Result<(), Errno> {
        Err(Errno::EROFS)
    }
    fn make(&self, _parent: u64, _name: &OsStr, _what: Making<'_>) -> Result<FileAttr, Errno> {
        Err(Errno::EROFS)
    }
    fn write(&self, _handle: u64, _offset: u64, _data: &[u8]) -> Result<(), Errno> {
        Err(Errno::EROFS)
    }
    fn change(&self, _ino: u64, _changes: &Changes) -> Result<FileAttr, Errno> {
        Err(Errno::EROFS)
    }
    fn remove(&self, _parent: u64, _name: &OsStr, _directory: bool) -> Result<(), Errno> {
        Err(Errno::EROFS)
    }
    fn rename(
        &self,
        _parent: u64,
        _name: &OsStr,
        _new_parent: u64,
        _new_name: &OsStr,
        _flags: u32,
    ) -> Result<(), Errno> {
        Err(Errno::EROFS)
    }
    fn sync(&self, _handle: u64) -> Result<(), Errno> {
        Ok(())
    }
    fn read_link(&self, _ino: u64) -> Result<PathBuf, Errno> {
        Err(Errno::EINVAL)
    }
    fn attribute(&self, _ino: u64, _name: &OsStr) -> Result<Vec<u8>, Errno> {
        Err(Errno::NO_XATTR)
    }
    /// Names of extended attributes but `lustre.lov`, each ended by a zero.
    fn attribute_names(&self, _ino: u64) -> Result<Vec<u8>, Errno> {
        Ok(Vec::new())
    }
    fn set_attribute(
        &self,
        _ino: u64,
        _name: &OsStr,
        _value: &[u8],
        _flags: i32,
    ) -> Result<(), Errno> {
        Err(Errno::EROFS)
    }
    fn remove_attribute(&self, _ino: u64, _name: &OsStr) -> Result<(), Errno> {
        Err(Errno::EROFS)
    }
}
