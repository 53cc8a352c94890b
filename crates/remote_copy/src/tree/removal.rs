//! The server's part of the removal of a source after a copy: what it holds, and what goes.
//!
//! Arrives: a granted directory, paths below it, what the client holds there. Leaves: a few bytes for each path. Must
//! not know: which entries were copied.
//!
//! A server that holds the source compares itself, and removes only what is unchanged since. Reading may take long:
//! while it does, pages without contents say that the server is at work.

use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{sync_channel, RecvTimeoutError, SyncSender};
use std::time::Duration;

use rustix::fs::syncfs;
use rustix::io::Errno;
use waystage_catalog::Root;
use waystage_copy::after::{remove_unchanged, Digester, Held, Key, LastDirectory};
use waystage_copy::error::{At, End, Failure};
use waystage_copy::stat::{letter, split, stat_at};
use waystage_transport::wire::Writer;

use crate::endpoints::name_of;
use crate::error::{protocol_violation, WanError};
use crate::serving::{Granted, Serving};
use crate::tree_messages::{
    TreeAnswer, TreeRequest, CHANGED, DELETED, DIFFERS, FAILED, LACKED, MOST_PROBLEMS, ONE, STAYED,
};
use crate::tree_pages::{refused, shown, Done, Pages, Refusal, AHEAD, MOST_PROBLEM_BYTES};
use crate::wire_parts::put_held;

/// Contents of a page, about.
const PAGE_BYTES: usize = 64 << 10;

/// A page is sent at least this often: a client waits a minute for one.
const PAGE_TIME: Duration = Duration::from_secs(5);

/// Outcomes that wait for their page.
const WAITING: usize = 256;

/// Serve one of its requests.
pub(crate) fn serve(serving: &Serving<'_>, request: &TreeRequest) -> Result<Done, Refusal> {
    let grant = serving.grant;
    let opened = |path: &[u8], write: bool| -> Result<(Root, OwnedFd), WanError> {
        let Granted { root, path: below, .. } = grant(path, write)?;
        let failed = |errno: Errno| refused(&shown(path), "read", errno);
        let folder = root.directory(&below).map_err(failed)?;
        let top = Root::open(&name_of(&folder));
        let top = top.map_err(|error| failed(Errno::from_io_error(&error).unwrap_or(Errno::IO)))?;
        Ok((top, folder))
    };
    match request {
        TreeRequest::Sync(path) => {
            let (_, folder) = opened(path, true)?;
            meanwhile(serving, |tell, _| {
                if let Err(errno) = syncfs(&folder) {
                    tell(b"", Err(Failure::Call { end: End::Destination, doing: "sync", errno }));
                }
            })?;
            Ok(Done::Asked)
        }
        TreeRequest::Digests(path, key, names) => {
            let (top, _) = opened(path, false)?;
            let mut bytes = 0;
            meanwhile(serving, |tell, stopped| {
                let mut reading = Reading::of(&top, *key, End::Destination);
                for name in names {
                    let held = reading.held(name, stopped);
                    bytes += held.as_ref().map_or(0, |held| held.size);
                    if !tell(name, held.map(|held| held_bytes(&held))) {
                        break;
                    }
                }
            })?;
            Ok(Done::Read(bytes))
        }
        TreeRequest::RemoveHeld(path, key, entries) => {
            let (top, _) = opened(path, true)?;
            let mut removed = 0_u64;
            let told = meanwhile(serving, |tell, stopped| {
                let mut reading = Reading::of(&top, *key, End::Source);
                for (name, held) in entries {
                    let outcome = reading.remove(name, held, stopped);
                    removed += u64::from(outcome == Ok(DELETED));
                    if !tell(name, outcome.map(|byte| vec![byte])) {
                        break;
                    }
                }
            });
            let line = format!("removed {removed} copied files of {}", shown(path).display());
            match told {
                Ok(()) => Ok(Done::Line(line)),
                Err(refusal) => {
                    // It is logged also where the client has not waited for the answer.
                    (serving.say)(line);
                    Err(refusal)
                }
            }
        }
        _ => Err(Refusal::Ends(protocol_violation())),
    }
}

fn held_bytes(held: &Held) -> Vec<u8> {
    let mut out = Writer::default();
    put_held(held, out.u8(STAYED));
    out.0
}

/// What became of a path: what the answer has for it, or why there is nothing.
type Outcome = (Vec<u8>, Result<Vec<u8>, Failure>);

/// Takes outcomes; false where the client waits for no more.
type Tell<'a> = dyn Fn(&[u8], Result<Vec<u8>, Failure>) -> bool + 'a;

/// Do this in a separate thread, and answer with its outcomes.
fn meanwhile(
    serving: &Serving<'_>,
    work: impl FnOnce(&Tell<'_>, &dyn Fn() -> bool) + Send,
) -> Result<(), Refusal> {
    let mut pages = Pages { control: serving.control, most: AHEAD, ahead: 0 };
    let mut answer = Answer::default();
    let over = AtomicBool::new(false);
    let stopped = || over.load(Ordering::Relaxed) || serving.copy_state.is_stopped();
    let (sender, receiver): (SyncSender<Outcome>, _) = sync_channel(WAITING);
    std::thread::scope(|scope| {
        let working = move || {
            let tell = |path: &[u8], outcome| sender.send((path.to_vec(), outcome)).is_ok();
            work(&tell, &stopped);
        };
        let spawned = std::thread::Builder::new()
            .name("compare-files".to_owned())
            .spawn_scoped(scope, working)
            .map_err(|error| pages.failed(WanError::io("start a thread", &error)));
        spawned?;
        // Dropped with this, so that no thread waits to be heard.
        let receiver = receiver;
        loop {
            match receiver.recv_timeout(PAGE_TIME) {
                Ok((path, outcome)) => {
                    answer.put(path, outcome);
                    if answer.page.data.len() < PAGE_BYTES {
                        continue;
                    }
                }
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return Ok(()),
            }
            let sent = pages.send(&std::mem::take(&mut answer.page));
            if sent.is_err() {
                over.store(true, Ordering::Relaxed);
                return sent;
            }
        }
    })?;
    pages.last(&answer.page)
}

/// The page that is being filled.
#[derive(Default)]
struct Answer {
    page: TreeAnswer,
    problems: usize,
    problem_bytes: usize,
}

impl Answer {
    fn put(&mut self, path: Vec<u8>, outcome: Result<Vec<u8>, Failure>) {
        let failure = match outcome {
            Ok(mut bytes) => return self.page.data.append(&mut bytes),
            Err(failure) => failure,
        };
        // What concerns no path concerns all.
        if !path.is_empty() {
            self.page.data.push(match &failure {
                Failure::Changed(_) => CHANGED,
                Failure::Call { errno: Errno::NOENT, .. } => LACKED,
                // What is behind a link is no copy.
                Failure::Call {
                    end: End::Destination, errno: Errno::NOTDIR | Errno::LOOP, ..
                } => LACKED,
                _ => FAILED,
            });
        }
        if path.is_empty() || self.page.data.last() == Some(&FAILED) {
            self.problems += 1;
            self.problem_bytes += path.len();
            if self.problems <= MOST_PROBLEMS && self.problem_bytes < MOST_PROBLEM_BYTES {
                self.page.problems.push((path, failure.to_string()));
            }
        }
    }
}

/// Files below a directory being read.
struct Reading<'a> {
    top: &'a Root,
    folders: LastDirectory,
    digester: Digester,
    end: End,
}

impl<'a> Reading<'a> {
    fn of(top: &'a Root, key: Key, end: End) -> Self {
        Self { top, folders: LastDirectory::default(), digester: Digester::new(key, end), end }
    }

    fn held(&mut self, path: &[u8], stopped: &dyn Fn() -> bool) -> Result<Held, Failure> {
        let (directory, name) = split(path);
        let folder = self.folders.of(self.top, directory).at(self.end, "open directory")?;
        self.digester.held(folder, name, stopped).map(|(held, _)| held)
    }

    /// Remove an entry that has these contents; a byte that says what became of it.
    fn remove(
        &mut self,
        path: &[u8],
        theirs: &Held,
        stopped: &dyn Fn() -> bool,
    ) -> Result<u8, Failure> {
        let (directory, name) = split(path);
        let folder = self.folders.of(self.top, directory).at(self.end, "open directory")?;
        let stat = stat_at(folder, name).at(self.end, "stat")?;
        let kind = letter(stat.stx_mode);
        let is_removable = matches!(kind, b'f' | b'l' | b'b' | b'c' | b'p');
        if !is_removable || kind != theirs.letter || kind == b'f' && stat.stx_size != theirs.size {
            return Ok(DIFFERS);
        }
        let (held, before) = self.digester.held(folder, name, stopped)?;
        if held.may_be(theirs) {
            return Ok(ONE);
        }
        if !held.is_alike(theirs) {
            return Ok(DIFFERS);
        }
        Ok(if remove_unchanged(folder, name, &before)? { DELETED } else { LACKED })
    }
}
