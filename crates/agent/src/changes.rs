//! What to look at when the program is over, and what was found there.

use std::collections::HashMap;
use std::io;
use std::path::Path;

use waystage_catalog::{Asked, Batch, Exclude, Found, Layouts, Looker, BATCH_ROWS};

use crate::agent::Counts;
use crate::ledger::{parent, split, Ledger, Touched};
use crate::places::Places;

/// How to look.
pub struct Looks {
    /// What the catalog leaves out.
    pub exclude: Exclude,
    /// Whether it leaves out other file systems.
    pub one_file_system: bool,
    /// Who reads layouts; None for no layouts.
    pub layouts: Option<Layouts>,
    /// Threads, at least one.
    pub threads: usize,
}

/// One path, and what was found there.
#[derive(Debug)]
struct Place {
    touched: Touched,
    /// Not yet looked at.
    found: Option<Found>,
}

/// The paths that changed. First `look` until it gives nothing, then ask for the rest.
pub struct Changes {
    places: HashMap<Vec<u8>, Place>,
    /// What to look at, in the order of directories, from the end.
    pending: Vec<Vec<u8>>,
    looker: Looker,
    threads: usize,
    resolver: Places,
    counts: Counts,
    unseen: Vec<Vec<u8>>,
}

impl Changes {
    pub(crate) fn new(
        root: &Path,
        ledger: Ledger,
        resolver: Places,
        counts: Counts,
        looks: Looks,
    ) -> io::Result<Self> {
        let looker = Looker::open(root, looks.exclude, looks.one_file_system, looks.layouts)?;
        let places = ledger.into_paths();
        let places =
            places.into_iter().map(|(path, touched)| (path, Place { touched, found: None }));
        let mut changes = Self {
            places: places.collect(),
            pending: Vec::new(),
            looker,
            threads: looks.threads.max(1),
            resolver,
            counts,
            unseen: Vec::new(),
        };
        let all: Vec<_> = changes.places.keys().cloned().collect();
        changes.ask(all);
        Ok(changes)
    }

    pub(crate) fn with_unseen(self, unseen: Vec<Vec<u8>>) -> Self {
        Self { unseen, ..self }
    }

    /// The first of what could not be seen: programs as they were named, and ways past the library.
    #[must_use]
    pub fn unseen(&self) -> &[Vec<u8>] {
        &self.unseen
    }

    /// What became of records.
    pub fn counts(&self) -> Counts {
        self.counts
    }

    /// The storage targets met so far.
    pub fn targets(&self) -> Vec<(u32, String)> {
        self.looker.targets()
    }

    /// Look at more paths too; those that were looked at before are not looked at again.
    pub fn add(&mut self, paths: impl IntoIterator<Item = Vec<u8>>) {
        let mut new = Vec::new();
        for path in paths {
            if !self.places.contains_key(&path) {
                let touched = Touched::asked_for();
                self.places.insert(path.clone(), Place { touched, found: None });
                new.push(path);
            }
        }
        self.ask(new);
    }

    /// Look at the next paths; no batch when there are none.
    ///
    /// Links that programs followed are followed here too, and what they lead to is looked at in turn.
    pub fn look(&mut self) -> Vec<Batch> {
        let count = self.pending.len().min(self.threads * BATCH_ROWS);
        let chunk = self.pending.split_off(self.pending.len() - count);
        if chunk.is_empty() {
            return Vec::new();
        }
        let (looker, places) = (&self.looker, &self.places);
        // A thread for fewer paths than this costs more than it saves.
        let share = chunk.len().div_ceil(self.threads).max(1024);
        let mut looked: Vec<(Batch, Vec<Found>)> = Vec::new();
        std::thread::scope(|scope| {
            let threads: Vec<_> = chunk
                .chunks(share)
                .map(|paths| scope.spawn(move || look_at(looker, places, paths)))
                .collect();
            for thread in threads {
                // A panic in there is a defect of ours; it goes on here.
                looked.push(thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)));
            }
        });
        let mut led_to = Vec::new();
        let found = looked.iter().flat_map(|(_, found)| found);
        for (path, found) in chunk.iter().zip(found) {
            let Some(place) = self.places.get_mut(path) else { continue };
            place.found = Some(*found);
            if *found == Found::Link && place.touched.followed {
                led_to.extend(self.resolver.followed(path).filter(|path| !path.is_empty()));
            }
        }
        self.add(led_to);
        looked.into_iter().map(|(batch, _)| batch).collect()
    }

    /// Directories that were renamed or are under such a name: all below is to be walked.
    pub fn to_walk(&self) -> Vec<Vec<u8>> {
        let moved = |path: &[u8]| self.places.get(path).is_some_and(|place| place.touched.moved);
        self.places
            .iter()
            .filter(|(path, place)| {
                place.touched.moved
                    && place.found == Some(Found::Directory)
                    && !above(path).any(moved)
            })
            .map(|(path, _)| path.clone())
            .collect()
    }

    /// Whether an older entry at `path` no longer counts: it was looked at, or lies below what is another by now.
    pub fn covers(&self, path: &[u8]) -> bool {
        self.places.contains_key(path) || self.cut(path, false)
    }

    /// Whether what is known of the directory at `path` no longer counts at all.
    pub fn replaces_directory(&self, path: &[u8]) -> bool {
        self.cut(path, true)
    }

    /// Whether the directory at `path` has entries that were looked at.
    pub fn touches_directory(&self, path: &[u8]) -> bool {
        path.is_empty() || self.places.contains_key(path)
    }

    fn cut(&self, path: &[u8], itself: bool) -> bool {
        let gone = |path: &[u8]| {
            self.places.get(path).is_some_and(|place| {
                place.touched.moved || place.found.is_some_and(|found| found != Found::Directory)
            })
        };
        (itself && gone(path)) || above(path).any(gone)
    }

    /// Sort what is asked for by directory. Below a renamed directory a walk finds everything.
    fn ask(&mut self, mut paths: Vec<Vec<u8>>) {
        let moved = |path: &[u8]| self.places.get(path).is_some_and(|place| place.touched.moved);
        paths.retain(|path| !above(path).any(moved));
        paths.sort_unstable_by(|a, b| split(b).cmp(&split(a)));
        self.pending.append(&mut paths);
    }
}

fn look_at(
    looker: &Looker,
    places: &HashMap<Vec<u8>, Place>,
    paths: &[Vec<u8>],
) -> (Batch, Vec<Found>) {
    let mut batch = Batch::default();
    let mut found = Vec::with_capacity(paths.len());
    for group in paths.chunk_by(|a, b| split(a).0 == split(b).0) {
        let asked: Vec<_> = group
            .iter()
            .map(|path| Asked {
                name: split(path).1,
                known: places.get(path).and_then(|place| place.touched.known()),
            })
            .collect();
        found.extend(looker.look(split(&group[0]).0, &asked, &mut batch));
    }
    (batch, found)
}

/// The directories above a path, the nearest first, without the root.
fn above(path: &[u8]) -> impl Iterator<Item = &[u8]> {
    std::iter::successors(parent(path), |path| parent(path)).filter(|path| !path.is_empty())
}
