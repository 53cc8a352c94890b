//! What a copy is asked for.

use std::path::PathBuf;

use waystage_catalog::Exclude;

use crate::backup::Backup;
use crate::source::names::Names;
use crate::time::Time;

/// When a file that is already at the destination is copied again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Update {
    /// Where its size or its time of change differs.
    Changed,
    /// Where the source's is newer.
    Newer,
    /// Never.
    Missing,
    /// Where its contents differ: both are read.
    Content,
    /// Always.
    Always,
}

/// When data is forced to the destination's storage.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fsync {
    /// Never: the file system writes in its own time, as after cp.
    None,
    /// Once, before the copy is called complete.
    End,
    /// Each file, before it gets its name.
    Each,
}

/// Whether what was written is read back and compared.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verify {
    /// No.
    None,
    /// As the kernel holds it.
    Cached,
    /// From storage: it is written out and dropped from memory first.
    Storage,
}

/// Whether files share their blocks with the source instead of being written.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Reflink {
    /// Where the file system can, and nothing is read back and no rate is limited.
    #[default]
    Auto,
    /// Each file; one that cannot is a failure.
    Always,
    /// None: every byte is read and written.
    Never,
}

/// In which order contents are read.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Order {
    /// Target by target where files are striped over storage targets and the list or the file system names them, else
    /// as the walk finds files.
    #[default]
    Auto,
    /// As the walk finds files.
    Walk,
}

/// One of several processes, on any hosts, that copy entries of one source into one destination at the same time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Share {
    /// Names its journal and temporary files. Two processes with one key exclude each other.
    pub key: u128,
    /// Whether it sets the attributes of directories: that is for the process that comes last.
    pub directories: bool,
}

/// Which regular files are copied, by size and time of change; the default admits all.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Limits {
    /// Bytes, at least.
    pub min_size: Option<u64>,
    /// Bytes, at most.
    pub max_size: Option<u64>,
    /// Changed at this time or later, in seconds since 1970.
    pub since: Option<i64>,
    /// Changed at this time or before.
    pub until: Option<i64>,
}

impl Limits {
    /// Whether a file of this size, changed at this time, is within them.
    #[must_use]
    pub fn admit(&self, size: u64, mtime: Time) -> bool {
        self.min_size.is_none_or(|least| size >= least)
            && self.max_size.is_none_or(|most| size <= most)
            && self.since.is_none_or(|since| mtime.seconds >= since)
            && self.until.is_none_or(|until| mtime.seconds <= until)
    }
}

/// What to copy, where to, and how.
#[derive(Debug, Clone)]
pub struct Options {
    /// A directory, or one file.
    pub source: PathBuf,
    /// What the copy shall be. An existing directory takes a single file under its own name.
    pub destination: PathBuf,
    /// Threads that copy, at least one.
    pub workers: usize,
    /// In which order they read.
    pub order: Order,
    /// How many of them read from one storage target at once; None for about as many as there are for each.
    pub readers_per_target: Option<u32>,
    /// Left out.
    pub exclude: Exclude,
    /// Where given, files that match none of these are left out as well.
    pub include: Option<Exclude>,
    /// Of regular files only those within these.
    pub limits: Limits,
    /// Where files go that are replaced.
    pub backup: Option<Backup>,
    /// Keep what is done with each entry, to be taken.
    pub log: bool,
    /// Where given, only these entries, and directories of them with all their entries.
    pub names: Option<Names>,
    /// Whether symbolic links of the source are followed: what they lead to is copied.
    pub copy_links: bool,
    /// Whether directories on other file systems are left out.
    pub one_file_system: bool,
    /// When to copy files that are at the destination already.
    pub update: Update,
    /// When to force data out.
    pub fsync: Fsync,
    /// Whether to read back.
    pub verify: Verify,
    /// Whether to share blocks with the source.
    pub reflink: Reflink,
    /// Bytes a second of all workers together; None for no limit.
    pub rate_bytes_per_s: Option<u64>,
    /// Only prepare files of more than an extent, for other processes to write (see [`crate::Fill`]); what is prepared
    /// is completed by the same copy without this.
    pub divide: bool,
    /// Only say what would be done.
    pub dry_run: bool,
    /// In a dry run, read the contents that would be copied, to see how fast that goes.
    pub read_sources: bool,
    /// Throw away what an interrupted copy left.
    pub restart: bool,
    /// Keep extended attributes, and with them access control lists.
    pub xattrs: bool,
    /// Keep owners and groups, as far as this process may.
    pub owners: bool,
    /// Files of the same inode become links again.
    pub hard_links: bool,
    /// Where other processes copy other entries to the same destination: `names` are then only themselves, without
    /// the contents of directories among them.
    pub share: Option<Share>,
}
