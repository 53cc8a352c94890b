//! Symbolic links that a walk follows: what they lead to, and that none is followed for ever.
//!
//! Arrives: entries of directories, the directories above them. Leaves: the attributes of what a link leads to, or in
//! one sentence why it is not followed. Must not know: what is done with entries.
//!
//! A walk without end meets a directory again that it is in. So each directory knows those above it by device and
//! inode, also where a link led out of the tree and a plain directory leads back. Entries that a walk makes while it
//! runs, as a copy does, are found by the place where they are made.

use std::ffi::CStr;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use rustix::fs::{openat, readlinkat, FileType, Mode, OFlags, Statx};
use rustix::io::Errno;

use crate::batch::device;
use crate::root::Root;
use crate::stat::{stat_open, stat_target};

/// Why a directory is not walked that is on the way to itself.
const LOOP: &str =
    "leads back to a directory that it is in, by a symbolic link: following it would never end";

/// Why a directory is not opened that too many links lead to.
pub(super) const TOO_MANY: &str = "is behind more symbolic links than the system follows (40)";

const INTO: &str =
    "leads by a symbolic link into the destination: the copy would copy what it makes";

/// That symbolic links are followed.
#[derive(Debug, Clone, Copy, Default)]
pub struct Follow {
    /// Device and inode of a directory into which none may lead: what the walk finds is put there.
    pub avoid: Option<(u64, u64)>,
}

/// A directory and those above it.
#[derive(Debug)]
pub(super) struct Way {
    identity: (u64, u64),
    above: Option<Arc<Self>>,
    /// Whether a walk begins at what is below it.
    begins: bool,
}

/// One after the other, as a way may be longer than a stack is deep.
impl Drop for Way {
    fn drop(&mut self) {
        let mut above = self.above.take();
        while let Some(way) = above {
            above = Arc::into_inner(way).and_then(|mut way| way.above.take());
        }
    }
}

fn identity(stat: &Statx) -> (u64, u64) {
    (device(stat), stat.stx_ino)
}

impl Way {
    /// To this directory.
    pub(super) fn of(stat: &Statx, above: Option<Arc<Self>>) -> Arc<Self> {
        Arc::new(Self { identity: identity(stat), above, begins: false })
    }

    /// The directories above `path`, as far as they can be opened: who walks it says what is wrong.
    pub(super) fn above(root: &Root, path: &[u8]) -> Option<Arc<Self>> {
        if path.is_empty() {
            return None;
        }
        let slashes = path.iter().enumerate().filter(|(_, byte)| **byte == b'/');
        let above = std::iter::once(0).chain(slashes.map(|(at, _)| at));
        above.fold(None, |way, end| {
            match root.place(&path[..end]).and_then(|folder| stat_open(&folder)) {
                Ok(stat) => {
                    Some(Arc::new(Self { identity: identity(&stat), above: way, begins: true }))
                }
                Err(_) => way,
            }
        })
    }

    /// Whether this directory is on it.
    pub(super) fn has(&self, stat: &Statx) -> bool {
        let (wanted, mut at) = (identity(stat), Some(self));
        while let Some(way) = at {
            if way.identity == wanted {
                return true;
            }
            at = way.above.as_deref();
        }
        false
    }
}

impl Follow {
    /// Why a directory below these is not walked: links may lead elsewhere than when it was found.
    pub(super) fn refuses(
        &self,
        folder: &OwnedFd,
        stat: &Statx,
        above: Option<&Arc<Way>>,
    ) -> Option<&'static str> {
        let above = above?;
        if above.has(stat) {
            return Some(LOOP);
        }
        let enters =
            self.avoid == Some(identity(stat)) || above.begins && self.is_entered(folder, c".");
        enters.then_some(INTO)
    }

    fn is_entered(&self, folder: &OwnedFd, name: &CStr) -> bool {
        self.avoid.is_some_and(|avoid| is_below(folder, name, avoid).unwrap_or(false))
    }

    /// The attributes of an entry of a directory, of a symbolic link those of what it leads to with the link's text;
    /// why it is left out otherwise.
    pub(super) fn target(
        &self,
        (folder, way): (&OwnedFd, Option<&Arc<Way>>),
        name: &CStr,
        found: Statx,
    ) -> Result<(Statx, Vec<u8>), String> {
        let is = |stat: &Statx, kind| FileType::from_raw_mode(u32::from(stat.stx_mode)) == kind;
        let (mut stat, mut text) = (found, Vec::new());
        if is(&found, FileType::Symlink) {
            let read = readlinkat(folder, name, Vec::new());
            text = read.map_or_else(|_| b"?".to_vec(), std::ffi::CString::into_bytes);
            stat = stat_target(folder, name).map_err(|errno| unfollowed(&text, errno))?;
        }
        if is(&stat, FileType::Directory) {
            if way.is_some_and(|way| way.has(&stat)) {
                return Err(LOOP.to_owned());
            }
            if self.avoid == Some(identity(&stat))
                || !text.is_empty() && self.is_entered(folder, name)
            {
                return Err(INTO.to_owned());
            }
        }
        Ok((stat, text))
    }
}

/// Whether a directory is another one or below it.
fn is_below(folder: &OwnedFd, name: &CStr, above: (u64, u64)) -> Result<bool, Errno> {
    let how = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let mut at = openat(folder, name, how, Mode::empty())?;
    let mut here = identity(&stat_open(at.as_fd())?);
    while here != above {
        at = openat(&at, c"..", how, Mode::empty())?;
        let next = identity(&stat_open(at.as_fd())?);
        if next == here {
            return Ok(false);
        }
        here = next;
    }
    Ok(true)
}

/// Why a link to `target` is not followed.
#[must_use]
pub fn unfollowed(target: &[u8], errno: Errno) -> String {
    let target = String::from_utf8_lossy(target);
    let why = match errno {
        Errno::NOENT | Errno::NOTDIR => "which does not exist".to_owned(),
        Errno::LOOP => "one of symbolic links that lead to each other".to_owned(),
        errno => format!("which cannot be read: {}", std::io::Error::from(errno)),
    };
    format!("is a symbolic link to {target:?}, {why}")
}
