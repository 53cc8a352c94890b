//! A server's directories beside copies: list, make, remove, rename, read a part of a file.
//!
//! Arrives: a client's requests, directories that it may use. Leaves: pages of entries or contents, counts, problems.
//! Must not know: users, keys, how directories are granted.
//!
//! Every path is opened below the granted root and never through a symbolic link, as in copies. A page waits for the
//! client to have taken earlier ones, so that a client that reads nothing holds few pages and not a directory. What is
//! refused leaves the session as it was; an idle one is closed.

mod deletion;
mod removal;

use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, Instant};

use rustix::fs::{
    mkdirat, readlinkat, renameat, renameat_with, unlinkat, AtFlags, Dir, Mode, RenameFlags, Statx,
};
use rustix::io::{pread, Errno};
use waystage_catalog::{join, Root};
use waystage_copy::error::describe;
use waystage_copy::stat::{letter, split, stat_at, stat_fd};
use waystage_transport::control_messages::{expect, kinds, refusal, ANSWER_TIME};

use crate::error::{protocol_violation, WanError};
use crate::serving::{Granted, Serving};
use crate::tree_messages::{TreeAnswer, TreeEntry, TreeRequest, MOST_PROBLEMS};
use crate::tree_pages::{refused, shown, Done, Pages, Refusal, AHEAD, MOST_PROBLEM_BYTES};

/// Entries of a page.
const PAGE: usize = 512;

/// Contents of a page: at 2 kB/s it takes as long as the client waits for half of an answer.
const PIECE: usize = 64 << 10;

/// Pages of contents that the client has not taken.
const PIECES_AHEAD: usize = 64;

/// Serve requests until the client leaves; a line for the log.
pub(crate) fn serve(serving: &Serving<'_>, first: Vec<u8>) -> Result<String, WanError> {
    let Serving { control, .. } = *serving;
    // There are no bulk messages, so UDP is not tried.
    control.rely_on_tcp();
    let mut body = first;
    let (mut reads, mut bytes) = (0_u64, 0_u64);
    let mut line = None;
    loop {
        let request = TreeRequest::read(&body).map_err(|_| protocol_violation())?;
        match one(serving, &request) {
            Ok(Done::Read(count)) => {
                reads += 1;
                bytes += count;
            }
            Ok(Done::Line(done)) => line = Some(done),
            Ok(Done::Asked) => {}
            Err(Refusal::Here(error)) => {
                control.send(kinds::REFUSED, &refusal(&error.clone().into()));
                expect(control, kinds::LISTED)?;
                line = Some(format!("refused: {error}"));
            }
            Err(Refusal::Ends(error)) => return Err(error),
        }
        let Some(next) = next(serving)? else { break };
        body = next;
        if let Some(line) = line.take() {
            (serving.say)(line);
        }
    }
    control.begin_close();
    if reads > 0 {
        line.into_iter().for_each(serving.say);
        return Ok(format!("read {bytes} bytes in {reads} parts of files"));
    }
    Ok(line.unwrap_or_else(|| "asked for nothing more".to_owned()))
}

/// The next request; None where the client has left, has asked nothing for long, or the server stops.
fn next(serving: &Serving<'_>) -> Result<Option<Vec<u8>>, WanError> {
    let deadline = Instant::now() + ANSWER_TIME;
    let over = || serving.copy_state.is_stopped() || (serving.draining)();
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        let left = if over() { Duration::ZERO } else { left };
        match serving.control.receive(left) {
            Ok(Some((kinds::TREE, body))) => return Ok(Some(body)),
            Ok(Some(_)) => return Err(protocol_violation()),
            Ok(None) if left.is_zero() || over() => return Ok(None),
            // An interrupt for another part of this session.
            Ok(None) => {}
            Err(_) => return Ok(None),
        }
    }
}

fn one(serving: &Serving<'_>, request: &TreeRequest) -> Result<Done, Refusal> {
    let Serving { control, grant, copy_state, .. } = *serving;
    let failed = |path: &[u8], doing: &str, errno: Errno| refused(&shown(path), doing, errno);
    let mut answer = TreeAnswer::default();
    let line = match request {
        TreeRequest::List(path, itself) => {
            let Granted { root, path: below, .. } = grant(path, false)?;
            let mut pages = Pages { control, most: AHEAD, ahead: 0 };
            let listed = if *itself {
                itself_at(&root, &below).map(|entry| {
                    answer.entries.extend(entry);
                    None
                })
            } else {
                open_list(&root, &below, &mut answer)
            };
            let count = match listed.map_err(|errno| failed(path, "listed", errno))? {
                Some(folder) => {
                    list(&mut pages, &folder, &mut answer, &|errno| failed(path, "listed", errno))?
                }
                None => answer.entries.len() as u64,
            };
            pages.last(&answer)?;
            return Ok(Done::Line(format!("listed {}: {count} entries", shown(path).display())));
        }
        TreeRequest::Read(path, offset, length) => {
            let Granted { root, path: below, .. } = grant(path, false)?;
            let failed = |errno| failed(path, "read", errno);
            let (file, mut entry) = open_file(&root, &below).map_err(failed)?;
            let mut pages = Pages { control, most: PIECES_AHEAD, ahead: 0 };
            let (mut at, end) = (*offset, offset.saturating_add(*length));
            let mut piece = vec![0; PIECE];
            while at < end {
                let most = usize::try_from(end - at).unwrap_or(PIECE).min(PIECE);
                let count = match pread(&file, &mut piece[..most], at) {
                    Ok(0) => break,
                    Ok(count) => count,
                    Err(Errno::INTR) => continue,
                    Err(errno) => return Err(pages.failed(failed(errno))),
                };
                let data = piece[..count].to_vec();
                pages.send(&TreeAnswer { data, ..TreeAnswer::default() })?;
                copy_state.pace.moved(count as u64);
                at += count as u64;
            }
            // Its attributes after the last byte was read: whether it changed meanwhile.
            entry = stat_fd(file.as_fd()).map_or(entry, |stat| of(&stat, b".", Vec::new()));
            answer.entries.push(entry);
            pages.last(&answer)?;
            return Ok(Done::Read(at - offset));
        }
        TreeRequest::Walk(..) | TreeRequest::Lacks(..) | TreeRequest::Delete(..) => {
            return deletion::serve(serving, request);
        }
        TreeRequest::Sync(..) | TreeRequest::Digests(..) | TreeRequest::RemoveHeld(..) => {
            return removal::serve(serving, request);
        }
        TreeRequest::Make(path, parents) => {
            let Granted { root, path: below, .. } = grant(path, true)?;
            make(&root, &below, *parents).map_err(|errno| failed(path, "made", errno))?;
            format!("made {}", shown(path).display())
        }
        TreeRequest::Remove(path, all) => {
            let Granted { root, path: below, .. } = grant(path, true)?;
            let stopped = || copy_state.is_stopped();
            remove(&root, &below, *all, &stopped, &mut answer)
                .map_err(|errno| failed(path, "removed", errno))?;
            let (removed, problems) = (answer.removed, answer.problems.len());
            format!("removed {}: {removed} entries, {problems} problems", shown(path).display())
        }
        TreeRequest::Rename(from, to, replace) => {
            let (one, other) = (grant(from, true)?, grant(to, true)?);
            let ends = ((&one.root, &one.path[..]), (&other.root, &other.path[..]));
            rename(ends.0, ends.1, *replace).map_err(|errno| failed(from, "renamed", errno))?;
            format!("renamed {} to {}", shown(from).display(), shown(to).display())
        }
    };
    // What was done is logged also where the client has not waited for the answer.
    match (Pages { control, most: 1, ahead: 0 }).last(&answer) {
        Ok(()) => Ok(Done::Line(line)),
        Err(refusal) => {
            (serving.say)(line);
            Err(refusal)
        }
    }
}

/// The directory of an entry, open, and its name; an error for the root itself.
fn parent<'p>(root: &Root, path: &'p [u8]) -> Result<(OwnedFd, &'p [u8]), Errno> {
    let (above, name) = split(path);
    if name.is_empty() {
        return Err(Errno::BUSY);
    }
    Ok((root.directory(above)?, name))
}

fn entry(folder: &OwnedFd, name: &[u8]) -> Result<TreeEntry, Errno> {
    let stat = stat_at(folder.as_fd(), name)?;
    let target = match letter(stat.stx_mode) {
        b'l' => readlinkat(folder, name, Vec::new()).map(std::ffi::CString::into_bytes),
        _ => Ok(Vec::new()),
    };
    Ok(of(&stat, name, target.unwrap_or_default()))
}

fn of(stat: &Statx, name: &[u8], target: Vec<u8>) -> TreeEntry {
    TreeEntry {
        letter: letter(stat.stx_mode),
        name: name.to_vec(),
        size: stat.stx_size,
        mtime: stat.stx_mtime.tv_sec,
        mtime_nanos: stat.stx_mtime.tv_nsec,
        mode: u32::from(stat.stx_mode & 0o7777),
        uid: stat.stx_uid,
        gid: stat.stx_gid,
        target,
    }
}

/// The entry itself; None where there is none.
fn itself_at(root: &Root, path: &[u8]) -> Result<Option<TreeEntry>, Errno> {
    let found = if path.is_empty() {
        root.directory(path).and_then(|folder| entry(&folder, b"."))
    } else {
        parent(root, path).and_then(|(folder, name)| entry(&folder, name))
    };
    match found {
        Err(Errno::NOENT | Errno::NOTDIR) => Ok(None),
        found => found.map(Some),
    }
}

/// The directory; of what is none its entry in `answer`.
fn open_list(root: &Root, path: &[u8], answer: &mut TreeAnswer) -> Result<Option<OwnedFd>, Errno> {
    match root.directory(path) {
        Err(Errno::NOTDIR) => {
            let (folder, name) = parent(root, path)?;
            answer.entries.push(entry(&folder, name)?);
            Ok(None)
        }
        other => other.map(Some),
    }
}

/// A regular file; nothing else is opened, as a device may act on that.
fn open_file(root: &Root, path: &[u8]) -> Result<(OwnedFd, TreeEntry), Errno> {
    let (folder, name) = parent(root, path)?;
    match letter(stat_at(folder.as_fd(), name)?.stx_mode) {
        b'f' => {}
        b'd' => return Err(Errno::ISDIR),
        b'l' => return Err(Errno::LOOP),
        _ => return Err(Errno::OPNOTSUPP),
    }
    let file = root.readable(path)?;
    let entry = of(&stat_fd(file.as_fd())?, b".", Vec::new());
    if entry.letter != b'f' {
        return Err(Errno::OPNOTSUPP);
    }
    Ok((file, entry))
}

fn list(
    pages: &mut Pages<'_>,
    folder: &OwnedFd,
    page: &mut TreeAnswer,
    failed: &dyn Fn(Errno) -> WanError,
) -> Result<u64, Refusal> {
    let mut count = 0;
    for found in Dir::read_from(folder).map_err(|errno| pages.failed(failed(errno)))? {
        let found = found.map_err(|errno| pages.failed(failed(errno)))?;
        let name = found.file_name().to_bytes();
        if matches!(name, b"." | b"..") {
            continue;
        }
        match entry(folder, name) {
            Ok(entry) => page.entries.push(entry),
            // It went away.
            Err(Errno::NOENT) => continue,
            Err(errno) => return Err(pages.failed(failed(errno))),
        }
        count += 1;
        if page.entries.len() == PAGE {
            pages.send(page)?;
            page.entries.clear();
        }
    }
    Ok(count)
}

fn make(root: &Root, path: &[u8], parents: bool) -> Result<(), Errno> {
    if path.is_empty() && parents {
        return Ok(());
    }
    let (above, name) = split(path);
    if name.is_empty() {
        return Err(Errno::EXIST);
    }
    let folder = match root.directory(above) {
        Err(Errno::NOENT) if parents => {
            make(root, above, true)?;
            root.directory(above)?
        }
        other => other?,
    };
    match mkdirat(&folder, name, Mode::from_raw_mode(0o777)) {
        Err(Errno::EXIST) if parents => root.directory(path).map(drop),
        other => other,
    }
}

fn remove(
    root: &Root,
    path: &[u8],
    all: bool,
    stopped: &dyn Fn() -> bool,
    answer: &mut TreeAnswer,
) -> Result<(), Errno> {
    let (folder, name) = parent(root, path)?;
    if letter(stat_at(folder.as_fd(), name)?.stx_mode) != b'd' {
        unlinkat(&folder, name, AtFlags::empty())?;
        answer.removed += 1;
        return Ok(());
    }
    if !all {
        unlinkat(&folder, name, AtFlags::REMOVEDIR)?;
        answer.removed += 1;
        return Ok(());
    }
    // Each directory twice: for what is in it, and when that is gone.
    let mut waiting = vec![(path.to_vec(), false)];
    while let Some((directory, is_empty)) = waiting.pop() {
        if stopped() {
            return Err(Errno::CANCELED);
        }
        let done = if is_empty {
            parent(root, &directory)
                .and_then(|(folder, name)| unlinkat(&folder, name, AtFlags::REMOVEDIR))
                .map(|()| answer.removed += 1)
        } else {
            waiting.push((directory.clone(), true));
            empty(root, &directory, answer)
                .map(|below| waiting.extend(below.into_iter().map(|path| (path, false))))
        };
        match done {
            Ok(()) | Err(Errno::NOENT) => {}
            Err(errno) => problem(answer, directory, errno),
        }
    }
    Ok(())
}

/// List a problem, as long as a message holds all.
fn problem(answer: &mut TreeAnswer, path: Vec<u8>, errno: Errno) {
    let bytes: usize = answer.problems.iter().map(|(path, _)| path.len()).sum();
    let is_first = answer.problems.is_empty();
    if is_first || answer.problems.len() < MOST_PROBLEMS && bytes + path.len() < MOST_PROBLEM_BYTES
    {
        answer.problems.push((path, describe(errno)));
    }
}

/// Remove what is no directory; the directories.
fn empty(root: &Root, directory: &[u8], answer: &mut TreeAnswer) -> Result<Vec<Vec<u8>>, Errno> {
    let folder = root.directory(directory)?;
    let mut below = Vec::new();
    for found in Dir::read_from(&folder)? {
        let found = found?;
        let name = found.file_name().to_bytes();
        if matches!(name, b"." | b"..") {
            continue;
        }
        let path = join(directory, name);
        match stat_at(folder.as_fd(), name) {
            Ok(stat) if letter(stat.stx_mode) == b'd' => below.push(path),
            Err(Errno::NOENT) => {}
            _ => match unlinkat(&folder, name, AtFlags::empty()) {
                Ok(()) => answer.removed += 1,
                Err(Errno::NOENT) => {}
                Err(errno) => problem(answer, path, errno),
            },
        }
    }
    Ok(below)
}

fn rename(
    (one, from): (&Root, &[u8]),
    (other, to): (&Root, &[u8]),
    replace: bool,
) -> Result<(), Errno> {
    let ((source, old), (target, new)) = (parent(one, from)?, parent(other, to)?);
    if replace {
        return renameat(&source, old, &target, new);
    }
    match renameat_with(&source, old, &target, new, RenameFlags::NOREPLACE) {
        // A file system without it: looked at first.
        Err(Errno::INVAL | Errno::NOSYS | Errno::OPNOTSUPP) => match stat_at(target.as_fd(), new) {
            Ok(_) => Err(Errno::EXIST),
            Err(Errno::NOENT) => renameat(&source, old, &target, new),
            Err(errno) => Err(errno),
        },
        done => done,
    }
}
