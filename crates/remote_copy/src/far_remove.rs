//! The removal of a source after a copy, with one of its ends at a server.
//!
//! Arrives: a server, both paths, what was copied. Leaves: fewer files at the source. Must not know: how the copy was
//! made.
//!
//! Who has the source compares: this machine asks the server for digests of its copy, or gives the server digests of
//! the copy here. The key of the digests is chosen after the copy, so that a server cannot give them of what it has not
//! kept. A server names nothing here but entries of the source that were asked for.

use std::collections::HashMap;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

use rustix::fs::{syncfs, Statx};
use rustix::io::Errno;
use waystage_catalog::{Exclude, Root};
use waystage_copy::after::{
    remove_unchanged, report, CopiedSource, Digester, Held, Key, LastDirectory, Removal, Remove,
    RemoveWorker, Remover, Taken, Victim, CHANGED_MEANWHILE, NO_COPY, ONE_FILE, OTHER_CONTENTS,
};
use waystage_copy::error::{At, End, Failure};
use waystage_copy::stat::{split, stat_at};
use waystage_copy::state::CopyState;
use waystage_copy::{CopyError, Limits, Names, ProblemKind, Time};
use waystage_transport::handshake::client::Peer;
use waystage_transport::tls::random;
use waystage_transport::wire::{Malformed, Read, Reader};

use crate::client::Ends;
use crate::error::WanError;
use crate::far::{broken, here, requests, Far, PATHS};
use crate::request_filter::RequestFilter;
use crate::tree_client::TreeSession;
use crate::tree_messages::{
    Chosen, TreeAnswer, TreeEntry, TreeRequest, CHANGED, DELETED, DIFFERS, FAILED, LACKED, ONE,
    STAYED,
};
use crate::wire_parts::read_held;

/// Contents that are compared with one request, about.
const AT_ONCE_BYTES: u64 = 64 << 20;

/// Bytes of the paths of a source: a server may name any number.
const MOST_PATH_BYTES: usize = 1 << 30;

/// Entries that are given on together.
const GROUP: usize = 512;

/// Which entries a copy has taken, as in the copy.
#[derive(Debug, Clone, Default)]
pub struct Selected {
    /// None that match these patterns.
    pub exclude: Vec<Vec<u8>>,
    /// Of files only those that match one of these.
    pub include: Option<Vec<Vec<u8>>>,
    /// Only these, and what is in the directories among them.
    pub names: Option<Names>,
    /// Of regular files only those within these.
    pub limits: Limits,
    /// Whether directories on other file systems were left out.
    pub one_file_system: bool,
}

/// Start to remove files of the source that the destination holds; one of them is at the server.
///
/// # Errors
/// Where the source on this machine cannot be opened.
pub fn remove(
    peer: Peer,
    ends: Ends,
    selected: Selected,
    how: Removal,
) -> Result<Remove, WanError> {
    let session = Arc::new(TreeSession::new(peer));
    let remover: Box<dyn Remover> = match ends {
        Ends::Push { local, remote } => {
            let (folder, single) = folder_of(local);
            let taken = Taken {
                exclude: Exclude::new(selected.exclude),
                include: selected.include.map(Exclude::new),
                names: selected.names,
                limits: selected.limits,
                one_file_system: selected.one_file_system,
            };
            let source = CopiedSource::open(folder, single.as_deref(), taken)?;
            Box::new(SourceHere { source, single, session, remote, copy: OnceLock::new() })
        }
        Ends::Pull { remote, local } => {
            Box::new(SourceThere { session, remote, local, selected, ends: OnceLock::new() })
        }
    };
    Ok(Remove::by(remover, how)?)
}

/// A directory, or that of a file and the file's name, through symbolic links.
fn folder_of(path: PathBuf) -> (PathBuf, Option<Vec<u8>>) {
    if path.is_dir() {
        return (path, None);
    }
    let path = path.canonicalize().unwrap_or(path);
    let name = path.file_name().map(|name| name.as_bytes().to_vec());
    (path.parent().map_or_else(|| PathBuf::from("/"), Path::to_path_buf), name)
}

/// The directory and the name of a file at a server.
fn split_far(path: &[u8]) -> (Vec<u8>, Vec<u8>) {
    let mut path = path;
    while let Some(rest) = path.strip_suffix(b"/").or_else(|| path.strip_suffix(b"/.")) {
        path = rest;
    }
    let (directory, name) = split(path);
    let directory = if directory.is_empty() && path.starts_with(b"/") { b"/" } else { directory };
    (directory.to_vec(), name.to_vec())
}

/// What is at a path of the server.
fn look(session: &TreeSession, path: &[u8]) -> Result<Option<TreeEntry>, CopyError> {
    let answer = session.ask(&TreeRequest::List(path.to_vec(), true)).map_err(here)?;
    Ok(answer.entries.into_iter().next())
}

/// Why paths of an answer failed.
fn reasons(answer: &mut TreeAnswer) -> impl FnMut(&[u8]) -> Failure {
    let mut why: HashMap<Vec<u8>, String> = answer.problems.drain(..).collect();
    move |path| Failure::Said(why.remove(path).unwrap_or_else(|| "cannot be compared".to_owned()))
}

// -- the source is here

struct SourceHere {
    source: CopiedSource,
    single: Option<Vec<u8>>,
    session: Arc<TreeSession>,
    remote: Vec<u8>,
    /// Where the copy is, and the name there of the one file.
    copy: OnceLock<(Far, Option<Vec<u8>>)>,
}

impl Remover for SourceHere {
    fn begin(&self, dry_run: bool) -> Result<(), CopyError> {
        if dry_run {
            return Ok(());
        }
        let (path, renamed) = match &self.single {
            None => (self.remote.clone(), None),
            Some(name) => match look(&self.session, &self.remote)? {
                Some(found) if found.letter == b'd' => (self.remote.clone(), Some(name.clone())),
                _ => {
                    let (directory, name) = split_far(&self.remote);
                    (directory, Some(name))
                }
            },
        };
        let session = Arc::clone(&self.session);
        let answer = session.ask(&TreeRequest::Sync(path.clone())).map_err(here)?;
        if let Some((_, text)) = answer.problems.into_iter().next() {
            return Err(CopyError::Failed(format!("nothing was removed: {text}")));
        }
        let _ = self.copy.set((Far { session, path }, renamed));
        Ok(())
    }

    fn entries(
        &self,
        state: &CopyState<CopyError>,
        take: &mut dyn FnMut(Vec<Victim>) -> bool,
    ) -> Result<bool, CopyError> {
        self.source.entries(state, take)
    }

    fn at_once(&self) -> (usize, u64) {
        (PATHS, AT_ONCE_BYTES)
    }

    fn worker(&self) -> Box<dyn RemoveWorker + '_> {
        Box::new(CompareHere { of: self, folders: LastDirectory::default() })
    }

    fn stop(&self) {
        self.session.abort();
    }

    fn close(&self) {
        self.session.close();
    }
}

struct CompareHere<'a> {
    of: &'a SourceHere,
    folders: LastDirectory,
}

impl RemoveWorker for CompareHere<'_> {
    fn remove(
        &mut self,
        entries: &[Victim],
        state: &CopyState<CopyError>,
    ) -> Result<(), CopyError> {
        let Some((far, renamed)) = self.of.copy.get() else { return Ok(()) };
        let key = random();
        let mut digester = Digester::new(key, End::Source);
        let mut mine = Vec::with_capacity(entries.len());
        for entry in entries {
            match self.digest(&mut digester, entry, &|| state.is_stopped()) {
                Ok((held, before)) => mine.push((entry, held, before)),
                Err(failure) => report(state, entry, Err(failure)),
            }
        }
        for group in requests(&mine, |(entry, ..)| &entry.path) {
            let name = |entry: &Victim| renamed.clone().unwrap_or_else(|| entry.path.clone());
            let names = group.iter().map(|(entry, ..)| name(entry)).collect();
            let theirs = digests(far, key, names)?;
            for ((entry, held, before), there) in group.iter().zip(theirs) {
                let removed = check(held, there).and_then(|()| self.unlink(entry, before));
                report(state, entry, removed);
            }
        }
        Ok(())
    }
}

impl CompareHere<'_> {
    fn digest(
        &mut self,
        digester: &mut Digester,
        entry: &Victim,
        stop: &dyn Fn() -> bool,
    ) -> Result<(Held, Statx), Failure> {
        let (directory, name) = split(&entry.path);
        let folder = self.folders.of(self.of.source.root(), directory);
        digester.held(folder.at(End::Source, "open directory")?, name, stop)
    }

    fn unlink(&mut self, entry: &Victim, before: &Statx) -> Result<bool, Failure> {
        let (directory, name) = split(&entry.path);
        let folder = self.folders.of(self.of.source.root(), directory);
        remove_unchanged(folder.at(End::Source, "open directory")?, name, before)
    }
}

/// An error that says why an entry stays, unless the server holds the same.
fn check(held: &Held, there: Result<Option<Held>, Failure>) -> Result<(), Failure> {
    match there? {
        None => Err(NO_COPY),
        Some(other) if held.may_be(&other) => Err(ONE_FILE),
        Some(other) if !held.is_alike(&other) => Err(OTHER_CONTENTS),
        Some(_) => Ok(()),
    }
}

/// What the server holds at each of these paths.
fn digests(
    far: &Far,
    key: Key,
    names: Vec<Vec<u8>>,
) -> Result<Vec<Result<Option<Held>, Failure>>, CopyError> {
    let request = TreeRequest::Digests(far.path.clone(), key, names);
    let mut answer = far.session.ask(&request).map_err(here)?;
    let TreeRequest::Digests(_, _, names) = request else { return Ok(Vec::new()) };
    let mut why = reasons(&mut answer);
    let mut reader = Reader(&answer.data);
    let mut one = |name: &Vec<u8>| -> Read<Result<Option<Held>, Failure>> {
        Ok(match reader.u8()? {
            STAYED => Ok(Some(read_held(&mut reader)?)),
            LACKED => Ok(None),
            CHANGED => Err(OTHER_CONTENTS),
            FAILED => Err(why(name)),
            _ => return Err(Malformed),
        })
    };
    let all = names.iter().map(&mut one).collect::<Read<Vec<_>>>().map_err(|_| broken())?;
    reader.end().map_err(|_| broken())?;
    Ok(all)
}

// -- the source is at the server

struct SourceThere {
    session: Arc<TreeSession>,
    remote: Vec<u8>,
    local: PathBuf,
    selected: Selected,
    ends: OnceLock<EndsThere>,
}

struct EndsThere {
    source: Far,
    /// The one file, its name at the source and at the destination.
    single: Option<(TreeEntry, Vec<u8>, Vec<u8>)>,
    /// The destination; None in a dry run.
    copy: Option<Root>,
}

impl Remover for SourceThere {
    fn begin(&self, dry_run: bool) -> Result<(), CopyError> {
        let session = Arc::clone(&self.session);
        let found = look(&session, &self.remote)?;
        let (path, folder, single) = match found {
            Some(found) if found.letter == b'd' => (self.remote.clone(), self.local.clone(), None),
            Some(found) => {
                let (path, name) = split_far(&self.remote);
                let (folder, other) = folder_of(self.local.clone());
                let other = other.unwrap_or_else(|| name.clone());
                (path, folder, Some((found, name, other)))
            }
            None => {
                let shown = String::from_utf8_lossy(&self.remote);
                let text = format!("nothing was removed: {shown} no longer exists at the server");
                return Err(CopyError::Ends(text));
            }
        };
        let copy = match dry_run {
            true => None,
            false => Some(synced(&folder)?),
        };
        let source = Far { session, path };
        let _ = self.ends.set(EndsThere { source, single, copy });
        Ok(())
    }

    fn entries(
        &self,
        state: &CopyState<CopyError>,
        take: &mut dyn FnMut(Vec<Victim>) -> bool,
    ) -> Result<bool, CopyError> {
        let Some(ends) = self.ends.get() else { return Ok(false) };
        if let Some((found, name, _)) = &ends.single {
            let mtime = Time { seconds: found.mtime, nanoseconds: found.mtime_nanos };
            let one = Victim { path: name.clone(), letter: found.letter, bytes: found.size };
            return Ok(!self.selected.limits.admit(found.size, mtime) || take(vec![one]));
        }
        let mut all = self.walk(&ends.source, state)?.into_iter();
        loop {
            // The walk is over: a request in its middle would wait for its end.
            let group: Vec<Victim> = all.by_ref().take(GROUP).collect();
            if group.is_empty() {
                return Ok(true);
            }
            if state.is_stopped() || !take(group) {
                return Ok(false);
            }
        }
    }

    fn at_once(&self) -> (usize, u64) {
        (PATHS, AT_ONCE_BYTES)
    }

    fn worker(&self) -> Box<dyn RemoveWorker + '_> {
        Box::new(CompareThere { of: self, folders: LastDirectory::default() })
    }

    fn stop(&self) {
        self.session.abort();
    }

    fn close(&self) {
        self.session.close();
    }
}

/// Open a destination and have it forced to storage.
fn synced(folder: &Path) -> Result<Root, CopyError> {
    let failed = |error: std::io::Error| {
        CopyError::Failed(format!("nothing was removed: {}: {error}", folder.display()))
    };
    let root = Root::open(folder).map_err(failed)?;
    root.directory(b"").and_then(syncfs).map_err(|errno| failed(errno.into()))?;
    Ok(root)
}

impl SourceThere {
    /// The entries of the source that were copied.
    fn walk(&self, source: &Far, state: &CopyState<CopyError>) -> Result<Vec<Victim>, CopyError> {
        let Selected { exclude, include, names, limits, one_file_system } = &self.selected;
        let wanted = RequestFilter::of_patterns(exclude, include.as_deref(), names.as_ref(), None);
        let chosen = Chosen {
            exclude: exclude.clone(),
            include: include.clone(),
            one_file_system: *one_file_system,
            backup: None,
            limits: *limits,
        };
        let (mut all, mut bytes) = (Vec::new(), 0);
        let request = TreeRequest::Walk(source.path.clone(), chosen);
        let walked = source.session.each(&request, &mut |page| {
            for (path, text) in page.problems {
                state.problem(&path, ProblemKind::Error, text);
            }
            for TreeEntry { letter, name: path, size, .. } in page.entries {
                if !matches!(letter, b'd' | b's') && wanted.allows(letter, &path) {
                    bytes += path.len();
                    all.push(Victim { path, letter, bytes: size });
                }
            }
            bytes <= MOST_PATH_BYTES && !state.is_stopped()
        });
        if !walked.map_err(here)? && !state.is_stopped() {
            let shown = String::from_utf8_lossy(&source.path);
            return Err(CopyError::TooMany(format!(
                "the entries of {shown} take more than 1 GiB to name: nothing was removed"
            )));
        }
        Ok(all)
    }
}

struct CompareThere<'a> {
    of: &'a SourceThere,
    folders: LastDirectory,
}

impl RemoveWorker for CompareThere<'_> {
    fn remove(
        &mut self,
        entries: &[Victim],
        state: &CopyState<CopyError>,
    ) -> Result<(), CopyError> {
        let Some(EndsThere { source, single, copy: Some(copy) }) = self.of.ends.get() else {
            return Ok(());
        };
        let renamed = single.as_ref().map(|(_, _, other)| &other[..]);
        let key = random();
        let mut digester = Digester::new(key, End::Destination);
        let mut mine = Vec::with_capacity(entries.len());
        for entry in entries {
            let path = renamed.unwrap_or(&entry.path);
            match self.digest(&mut digester, copy, path, entry, &|| state.is_stopped()) {
                Ok(held) => mine.push((entry, held)),
                Err(failure) => report(state, entry, Err(failure)),
            }
        }
        for group in requests(&mine, |(entry, _)| &entry.path) {
            let named = group.iter().map(|(entry, held)| (entry.path.clone(), *held)).collect();
            let request = TreeRequest::RemoveHeld(source.path.clone(), key, named);
            let known = [STAYED, LACKED, DELETED, FAILED, DIFFERS, CHANGED, ONE];
            let mut answer = source.ask(&request, group.len(), &known)?;
            let mut why = reasons(&mut answer);
            for ((entry, _), byte) in group.iter().zip(answer.data) {
                let removed = match byte {
                    DELETED => Ok(true),
                    FAILED => Err(why(&entry.path)),
                    DIFFERS => Err(OTHER_CONTENTS),
                    CHANGED => Err(CHANGED_MEANWHILE),
                    ONE => Err(ONE_FILE),
                    // It is gone.
                    _ => Ok(false),
                };
                report(state, entry, removed);
            }
        }
        Ok(())
    }
}

impl CompareThere<'_> {
    fn digest(
        &mut self,
        digester: &mut Digester,
        copy: &Root,
        path: &[u8],
        entry: &Victim,
        stop: &dyn Fn() -> bool,
    ) -> Result<Held, Failure> {
        let (directory, name) = split(path);
        let folder = match self.folders.of(copy, directory) {
            Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP) => return Err(NO_COPY),
            other => other.at(End::Destination, "open directory")?,
        };
        match stat_at(folder, name) {
            Err(Errno::NOENT) => return Err(NO_COPY),
            // Not worth reading.
            Ok(stat) if entry.letter == b'f' && stat.stx_size != entry.bytes => {
                return Err(OTHER_CONTENTS)
            }
            other => other.at(End::Destination, "stat")?,
        };
        digester.held(folder, name, stop).map(|(held, _)| held)
    }
}

#[cfg(test)]
mod tests;
