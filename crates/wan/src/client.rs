//! The client of a copy: reaches a server, and copies to it or from it.
//!
//! Arrives: a server, two paths, options. Leaves: a copy under way, that can be waited for, asked, and stopped.
//! Must not know: Python, where keys are kept.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use waystage_copy::{Names, Problem};

use crate::book::{Book, Verdict};
use crate::control::Control;
use crate::dial::{dial, Peer};
use crate::error::{WanError, WanErrorKind};
use crate::lane::Lane;
use crate::list;
use crate::place;
use crate::receive::receive;
use crate::reception::Target;
use crate::send::send;
use crate::session::{exchange, expect, kinds, nonsense, single_name, Ask, CopyOptions, Purpose};
use crate::wire::Reader;

/// Where a copy is from and to.
#[derive(Debug, Clone)]
pub enum Ends {
    /// From this machine to the server.
    Push {
        /// Here.
        local: PathBuf,
        /// There.
        remote: Vec<u8>,
    },
    /// From the server to this machine.
    Pull {
        /// There.
        remote: Vec<u8>,
        /// Here.
        local: PathBuf,
    },
}

/// What to copy with whom.
#[derive(Debug, Clone)]
pub struct Request {
    /// With which server, and as whom.
    pub server: Peer,
    /// What the other end is called in a journal, where host and port are others the next time.
    pub known_as: Option<String>,
    /// Threads that read or write files.
    pub workers: usize,
    /// From where to where.
    pub ends: Ends,
    /// Only these of the source's entries, where [`CopyOptions::listed`] says so.
    pub names: Option<Names>,
    /// How.
    pub options: CopyOptions,
}

#[derive(Default)]
struct Progress {
    notes: Vec<String>,
    verdict: Option<Verdict>,
    limit: String,
    result: Option<Result<(), WanError>>,
    lane: Option<Arc<Lane>>,
    control: Option<Arc<Control>>,
}

struct Shared {
    request: Request,
    book: Book,
    progress: Mutex<Progress>,
    ended: Condvar,
}

impl Shared {
    fn lock(&self) -> std::sync::MutexGuard<'_, Progress> {
        self.progress.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A copy under way. Dropping it stops it; what it has done stays, and the same copy goes on from there.
pub struct Client {
    shared: Arc<Shared>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

impl Client {
    /// Start.
    pub fn start(request: Request) -> Result<Self, WanError> {
        let shared = Arc::new(Shared {
            request,
            book: Book::default(),
            progress: Mutex::default(),
            ended: Condvar::new(),
        });
        let running = Arc::clone(&shared);
        let thread = std::thread::Builder::new()
            .name("wan-copy".to_owned())
            .spawn(move || {
                let result = run(&running);
                if result.is_err() {
                    // Nobody is kept waiting, and nothing is said any more.
                    let control = running.lock().control.clone();
                    control.iter().for_each(|control| control.abort());
                }
                running.lock().result = Some(result);
                running.ended.notify_all();
            })
            .map_err(|error| WanError::io("start a thread", &error))?;
        Ok(Self { shared, thread: Mutex::new(Some(thread)) })
    }

    /// How it ended; None where it has not within `timeout`.
    pub fn wait(&self, timeout: Duration) -> Option<Result<(), WanError>> {
        let held = self.shared.lock();
        let held = self.shared.ended.wait_timeout_while(held, timeout, |p| p.result.is_none());
        held.unwrap_or_else(PoisonError::into_inner).0.result.clone()
    }

    /// How far it is, by name; both ends' counts once it has ended.
    pub fn counts(&self) -> Vec<(&'static str, u64)> {
        let book = &self.shared.book;
        let ours = book.report.tally.read();
        if let Some(verdict) = &self.shared.lock().verdict {
            return verdict.joined(ours);
        }
        let order = std::sync::atomic::Ordering::Relaxed;
        let (files, bytes) = (book.moved_files.load(order), book.moved_bytes.load(order));
        let sent = |name: &str, count: u64| match name {
            "files" => count.max(files),
            "bytes" => count.max(bytes),
            _ => count,
        };
        ours.by_name().into_iter().map(|(name, count)| (name, sent(name, count))).collect()
    }

    /// What could not be copied and why, at both ends.
    pub fn problems(&self) -> Vec<Problem> {
        let mut problems = self.shared.book.report.problems();
        if let Some(verdict) = &self.shared.lock().verdict {
            problems.extend(verdict.problems.iter().cloned());
        }
        problems
    }

    /// What the user should know: a mode that was not granted, UDP that is blocked.
    pub fn notes(&self) -> Vec<String> {
        self.shared.lock().notes.clone()
    }

    /// What both ends added up of all contents that were copied.
    pub fn digest(&self) -> u128 {
        self.shared.book.sum()
    }

    /// How the connection is doing, and what limits it: names and numbers.
    pub fn connection(&self) -> (Vec<(&'static str, f64)>, String) {
        let progress = self.shared.lock();
        let Some(lane) = &progress.lane else { return (Vec::new(), String::new()) };
        let status = lane.status();
        let limit = if progress.limit.is_empty() {
            status.limit().map_or("", crate::lane::Holder::name).to_owned()
        } else {
            progress.limit.clone()
        };
        (status.numbers(), limit)
    }

    /// End it; its threads are gone when this returns.
    pub fn stop(&self) {
        self.shared.book.cancel();
        let (lane, control) = {
            let progress = self.shared.lock();
            (progress.lane.clone(), progress.control.clone())
        };
        // Whoever waits to send is woken; the other end is still told in words.
        if let Some(lane) = lane {
            lane.end("the copy was stopped");
        }
        if self.wait(Duration::from_secs(3)).is_none() {
            if let Some(control) = control {
                control.abort();
            }
        }
        let thread = self.thread.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(thread) = thread {
            // A panicked thread has told the process's stderr; there is nobody to tell here.
            let _ = thread.join();
        }
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        self.stop();
    }
}

fn run(shared: &Shared) -> Result<(), WanError> {
    let request = &shared.request;
    let dialled = dial(&request.server, Purpose::Copy, |control| {
        shared.lock().control = Some(Arc::clone(control));
    })?;
    let control = Arc::clone(&dialled.control);
    shared.lock().notes.extend(dialled.note.clone());
    let (lane, note) = dialled.lane(&request.server)?;
    shared.lock().notes.extend(note);
    let lane = Arc::new(lane);
    shared.lock().lane = Some(Arc::clone(&lane));
    let (result, verdict) = copy(shared, &control, &lane)?;
    {
        let mut progress = shared.lock();
        progress.limit = match (&request.ends, &verdict) {
            (Ends::Pull { .. }, Some(verdict)) => verdict.limit.clone(),
            _ => lane.status().limit().map_or("", crate::lane::Holder::name).to_owned(),
        };
        progress.verdict = verdict;
    }
    if result.is_ok() {
        lane.close();
        control.close();
    } else {
        lane.end("the copy was given up");
        control.close();
    }
    result
}

fn copy(
    shared: &Shared,
    control: &Control,
    lane: &Lane,
) -> Result<(Result<(), WanError>, Option<Verdict>), WanError> {
    let request = &shared.request;
    let (book, options) = (&shared.book, &request.options);
    let Peer { user, host, port, .. } = &request.server;
    let name = request
        .known_as
        .as_ref()
        .map_or_else(|| format!("wan:{user}@{host}:{port}"), |name| format!("wan:{name}"));
    match &request.ends {
        Ends::Push { local, remote } => {
            let real = local.canonicalize().map_err(|error| unreadable(local, &error))?;
            let path = bytes(&real);
            let origin = place::origin(&place::of_this_machine, path, local)?;
            let mut from = format!("wan:{}:", this_host()).into_bytes();
            from.extend_from_slice(path);
            let single = origin.single.as_ref().map(|item| item.name.clone());
            list::suits(&origin, request.names.as_ref(), local)?;
            let ask =
                Ask { push: true, path: remote.clone(), single, from, options: options.clone() };
            control.send(kinds::ASK, &ask.encode());
            expect(control, kinds::ACCEPTED)?;
            Ok(exchange(control, lane, book, || {
                send(&origin, request.names.as_ref(), options, lane, book, request.workers)
            }))
        }
        Ends::Pull { remote, local } => {
            let ask = Ask {
                push: false,
                path: remote.clone(),
                single: None,
                from: Vec::new(),
                options: options.clone(),
            };
            control.send(kinds::ASK, &ask.encode());
            if let Some(names) = &request.names {
                list::tell(control, names)?;
            }
            let accepted = expect(control, kinds::ACCEPTED)?;
            let mut reader = Reader(&accepted);
            let single = match reader.bytes().map_err(|_| nonsense())? {
                b"" => None,
                name => Some(single_name(name).map_err(|_| nonsense())?),
            };
            let held =
                place::target(&place::of_this_machine, bytes(local), single.as_deref(), local)?;
            let mut from = format!("{name}:").into_bytes();
            from.extend_from_slice(remote);
            let target = Target {
                root: held.root,
                _held: held.held,
                rename: held.rename,
                shown: local.clone(),
                from,
                privileged: true,
            };
            Ok(exchange(control, lane, book, || {
                receive(&target, options, lane, book, request.workers)
            }))
        }
    }
}

fn bytes(path: &Path) -> &[u8] {
    std::os::unix::ffi::OsStrExt::as_bytes(path.as_os_str())
}

fn unreadable(path: &Path, error: &std::io::Error) -> WanError {
    WanError::new(
        WanErrorKind::Files(waystage_copy::CopyErrorKind::Ends),
        format!("{} cannot be read: {error}", path.display()),
    )
}

fn this_host() -> String {
    rustix::system::uname().nodename().to_string_lossy().into_owned()
}
