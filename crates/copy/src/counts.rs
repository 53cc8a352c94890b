//! How far a copy is, and what it met.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use parking_lot::Mutex;

/// Problems listed in full; more are only counted, since a dead server answers each of millions of files with one.
const LISTED: usize = 10_000;

/// Bytes of what is listed, at most: paths may be very long, and another host's.
const LISTED_BYTES: usize = 8 << 20;

/// What an entry's problem is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ProblemKind {
    /// It could not be copied.
    Error,
    /// It changed while it was copied; what has its name is of the time when it was first looked at.
    Changed,
    /// It was gone before it could be copied.
    Vanished,
    /// It is of a kind that is not copied.
    Skipped,
    /// Something of it could not be kept.
    Lost,
}

impl ProblemKind {
    /// Its name for programs.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Error => "error",
            Self::Changed => "changed",
            Self::Vanished => "vanished",
            Self::Skipped => "skipped",
            Self::Lost => "lost",
        }
    }
}

/// A problem with one entry.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Problem {
    /// Path below the root.
    pub path: Vec<u8>,
    /// What it is.
    pub kind: ProblemKind,
    /// In words.
    pub text: String,
}

/// What a dry run would make.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Planned {
    /// Path below the root.
    pub path: Vec<u8>,
    /// The letter of its type; `h` for a further name of a file.
    pub letter: u8,
    /// Bytes of a regular file.
    pub bytes: u64,
}

/// What was done with an entry, for a log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Done {
    /// In a word.
    pub what: &'static str,
    /// Path below the root.
    pub path: Vec<u8>,
    /// The letter of its type; `h` for a further name of a file.
    pub letter: u8,
    /// Bytes of a regular file.
    pub bytes: u64,
}

macro_rules! counts {
    ($($(#[$doc:meta])* $name:ident),* $(,)?) => {
        /// How far a copy is.
        #[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
        pub struct Counts { $($(#[$doc])* pub $name: u64),* }

        impl Counts {
            /// All of them by name.
            #[must_use]
            pub fn by_name(&self) -> Vec<(&'static str, u64)> {
                vec![$((stringify!($name), self.$name)),*]
            }
        }

        /// The same, as all workers count them.
        #[derive(Debug, Default)]
        pub struct Tally { $($(#[$doc])* pub $name: AtomicU64),* }

        impl Tally {
            /// What has been counted.
            pub fn read(&self) -> Counts {
                Counts { $($name: self.$name.load(Ordering::Relaxed)),* }
            }
        }
    };
}

counts! {
    /// Entries that the walk found.
    found,
    /// Bytes of the regular files among them.
    found_bytes,
    /// Regular files that got their name in this run.
    files,
    /// Bytes of contents written, holes left out.
    bytes,
    /// Bytes of contents that an earlier run had written and the journal knew.
    resumed_bytes,
    /// Objects sent: a file, or an extent of a large one.
    objects,
    /// Regular files that were there already.
    same,
    /// Regular files whose contents were right and whose attributes were fixed.
    mended,
    /// Directories made.
    directories,
    /// Symbolic links made.
    symlinks,
    /// Hard links made.
    hard_links,
    /// Devices and FIFOs made.
    specials,
    /// Files read back and found right.
    verified,
    /// 1 where this went on with what an interrupted copy had left.
    resumed,
    /// Leftovers of an interrupted copy that were removed.
    leftovers,
    /// Entries left out by a pattern, by size or age, or as another file system's.
    excluded,
    /// Entries of the destination that the source lacks and that were deleted.
    deleted,
    /// Files of the source that were removed after their copy.
    removed,
    /// Problems: entries that could not be copied.
    errors,
    /// Problems: entries that changed meanwhile.
    changed,
    /// Problems: entries that were gone.
    vanished,
    /// Problems: entries of a kind that is not copied.
    skipped,
    /// Problems: entries of which something could not be kept.
    lost,
}

impl Counts {
    /// Whether all that was asked for is there. Sockets mean nothing without their program: to leave them is no
    /// failure.
    #[must_use]
    pub fn complete(&self) -> bool {
        self.errors + self.changed + self.vanished + self.lost == 0
    }
}

/// Counts and problems of all workers.
#[derive(Debug, Default)]
pub struct Report {
    /// The counts.
    pub tally: Tally,
    problems: Mutex<Listed<Problem>>,
    planned: Mutex<Listed<Planned>>,
    is_logged: AtomicBool,
    done: Mutex<Vec<Done>>,
}

/// A list of bounded length.
#[derive(Debug)]
struct Listed<T> {
    each: Vec<T>,
    bytes: usize,
}

impl<T> Default for Listed<T> {
    fn default() -> Self {
        Self { each: Vec::new(), bytes: 0 }
    }
}

impl<T> Listed<T> {
    /// List it while there is room; `bytes` is its size.
    fn push(&mut self, bytes: usize, one: T) {
        if self.each.len() < LISTED && self.bytes + bytes <= LISTED_BYTES {
            self.bytes += bytes;
            self.each.push(one);
        }
    }
}

impl Report {
    /// Count a problem, and list it while there is room.
    pub fn problem(&self, path: Vec<u8>, kind: ProblemKind, text: String) {
        let counter = match kind {
            ProblemKind::Error => &self.tally.errors,
            ProblemKind::Changed => &self.tally.changed,
            ProblemKind::Vanished => &self.tally.vanished,
            ProblemKind::Skipped => &self.tally.skipped,
            ProblemKind::Lost => &self.tally.lost,
        };
        add(counter, 1);
        let bytes = path.len() + text.len();
        let mut problems = self.problems.lock();
        problems.push(bytes, Problem { path, kind, text });
    }

    /// Remember what a dry run would do.
    pub fn plan(&self, path: Vec<u8>, letter: u8, bytes: u64) {
        let mut planned = self.planned.lock();
        planned.push(path.len(), Planned { path, letter, bytes });
    }

    /// Keep what is done with each entry until it is taken.
    pub fn log(&self) {
        self.is_logged.store(true, Ordering::Relaxed);
    }

    /// Say what was done with an entry, where that is logged.
    pub fn done(&self, what: &'static str, path: &[u8], letter: u8, bytes: u64) {
        if self.is_logged.load(Ordering::Relaxed) {
            self.done.lock().push(Done { what, path: path.to_vec(), letter, bytes });
        }
    }

    /// What was done since this was called last.
    pub fn take_done(&self) -> Vec<Done> {
        std::mem::take(&mut *self.done.lock())
    }

    /// Those listed.
    pub fn problems(&self) -> Vec<Problem> {
        self.problems.lock().each.clone()
    }

    /// What a dry run would do, by path.
    pub fn planned(&self) -> Vec<Planned> {
        let mut planned = self.planned.lock().each.clone();
        planned.sort();
        planned
    }
}

/// Count.
pub fn add(counter: &AtomicU64, count: u64) {
    counter.fetch_add(count, Ordering::Relaxed);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_paths_do_not_make_a_list_long() {
        let report = Report::default();
        for _ in 0..1000 {
            report.problem(vec![b'n'; 64 << 10], ProblemKind::Error, String::new());
            report.plan(vec![b'n'; 64 << 10], b'f', 0);
        }
        assert_eq!(report.tally.read().errors, 1000);
        let bytes = |paths: Vec<Vec<u8>>| paths.iter().map(Vec::len).sum::<usize>();
        assert_eq!(
            bytes(report.problems().into_iter().map(|each| each.path).collect()),
            LISTED_BYTES
        );
        assert_eq!(
            bytes(report.planned().into_iter().map(|each| each.path).collect()),
            LISTED_BYTES
        );
    }
}
