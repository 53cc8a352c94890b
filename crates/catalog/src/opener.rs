//! Opening catalogued files: each is compared with its entry, and where they differ its layout is read again.
//!
//! Arrives: the root of a catalogued tree; paths below it with their entries.
//! Leaves: open files, each with its differences and, where there are any, its present layout; counts by kind of
//! difference; the paths of stale entries.
//! Must not know: how catalogs are stored, what is read from the files.
//!
//! A check costs one statx(2) on the open file, besides the opening that a reader needs anyhow, and on a file system
//! that keeps generations of layouts one attribute. Readers of small files spare network file systems the message of
//! that statx: they compare what the open brought, and see the size from what is read. No path leads out of the root:
//! neither `..` nor symbolic links are followed.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::fs::{futimens, Statx, StatxTimestamp, Timespec, Timestamps};
use rustix::io::Errno;
use waystage_sync::Mutex;

use crate::batch::kind;
use crate::check::{as_recorded, compare, Differences, Recorded};
use crate::checksum::{self, Digest, Rule, Sum};
use crate::exclude::join;
use crate::layout::Layout;
use crate::layouts::{LayoutMethod, Layouts, Objects};
use crate::paths::string;
use crate::root::Root;
use crate::stat::{stat_asked, stat_known, stat_name, stat_open, stat_to_read};

/// Stale paths that are kept to be refreshed; more are only counted, and the complete tree is to be refreshed.
const STALE_PATHS: usize = 100_000;

/// The index of regular files in [`crate::TYPE_LETTERS`].
const REGULAR: i8 = 0;

/// A file that was opened.
#[derive(Debug)]
pub struct Opened {
    /// Open for reading, at its start.
    pub file: OwnedFd,
    /// What it is now, without its access time. This is to be relied on, not the entry.
    pub stat: Statx,
    /// In what it differs from its entry.
    pub differences: Differences,
    /// Its layout as it is now, where it differs and the file system tells one; else the entry's holds.
    pub layout: Option<Objects>,
}

/// Why a file was not opened.
#[derive(Debug, thiserror::Error)]
#[error("{error}")]
pub struct OpenFailed {
    /// The kind: missing, blocked, unreadable, or no longer a regular file.
    pub differences: Differences,
    /// What the system returned.
    pub error: Errno,
}

/// A file whose objects were summed.
#[derive(Debug)]
pub struct Summed {
    /// What it is now, before it was read.
    pub now: Recorded,
    /// In what it differs from its entry.
    pub differences: Differences,
    /// Index into [`crate::layout::READERS`] of its layout, -1 for none, and its generation.
    pub layout: (i8, u32),
    /// Its objects in the order in which the file meets them, each with the number of its target; None where the file
    /// changed while it was read.
    pub sums: Option<Vec<(Sum, Option<u32>)>>,
}

/// How many files were checked and what was found, by kind.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CheckCounts {
    /// Entries that were held against the file system.
    pub checked: u64,
    /// Entries that no longer hold.
    pub stale: u64,
    /// In the order of [`Differences::ALL`]; an entry may differ in several ways.
    pub by_kind: [u64; Differences::ALL.len()],
}

/// Entries to be looked at together: columns of one length, as a catalog has them.
#[derive(Debug, Clone, Copy)]
pub struct Columns<'a> {
    /// Paths of directories below the root: path i is `directories.1[directories.0[i]..directories.0[i + 1]]`.
    pub directories: (&'a [i32], &'a [u8]),
    /// The directory of each entry.
    pub directory: &'a [i32],
    /// Names, in the same form as directories.
    pub names: (&'a [i32], &'a [u8]),
    /// See [`Recorded`], as all below.
    pub kind: &'a [i8],
    /// Bytes.
    pub size: &'a [i64],
    /// Last change of content.
    pub mtime: &'a [i64],
    /// Last change of attributes.
    pub ctime: &'a [i64],
    /// Inode number.
    pub inode: &'a [u64],
}

/// A catalogued tree. One serves all threads.
#[derive(Debug)]
pub struct CheckedTree {
    root: Root,
    layouts: Layouts,
    checked: AtomicU64,
    stale: AtomicU64,
    by_kind: [AtomicU64; Differences::ALL.len()],
    stale_paths: Mutex<Vec<Vec<u8>>>,
    summed: AtomicU64,
}

impl CheckedTree {
    /// Fails where the root cannot be opened as a directory.
    pub fn open(root: &Path) -> io::Result<Self> {
        Ok(Self {
            root: Root::open(root)?,
            layouts: Layouts::new(LayoutMethod::PerFileSystem),
            checked: AtomicU64::new(0),
            stale: AtomicU64::new(0),
            by_kind: Default::default(),
            stale_paths: Mutex::default(),
            summed: AtomicU64::new(0),
        })
    }

    /// Open the regular file at `path` below the root and hold it against its entry.
    ///
    /// # Errors
    /// Where there is no such file, or it cannot be opened; counted as stale like all that differs.
    pub fn open_file(&self, path: &[u8], recorded: &Recorded) -> Result<Opened, OpenFailed> {
        self.counted(path, self.opened(path, recorded, |file| stat_to_read(file)))
    }

    /// The same without asking a file server for attributes, as long as those that the open brought are as recorded:
    /// on Lustre a message less, of three. The size is to be seen from what is read, and where it differs,
    /// [`CheckedTree::look_again`] is to be called.
    ///
    /// # Errors
    /// As there.
    pub fn open_as_known(&self, path: &[u8], recorded: &Recorded) -> Result<Opened, OpenFailed> {
        let stat = |file: &OwnedFd| {
            let known = stat_known(file)?;
            let holds = compare(recorded, &known, recorded.generation).is_empty();
            if holds {
                Ok(known)
            } else {
                stat_asked(file)
            }
        };
        self.counted(path, self.opened(path, recorded, stat))
    }

    /// Hold an open file against its entry once more, with what the server says now.
    ///
    /// # Errors
    /// Those of statx(2).
    pub fn look_again(
        &self,
        path: &[u8],
        recorded: &Recorded,
        opened: &mut Opened,
    ) -> Result<(), Errno> {
        opened.stat = stat_asked(&opened.file)?;
        let now = compare(recorded, &opened.stat, recorded.generation);
        if opened.differences.is_empty() && !now.is_empty() {
            opened.differences = now;
            opened.layout =
                self.layouts.of_open(opened.file.as_fd(), opened.stat.stx_size).ok().flatten();
            self.count_stale(now, || path.to_vec());
        }
        Ok(())
    }

    fn counted(
        &self,
        path: &[u8],
        opened: Result<Opened, OpenFailed>,
    ) -> Result<Opened, OpenFailed> {
        let differences = match &opened {
            Ok(opened) => opened.differences,
            Err(failed) => failed.differences,
        };
        self.count(differences, || path.to_vec());
        opened
    }

    fn opened(
        &self,
        path: &[u8],
        recorded: &Recorded,
        stat: impl FnOnce(&OwnedFd) -> Result<Statx, Errno>,
    ) -> Result<Opened, OpenFailed> {
        let failed = |error| OpenFailed { differences: of_error(error), error };
        let file = self.root.readable(path).map_err(failed)?;
        let stat = stat(&file).map_err(failed)?;
        if kind(stat.stx_mode) != REGULAR {
            return Err(OpenFailed { differences: Differences::TYPE, error: Errno::INVAL });
        }
        // An absent or unreadable layout counts as none.
        let ask = || self.layouts.of_open(file.as_fd(), stat.stx_size).ok().flatten();
        let mut layout = None;
        let mut generation = None;
        if recorded.generation.is_some() {
            layout = ask();
            generation = layout.as_ref().map(|layout| layout.generation);
        }
        let differences = compare(recorded, &stat, generation);
        if differences.is_empty() {
            layout = None;
        } else if recorded.generation.is_none() {
            layout = ask();
        }
        Ok(Opened { file, stat, differences, layout })
    }

    /// The checksum of each object of the file at `path`, which is held against its entry as by
    /// [`CheckedTree::open_file`].
    ///
    /// # Errors
    /// As there.
    pub fn sum_file(
        &self,
        path: &[u8],
        recorded: &Recorded,
        rule: Rule,
    ) -> Result<Summed, OpenFailed> {
        let opened = self.open_file(path, recorded)?;
        let (file, size) = (opened.file.as_fd(), opened.stat.stx_size);
        let layout = self.layouts.layout_of(file);
        let now = as_recorded(&opened.stat);
        let mut sums = checksum::sum(file, layout.as_ref(), size, rule, &self.summed).ok();
        let after = stat_open(file);
        if !after.is_ok_and(|after| compare(&now, &after, None).is_empty()) {
            sums = None;
        }
        let numbered = |sum: Sum| {
            let number = sum.target.as_ref().map(|target| self.layouts.number(target));
            (sum, number)
        };
        Ok(Summed {
            now,
            differences: opened.differences,
            layout: layout.as_ref().map_or((-1, 0), |layout| {
                (crate::layout::reader_index(layout.kind()), layout.generation())
            }),
            sums: sums.map(|sums| sums.into_iter().map(numbered).collect()),
        })
    }

    /// Make objects of the file at `path` whole from the file of the same path in `donor`, and give it back its time
    /// of last change. Returns which of `wanted`, (place in the list of sums, digest), were made whole.
    ///
    /// # Errors Where either file cannot be opened, or is not what it should be: the damaged one as recorded but for
    /// its ctime, the donor's of the same size. `STALE` then.
    pub fn repair_file(
        &self,
        donor: &Self,
        path: &[u8],
        recorded: &Recorded,
        rule: Rule,
        wanted: &[(usize, Digest)],
    ) -> Result<Vec<bool>, Errno> {
        let copy = donor.root.readable(path)?;
        let there = as_recorded(&stat_open(&copy)?);
        let file = self.root.writable(path)?;
        let stat = stat_open(&file)?;
        let layout = self.layouts.layout_of(file.as_fd());
        let generation = layout.as_ref().map(Layout::generation);
        let expected = Recorded { ctime: as_recorded(&stat).ctime, ..*recorded };
        let same = compare(&expected, &stat, generation).is_empty();
        if !same || there.kind != REGULAR || there.size != recorded.size {
            return Err(Errno::STALE);
        }
        let size = stat.stx_size;
        let repaired =
            checksum::repair(file.as_fd(), copy.as_fd(), layout.as_ref(), size, rule, wanted)?;
        let time = |at: &StatxTimestamp| Timespec { tv_sec: at.tv_sec, tv_nsec: at.tv_nsec.into() };
        let times = Timestamps {
            last_access: time(&stat.stx_atime),
            last_modification: time(&stat.stx_mtime),
        };
        futimens(&file, &times)?;
        Ok(repaired)
    }

    /// Compare entries of any type with the file system, without opening them or reading layouts. This uses one
    /// thread: to use several, split the columns.
    ///
    /// # Errors
    /// `INVAL` where the columns do not fit together.
    pub fn compare_entries(&self, columns: &Columns<'_>) -> Result<Vec<Differences>, Errno> {
        let count = columns.directory.len();
        let lengths = [
            columns.names.0.len().saturating_sub(1),
            columns.kind.len(),
            columns.size.len(),
            columns.mtime.len(),
            columns.ctime.len(),
            columns.inode.len(),
        ];
        if lengths != [count; 6] {
            return Err(Errno::INVAL);
        }
        let mut found = Vec::with_capacity(count);
        let mut last: Option<(i32, Result<OwnedFd, Errno>)> = None;
        for row in 0..count {
            let number = columns.directory[row];
            let folder = string(columns.directories, number)?;
            let name = string(columns.names, i32::try_from(row).map_err(|_| Errno::INVAL)?)?;
            if last.as_ref().is_none_or(|(held, _)| *held != number) {
                last = Some((number, self.root.directory(folder)));
            }
            let Some((_, directory)) = &last else { return Err(Errno::INVAL) };
            let recorded = Recorded {
                kind: columns.kind[row],
                size: columns.size[row],
                mtime: columns.mtime[row],
                ctime: columns.ctime[row],
                inode: columns.inode[row],
                generation: None,
            };
            let differences = match directory {
                Err(error) => of_error(*error),
                Ok(_) if name.is_empty() || name.contains(&b'/') => return Err(Errno::INVAL),
                Ok(directory) => match stat_name(directory, name) {
                    Ok(now) => compare(&recorded, &now, None),
                    Err(error) => of_error(error),
                },
            };
            self.count(differences, || join(folder, name));
            found.push(differences);
        }
        Ok(found)
    }

    /// What was found so far.
    #[must_use]
    pub fn counts(&self) -> CheckCounts {
        let mut by_kind = [0; Differences::ALL.len()];
        for (count, counter) in by_kind.iter_mut().zip(&self.by_kind) {
            *count = counter.load(Ordering::Relaxed);
        }
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        CheckCounts { checked: read(&self.checked), stale: read(&self.stale), by_kind }
    }

    /// Bytes of files summed so far, holes among them: those of files in hand too.
    #[must_use]
    pub fn summed_bytes(&self) -> u64 {
        self.summed.load(Ordering::Relaxed)
    }

    /// Paths of entries that did not hold, each as often as it was met, and whether these are all of them.
    #[must_use]
    pub fn stale_paths(&self) -> (Vec<Vec<u8>>, bool) {
        let paths = self.stale_paths.lock().clone();
        let all = u64::try_from(paths.len()).is_ok_and(|kept| kept == self.counts().stale);
        (paths, all)
    }

    /// The storage targets of layouts that were read anew: see [`Layouts::targets`].
    #[must_use]
    pub fn targets(&self) -> Vec<(u32, String)> {
        self.layouts.targets()
    }

    fn count(&self, differences: Differences, path: impl FnOnce() -> Vec<u8>) {
        self.checked.fetch_add(1, Ordering::Relaxed);
        if !differences.is_empty() {
            self.count_stale(differences, path);
        }
    }

    fn count_stale(&self, differences: Differences, path: impl FnOnce() -> Vec<u8>) {
        for (counter, (kind, _)) in self.by_kind.iter().zip(Differences::ALL) {
            if differences.contains(kind) {
                counter.fetch_add(1, Ordering::Relaxed);
            }
        }
        let mut paths = self.stale_paths.lock();
        self.stale.fetch_add(1, Ordering::Relaxed);
        if paths.len() < STALE_PATHS {
            paths.push(path());
        }
    }
}

fn of_error(error: Errno) -> Differences {
    match error {
        Errno::NOENT => Differences::MISSING,
        // XDEV: a path that would have led out of the root.
        Errno::NOTDIR | Errno::LOOP | Errno::XDEV => Differences::BLOCKED,
        _ => Differences::UNREADABLE,
    }
}
