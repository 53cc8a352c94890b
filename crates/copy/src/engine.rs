//! A copy from start to end: the walk feeds, workers copy, directories get their times last.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use waystage_catalog::Root;

use crate::contents::Ways;
use crate::counts::{Counts, Planned, Problem, Report};
use crate::destination::Destination;
use crate::ends::{ends, unwritable, Ends};
use crate::error::{CopyError, CopyErrorKind, Failure};
use crate::feed::feed;
use crate::item::{look_at, About, Item};
use crate::journal::{Half, Journal, Past, Record};
use crate::leftovers;
use crate::options::{Fsync, Options};
use crate::pace::Pace;
use crate::queue::Queue;
use crate::time::Time;
use crate::worker::Worker;

/// Bytes of an extent: what a crash makes be sent again at most, per worker, and at 1 GB/s a thirtieth of a second.
const EXTENT_BYTES: u64 = 32 << 20;

/// Clocks of file servers and of this machine may differ by so much when it is asked what a lost run may have made.
const CLOCKS_S: i64 = 120;

/// What all threads of a copy share.
pub(crate) struct Shared {
    pub(crate) options: Options,
    pub(crate) source: Root,
    pub(crate) source_path: PathBuf,
    pub(crate) destination: Destination,
    pub(crate) journal: Option<Journal>,
    pub(crate) queue: Queue,
    pub(crate) ways: Ways,
    pub(crate) keeper: crate::attributes::Keeper,
    pub(crate) report: Report,
    pub(crate) extent_bytes: u64,
    /// In the names of drafts, the same for each copy to this destination: leftovers are known by it.
    pub(crate) session: u64,
    /// Whether drafts may lie where no journal says so.
    pub(crate) sweeps: bool,
    /// The name of a single file at the destination.
    pub(crate) rename: Option<Vec<u8>>,
    pub(crate) single: Option<Item>,
    pub(crate) root_about: About,
    pub(crate) directories: Mutex<Vec<(Vec<u8>, About)>>,
    halves: Mutex<HashMap<Vec<u8>, Half>>,
    next_id: AtomicU32,
    /// What was made since then may have been lost, though its name stands.
    doubtful_since: Option<Time>,
    fatal: Mutex<Option<CopyError>>,
    ended: (Mutex<Option<Result<(), CopyError>>>, Condvar),
}

/// What earlier runs left takes no more memory than this: some million large files under way.
const MOST_PAST_BYTES: usize = 1 << 30;

impl Shared {
    pub(crate) fn remember_directory(&self, item: &Item) {
        let mut directories = self.directories.lock().unwrap_or_else(PoisonError::into_inner);
        directories.push((item.path(), item.about));
    }

    /// What an earlier run left of the large file at this path.
    pub(crate) fn take_half(&self, path: &[u8]) -> Option<Half> {
        self.halves.lock().unwrap_or_else(PoisonError::into_inner).remove(path)
    }

    /// What earlier runs left and nobody has asked for.
    pub(crate) fn other_halves(&self) -> Vec<Half> {
        let mut halves = self.halves.lock().unwrap_or_else(PoisonError::into_inner);
        std::mem::take(&mut *halves).into_values().collect()
    }

    pub(crate) fn next_id(&self) -> u32 {
        self.next_id.fetch_add(1, Ordering::Relaxed)
    }

    /// Whether a file changed at this time may be one whose contents a power failure took.
    pub(crate) fn doubtful(&self, ctime: Time) -> bool {
        self.doubtful_since.is_some_and(|since| ctime >= since)
    }

    /// End the copy: there is no point in going on.
    pub(crate) fn end_for(&self, kind: CopyErrorKind, path: &[u8], failure: &Failure) {
        let mend = match kind {
            CopyErrorKind::NoSpace => {
                "make room, and give the same command again: it goes on where it stopped"
            }
            _ => "the same command goes on where it stopped",
        };
        let path = String::from_utf8_lossy(path);
        let text = format!("{path}: {failure}: {mend}");
        let mut fatal = self.fatal.lock().unwrap_or_else(PoisonError::into_inner);
        fatal.get_or_insert(CopyError::new(kind, text));
        drop(fatal);
        self.stop();
    }

    fn stop(&self) {
        self.ways.stop.store(true, Ordering::SeqCst);
        self.queue.stop();
    }

    fn verdict(&self) -> CopyError {
        let fatal = self.fatal.lock().unwrap_or_else(PoisonError::into_inner).clone();
        fatal.unwrap_or_else(|| CopyError::new(CopyErrorKind::Stopped, "the copy was stopped"))
    }
}

/// A copy under way. Dropping it stops it; what it has done stays, and the same copy goes on from there.
pub struct Copy {
    shared: Arc<Shared>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

impl Copy {
    /// Start. Fails where an end cannot be used, the two make no sense together, or another process is at it.
    pub fn start(options: Options) -> Result<Self, CopyError> {
        let shared = Arc::new(prepare(options)?);
        let threads = Arc::clone(&shared);
        let thread = std::thread::Builder::new()
            .name("copy".to_owned())
            .spawn(move || {
                let result = run(&threads);
                let (ended, wake) = &threads.ended;
                *ended.lock().unwrap_or_else(PoisonError::into_inner) = Some(result);
                wake.notify_all();
            })
            .map_err(|error| CopyError::new(CopyErrorKind::Failed, error.to_string()))?;
        Ok(Self { shared, thread: Mutex::new(Some(thread)) })
    }

    /// How it ended; None where it has not within `timeout`.
    pub fn wait(&self, timeout: Duration) -> Option<Result<(), CopyError>> {
        let (ended, wake) = &self.shared.ended;
        let held = ended.lock().unwrap_or_else(PoisonError::into_inner);
        let held = wake.wait_timeout_while(held, timeout, |ended| ended.is_none());
        held.unwrap_or_else(PoisonError::into_inner).0.clone()
    }

    /// How far it is.
    pub fn counts(&self) -> Counts {
        let counts = self.shared.report.tally.read();
        // A dry run makes none: its tally counts directories as the walk finds them.
        Counts { directories: counts.directories + self.shared.destination.made(), ..counts }
    }

    /// What could not be copied and why, the first ten thousand.
    pub fn problems(&self) -> Vec<Problem> {
        self.shared.report.problems()
    }

    /// What a dry run would make, the first ten thousand paths.
    pub fn planned(&self) -> Vec<Planned> {
        self.shared.report.planned()
    }

    /// Move no more than so many bytes a second from now on; of a copy that was started as one whose rate changes.
    pub fn limit(&self, bytes_per_s: Option<u64>) {
        self.shared.ways.pace.limit(bytes_per_s);
    }

    /// End it; its threads and unfinished small files are gone when this returns.
    pub fn stop(&self) {
        self.shared.stop();
        let thread = self.thread.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(thread) = thread {
            // A panicked thread has told the process's stderr; there is nobody to tell here.
            let _ = thread.join();
        }
    }
}

impl Drop for Copy {
    fn drop(&mut self) {
        self.stop();
    }
}

fn prepare(mut options: Options) -> Result<Shared, CopyError> {
    options.workers = options.workers.clamp(1, 1024);
    let Ends { source: source_path, destination: root, single } =
        ends(&options.source, &options.destination, options.dry_run)?;
    if single.is_some() && options.names.is_some() {
        return Err(no_directory(&options.source));
    }
    let unreadable = |error: std::io::Error| {
        let text = format!("{} cannot be read: {error}", options.source.display());
        CopyError::new(CopyErrorKind::Ends, text)
    };
    let source = Root::open(&source_path).map_err(unreadable)?;
    let top = source.directory(b"").map_err(|errno| unreadable(errno.into()))?;
    let top = look_at(std::os::fd::AsFd::as_fd(&top)).map_err(|errno| unreadable(errno.into()))?;
    let destination =
        Destination::open(&root, options.dry_run).map_err(|error| unwritable(&root, &error))?;
    let report = Report::default();
    let (rename, single) = single.map_or((None, None), |(item, name)| (Some(name), Some(item)));
    let (mut journal, mut past, mut session, mut sweeps) = (None, Past::default(), 0, false);
    if !options.dry_run {
        let opened = destination.root().and_then(Result::ok).ok_or_else(|| {
            let text = format!("{} cannot be opened: choose another destination", root.display());
            CopyError::new(CopyErrorKind::Refused, text)
        })?;
        session = session_of(&opened, rename.as_deref());
        let (held, found) = Journal::open(opened, rename.as_deref(), &root, MOST_PAST_BYTES)?;
        (sweeps, past) = (found.found, found);
        let from = origin(&source_path, single.as_ref());
        let how = Beginning {
            shown: &options.destination,
            from: &from,
            session,
            durable: options.fsync == Fsync::Each,
            restart: options.restart,
        };
        begin(&how, &held, &mut past, &destination, &report)?;
        journal = Some(held);
    }
    let doubtful_since = doubtful_since(&past);
    Ok(Shared {
        source,
        source_path,
        destination,
        journal,
        queue: Queue::default(),
        ways: Ways::new(Pace::new(options.rate_bytes_per_s, options.rate_changes), options.workers),
        keeper: crate::attributes::Keeper::new(options.owners, options.xattrs),
        report,
        extent_bytes: EXTENT_BYTES,
        session,
        sweeps,
        rename,
        single,
        root_about: About::of(&top),
        directories: Mutex::default(),
        next_id: AtomicU32::new(past.next_id),
        halves: Mutex::new(past.halves),
        doubtful_since,
        fatal: Mutex::default(),
        ended: Default::default(),
        options,
    })
}

/// A list names what lies below a directory, and this is none.
pub fn no_directory(source: &Path) -> CopyError {
    let text = format!(
        "{} is a file, and a list names what lies below a directory: copy it without the list",
        source.display()
    );
    CopyError::new(CopyErrorKind::Ends, text)
}

/// What a run says of itself when it begins.
pub struct Beginning<'a> {
    /// How the destination is called.
    pub shown: &'a Path,
    /// How the journal calls the source.
    pub from: &'a [u8],
    /// In the names of drafts.
    pub session: u64,
    /// Whether each file is forced to the disk.
    pub durable: bool,
    /// Whether what another run left is thrown away.
    pub restart: bool,
}

/// Take over what an earlier run left, or clear it away, and say that a run begins.
pub fn begin(
    how: &Beginning<'_>,
    journal: &Journal,
    past: &mut Past,
    destination: &Destination,
    report: &Report,
) -> Result<(), CopyError> {
    let written = |error: std::io::Error| unwritable(how.shown, &error);
    let other = past.foreign || past.source.as_deref().is_some_and(|source| source != how.from);
    if other && !how.restart {
        let what = match &past.source {
            Some(source) => format!("an interrupted copy of {}", String::from_utf8_lossy(source)),
            None => "a journal that this Waystage cannot read".to_owned(),
        };
        let text = format!(
            "{} holds {what}: finish that one first, or give --restart to throw away what it left unfinished",
            how.shown.display()
        );
        return Err(CopyError::new(CopyErrorKind::OtherJournal, text));
    }
    leftovers::workers(destination, past, how.session, report);
    if other || how.restart {
        let halves = std::mem::take(&mut past.halves);
        leftovers::larges(destination, halves.into_values(), how.session, report);
        *past = Past::default();
        journal.empty().map_err(written)?;
    }
    if past.source.is_some() {
        crate::counts::add(&report.tally.resumed, 1);
    }
    let record =
        Record::Run { source: how.from.to_vec(), boot: boot(), time: now(), durable: how.durable };
    journal.append(&record).map_err(written)
}

/// From when on what a name tells may be wrong, as a power failure may have taken it; None where nothing is in doubt.
#[must_use]
pub fn doubtful_since(past: &Past) -> Option<Time> {
    (past.source.is_some() && past.boot != boot() && !past.durable)
        .then(|| past.since.before(CLOCKS_S))
}

fn run(shared: &Shared) -> Result<(), CopyError> {
    let fed = std::thread::scope(|scope| {
        for number in 0..shared.options.workers {
            let builder = std::thread::Builder::new().name(format!("copy-{number}"));
            let spawned = builder.spawn_scoped(scope, move || Worker::new(number, shared).run());
            if let Err(error) = spawned {
                shared.queue.stop();
                return Err(CopyError::new(CopyErrorKind::Failed, error.to_string()));
            }
        }
        let fed = feed(shared);
        shared.queue.stop();
        fed
    });
    match fed {
        Ok(true) => leftovers::finish(shared),
        Ok(false) => Err(shared.verdict()),
        Err(error) => Err(error),
    }
}

/// How the journal calls the source; copies between hosts have another word before the colon.
fn origin(path: &std::path::Path, single: Option<&Item>) -> Vec<u8> {
    use std::os::unix::ffi::OsStrExt;
    let mut from = b"local:".to_vec();
    from.extend_from_slice(path.as_os_str().as_bytes());
    if let Some(item) = single {
        from.push(b'/');
        from.extend_from_slice(&item.name);
    }
    from
}

/// A number in the names of drafts, the same for every copy to this destination: a leftover is known by it, also after a
/// reboot that gave the file system another device number.
#[must_use]
pub fn session_of(root: &std::os::fd::OwnedFd, single: Option<&[u8]>) -> u64 {
    use std::os::fd::AsFd;
    let mut text = look_at(root.as_fd())
        .map(|stat| format!("{}:", stat.stx_ino).into_bytes())
        .unwrap_or_default();
    text.extend_from_slice(single.unwrap_or_default());
    twox_hash::XxHash3_64::oneshot(&text)
}

/// Which boot of the machine this is; all zero where nobody tells, which then is taken for one boot.
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
