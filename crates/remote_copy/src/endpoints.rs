//! Paths made descriptors: where a copy is from, and where it goes.
//!
//! Arrives: a path, and who opens directories: a server's root that nothing leads out of, or this machine's own file
//! system. Leaves: what is copied, held open. Must not know: users, connections.

use std::ffi::OsStr;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use crate::error::WanError;
use rustix::fs::{mkdirat, openat, Mode, OFlags, CWD};
use rustix::io::Errno;
use waystage_catalog::Root;
use waystage_copy::error::describe;
use waystage_copy::source::{Item, Source};
use waystage_copy::stat::{letter, split, stat_at};
use waystage_copy::CopyError;

use crate::send::Origin;
use crate::session::Dry;

/// Opens the directory at a path.
pub(crate) type Open<'a> = dyn Fn(&[u8]) -> Result<OwnedFd, Errno> + 'a;

/// A destination, held open.
pub(crate) struct OpenDestination {
    pub(crate) root: PathBuf,
    pub(crate) held: OwnedFd,
    pub(crate) rename: Option<Vec<u8>>,
}

/// Directories of this machine, through symbolic links too: its user named them.
pub(crate) fn of_this_machine(path: &[u8]) -> Result<OwnedFd, Errno> {
    let path = if path.is_empty() { &b"."[..] } else { path };
    openat(CWD, path, OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())
}

/// A name of an open directory that cannot come to mean another one.
pub(crate) fn name_of(fd: &OwnedFd) -> PathBuf {
    PathBuf::from(format!("/proc/self/fd/{}", fd.as_raw_fd()))
}

fn refused(shown: &Path, errno: Errno, doing: &str) -> WanError {
    let shown = shown.display();
    let text = match errno {
        Errno::LOOP | Errno::XDEV => {
            format!("{shown} is or leads through a symbolic link, which is not followed here: name where it leads")
        }
        Errno::NOENT => format!("{shown} cannot be {doing}: it is not there"),
        errno => format!("{shown} cannot be {doing}: {}", describe(errno)),
    };
    CopyError::Ends(text).into()
}

fn ends(text: String) -> WanError {
    CopyError::Ends(text).into()
}

/// What is copied from `path`: a directory, or a file in its directory. With `follows`, through symbolic links below
/// it: only for this machine's user.
pub(crate) fn origin(
    open: &Open<'_>,
    path: &[u8],
    shown: &Path,
    follows: bool,
) -> Result<Origin, WanError> {
    let (parent, name) = split(path);
    let unreadable = |errno: Errno| refused(shown, errno, "read");
    let whole = |fd: OwnedFd, single: Option<Item>| {
        let walk = name_of(&fd);
        let root = if follows { Root::following(&walk) } else { Root::open(&walk) };
        let root =
            root.map_err(|error| ends(format!("{} cannot be read: {error}", shown.display())))?;
        let source = Source { root, path: walk, single };
        Ok(Origin { source, _held: fd, flat: false })
    };
    if matches!(name, b"" | b"." | b"..") {
        return whole(open(path).map_err(unreadable)?, None);
    }
    let folder = open(if parent.is_empty() && path.starts_with(b"/") { b"/" } else { parent })
        .map_err(unreadable)?;
    let stat = stat_at(folder.as_fd(), name).map_err(unreadable)?;
    match letter(stat.stx_mode) {
        b'd' => whole(open(path).map_err(unreadable)?, None),
        b'f' => whole(folder, Some(Item::file(&stat, b"", name))),
        b'l' => Err(unreadable(Errno::LOOP)),
        _ => Err(ends(format!(
            "{} is neither a directory nor a regular file: name the directory it is in",
            shown.display()
        ))),
    }
}

/// Where a tree, or the file called `single`, goes: `path`, made if it is a directory that is not there, unless this
/// is dry. A slash at the end of `shown` says that it is one.
pub(crate) fn target(
    open: &Open<'_>,
    path: &[u8],
    single: Option<&[u8]>,
    shown: &Path,
    dry: Dry,
) -> Result<OpenDestination, WanError> {
    let held = |fd: OwnedFd, rename: Option<Vec<u8>>| OpenDestination {
        root: name_of(&fd),
        held: fd,
        rename,
    };
    let unwritable = |errno: Errno| refused(shown, errno, "written");
    let is_directory = single.is_none() || shown.as_os_str().as_bytes().ends_with(b"/");
    let end = path.iter().rposition(|byte| *byte != b'/').map_or(path.len().min(1), |at| at + 1);
    let path = &path[..end];
    match open(path) {
        Ok(fd) => return Ok(held(fd, single.map(<[u8]>::to_vec))),
        Err(Errno::NOENT) => {}
        Err(Errno::NOTDIR) if !is_directory => {}
        Err(Errno::NOTDIR) if single.is_some() => {
            return Err(ends(format!(
                "{} ends with a slash and is no directory: leave the slash away",
                shown.display()
            )))
        }
        Err(Errno::NOTDIR) => {
            return Err(ends(format!(
                "{} is no directory, and the source is one: choose another destination",
                shown.display()
            )))
        }
        Err(errno) => return Err(unwritable(errno)),
    }
    let (parent, name) = split(path);
    if matches!(name, b"" | b"." | b"..") {
        return Err(unwritable(Errno::NOENT));
    }
    let parent = if parent.is_empty() && path.starts_with(b"/") { b"/" } else { parent };
    let folder = open(parent).map_err(|errno| match errno {
        Errno::NOENT => ends(format!(
            "{} cannot be written: make the directory it is to lie in first",
            shown.display()
        )),
        errno => unwritable(errno),
    })?;
    if !is_directory {
        return Ok(held(folder, Some(name.to_vec())));
    }
    let rename = single.map(<[u8]>::to_vec);
    if dry.is_dry() {
        // It need not be there.
        let root = name_of(&folder).join(OsStr::from_bytes(name));
        return Ok(OpenDestination { root, held: folder, rename });
    }
    match mkdirat(&folder, name, Mode::from_raw_mode(0o777)) {
        Ok(()) | Err(Errno::EXIST) => {}
        Err(errno) => return Err(unwritable(errno)),
    }
    Ok(held(open(path).map_err(unwritable)?, rename))
}

/// A source on this machine cannot be opened.
pub(crate) fn unreadable(path: &Path, error: &std::io::Error) -> WanError {
    let text = format!("{} cannot be read: {error}", path.display());
    CopyError::Ends(text).into()
}

/// What this machine is called.
pub(crate) fn this_host() -> String {
    rustix::system::uname().nodename().to_string_lossy().into_owned()
}
