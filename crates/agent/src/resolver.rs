//! Resolves the path that a program named to a path below the root.
//!
//! Links and `..` are resolved when a record is read, directory by directory: most records are of few directories. A
//! program may have changed a link between the call and the reading. Records of calls that can do so carry their
//! time: where no path through the link was resolved after it, all were resolved rightly; otherwise the link is
//! counted as doubtful.

use std::collections::{HashMap, HashSet};
use std::os::fd::AsRawFd;
use std::path::Path;

use rustix::fs::{open, readlink, statx, AtFlags, FileType, Mode, OFlags, StatxFlags, CWD};
use rustix::time::{clock_gettime, ClockId};

use crate::changed_paths::split;

/// Directories in the cache; a full cache is emptied.
const CACHED: usize = 100_000;

/// The longest time between a record, which is written before its call, and the call's effect.
const CALL_NS: u64 = 10_000_000;

/// Renames that wait for their second name, at most.
const MOVES: usize = 1 << 16;

/// A resolved directory.
struct CachedDirectory {
    /// Its path below the root; None where it is elsewhere.
    path: Option<Vec<u8>>,
    /// Whether it is to be resolved anew.
    stale: bool,
    /// When it was last used, in ns of the monotonic clock.
    used_ns: u64,
}

pub(crate) struct PathResolver {
    root: Vec<u8>,
    /// By the names that programs gave.
    cache: HashMap<Vec<u8>, CachedDirectory>,
    /// These names and all their parents.
    used: HashSet<Vec<u8>>,
    /// Renames of which one name was read, by their time.
    moves: HashMap<u64, Vec<u8>>,
    /// When the cache was last emptied.
    emptied_ns: u64,
    /// Links that changed while paths may have been resolved through them.
    pub(crate) doubtful: u64,
}

impl PathResolver {
    /// `root` is absolute and without links, as realpath(3) gives it.
    pub(crate) fn new(root: &Path) -> Self {
        use std::os::unix::ffi::OsStrExt;
        let mut root = root.as_os_str().as_bytes().to_vec();
        while root.last() == Some(&b'/') {
            root.pop();
        }
        Self {
            root,
            cache: HashMap::new(),
            used: HashSet::new(),
            moves: HashMap::new(),
            emptied_ns: 0,
            doubtful: 0,
        }
    }

    /// The path of an entry below the root, its last name not followed; None where it is elsewhere.
    pub(crate) fn resolve(&mut self, named: &[u8]) -> Option<Vec<u8>> {
        let trimmed = trim(named);
        let (directory, name) = split(trimmed);
        if name.is_empty() || name == b"." || name == b".." {
            return self.directory(trimmed);
        }
        let mut path = self.directory(directory)?;
        if !path.is_empty() {
            path.push(b'/');
        }
        path.extend_from_slice(name);
        Some(path)
    }

    /// The target of the link at `link` below the root; None where it is dangling or outside.
    pub(crate) fn link_target(&self, link: &[u8]) -> Option<Vec<u8>> {
        let mut path = self.root.clone();
        path.push(b'/');
        path.extend_from_slice(link);
        below(&self.root, &resolve(&path, OFlags::empty())?)
    }

    /// A link may have been created or removed at this name, by a call that began at `when_ns`.
    pub(crate) fn link_changed(&mut self, named: &[u8], when_ns: u64) {
        let named = trim(named);
        // A name used as a directory that is removed or replaced was a link; removed directories carry no time.
        if when_ns == 0 || !self.used.contains(named) {
            return;
        }
        let mut late = self.emptied_ns.saturating_add(CALL_NS) >= when_ns;
        for (directory, cached) in &mut self.cache {
            if starts_with(directory, named) {
                late |= cached.used_ns.saturating_add(CALL_NS) >= when_ns;
                cached.stale = true;
            }
        }
        self.doubtful += u64::from(late);
    }

    /// A rename. The call's two records follow one another and carry the same time.
    pub(crate) fn moved(&mut self, named: &[u8], when_ns: u64) {
        if when_ns == 0 {
            return; // Written before the call; the record after it carries a time.
        }
        let Some(from) = self.moves.remove(&when_ns) else {
            if self.moves.len() < MOVES {
                self.moves.insert(when_ns, named.to_vec());
            }
            return;
        };
        let types = (file_type(&from), file_type(named));
        if types.1 == Some(FileType::Directory) && types.0 != Some(FileType::Symlink) {
            // No link was involved; entries below are walked under the new name.
            self.cache.values_mut().for_each(|cached| cached.stale = true);
        } else {
            self.link_changed(&from, when_ns);
            self.link_changed(named, when_ns);
        }
    }

    /// The last record has been read.
    pub(crate) fn end(&mut self) {
        for (when_ns, from) in std::mem::take(&mut self.moves) {
            self.link_changed(&from, when_ns);
        }
    }

    fn directory(&mut self, named: &[u8]) -> Option<Vec<u8>> {
        let used_ns = now_ns();
        if let Some(cached) = self.cache.get_mut(named) {
            if cached.stale {
                cached.path = below(&self.root, &real_directory(named));
                cached.stale = false;
            }
            cached.used_ns = used_ns;
            return cached.path.clone();
        }
        let path = below(&self.root, &real_directory(named));
        if self.cache.len() >= CACHED {
            self.cache.clear();
            self.used.clear();
            self.emptied_ns = used_ns;
        }
        let mut above = named;
        while !above.is_empty() && self.used.insert(above.to_vec()) {
            above = trim(split(above).0);
        }
        self.cache
            .insert(named.to_vec(), CachedDirectory { path: path.clone(), stale: false, used_ns });
        path
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

/// Whether `path` is `directory` or is below it, as named.
fn starts_with(path: &[u8], directory: &[u8]) -> bool {
    path.strip_prefix(directory).is_some_and(|rest| matches!(rest.first(), None | Some(b'/')))
}

/// The real path of a directory. Where it is gone, the real path of the nearest parent, and the rest as named.
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
