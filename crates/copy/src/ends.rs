//! Where a copy is from and to: paths made roots, and the pairs that make no sense refused.

use std::ffi::OsStr;
use std::fs::Metadata;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

use rustix::fs::{openat, statx, AtFlags, Mode, OFlags, StatxFlags, CWD};
use rustix::io::Errno;

use crate::error::{describe, CopyError};
use crate::source::Item;
use crate::stat::{letter, stat_fd, FileState};

/// Links that the kernel follows one behind the other (path_resolution(7)).
const MOST_LINKS: usize = 40;

/// `PROC_SUPER_MAGIC`
const PROC: rustix::fs::FsWord = 0x9fa0;

/// Two roots, and the one file where it is one file.
#[derive(Debug)]
pub(crate) struct Ends {
    pub(crate) source: PathBuf,
    pub(crate) destination: PathBuf,
    /// What to copy, and the name it gets.
    pub(crate) single: Option<(Item, Vec<u8>)>,
}

/// Find the roots; makes the destination's directory unless this is a dry run.
pub(crate) fn ends(source: &Path, destination: &Path, dry_run: bool) -> Result<Ends, CopyError> {
    for (path, what) in [(source, "source"), (destination, "destination")] {
        if path.as_os_str().is_empty() {
            let text = format!("the {what} has no name: . is the current directory");
            return Err(CopyError::Ends(text));
        }
    }
    let real = source.canonicalize().map_err(|error| unreadable(source, &error))?;
    let stat = statx(CWD, &real, AtFlags::SYMLINK_NOFOLLOW, StatxFlags::BASIC_STATS)
        .map_err(|errno| unreadable(source, &errno.into()))?;
    let found = match destination.symlink_metadata() {
        Ok(_) => Some(destination.metadata().map_err(|error| unwritable(destination, &error))?),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => None,
        Err(error) => return Err(unwritable(destination, &error)),
    };
    match letter(stat.stx_mode) {
        b'd' => {
            match &found {
                Some(found) if !found.is_dir() => {
                    let text = format!(
                        "{} is no directory, and {} is one: choose another destination",
                        destination.display(),
                        source.display()
                    );
                    return Err(CopyError::Ends(text));
                }
                Some(_) => apart(
                    &real,
                    &destination.canonicalize().unwrap_or_default(),
                    source,
                    destination,
                )?,
                None => {
                    let parent = parent_of(destination)?;
                    inside(&parent, &real, source, destination)?;
                    if !dry_run {
                        std::fs::create_dir(destination)
                            .map_err(|error| unwritable(destination, &error))?;
                    }
                }
            }
            Ok(Ends { source: real, destination: destination.to_path_buf(), single: None })
        }
        b'f' => {
            if let Some(found) = &found {
                takes_a_file(destination, found)?;
            }
            let said = is_said_to_be_directory(destination);
            if said && found.as_ref().is_some_and(|found| !found.is_dir()) {
                let text = format!(
                    "{} ends with a slash and is no directory: leave the slash away",
                    destination.display()
                );
                return Err(CopyError::Ends(text));
            }
            if said && found.is_none() {
                parent_of(destination)?;
                if !dry_run {
                    std::fs::create_dir(destination)
                        .map_err(|error| unwritable(destination, &error))?;
                }
            }
            let name = real.file_name().unwrap_or_default().to_owned().into_vec();
            let (root, to) = match &found {
                Some(found) if found.is_dir() => (destination.to_path_buf(), name.clone()),
                None if said => (destination.to_path_buf(), name.clone()),
                _ => {
                    let to = destination.file_name().unwrap_or_default().to_owned().into_vec();
                    (parent_of(destination)?, to)
                }
            };
            let same = statx(
                CWD,
                root.join(OsStr::from_bytes(&to)),
                AtFlags::empty(),
                StatxFlags::BASIC_STATS,
            );
            let (one, other) = (FileState::of(&stat), same.map(|stat| FileState::of(&stat)));
            if other.is_ok_and(|other| (other.device, other.inode) == (one.device, one.inode)) {
                let text =
                    format!("{} and {} are the same file", source.display(), destination.display());
                return Err(CopyError::Ends(text));
            }
            let above = real.parent().unwrap_or(Path::new("/")).to_path_buf();
            let item = Item::file(&stat, b"", &name);
            Ok(Ends { source: above, destination: root, single: Some((item, to)) })
        }
        _ => {
            let text = format!(
                "{} is neither a directory nor a regular file: name the directory it is in",
                source.display()
            );
            Err(CopyError::Ends(text))
        }
    }
}

/// Whether a path says that it names a directory, by a slash at its end.
fn is_said_to_be_directory(path: &Path) -> bool {
    let bytes = path.as_os_str().as_bytes();
    bytes.ends_with(b"/") || bytes.ends_with(b"/.")
}

/// A device, FIFO or socket is no place for a copy, nor is a name that means an open file of some process, as
/// `/dev/stdout` does: the copy would take their place.
fn takes_a_file(destination: &Path, found: &Metadata) -> Result<(), CopyError> {
    let refused = |what: &str| {
        let text = format!(
            "{} {what}, which a copy would replace: name a file, or write into it by `cat`",
            destination.display()
        );
        Err(CopyError::Ends(text))
    };
    if !found.is_dir() && !found.is_file() {
        return refused("is a device, FIFO or socket");
    }
    // A link at the destination makes room, as a file would: not one of the kernel's own.
    let mut path = destination.to_path_buf();
    for _ in 0..MOST_LINKS {
        if !path.symlink_metadata().is_ok_and(|metadata| metadata.is_symlink()) {
            break;
        }
        let above = path.parent().filter(|above| !above.as_os_str().is_empty());
        let above = above.unwrap_or(Path::new(".")).to_path_buf();
        if !found.is_dir() && rustix::fs::statfs(&above).is_ok_and(|fs| fs.f_type == PROC) {
            return refused("means an open file");
        }
        let Ok(target) = path.read_link() else { break };
        path = above.join(target);
    }
    Ok(())
}

fn parent_of(path: &Path) -> Result<PathBuf, CopyError> {
    let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty());
    let parent = parent.unwrap_or(Path::new("."));
    parent.canonicalize().map_err(|error| unwritable(path, &error))
}

/// Neither tree may lie in the other: a copy would meet itself.
fn apart(real: &Path, to: &Path, source: &Path, destination: &Path) -> Result<(), CopyError> {
    inside(to, real, source, destination)?;
    if is_in(real, to).unwrap_or(false) {
        let text = format!(
            "{} is in {}: name a separate directory for the copy",
            source.display(),
            destination.display()
        );
        return Err(CopyError::Ends(text));
    }
    Ok(())
}

fn inside(to: &Path, real: &Path, source: &Path, destination: &Path) -> Result<(), CopyError> {
    if is_in(to, real).unwrap_or(false) {
        let text = format!(
            "{} is {} or is in it: a copy into itself never ends; choose a destination outside it",
            destination.display(),
            source.display()
        );
        return Err(CopyError::Ends(text));
    }
    Ok(())
}

/// Whether `path` is `top` or is in it, by what the directories are and not by how they are called.
fn is_in(path: &Path, top: &Path) -> Result<bool, Errno> {
    let how = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let identity = |fd: &std::os::fd::OwnedFd| {
        use std::os::fd::AsFd;
        stat_fd(fd.as_fd()).map(|stat| FileState::of(&stat)).map(|seen| (seen.device, seen.inode))
    };
    let wanted = identity(&openat(CWD, top, how, Mode::empty())?)?;
    let mut at = openat(CWD, path, how, Mode::empty())?;
    loop {
        let here = identity(&at)?;
        if here == wanted {
            return Ok(true);
        }
        let above = openat(&at, c"..", how, Mode::empty())?;
        if identity(&above)? == here {
            return Ok(false);
        }
        at = above;
    }
}

fn unreadable(path: &Path, error: &std::io::Error) -> CopyError {
    let text = format!("{} cannot be read: {}", path.display(), words(error));
    CopyError::Ends(text)
}

/// Why `path` cannot be written.
pub fn unwritable(path: &Path, error: &std::io::Error) -> CopyError {
    let fix = match error.kind() {
        std::io::ErrorKind::NotFound => "make the directory it is to be in first",
        _ => "choose a destination that can",
    };
    let text = format!("{} cannot be written: {}: {fix}", path.display(), words(error));
    match error.kind() {
        std::io::ErrorKind::StorageFull | std::io::ErrorKind::QuotaExceeded => {
            CopyError::NoSpace(text)
        }
        _ => CopyError::Refused(text),
    }
}

fn words(error: &std::io::Error) -> String {
    error
        .raw_os_error()
        .map_or_else(|| error.to_string(), |code| describe(Errno::from_raw_os_error(code)))
}
