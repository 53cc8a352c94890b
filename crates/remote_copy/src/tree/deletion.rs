//! The server's part of a deletion after a copy: what is at the destination, what the source lacks, what goes.
//!
//! Arrives: a granted directory, paths below it. Leaves: pages of entries, a byte for each path. Must not know: which
//! entries are to go: the client asks both ends.

use std::os::fd::AsFd;

use rustix::io::Errno;
use waystage_catalog::Root;
use waystage_copy::after::{each_entry, DeleterHere, Victim};
use waystage_copy::backup::Backup;
use waystage_copy::source::{Item, Source};
use waystage_copy::stat::{split, stat_at};
use waystage_copy::state::CopyState as EngineState;
use waystage_copy::CopyError;

use crate::endpoints::name_of;
use crate::error::{protocol_violation, WanError};
use crate::serving::{Granted, Serving};
use crate::tree_messages::{
    Chosen, TreeAnswer, TreeEntry, TreeRequest, DELETED, FAILED, LACKED, MOST_PROBLEMS, STAYED,
};
use crate::tree_pages::{refused, shown, Done, Pages, Refusal, AHEAD, MOST_PROBLEM_BYTES};

/// Entries of a page, and bytes of their paths about.
const PAGE: usize = 512;
const PAGE_BYTES: usize = 256 << 10;

/// Serve one of its requests.
pub(crate) fn serve(serving: &Serving<'_>, request: &TreeRequest) -> Result<Done, Refusal> {
    let Serving { control, grant, copy_state, .. } = *serving;
    let stopped = || copy_state.is_stopped();
    let failed = |path: &[u8], doing: &str, errno: Errno| refused(&shown(path), doing, errno);
    let mut answer = TreeAnswer::default();
    match request {
        TreeRequest::Walk(path, chosen) => {
            let Granted { root, path: below, .. } = grant(path, false)?;
            let pages = Pages { control, most: AHEAD, ahead: 0 };
            let failed = |errno| failed(path, "listed", errno);
            let count = walk(pages, &root, &below, chosen, &stopped, &failed)?;
            Ok(Done::Line(format!("listed all of {}: {count} entries", shown(path).display())))
        }
        TreeRequest::Lacks(path, names) => {
            let Granted { root, path: below, .. } = grant(path, false)?;
            let said = lacks(&root, &below, names);
            answer.data = said.map_err(|errno| failed(path, "read", errno))?;
            Pages { control, most: 1, ahead: 0 }.last(&answer)?;
            Ok(Done::Asked)
        }
        TreeRequest::Delete(path, victims, backup) => {
            let Granted { root, path: below, .. } = grant(path, true)?;
            let failed = |errno| failed(path, "changed", errno);
            delete(&root, &below, (victims, backup.as_ref()), &stopped, &failed, &mut answer)?;
            let line = format!("deleted {} entries of {}", answer.removed, shown(path).display());
            match (Pages { control, most: 1, ahead: 0 }).last(&answer) {
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

/// Send every entry that a copy would have put below `path`; how many there are. What cannot be read is among the
/// problems of the last page. Nothing is there where the directory is not.
fn walk(
    mut pages: Pages<'_>,
    root: &Root,
    path: &[u8],
    chosen: &Chosen,
    stopped: &dyn Fn() -> bool,
    failed: &dyn Fn(Errno) -> WanError,
) -> Result<u64, Refusal> {
    let folder = match root.directory(path) {
        Err(Errno::NOENT) => return pages.last(&TreeAnswer::default()).map(|()| 0),
        other => other.map_err(|errno| pages.failed(failed(errno)))?,
    };
    let name = name_of(&folder);
    let unreadable =
        |error: &std::io::Error| failed(Errno::from_io_error(error).unwrap_or(Errno::IO));
    let top = Root::open(&name).map_err(|error| pages.failed(unreadable(&error)))?;
    let tree = Source { root: top, path: name, single: None };
    let state = EngineState::<CopyError>::default();
    let (mut page, mut bytes, mut count) = (TreeAnswer::default(), 0, 0_u64);
    let mut refusal = None;
    let backup = chosen.backup.as_ref();
    let mine =
        |item: &Item| backup.is_some_and(|backup| backup.is_own(&item.directory, &item.name));
    let walked = each_entry(&tree, &chosen.copied(), &state, &mine, &mut |victims| {
        for victim in victims {
            if crate::entry::path(&victim.path).is_err() {
                let text = "its path is too long for a message";
                state.problem(&victim.path, waystage_copy::ProblemKind::Error, text);
                continue;
            }
            bytes += victim.path.len();
            count += 1;
            page.entries.push(entry(victim));
            if page.entries.len() >= PAGE || bytes >= PAGE_BYTES {
                bytes = 0;
                if let Err(error) = pages.send(&std::mem::take(&mut page)) {
                    refusal = Some(error);
                    return false;
                }
            }
        }
        !stopped()
    });
    if let Some(refusal) = refusal {
        return Err(refusal);
    }
    if !walked.map_err(|error| pages.failed(unreadable(&error)))? {
        return Err(pages.failed(failed(Errno::CANCELED)));
    }
    let mut bytes = 0;
    for problem in state.report.problems().into_iter().take(MOST_PROBLEMS) {
        let path = problem.path.get(..problem.path.len().min(4096)).unwrap_or_default().to_vec();
        bytes += path.len() + problem.text.len();
        if bytes < MOST_PROBLEM_BYTES {
            page.problems.push((path, problem.text));
        }
    }
    pages.last(&page)?;
    Ok(count)
}

fn entry(victim: Victim) -> TreeEntry {
    TreeEntry {
        letter: victim.letter,
        name: victim.path,
        size: victim.bytes,
        ..TreeEntry::default()
    }
}

/// For each of these paths below `path` whether the source lacks it. What is behind a symbolic link is no part of it,
/// and not missing.
fn lacks(root: &Root, path: &[u8], names: &[Vec<u8>]) -> Result<Vec<u8>, Errno> {
    // A source that is not there lacks nothing.
    root.directory(path)?;
    let mut held = None;
    let mut has = |below: &[u8]| -> Result<bool, Errno> {
        let (directory, name) = split(below);
        if held.as_ref().is_none_or(|(known, _)| known != directory) {
            let whole = join(path, directory);
            held = Some((directory.to_vec(), root.directory(&whole)?));
        }
        let Some((_, folder)) = &held else { return Err(Errno::NOENT) };
        stat_at(folder.as_fd(), name).map(|_| true)
    };
    let each = names.iter().map(|below| match has(below) {
        Ok(_) | Err(Errno::LOOP) => Ok(STAYED),
        Err(Errno::NOENT | Errno::NOTDIR) => Ok(LACKED),
        Err(errno) => Err(errno),
    });
    each.collect()
}

/// Delete these below `path`, in their order; what became of each goes into the answer.
fn delete(
    root: &Root,
    path: &[u8],
    (victims, backup): (&[(u8, Vec<u8>)], Option<&Backup>),
    stopped: &dyn Fn() -> bool,
    failed: &dyn Fn(Errno) -> WanError,
    answer: &mut TreeAnswer,
) -> Result<(), WanError> {
    let folder = root.directory(path).map_err(failed)?;
    let name = name_of(&folder);
    let top = Root::open(&name)
        .map_err(|error| failed(Errno::from_io_error(&error).unwrap_or(Errno::IO)))?;
    let backup = backup.map(|backup| backup.open_below(&name, 0)).transpose()?;
    let mut deleter = DeleterHere::of(&top, backup.as_ref());
    let mut bytes = 0;
    for (letter, path) in victims {
        let victim = Victim { path: path.clone(), letter: *letter, bytes: 0 };
        let said = if stopped() { Ok(false) } else { deleter.one(&victim) };
        answer.data.push(match said {
            Ok(true) => DELETED,
            Ok(false) => STAYED,
            Err(failure) => {
                bytes += victim.path.len();
                if answer.problems.len() < MOST_PROBLEMS && bytes < MOST_PROBLEM_BYTES {
                    answer.problems.push((victim.path, failure.to_string()));
                }
                FAILED
            }
        });
        answer.removed += u64::from(matches!(answer.data.last(), Some(&DELETED)));
    }
    Ok(())
}

fn join(path: &[u8], below: &[u8]) -> Vec<u8> {
    match (path, below) {
        (path, b"") => path.to_vec(),
        (b"", below) => below.to_vec(),
        (path, below) => [path, b"/", below].concat(),
    }
}
