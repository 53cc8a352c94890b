//! From the path that a program named to a path below the root.
//!
//! Links on the way and `..` are resolved when a record is read, directory by directory, as most records are of few
//! directories. A program may have pointed a link elsewhere between the call and the reading. Records of calls that can do
//! so carry their time: where nothing that went through the link was read after it, all was placed rightly; else it is
//! counted as doubtful.

use std::collections::{HashMap, HashSet};
use std::os::fd::AsRawFd;
use std::path::Path;

use rustix::fs::{open, readlink, statx, AtFlags, FileType, Mode, OFlags, StatxFlags, CWD};
use rustix::time::{clock_gettime, ClockId};

use crate::ledger::split;

/// Directories whose places are kept; then all are forgotten and asked for anew.
const KEPT: usize = 100_000;

/// What passes at most between a record, which is made before its call, and what the kernel then does.
const CALL_NS: u64 = 10_000_000;

/// Renames that wait for their second name, at most.
const MOVES: usize = 1 << 16;

/// Where a directory is, as far as it is known.
struct Kept {
    place: Option<Vec<u8>>,
    /// Whether it is to be resolved anew.
    stale: bool,
    /// When it was last asked for, in ns of the monotonic clock.
    used_ns: u64,
}

pub(crate) struct Places {
    root: Vec<u8>,
    /// By their names as programs gave them.
    kept: HashMap<Vec<u8>, Kept>,
    /// These names, and all that they begin with.
    used: HashSet<Vec<u8>>,
    /// Renames of which one name was read, by their time.
    moves: HashMap<u64, Vec<u8>>,
    /// The last time before which names were forgotten.
    forgotten_ns: u64,
    /// Links that were changed while something may have gone through them.
    pub(crate) doubtful: u64,
}

impl Places {
    /// `root` is absolute and without links, as the kernel says it.
    pub(crate) fn new(root: &Path) -> Self {
        use std::os::unix::ffi::OsStrExt;
        let mut root = root.as_os_str().as_bytes().to_vec();
        while root.last() == Some(&b'/') {
            root.pop();
        }
        Self {
            root,
            kept: HashMap::new(),
            used: HashSet::new(),
            moves: HashMap::new(),
            forgotten_ns: 0,
            doubtful: 0,
        }
    }

    /// Where an entry is, its own last name not followed; None where it is not below the root.
    pub(crate) fn of(&mut self, named: &[u8]) -> Option<Vec<u8>> {
        let trimmed = trim(named);
        let (directory, name) = split(trimmed);
        if name.is_empty() || name == b"." || name == b".." {
            return self.directory(trimmed);
        }
        let mut place = self.directory(directory)?;
        if !place.is_empty() {
            place.push(b'/');
        }
        place.extend_from_slice(name);
        Some(place)
    }

    /// Where the link at `place` below the root leads; None where it leads nowhere, or out.
    pub(crate) fn followed(&self, place: &[u8]) -> Option<Vec<u8>> {
        let mut path = self.root.clone();
        path.push(b'/');
        path.extend_from_slice(place);
        below(&self.root, &resolve(&path, OFlags::empty())?)
    }

    /// A link may have been made or removed at this name, by a call that began at `when_ns`.
    pub(crate) fn named_anew(&mut self, named: &[u8], when_ns: u64) {
        let named = trim(named);
        // What was gone through and is removed by its name, or replaced, was a link. Removing a directory says no time.
        if when_ns == 0 || !self.used.contains(named) {
            return;
        }
        let mut late = self.forgotten_ns.saturating_add(CALL_NS) >= when_ns;
        for (directory, kept) in &mut self.kept {
            if starts_with(directory, named) {
                late |= kept.used_ns.saturating_add(CALL_NS) >= when_ns;
                kept.stale = true;
            }
        }
        self.doubtful += u64::from(late);
    }

    /// Something was renamed. The call's two names come one after the other, and say the same time.
    pub(crate) fn moved(&mut self, named: &[u8], when_ns: u64) {
        if when_ns == 0 {
            return; // Said before the call; what it has done is said after it.
        }
        let Some(from) = self.moves.remove(&when_ns) else {
            if self.moves.len() < MOVES {
                self.moves.insert(when_ns, named.to_vec());
            }
            return;
        };
        let types = (file_type(&from), file_type(named));
        if types.1 == Some(FileType::Directory) && types.0 != Some(FileType::Symlink) {
            // What is below is walked, under the new name. Nothing was a link.
            self.kept.values_mut().for_each(|kept| kept.stale = true);
        } else {
            self.named_anew(&from, when_ns);
            self.named_anew(named, when_ns);
        }
    }

    /// No record comes any more.
    pub(crate) fn end(&mut self) {
        for (when_ns, from) in std::mem::take(&mut self.moves) {
            self.named_anew(&from, when_ns);
        }
    }

    fn directory(&mut self, named: &[u8]) -> Option<Vec<u8>> {
        let used_ns = now_ns();
        if let Some(kept) = self.kept.get_mut(named) {
            if kept.stale {
                kept.place = below(&self.root, &real_directory(named));
                kept.stale = false;
            }
            kept.used_ns = used_ns;
            return kept.place.clone();
        }
        let place = below(&self.root, &real_directory(named));
        if self.kept.len() >= KEPT {
            self.kept.clear();
            self.used.clear();
            self.forgotten_ns = used_ns;
        }
        let mut above = named;
        while !above.is_empty() && self.used.insert(above.to_vec()) {
            above = trim(split(above).0);
        }
        self.kept.insert(named.to_vec(), Kept { place: place.clone(), stale: false, used_ns });
        place
    }
}

fn now_ns() -> u64 {
    let now = clock_gettime(ClockId::Monotonic);
    let (seconds, rest) = (now.tv_sec.unsigned_abs(), now.tv_nsec.unsigned_abs());
    seconds.saturating_mul(1_000_000_000).saturating_add(rest)
}

fn file_type(path: &[u8]) -> Option<FileType> {
    let stat = statx(CWD, path, AtFlags::SYMLINK_NOFOLLOW, StatxFlags::TYPE).ok()?;
    Some(FileType::from_raw_mode(u32::from(stat.stx_mode)))
}

/// Whether `path` is `directory` or lies below it, as named.
fn starts_with(path: &[u8], directory: &[u8]) -> bool {
    path.strip_prefix(directory).is_some_and(|rest| matches!(rest.first(), None | Some(b'/')))
}

/// What the kernel says; where the directory is gone, what it says of one above, and the rest as named.
fn real_directory(named: &[u8]) -> Vec<u8> {
    let mut gone: Vec<&[u8]> = Vec::new();
    let mut there = named;
    let mut real = loop {
        if there.is_empty() {
            break Vec::new();
        }
        if let Some(real) = resolve(there, OFlags::DIRECTORY) {
            break real;
        }
        let (above, name) = split(there);
        gone.push(name);
        there = trim(above);
    };
    for name in gone.into_iter().rev() {
        match name {
            b"" | b"." => {}
            b".." => real.truncate(split(&real).0.len()),
            name => {
                if real != b"/" {
                    real.push(b'/');
                }
                real.extend_from_slice(name);
            }
        }
    }
    real
}

fn resolve(path: &[u8], how: OFlags) -> Option<Vec<u8>> {
    let fd = open(path, OFlags::PATH | OFlags::CLOEXEC | how, Mode::empty()).ok()?;
    let link = format!("/proc/self/fd/{}", fd.as_raw_fd());
    let real = readlink(link, Vec::new()).ok()?.into_bytes();
    (real.first() == Some(&b'/')).then_some(real)
}

fn below(root: &[u8], path: &[u8]) -> Option<Vec<u8>> {
    let rest = path.strip_prefix(root)?;
    match rest.first() {
        None => Some(Vec::new()),
        Some(b'/') => Some(rest[1..].to_vec()),
        Some(_) => None,
    }
}

/// Without slashes at the end.
fn trim(path: &[u8]) -> &[u8] {
    let end = path.iter().rposition(|byte| *byte != b'/').map_or(0, |last| last + 1);
    &path[..end]
}
