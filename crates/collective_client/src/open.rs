//! How a file is opened.
//!
//! Arrives: the arguments of `ws_io_open`. Leaves: the message that opens it, or what is wrong with them.
//! Must not know: connections.

use waystage_collective_wire::local::ToNode;
use waystage_collective_wire::FileId;

use crate::error::{argument, Error, Result};

/// Bits of `enum ws_io_flags`.
pub mod flags {
    /// Only to be read.
    pub const RDONLY: u32 = 1;
    /// Only to be written.
    pub const WRONLY: u32 = 2;
    /// To be read and written.
    pub const RDWR: u32 = 4;
    /// Created where it is missing.
    pub const CREATE: u32 = 8;
    /// An error where it exists.
    pub const EXCL: u32 = 16;
    /// Deleted at the close.
    pub const DELETE_ON_CLOSE: u32 = 32;
}

/// How a file is opened; see `struct ws_io_open`.
#[derive(Clone, Debug, Default)]
pub struct Open {
    /// Absolute or relative path.
    pub path: Vec<u8>,
    /// Bits of [`flags`].
    pub flags: u32,
    /// Chosen by rank 0.
    pub id: [u8; 16],
    /// In the file's communicator.
    pub rank: u32,
    /// Ranks of the file.
    pub size: u32,
    /// Addresses of the nodes' processes.
    pub addresses: Vec<String>,
    /// Node of each rank.
    pub node_of: Vec<u32>,
    /// Keys and values.
    pub hints: Vec<(String, String)>,
}

impl Open {
    /// Whether the open is to create a file that does not exist yet.
    pub(crate) fn creates(&self) -> bool {
        use std::os::unix::ffi::OsStrExt;
        let path = std::path::Path::new(std::ffi::OsStr::from_bytes(&self.path));
        self.flags & flags::CREATE != 0 && path.symlink_metadata().is_err()
    }

    /// The message that opens it.
    ///
    /// # Errors
    /// `Code::Argument`.
    pub(crate) fn attach(&self) -> Result<ToNode> {
        let modes = [flags::RDONLY, flags::WRONLY, flags::RDWR];
        if modes.iter().filter(|mode| self.flags & **mode != 0).count() != 1 {
            return Err(argument("give one of WS_IO_RDONLY, WS_IO_WRONLY and WS_IO_RDWR"));
        }
        if self.flags & flags::RDONLY != 0 && self.flags & (flags::CREATE | flags::EXCL) != 0 {
            return Err(argument("a file that is only read cannot be created"));
        }
        if self.flags >= flags::DELETE_ON_CLOSE * 2 {
            return Err(argument(format!("unknown flags {:#x}", self.flags)));
        }
        if self.size == 0 || self.rank >= self.size || self.node_of.len() != self.size as usize {
            return Err(argument(format!("rank {} of {} ranks", self.rank, self.size)));
        }
        let nodes = self.addresses.len();
        if self.node_of.iter().any(|node| *node as usize >= nodes) {
            return Err(argument(format!("a rank's node is none of the {nodes}")));
        }
        if self.path.is_empty() || self.path.contains(&0) {
            return Err(argument("the file has no name"));
        }
        let own = self.node_of[self.rank as usize];
        let local = self.node_of.iter().filter(|node| **node == own).count();
        Ok(ToNode::Attach {
            file: FileId(self.id),
            path: absolute(&self.path)?,
            flags: self.flags,
            rank: self.rank,
            size: self.size,
            local_ranks: u32::try_from(local).unwrap_or(u32::MAX),
            node: own,
            root: self.node_of[0],
            addresses: self.addresses.clone(),
            hints: self.hints.clone(),
        })
    }
}

/// The process of the node has another working directory.
fn absolute(path: &[u8]) -> Result<Vec<u8>> {
    use std::os::unix::ffi::{OsStrExt, OsStringExt};
    let path = std::path::Path::new(std::ffi::OsStr::from_bytes(path));
    let absolute = std::path::absolute(path)
        .map_err(|error| Error::system("the working directory", &error))?;
    Ok(absolute.into_os_string().into_vec())
}
