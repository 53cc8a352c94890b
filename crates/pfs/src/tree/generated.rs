//! Generated files: names, sizes and bytes follow from a seed, so that 100,000 files of 1 MB need no disk.
//!
//! Directories `d00000`, `d00001`, ... hold an equal number of files each, `f000000000` and so on. Entries come in
//! the order of a hash of their names, as ldiskfs gives them out, and not in the order in which the files were placed
//! on targets. The bytes of a file are a window into a pool of random ones that starts elsewhere for each MiB of each
//! file: two files do not agree, but parts of them do, as the pool is shorter than all files together.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use fuser::{Errno, FileAttr, FileType, INodeNo};

use super::{Item, Tree, ROOT};
use crate::error::PfsError;
use crate::layout::{mix, Striper, Striping, Template};

/// Files have inode numbers from here on; directories from [`FIRST_DIRECTORY`].
const FIRST_FILE: u64 = 1 << 32;
const FIRST_DIRECTORY: u64 = 2;

/// Bytes for which a file stays at one place of the pool; the largest read.
const WINDOW: u64 = 1 << 20;

/// Bytes of the pool, without the window that follows the last place.
const POOL: usize = 16 << 20;

/// What is to be made up.
#[derive(Clone, Debug)]
pub struct Made {
    /// The size of each file.
    pub sizes: Vec<u64>,
    /// How many files lie in a directory.
    pub files_per_directory: u64,
    /// What bytes and order follow from.
    pub seed: u64,
    /// The time of last change of everything, in seconds since 1970.
    pub changed_s: u64,
}

/// The tree: see the module.
#[derive(Debug)]
pub struct Generated {
    made: Made,
    template: Template,
    striper: Striper,
    pool: Vec<u8>,
}

impl Generated {
    /// Make it up.
    ///
    /// # Errors
    /// Where there is no file, too many of them, or none in a directory.
    pub fn new(made: Made, template: Template, striper: Striper) -> Result<Self, PfsError> {
        let files = made.sizes.len() as u64;
        if files == 0 || files > 1 << 31 || made.files_per_directory == 0 {
            return Err(PfsError::Shape(
                "make up 1 to 2^31 files, 1 or more in a directory".into(),
            ));
        }
        let mut pool = Vec::with_capacity(POOL + WINDOW as usize);
        let mut word = made.seed;
        while pool.len() < POOL + WINDOW as usize {
            word = word.wrapping_add(1);
            pool.extend_from_slice(&mix(word).to_le_bytes());
        }
        Ok(Self { made, template, striper, pool })
    }

    fn directories(&self) -> u64 {
        (self.made.sizes.len() as u64).div_ceil(self.made.files_per_directory)
    }

    /// The number of a file, from its inode number.
    fn file(&self, ino: u64) -> Option<u64> {
        ino.checked_sub(FIRST_FILE).filter(|file| *file < self.made.sizes.len() as u64)
    }

    fn directory(&self, ino: u64) -> Option<u64> {
        ino.checked_sub(FIRST_DIRECTORY).filter(|number| *number < self.directories())
    }

    fn files_of(&self, directory: u64) -> std::ops::Range<u64> {
        let first = directory * self.made.files_per_directory;
        first..(first + self.made.files_per_directory).min(self.made.sizes.len() as u64)
    }

    fn size(&self, file: u64) -> u64 {
        usize::try_from(file).ok().and_then(|i| self.made.sizes.get(i)).copied().unwrap_or(0)
    }

    fn file_attributes(&self, ino: u64, file: u64) -> FileAttr {
        let size = self.size(file);
        self.attributes_of(ino, FileType::RegularFile, 0o644, 1, size)
    }

    fn directory_attributes(&self, ino: u64) -> FileAttr {
        let links = if ino == ROOT { 2 + self.directories() } else { 2 };
        let links = u32::try_from(links).unwrap_or(u32::MAX);
        self.attributes_of(ino, FileType::Directory, 0o755, links, 4096)
    }

    fn attributes_of(
        &self,
        ino: u64,
        kind: FileType,
        perm: u16,
        nlink: u32,
        size: u64,
    ) -> FileAttr {
        let time: SystemTime = UNIX_EPOCH + Duration::from_secs(self.made.changed_s);
        FileAttr {
            ino: INodeNo(ino),
            size,
            blocks: size.div_ceil(512),
            atime: time,
            mtime: time,
            ctime: time,
            crtime: time,
            kind,
            perm,
            nlink,
            uid: 0,
            gid: 0,
            rdev: 0,
            // What Lustre clients report: programs read and write in such pieces.
            blksize: 4 << 20,
            flags: 0,
        }
    }
}

/// The number in `f000000012`; None for a name that is none of ours, such as one with fewer zeros.
fn number(name: &OsStr, letter: u8, digits: usize) -> Option<u64> {
    let (first, rest) = name.as_bytes().split_first()?;
    let text = std::str::from_utf8(rest).ok()?;
    let plain = *first == letter && rest.len() == digits && rest.iter().all(u8::is_ascii_digit);
    plain.then(|| text.parse().ok()).flatten()
}

impl Tree for Generated {
    fn lookup(&self, parent: u64, name: &OsStr) -> Result<FileAttr, Errno> {
        if parent == ROOT {
            let directory = number(name, b'd', 5).ok_or(Errno::ENOENT)?;
            let ino = FIRST_DIRECTORY + directory;
            return self
                .directory(ino)
                .map(|_| self.directory_attributes(ino))
                .ok_or(Errno::ENOENT);
        }
        let directory = self.directory(parent).ok_or(Errno::ENOTDIR)?;
        let file = number(name, b'f', 9).ok_or(Errno::ENOENT)?;
        let here = self.files_of(directory).contains(&file);
        here.then(|| self.file_attributes(FIRST_FILE + file, file)).ok_or(Errno::ENOENT)
    }

    fn attributes(&self, ino: u64) -> Result<FileAttr, Errno> {
        if let Some(file) = self.file(ino) {
            return Ok(self.file_attributes(ino, file));
        }
        if ino == ROOT || self.directory(ino).is_some() {
            return Ok(self.directory_attributes(ino));
        }
        Err(Errno::ENOENT)
    }

    fn entries(&self, ino: u64) -> Result<Vec<Item>, Errno> {
        let item = |ino, kind, name: String| Item { ino, kind, name: name.into() };
        let mut found: Vec<Item> = if ino == ROOT {
            let number = |d| item(FIRST_DIRECTORY + d, FileType::Directory, format!("d{d:05}"));
            (0..self.directories()).map(number).collect()
        } else {
            let directory = self.directory(ino).ok_or(Errno::ENOTDIR)?;
            let number = |f| item(FIRST_FILE + f, FileType::RegularFile, format!("f{f:09}"));
            self.files_of(directory).map(number).collect()
        };
        found.sort_by_key(|item| mix(self.made.seed ^ item.ino));
        Ok(found)
    }

    fn read(
        &self,
        ino: u64,
        _handle: u64,
        offset: u64,
        length: usize,
        give: &mut dyn FnMut(&[u8]),
    ) -> Result<(), Errno> {
        let file = self.file(ino).ok_or(Errno::EISDIR)?;
        let end = offset.saturating_add(length as u64).min(self.size(file));
        let window = |at: u64| {
            let place = mix(self.made.seed.wrapping_add(mix(file)) ^ (at / WINDOW)) % POOL as u64;
            usize::try_from(place + at % WINDOW).unwrap_or(0)
        };
        let run = |at: u64| usize::try_from((WINDOW - at % WINDOW).min(end - at)).unwrap_or(0);
        if offset >= end {
            give(&[]);
        } else if offset / WINDOW == (end - 1) / WINDOW {
            let from = window(offset);
            give(&self.pool[from..from + run(offset)]);
        } else {
            let mut bytes = Vec::with_capacity(length);
            let mut at = offset;
            while at < end {
                let (from, many) = (window(at), run(at));
                bytes.extend_from_slice(&self.pool[from..from + many]);
                at += many as u64;
            }
            give(&bytes);
        }
        Ok(())
    }

    fn striping(&self, ino: u64) -> Result<Striping, Errno> {
        let file = self.file(ino).ok_or(Errno::EISDIR)?;
        Ok(self.striper.place(&self.template, file, file + 1))
    }

    fn template(&self, _ino: u64) -> Result<Template, Errno> {
        Ok(self.template.clone())
    }

    fn directory_of(&self, ino: u64) -> u64 {
        match self.file(ino) {
            Some(file) => FIRST_DIRECTORY + file / self.made.files_per_directory,
            None => ino,
        }
    }
}

#[cfg(test)]
mod tests;
