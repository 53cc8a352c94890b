//! The changed paths when the program has ended, and the entries found there.

use std::collections::HashMap;
use std::io;
use std::path::Path;

use waystage_catalog::{Batch, EntryLookup, Exclude, Found, Layouts, NamedEntry, BATCH_ROWS};

use crate::changed_paths::{parent, split, ChangedPaths, PathState};
use crate::counts::Counts;
use crate::resolver::PathResolver;

/// How entries are looked up.
pub struct LookupOptions {
    /// What the catalog leaves out.
    pub exclude: Exclude,
    /// Whether it leaves out other file systems.
    pub one_file_system: bool,
    /// Reads layouts; None for no layouts.
    pub layouts: Option<Layouts>,
    /// Threads, at least one.
    pub threads: usize,
}

/// One path, and what was found there.
#[derive(Debug)]
struct Entry {
    state: PathState,
    /// None before the lookup.
    found: Option<Found>,
}

/// The paths that changed. Call [`Changes::look_up`] until it returns no batch; then the other answers are complete.
pub struct Changes {
    entries: HashMap<Vec<u8>, Entry>,
    /// Paths to look up, by directory, taken from the end.
    pending: Vec<Vec<u8>>,
    lookup: EntryLookup,
    threads: usize,
    resolver: PathResolver,
    counts: Counts,
    unseen: Vec<Vec<u8>>,
}

impl Changes {
    pub(crate) fn new(
        root: &Path,
        paths: ChangedPaths,
        resolver: PathResolver,
        counts: Counts,
        options: LookupOptions,
    ) -> io::Result<Self> {
        let lookup =
            EntryLookup::open(root, options.exclude, options.one_file_system, options.layouts)?;
        let entries = paths.into_paths();
        let entries = entries.into_iter().map(|(path, state)| (path, Entry { state, found: None }));
        let mut changes = Self {
            entries: entries.collect(),
            pending: Vec::new(),
            lookup,
            threads: options.threads.max(1),
            resolver,
            counts,
            unseen: Vec::new(),
        };
        let all: Vec<_> = changes.entries.keys().cloned().collect();
        changes.enqueue(all);
        Ok(changes)
    }

    pub(crate) fn with_unseen(self, unseen: Vec<Vec<u8>>) -> Self {
        Self { unseen, ..self }
    }

    /// The first things that could not be observed: programs by name, and interfaces that bypass the library.
    #[must_use]
    pub fn unseen(&self) -> &[Vec<u8>] {
        &self.unseen
    }

    /// Records read, and what may be missing.
    pub fn counts(&self) -> Counts {
        self.counts
    }

    /// The storage targets met so far.
    pub fn targets(&self) -> Vec<(u32, String)> {
        self.lookup.targets()
    }

    /// Add paths; those that are known already are not looked up again.
    pub fn add(&mut self, paths: impl IntoIterator<Item = Vec<u8>>) {
        let mut new = Vec::new();
        for path in paths {
            if !self.entries.contains_key(&path) {
                let state = PathState::requested();
                self.entries.insert(path.clone(), Entry { state, found: None });
                new.push(path);
            }
        }
        self.enqueue(new);
    }

    /// Stat the next paths; no batch when there are none left.
    ///
    /// Links that programs followed are followed here too, and their targets are looked up in turn.
    pub fn look_up(&mut self) -> Vec<Batch> {
        let count = self.pending.len().min(self.threads * BATCH_ROWS);
        let chunk = self.pending.split_off(self.pending.len() - count);
        if chunk.is_empty() {
            return Vec::new();
        }
        let (lookup, entries) = (&self.lookup, &self.entries);
        // A thread for fewer paths than this costs more than it saves.
        let share = chunk.len().div_ceil(self.threads).max(1024);
        let mut looked: Vec<(Batch, Vec<Found>)> = Vec::new();
        std::thread::scope(|scope| {
            let threads: Vec<_> = chunk
                .chunks(share)
                .map(|paths| scope.spawn(move || look_up_in(lookup, entries, paths)))
                .collect();
            for thread in threads {
                // A panic is a defect of this crate: it continues here.
                looked.push(thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)));
            }
        });
        let mut link_targets = Vec::new();
        let found = looked.iter().flat_map(|(_, found)| found);
        for (path, found) in chunk.iter().zip(found) {
            let Some(entry) = self.entries.get_mut(path) else { continue };
            entry.found = Some(*found);
            if *found == Found::Link && entry.state.followed {
                link_targets
                    .extend(self.resolver.link_target(path).filter(|path| !path.is_empty()));
            }
        }
        self.add(link_targets);
        looked.into_iter().map(|(batch, _)| batch).collect()
    }

    /// Renamed directories: everything below them is to be walked.
    pub fn to_walk(&self) -> Vec<Vec<u8>> {
        let moved = |path: &[u8]| self.entries.get(path).is_some_and(|entry| entry.state.moved);
        self.entries
            .iter()
            .filter(|(path, entry)| {
                entry.state.moved
                    && entry.found == Some(Found::Directory)
                    && !above(path).any(moved)
            })
            .map(|(path, _)| path.clone())
            .collect()
    }

    /// Whether an older entry at `path` is out of date: it was looked up, or is below a path that was replaced.
    pub fn covers(&self, path: &[u8]) -> bool {
        self.entries.contains_key(path) || self.cut(path, false)
    }

    /// Whether everything known of the directory at `path` is out of date.
    pub fn replaces_directory(&self, path: &[u8]) -> bool {
        self.cut(path, true)
    }

    /// Whether entries of the directory at `path` were looked up.
    pub fn touches_directory(&self, path: &[u8]) -> bool {
        path.is_empty() || self.entries.contains_key(path)
    }

    fn cut(&self, path: &[u8], itself: bool) -> bool {
        let gone = |path: &[u8]| {
            self.entries.get(path).is_some_and(|entry| {
                entry.state.moved || entry.found.is_some_and(|found| found != Found::Directory)
            })
        };
        (itself && gone(path)) || above(path).any(gone)
    }

    /// Queue paths by directory. Below a renamed directory a walk finds everything.
    fn enqueue(&mut self, mut paths: Vec<Vec<u8>>) {
        let moved = |path: &[u8]| self.entries.get(path).is_some_and(|entry| entry.state.moved);
        paths.retain(|path| !above(path).any(moved));
        paths.sort_unstable_by(|a, b| split(b).cmp(&split(a)));
        self.pending.append(&mut paths);
    }
}

fn look_up_in(
    lookup: &EntryLookup,
    entries: &HashMap<Vec<u8>, Entry>,
    paths: &[Vec<u8>],
) -> (Batch, Vec<Found>) {
    let mut batch = Batch::default();
    let mut found = Vec::with_capacity(paths.len());
    for group in paths.chunk_by(|a, b| split(a).0 == split(b).0) {
        let names: Vec<_> = group
            .iter()
            .map(|path| NamedEntry {
                name: split(path).1,
                known: entries.get(path).and_then(|entry| entry.state.known()),
            })
            .collect();
        found.extend(lookup.look_up(split(&group[0]).0, &names, &mut batch));
    }
    (batch, found)
}

/// The directories above a path, the nearest first, without the root.
fn above(path: &[u8]) -> impl Iterator<Item = &[u8]> {
    std::iter::successors(parent(path), |path| parent(path)).filter(|path| !path.is_empty())
}
