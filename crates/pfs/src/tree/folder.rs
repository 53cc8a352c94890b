//! A real folder behind the file system: what is written is there afterwards, as ordinary files.
//!
//! The striping of a file follows from its inode number there, so that a rename moves no object and a new mount finds
//! the same layout. A template that was set is kept in the attribute `trusted.waystage.lov` of the file or directory;
//! new entries inherit their directory's, as in Lustre.

use std::collections::HashMap;
use std::ffi::{OsStr, OsString};
use std::fs::{self, File, Metadata, OpenOptions};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, FileTypeExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::Arc;

use fuser::{Errno, FileAttr, FileType, INodeNo, TimeOrNow};
use parking_lot::RwLock;
use rustix::fs::{
    lgetxattr, llistxattr, lremovexattr, lsetxattr, mknodat, renameat_with, utimensat, AtFlags,
    Mode, RenameFlags, Timespec, Timestamps, XattrFlags, CWD,
};

use super::inodes::Inodes;
use super::{Changes, Item, Making, Tree, ROOT};
use crate::error::PfsError;
use crate::layout::{Striper, Striping, Template};

/// Where a template that was set is kept.
const KEPT: &str = "trusted.waystage.lov";

/// The longest value or list that Linux hands out (`XATTR_SIZE_MAX`).
const LONGEST: usize = 64 << 10;

/// The tree: see the module.
#[derive(Debug)]
pub struct Folder {
    device: u64,
    top_ino: u64,
    inodes: Inodes,
    template: Template,
    striper: Striper,
    open: RwLock<HashMap<u64, (u64, Arc<File>)>>,
    next: AtomicU64,
}

impl Folder {
    /// Serve `top`.
    ///
    /// # Errors
    /// Where it is no directory that can be looked at.
    pub fn new(top: &Path, template: Template, striper: Striper) -> Result<Self, PfsError> {
        let top = top.canonicalize().map_err(PfsError::Folder)?;
        let metadata = fs::metadata(&top).map_err(PfsError::Folder)?;
        if !metadata.is_dir() {
            return Err(PfsError::Folder(io::Error::from(io::ErrorKind::NotADirectory)));
        }
        Ok(Self {
            device: metadata.dev(),
            top_ino: metadata.ino(),
            inodes: Inodes::new(top),
            template,
            striper,
            open: RwLock::default(),
            next: AtomicU64::new(1),
        })
    }

    fn path(&self, ino: u64) -> Result<PathBuf, Errno> {
        self.inodes.path(ino).ok_or(Errno::ENOENT)
    }

    fn child(&self, parent: u64, name: &OsStr) -> Result<PathBuf, Errno> {
        Ok(self.path(parent)?.join(name))
    }

    fn file(&self, handle: u64) -> Result<Arc<File>, Errno> {
        let open = self.open.read();
        open.get(&handle).map(|(_, file)| Arc::clone(file)).ok_or(Errno::EBADF)
    }

    /// The number by which the kernel knows it. Files of another device could have the same numbers.
    fn ino(&self, metadata: &Metadata) -> Result<u64, Errno> {
        match (metadata.dev() == self.device, metadata.ino()) {
            (true, ino) if ino == self.top_ino => Ok(ROOT),
            // Where some file has FUSE's number of the top, it gets the number that the top has here.
            (true, ROOT) => Ok(self.top_ino),
            (true, ino) => Ok(ino),
            (false, _) => Err(Errno::EXDEV),
        }
    }

    fn metadata(&self, ino: u64) -> Result<Metadata, Errno> {
        // Of hard links one may be another's by now, and the next still its.
        let own = |metadata: &Metadata| self.ino(metadata) == Ok(ino);
        let paths = match ino {
            ROOT => vec![self.path(ino)?],
            _ => self.inodes.paths(ino),
        };
        let mut found = paths.iter().filter_map(|path| fs::symlink_metadata(path).ok());
        match found.find(own) {
            Some(metadata) => Ok(metadata),
            // Its name is gone or another file's; open handles stay valid.
            None => {
                let open = self.open.read();
                match open.values().find(|(of, _)| *of == ino) {
                    Some((_, file)) => Ok(file.metadata()?),
                    None => Err(Errno::ENOENT),
                }
            }
        }
    }

    fn found(&self, parent: u64, name: &OsStr) -> Result<FileAttr, Errno> {
        let metadata = fs::symlink_metadata(self.child(parent, name)?)?;
        let ino = self.ino(&metadata)?;
        self.inodes.found(ino, parent, name);
        Ok(attributes(ino, &metadata))
    }

    fn kept_template(&self, path: &Path) -> Option<Template> {
        let mut value = vec![0; LONGEST];
        let length = lgetxattr(path, KEPT, &mut value[..]).ok()?;
        Template::decode(&value[..length]).ok().filter(|kept| self.striper.has_pools_of(kept))
    }

    /// A new entry gets the template of its directory, where that is not everybody's.
    fn inherit(&self, parent: &Path, made: &Path) {
        if let Some(template) = self.kept_template(parent) {
            // Where attributes cannot be kept, the directory's could not be set either.
            let _ = lsetxattr(made, KEPT, &template.encode(), XattrFlags::empty());
        }
    }
}

fn attributes(ino: u64, metadata: &Metadata) -> FileAttr {
    use std::time::{Duration, SystemTime, UNIX_EPOCH};
    let time = |seconds: i64, nanos: i64| -> SystemTime {
        let nanos = Duration::from_nanos(u64::try_from(nanos).unwrap_or(0));
        let whole = Duration::from_secs(seconds.unsigned_abs());
        let base =
            if seconds < 0 { UNIX_EPOCH.checked_sub(whole) } else { UNIX_EPOCH.checked_add(whole) };
        base.and_then(|base| base.checked_add(nanos)).unwrap_or(UNIX_EPOCH)
    };
    let changed = time(metadata.ctime(), metadata.ctime_nsec());
    FileAttr {
        ino: INodeNo(ino),
        size: metadata.size(),
        blocks: metadata.blocks(),
        atime: time(metadata.atime(), metadata.atime_nsec()),
        mtime: time(metadata.mtime(), metadata.mtime_nsec()),
        ctime: changed,
        crtime: changed,
        kind: kind(metadata.file_type()),
        perm: u16::try_from(metadata.mode() & 0o7777).unwrap_or(0),
        nlink: u32::try_from(metadata.nlink()).unwrap_or(u32::MAX),
        uid: metadata.uid(),
        gid: metadata.gid(),
        // Linux has device numbers of 32 bits in FUSE, as in the old system calls.
        rdev: u32::try_from(metadata.rdev()).unwrap_or(0),
        blksize: 4 << 20,
        flags: 0,
    }
}

fn kind(of: fs::FileType) -> FileType {
    match of {
        of if of.is_dir() => FileType::Directory,
        of if of.is_symlink() => FileType::Symlink,
        of if of.is_fifo() => FileType::NamedPipe,
        of if of.is_socket() => FileType::Socket,
        of if of.is_block_device() => FileType::BlockDevice,
        of if of.is_char_device() => FileType::CharDevice,
        _ => FileType::RegularFile,
    }
}

fn timespec(time: Option<TimeOrNow>) -> Timespec {
    use std::time::UNIX_EPOCH;
    let special = |nanos| Timespec { tv_sec: 0, tv_nsec: nanos };
    match time {
        None => special(rustix::fs::UTIME_OMIT),
        Some(TimeOrNow::Now) => special(rustix::fs::UTIME_NOW),
        Some(TimeOrNow::SpecificTime(time)) => match time.duration_since(UNIX_EPOCH) {
            Ok(since) => Timespec {
                tv_sec: i64::try_from(since.as_secs()).unwrap_or(i64::MAX),
                tv_nsec: i64::from(since.subsec_nanos()),
            },
            Err(before) => {
                let before = before.duration();
                let down = i64::from(before.subsec_nanos() > 0);
                let whole = i64::try_from(before.as_secs()).unwrap_or(i64::MAX - 1);
                let nanos = i64::from(before.subsec_nanos());
                Timespec { tv_sec: -whole - down, tv_nsec: (1_000_000_000 - nanos) * down }
            }
        },
    }
}

fn errno(error: rustix::io::Errno) -> Errno {
    Errno::from_i32(error.raw_os_error())
}

impl Tree for Folder {
    fn lookup(&self, parent: u64, name: &OsStr) -> Result<FileAttr, Errno> {
        self.found(parent, name)
    }

    fn attributes(&self, ino: u64) -> Result<FileAttr, Errno> {
        Ok(attributes(ino, &self.metadata(ino)?))
    }

    fn entries(&self, ino: u64) -> Result<Vec<Item>, Errno> {
        let mut found = Vec::new();
        for entry in fs::read_dir(self.path(ino)?)? {
            let entry = entry?;
            // What went away meanwhile, and what is mounted in the folder, is left out.
            let Ok(metadata) = fs::symlink_metadata(entry.path()) else { continue };
            let Ok(ino) = self.ino(&metadata) else { continue };
            found.push(Item { ino, kind: kind(metadata.file_type()), name: entry.file_name() });
        }
        Ok(found)
    }

    fn open(&self, ino: u64, write: bool) -> Result<u64, Errno> {
        // It is not followed: the kernel asks for the target of a link itself.
        const NO_FOLLOW_NO_BLOCK: i32 = 0o400_000 | 0o4000;
        let mut options = OpenOptions::new();
        options.read(true).write(write).custom_flags(NO_FOLLOW_NO_BLOCK);
        let file = options.open(self.path(ino)?)?;
        let handle = self.next.fetch_add(1, Ordering::Relaxed);
        let mut open = self.open.write();
        open.insert(handle, (ino, Arc::new(file)));
        Ok(handle)
    }

    fn close(&self, handle: u64) {
        self.open.write().remove(&handle);
    }

    fn read(
        &self,
        _ino: u64,
        handle: u64,
        offset: u64,
        length: usize,
        give: &mut dyn FnMut(&[u8]),
    ) -> Result<(), Errno> {
        let file = self.file(handle)?;
        let mut bytes = vec![0; length];
        let mut filled = 0;
        while filled < length {
            match file.read_at(&mut bytes[filled..], offset + filled as u64) {
                Ok(0) => break,
                Ok(many) => filled += many,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error.into()),
            }
        }
        give(&bytes[..filled]);
        Ok(())
    }

    fn striping(&self, ino: u64) -> Result<Striping, Errno> {
        let template = self.path(ino).ok().and_then(|path| self.kept_template(&path));
        Ok(self.striper.place(template.as_ref().unwrap_or(&self.template), ino, ino))
    }

    fn template(&self, ino: u64) -> Result<Template, Errno> {
        Ok(self.kept_template(&self.path(ino)?).unwrap_or_else(|| self.template.clone()))
    }

    fn directory_of(&self, ino: u64) -> u64 {
        self.inodes.parent(ino)
    }

    fn forget(&self, ino: u64, lookups: u64) {
        self.inodes.forget(ino, lookups);
    }

    fn set_template(&self, ino: u64, template: &Template) -> Result<(), Errno> {
        let metadata = self.metadata(ino)?;
        if !self.striper.has_pools_of(template) {
            return Err(Errno::EINVAL);
        }
        if metadata.is_file() && metadata.len() > 0 {
            return Err(Errno::EEXIST); // what Lustre says where objects are there
        }
        lsetxattr(self.path(ino)?, KEPT, &template.encode(), XattrFlags::empty()).map_err(errno)
    }

    fn make(&self, parent: u64, name: &OsStr, what: Making<'_>) -> Result<FileAttr, Errno> {
        let folder = self.path(parent)?;
        let path = folder.join(name);
        match what {
            Making::Directory(mode) => {
                fs::create_dir(&path)?;
                fs::set_permissions(&path, fs::Permissions::from_mode(mode & 0o7777))?;
                self.inherit(&folder, &path);
            }
            Making::Node(mode, device) => {
                let kind = rustix::fs::FileType::from_raw_mode(mode);
                let permissions = Mode::from_raw_mode(mode & 0o7777);
                mknodat(CWD, &path, kind, permissions, u64::from(device)).map_err(errno)?;
                fs::set_permissions(&path, fs::Permissions::from_mode(mode & 0o7777))?;
                if kind == rustix::fs::FileType::RegularFile {
                    self.inherit(&folder, &path);
                }
            }
            Making::Symlink(target) => std::os::unix::fs::symlink(target, &path)?,
            Making::Link(ino) => fs::hard_link(self.path(ino)?, &path)?,
        }
        self.found(parent, name)
    }

    fn write(&self, handle: u64, offset: u64, data: &[u8]) -> Result<(), Errno> {
        Ok(self.file(handle)?.write_all_at(data, offset)?)
    }

    fn change(&self, ino: u64, changes: &Changes) -> Result<FileAttr, Errno> {
        let path = self.path(ino)?;
        if let Some(size) = changes.size {
            OpenOptions::new().write(true).open(&path)?.set_len(size)?;
        }
        if changes.uid.is_some() || changes.gid.is_some() {
            std::os::unix::fs::lchown(&path, changes.uid, changes.gid)?;
        }
        if let Some(mode) = changes.mode {
            fs::set_permissions(&path, fs::Permissions::from_mode(mode & 0o7777))?;
        }
        if changes.atime.is_some() || changes.mtime.is_some() {
            let times = Timestamps {
                last_access: timespec(changes.atime),
                last_modification: timespec(changes.mtime),
            };
            utimensat(CWD, &path, &times, AtFlags::SYMLINK_NOFOLLOW).map_err(errno)?;
        }
        self.attributes(ino)
    }

    fn remove(&self, parent: u64, name: &OsStr, directory: bool) -> Result<(), Errno> {
        let path = self.child(parent, name)?;
        let removed = fs::symlink_metadata(&path).ok();
        if directory {
            fs::remove_dir(path)?;
        } else {
            fs::remove_file(path)?;
        }
        if let Some(ino) = removed.and_then(|metadata| self.ino(&metadata).ok()) {
            self.inodes.removed(ino, parent, name);
        }
        Ok(())
    }

    fn rename(
        &self,
        parent: u64,
        name: &OsStr,
        new_parent: u64,
        new_name: &OsStr,
        flags: u32,
    ) -> Result<(), Errno> {
        let (from, to) = (self.child(parent, name)?, self.child(new_parent, new_name)?);
        let ino = |path: &Path| {
            fs::symlink_metadata(path).ok().and_then(|metadata| self.ino(&metadata).ok())
        };
        let (moved, replaced) = (ino(&from), ino(&to));
        let flags = RenameFlags::from_bits_retain(flags);
        renameat_with(CWD, &from, CWD, &to, flags).map_err(errno)?;
        if moved == replaced {
            return Ok(()); // two names of one file: rename(2) does nothing
        }
        let (old, new) = ((parent, name), (new_parent, new_name));
        if let Some(moved) = moved {
            self.inodes.moved(moved, old, new);
        }
        match replaced {
            Some(replaced) if flags.contains(RenameFlags::EXCHANGE) => {
                self.inodes.moved(replaced, new, old);
            }
            Some(replaced) => self.inodes.removed(replaced, new_parent, new_name),
            None => {}
        }
        Ok(())
    }

    fn sync(&self, handle: u64) -> Result<(), Errno> {
        Ok(self.file(handle)?.sync_all()?)
    }

    fn read_link(&self, ino: u64) -> Result<PathBuf, Errno> {
        Ok(fs::read_link(self.path(ino)?)?)
    }

    fn attribute(&self, ino: u64, name: &OsStr) -> Result<Vec<u8>, Errno> {
        let mut value = vec![0; LONGEST];
        let length = lgetxattr(self.path(ino)?, name, &mut value[..]).map_err(errno)?;
        value.truncate(length);
        Ok(value)
    }

    fn attribute_names(&self, ino: u64) -> Result<Vec<u8>, Errno> {
        let mut names = vec![0; LONGEST];
        let length = llistxattr(self.path(ino)?, &mut names[..]).map_err(errno)?;
        let ours = |name: &&[u8]| *name != KEPT.as_bytes();
        let names = names[..length].split_inclusive(|byte| *byte == 0);
        Ok(names.filter(|name| ours(&&name[..name.len() - 1])).flatten().copied().collect())
    }

    fn set_attribute(&self, ino: u64, name: &OsStr, value: &[u8], flags: i32) -> Result<(), Errno> {
        if name.as_bytes() == KEPT.as_bytes() {
            return Err(Errno::EPERM);
        }
        let flags = XattrFlags::from_bits_retain(u32::try_from(flags).unwrap_or(0));
        lsetxattr(self.path(ino)?, name, value, flags).map_err(errno)
    }

    fn remove_attribute(&self, ino: u64, name: &OsStr) -> Result<(), Errno> {
        let kept =
            if name.as_bytes() == b"lustre.lov" { OsString::from(KEPT) } else { name.into() };
        lremovexattr(self.path(ino)?, &kept).map_err(errno)
    }
}
