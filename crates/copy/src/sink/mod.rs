//! The destination of a copy: what an earlier run left there, where files are made, how they get their names.
//!
//! Arrives: directories, contents, attributes, records. Leaves: files that have their names only when complete, and a
//! journal from which the next run continues. Must not know: where contents come from, transports.

mod destination;
pub(crate) mod extent_map;
mod hard_link;
pub mod journal;
mod large_file;
mod leftovers;
mod new_file;
mod special;
mod temporary;

use std::collections::HashMap;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use rustix::fs::{readlinkat, syncfs};
use rustix::io::Errno;
use waystage_pacing::{Gate, Stopped};

use crate::attributes::AttributePreserver;
use crate::counts::{add, Report};
use crate::ends::unwritable;
use crate::error::{At, CopyError, End, Failure};
use crate::options::Fsync;
use crate::own_names::{is_journal_folder, random};
use crate::plan::Found;
use crate::stat::{letter, split, stat_at, stat_fd, FileState, Metadata};
use crate::state::Fatal;
use crate::time::Time;

use journal::{Journal, JournalOf, PartialFile, Record, Recovered};

pub use destination::{Destination, Folder};
pub use hard_link::Linked;
pub use large_file::{DividedFile, Expected, LargeFile};
pub use new_file::NewFile;
pub use special::Special;
pub use temporary::with_temporary_name;

pub use crate::own_names::OWN_PREFIX;

/// While another process copies to the destination, it is looked this often whether it still does.
const BUSY_INTERVAL: Duration = Duration::from_millis(100);

/// Clocks of file servers and of this machine may differ by this much when it is decided what a lost run may have made.
const CLOCKS_S: i64 = 120;

/// How to use a destination.
#[derive(Debug)]
pub struct SinkOptions<'a> {
    /// Its root, by a name that stays valid.
    pub root: &'a Path,
    /// What its user calls it.
    pub shown: &'a Path,
    /// The name of the file, where the copy is of one file.
    pub rename: Option<Vec<u8>>,
    /// The number of this process, where several copy to this destination at once.
    pub share: Option<u128>,
    /// What the journal calls the source.
    pub from: &'a [u8],
    /// Whether nothing is written.
    pub dry_run: bool,
    /// Whether what an interrupted copy of another source left is removed.
    pub restart: bool,
    /// When data is forced to storage.
    pub fsync: Fsync,
    /// Whether owners are kept.
    pub owners: bool,
    /// Whether extended attributes are kept.
    pub xattrs: bool,
    /// Memory for what earlier runs left, in bytes.
    pub most_recovered_bytes: usize,
    /// How long another copy to the same destination may take to end.
    pub busy_time: Duration,
}

/// The destination of a copy, open.
pub struct Sink {
    /// Its directories.
    pub destination: Destination,
    /// Sets owners, modes, extended attributes and times.
    pub preserver: AttributePreserver,
    /// When data is forced to storage.
    pub fsync: Fsync,
    /// The name of the file, where the copy is of one file.
    pub rename: Option<Vec<u8>>,
    /// In the names of temporary files, the same for each copy to this destination: leftovers are known by it.
    pub session: u64,
    /// What was made since then may have been lost in a power failure, though its name is there.
    pub doubtful_since: Option<Time>,
    shown: PathBuf,
    /// None in a dry run.
    journal: Option<Journal>,
    /// Whether temporary files may be where no journal says so.
    sweeps: bool,
    partial_files: Mutex<HashMap<Vec<u8>, PartialFile>>,
    next_id: AtomicU32,
}

impl Sink {
    /// Open the destination, and unless this is a dry run its journal: an earlier run is continued or cleared away.
    ///
    /// # Errors
    /// Where the destination cannot be written, is in use, or holds an unfinished copy of another source; or the copy
    /// was stopped (`gate`) while the destination was in use.
    pub fn open(options: SinkOptions<'_>, report: &Report, gate: &Gate) -> Result<Self, CopyError> {
        let SinkOptions { root, shown, from, dry_run, restart, fsync, .. } = options;
        let destination =
            Destination::open(root, dry_run).map_err(|error| unwritable(shown, &error))?;
        let mut sink = Self {
            destination,
            preserver: AttributePreserver::new(options.owners, options.xattrs),
            fsync,
            rename: options.rename,
            session: 0,
            doubtful_since: None,
            shown: shown.to_path_buf(),
            journal: None,
            sweeps: false,
            partial_files: Mutex::default(),
            next_id: AtomicU32::new(0),
        };
        if dry_run {
            return Ok(sink);
        }
        let opened = || {
            sink.destination.root().and_then(Result::ok).ok_or_else(|| {
                let text =
                    format!("{} cannot be opened: choose another destination", shown.display());
                CopyError::Refused(text)
            })
        };
        let of = JournalOf { single: sink.rename.as_deref(), share: options.share };
        let session = session_of(&opened()?, of);
        let deadline = Instant::now() + options.busy_time;
        let (journal, mut recovered) = loop {
            match Journal::open(opened()?, of, shown, options.most_recovered_bytes) {
                Err(CopyError::Busy(_)) if Instant::now() < deadline => {
                    // The kernel tells of a lock's end only the one who blocks on it, without a limit.
                    gate.rest(BUSY_INTERVAL).map_err(|Stopped| <CopyError as Fatal>::stopped())?;
                }
                other => break other?,
            }
        };
        // A sweep of the whole tree is not for one of many: it has only been where its journal says.
        sink.sweeps = recovered.found && options.share.is_none();
        sink.session = session;
        sink.begin(from, restart, &journal, &mut recovered, report)?;
        sink.doubtful_since = doubtful_since(&recovered);
        sink.next_id = AtomicU32::new(recovered.next_id);
        sink.partial_files = Mutex::new(recovered.partial_files);
        sink.journal = Some(journal);
        Ok(sink)
    }

    /// Take over what an earlier run left, or clear it away, and record that a run begins.
    fn begin(
        &self,
        from: &[u8],
        restart: bool,
        journal: &Journal,
        recovered: &mut Recovered,
        report: &Report,
    ) -> Result<(), CopyError> {
        let written = |error: std::io::Error| unwritable(&self.shown, &error);
        let other =
            recovered.foreign || recovered.source.as_deref().is_some_and(|source| source != from);
        if other && !restart {
            let what = match &recovered.source {
                Some(source) => {
                    format!("an interrupted copy of {}", String::from_utf8_lossy(source))
                }
                None => "a journal that this Waystage cannot read".to_owned(),
            };
            let text = format!(
                "{} holds {what}: finish that one first, or give --restart to throw away what it left unfinished",
                self.shown.display()
            );
            return Err(CopyError::OtherJournal(text));
        }
        leftovers::of_workers(&self.destination, recovered, self.session, report);
        if other || restart {
            for partial in std::mem::take(&mut recovered.partial_files).into_values() {
                self.discard(&partial, report);
            }
            *recovered = Recovered::default();
            journal.empty().map_err(written)?;
        }
        if recovered.source.is_some() {
            add(&report.tally.resumed, 1);
        }
        let durable = self.fsync == Fsync::Each;
        let record = Record::Run { source: from.to_vec(), boot: boot(), time: now(), durable };
        journal.append(&record).map_err(written)
    }

    /// A file's directory and its name, from its path at the source.
    #[must_use]
    pub fn place<'p>(&'p self, path: &'p [u8]) -> (&'p [u8], &'p [u8]) {
        match &self.rename {
            Some(name) => (b"", name),
            None => split(path),
        }
    }

    /// Nothing is made where this copy's journal is: no sender that keeps to the rules names it.
    ///
    /// # Errors
    /// Where the path names the journal or its folder.
    pub fn may_be_made(&self, path: &[u8]) -> Result<(), Failure> {
        let (directory, name) = self.place(path);
        let above = directory.split(|byte| *byte == b'/').next().filter(|name| !name.is_empty());
        if is_journal_folder(above.unwrap_or(name)) {
            return Err(Failure::Clash("has the name of a copy's own journal"));
        }
        Ok(())
    }

    /// What has this name in the directory; None where nothing has.
    ///
    /// # Errors
    /// Those of statx(2) and readlinkat(2).
    pub fn found(folder: &Folder, name: &[u8]) -> Result<Option<(Found, Metadata)>, Failure> {
        if folder.fresh {
            return Ok(None);
        }
        let stat = match stat_at(folder.fd(), name) {
            Err(Errno::NOENT) => return Ok(None),
            other => other.at(End::Destination, "stat")?,
        };
        let letter = letter(stat.stx_mode);
        let target = if letter == b'l' {
            readlinkat(folder.fd(), name, Vec::new())
                .at(End::Destination, "read link")?
                .into_bytes()
        } else {
            Vec::new()
        };
        let device = rustix::fs::makedev(stat.stx_rdev_major, stat.stx_rdev_minor);
        let found = Found { letter, seen: FileState::of(&stat), target, device };
        Ok(Some((found, Metadata::of(&stat))))
    }

    /// Record where temporary files of this worker may be from now on; `entered` is what was recorded last.
    ///
    /// # Errors
    /// Where the journal cannot be written.
    pub fn enter(
        &self,
        entered: &mut Option<Vec<u8>>,
        worker: usize,
        directory: &[u8],
    ) -> Result<(), Failure> {
        if self.journal.is_some() && entered.as_deref() != Some(directory) {
            let worker = u32::try_from(worker).unwrap_or(u32::MAX);
            self.record(&Record::Entered { worker, directory: directory.to_vec() })?;
            *entered = Some(directory.to_vec());
        }
        Ok(())
    }

    /// Append to the journal, if there is one.
    ///
    /// # Errors
    /// Where it cannot be written.
    pub fn record(&self, record: &Record) -> Result<(), Failure> {
        let Some(journal) = &self.journal else { return Ok(()) };
        journal.append(record).at(End::Destination, "write the journal")
    }

    /// What an earlier run left of the large file at this path.
    pub fn recovered(&self, path: &[u8]) -> Option<PartialFile> {
        self.partial_files.lock().get(path).cloned()
    }

    /// A number for a large file in the journal, and a random one for its temporary name.
    fn new_ids(&self) -> Result<(u32, u64), Failure> {
        let key = random().at(End::Destination, "find a name")?;
        Ok((self.next_id.fetch_add(1, Ordering::Relaxed), key))
    }

    /// Remove the temporary file of a large file that will not be completed.
    pub fn discard(&self, partial: &PartialFile, report: &Report) {
        leftovers::of_large_file(&self.destination, partial, self.session, report);
    }

    /// All files are complete: remove leftovers, force data to storage where that was asked for, remove the journal.
    ///
    /// # Errors
    /// Those of syncfs(2).
    pub fn finish(&self, report: &Report) -> Result<(), CopyError> {
        let Some(journal) = &self.journal else { return Ok(()) };
        let left = std::mem::take(&mut *self.partial_files.lock());
        left.values().for_each(|partial| self.discard(partial, report));
        if self.sweeps {
            leftovers::sweep(&self.destination, self.session, self.rename.is_none(), report);
        }
        if self.fsync != Fsync::None {
            if let Some(Ok(root)) = self.destination.root() {
                syncfs(&root).map_err(|errno| unwritable(&self.shown, &errno.into()))?;
            }
        }
        journal.remove();
        Ok(())
    }
}

/// From when on a name may be wrong, as a power failure may have taken the contents; None where nothing is in doubt.
fn doubtful_since(recovered: &Recovered) -> Option<Time> {
    (recovered.source.is_some() && recovered.boot != boot() && !recovered.durable)
        .then(|| recovered.since.before(CLOCKS_S))
}

/// A number in the names of temporary files, the same for every copy to this destination: leftovers are known by it,
/// also after a reboot that gave the file system another device number.
fn session_of(root: &std::os::fd::OwnedFd, of: JournalOf<'_>) -> u64 {
    let mut text = stat_fd(root.as_fd())
        .map(|stat| format!("{}:", stat.stx_ino).into_bytes())
        .unwrap_or_default();
    text.extend_from_slice(of.single.unwrap_or_default());
    // No file has a slash in its name.
    text.extend(of.share.map(|key| format!("/{key:032x}")).unwrap_or_default().into_bytes());
    twox_hash::XxHash3_64::oneshot(&text)
}

/// Which boot of the machine this is; all zero where the kernel does not say, which is taken for one boot.
fn boot() -> [u8; 16] {
    let text = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    let hex: String = text.chars().filter(char::is_ascii_hexdigit).collect();
    u128::from_str_radix(&hex, 16).unwrap_or_default().to_be_bytes()
}

fn now() -> Time {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    since.map_or_else(
        |_| Time::default(),
        |since| Time {
            seconds: since.as_secs().try_into().unwrap_or(i64::MAX),
            nanoseconds: since.subsec_nanos(),
        },
    )
}
