//! What a server shows of its file system: folders under names, and nothing beside them.

use std::ffi::OsStr;
use std::fs::File;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;

use nix::fcntl::{open, openat2, OFlag, OpenHow, ResolveFlag};
use nix::sys::stat::Mode;

use super::error::{shown, ErrorKind, TransferError};
use super::wire::parts;

/// A folder that a server shows.
#[derive(Clone, Debug)]
pub struct Module {
    /// The first part of its files' names.
    pub name: String,
    /// The folder.
    pub root: PathBuf,
    /// Whether files may be put there.
    pub writable: bool,
}

/// The folders, open: what is mounted or moved over their paths later does not change what is shown.
pub(crate) struct Modules(Vec<(Module, OwnedFd)>);

impl Modules {
    pub(crate) fn open(modules: Vec<Module>) -> Result<Self, TransferError> {
        let open_one = |module: Module| {
            let flags = OFlag::O_PATH | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC;
            let root = open(&module.root, flags, Mode::empty()).map_err(|errno| {
                TransferError::file(module.root.as_os_str().as_bytes(), &errno.into())
            })?;
            Ok((module, root))
        };
        modules.into_iter().map(open_one).collect::<Result<_, _>>().map(Self)
    }

    /// The file of that name, to be read.
    pub(crate) fn file(&self, name: &[u8]) -> Result<File, TransferError> {
        let (_, root, below) = self.locate(name)?;
        // Without O_NONBLOCK, opening a named pipe would wait for a writer for ever.
        let flags = OFlag::O_RDONLY | OFlag::O_NONBLOCK | OFlag::O_CLOEXEC;
        beneath(root, name, below, flags).map(File::from)
    }

    /// The folder in which a file of that name may be made, and the last part of the name.
    pub(crate) fn folder<'a>(&self, name: &'a [u8]) -> Result<(OwnedFd, &'a OsStr), TransferError> {
        let (module, root, below) = self.locate(name)?;
        if !module.writable {
            let text = format!("module {} may only be read", module.name);
            return Err(TransferError::new(ErrorKind::Refused, text));
        }
        let (folder, last) = match below.iter().rposition(|byte| *byte == b'/') {
            Some(slash) => (&below[..slash], &below[slash + 1..]),
            None => (&b"."[..], below),
        };
        let flags = OFlag::O_RDONLY | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC;
        Ok((beneath(root, name, folder, flags)?, OsStr::from_bytes(last)))
    }

    fn locate<'a>(&self, name: &'a [u8]) -> Result<(&Module, &OwnedFd, &'a [u8]), TransferError> {
        let refused = |text| TransferError::new(ErrorKind::Refused, text);
        let first = parts(name).map_err(|why| refused(format!("{}: {why}", shown(name))))?[0];
        let (module, root) =
            self.0.iter().find(|(module, _)| module.name.as_bytes() == first).ok_or_else(|| {
                let known: Vec<&str> = self.0.iter().map(|(m, _)| m.name.as_str()).collect();
                refused(format!("{}: no such module: there are {}", shown(name), known.join(", ")))
            })?;
        Ok((module, root, &name[first.len() + 1..]))
    }
}

/// The kernel itself sees to it that nothing outside the root is reached, and follows no links.
fn beneath(
    root: &OwnedFd,
    name: &[u8],
    below: &[u8],
    flags: OFlag,
) -> Result<OwnedFd, TransferError> {
    let resolve = ResolveFlag::RESOLVE_BENEATH
        | ResolveFlag::RESOLVE_NO_SYMLINKS
        | ResolveFlag::RESOLVE_NO_MAGICLINKS;
    openat2(root, below, OpenHow::new().flags(flags).resolve(resolve))
        .map_err(|errno| TransferError::file(name, &errno.into()))
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;

    use super::super::testing::Scratch;
    use super::*;

    #[test]
    fn nothing_outside_the_modules_is_shown() {
        let scratch = Scratch::new("modules");
        fs::write(scratch.path().join("secret"), b"x").unwrap();
        fs::create_dir_all(scratch.path().join("shown/deep")).unwrap();
        fs::write(scratch.path().join("shown/deep/file"), b"y").unwrap();
        symlink("../secret", scratch.path().join("shown/link")).unwrap();
        symlink("deep", scratch.path().join("shown/inner")).unwrap();
        let module =
            Module { name: "data".into(), root: scratch.path().join("shown"), writable: false };
        let modules = Modules::open(vec![module]).unwrap();
        assert!(modules.file(b"data/deep/file").is_ok());
        let kind = |name: &[u8]| modules.file(name).unwrap_err().kind;
        assert_eq!(kind(b"data/../secret"), ErrorKind::Refused);
        assert_eq!(kind(b"data/link"), ErrorKind::Refused);
        assert_eq!(kind(b"data/inner/file"), ErrorKind::Refused);
        assert_eq!(kind(b"other/deep/file"), ErrorKind::Refused);
        assert_eq!(kind(b"data/deep/absent"), ErrorKind::Missing);
        assert_eq!(modules.folder(b"data/new").unwrap_err().kind, ErrorKind::Refused);
    }
}
