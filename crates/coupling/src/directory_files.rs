//! The directory's part for versions that are written as files.
//!
//! Arrives: requests of writers and readers of bytes. Leaves: answers; slabs that may be freed.
//! Must not know: sockets, memory. Where bytes are: [`crate::slabs`].
//!
//! A version that is a file appears as every other one, and has one variable: [`BYTES`], of as many elements as the
//! file has bytes.

use std::collections::{BTreeMap, BTreeSet};

use crate::directory::{failed, Directory};
use crate::region::Region;
use crate::request::{Action, Answer, Connection, Piece, Request, Role, Variable, Why};
use crate::slabs::{Slabs, SLABS_MOST, UNIT};

/// The variable that holds the bytes of a version which is a file.
pub const BYTES: &str = "bytes";

impl Directory {
    /// Requests of writers.
    pub(crate) fn write_file(
        &mut self,
        from: Connection,
        rank: u32,
        request: &Request,
        actions: &mut Vec<Action>,
    ) -> Option<Answer> {
        match request {
            Request::Open { version } => self.open_file(from, *version),
            Request::Provide { version, first, owner, key } => {
                let place = (owner.clone(), *key);
                Some(self.provide(from, *version, *first, place, actions))
            }
            Request::Resize { version, bytes } => Some(self.resize(*version, *bytes, actions)),
            Request::CommitFile { version, keep } => {
                Some(self.commit_file(from, rank, *version, *keep))
            }
            _ => None,
        }
    }

    fn open_file(&mut self, from: Connection, version: u64) -> Option<Answer> {
        if let Err(refusal) = self.check_next(from, version) {
            return Some(refusal);
        }
        let place = self.members.get(&from)?.commits;
        let before = place.saturating_sub(self.left);
        let mut earlier = self.order.iter().take(before);
        if earlier.any(|number| self.held.get(number).is_some_and(|held| !self.appeared(held))) {
            return None;
        }
        let next = &mut self.files.next;
        self.files.open.entry(version).or_insert_with(|| next.take().unwrap_or_default());
        Some(Answer::Done)
    }

    /// Where bytes are, to writers before the version appeared, to readers after it.
    pub(crate) fn locate(
        &mut self,
        from: Connection,
        role: Role,
        request: &Request,
    ) -> Option<Answer> {
        let Request::Locate { version, first, units, write } = request else { return None };
        if role == Role::Reader {
            let held = match self.readable(*version) {
                Ok(held) => held,
                Err(answer) => return answer,
            };
            let Some(file) = &held.file else {
                let text = format!(
                    "version {version} holds arrays, which were put into it: it cannot be read as a file"
                );
                return failed(Why::Argument, &text);
            };
            return file.locate(*first, *units).map(Answer::Slabs);
        }
        if let Some(lost) = self.writers.as_ref().and_then(|group| group.lost) {
            return failed(Why::Lost, &format!("writer {lost} has died"));
        }
        let Some(slabs) = self.files.open.get_mut(version) else { return Some(not_open(*version)) };
        if write.is_some() && slabs.len() >= SLABS_MOST {
            return failed(Why::Memory, &format!("a version has at most {SLABS_MOST} slabs"));
        }
        let found = match write {
            Some(upto) => slabs.take(from, *first, *units, *upto),
            None => slabs.locate(*first, *units),
        };
        found.map(Answer::Slabs)
    }

    fn provide(
        &mut self,
        from: Connection,
        version: u64,
        first: u64,
        place: (String, u64),
        actions: &mut Vec<Action>,
    ) -> Answer {
        let Some(slabs) = self.files.open.get_mut(&version) else { return not_open(version) };
        let Ok(copied) = slabs.provide(from, first, place) else {
            let text = format!("unit {first} of version {version} is another writer's");
            return Answer::Failed(Why::Argument, text);
        };
        // The version that it was copied from may have left.
        if copied.is_some() {
            self.free(copied, actions);
        }
        Answer::Done
    }

    fn resize(&mut self, version: u64, bytes: u64, actions: &mut Vec<Action>) -> Answer {
        let Some(slabs) = self.files.open.get_mut(&version) else { return not_open(version) };
        let before: Vec<_> = slabs.places().cloned().collect();
        slabs.resize(bytes);
        if bytes == 0 {
            self.free(before, actions);
        }
        Answer::Done
    }

    fn commit_file(&mut self, from: Connection, rank: u32, version: u64, keep: bool) -> Answer {
        if let Err(refusal) = self.check_next(from, version) {
            return refusal;
        }
        if !self.files.open.contains_key(&version) {
            return not_open(version);
        }
        let place = self.members.get(&from).map_or(0, |member| member.commits);
        self.enter(place, version);
        if !self.committed(from, rank, version) {
            return Answer::Done;
        }
        let slabs = self.files.open.remove(&version).unwrap_or_default();
        self.files.next = keep.then(|| slabs.kept());
        if let Some(held) = self.held.get_mut(&version) {
            let bytes = slabs.bytes();
            held.variables = vec![Variable {
                name: BYTES.to_owned(),
                element: "|u1".to_owned(),
                element_bytes: 1,
                shape: vec![bytes],
            }];
            held.pieces = slabs.held().filter_map(|slab| piece(slab, bytes)).collect();
            held.file = Some(slabs);
        }
        Answer::Version(version)
    }

    /// No further version comes: what the next one would have begun with is freed.
    pub(crate) fn forget_files(&mut self, actions: &mut Vec<Action>) {
        let files = std::mem::take(&mut self.files);
        let all = files.open.values().chain(&files.next);
        let places: BTreeSet<_> = all.flat_map(Slabs::places).cloned().collect();
        self.free(places, actions);
    }

    /// Frees what neither a held version nor one that is being written needs.
    pub(crate) fn free(
        &self,
        places: impl IntoIterator<Item = (String, u64)>,
        actions: &mut Vec<Action>,
    ) {
        let needed: BTreeSet<_> = {
            let held = self.held.values().filter_map(|version| version.file.as_ref());
            let open = self.files.open.values().chain(&self.files.next);
            held.chain(open).flat_map(Slabs::places).collect()
        };
        let mut owners: BTreeMap<String, Vec<u64>> = BTreeMap::new();
        for place in places {
            if !needed.contains(&place) {
                owners.entry(place.0).or_default().push(place.1);
            }
        }
        actions.extend(owners.into_iter().map(|(owner, keys)| Action::Free { owner, keys }));
    }
}

/// A slab as a piece of [`BYTES`]: what is behind the end of the file is none of it.
fn piece((first, units, (owner, key)): (u64, u64, &(String, u64)), bytes: u64) -> Option<Piece> {
    let start = first.checked_mul(UNIT)?;
    let end = units.checked_mul(UNIT)?.checked_add(start)?.min(bytes);
    let count = end.checked_sub(start).filter(|count| *count > 0)?;
    let region = Region::new(&[start], &[count])?;
    Some(Piece { variable: 0, region, owner: owner.clone(), key: *key })
}

fn not_open(version: u64) -> Answer {
    Answer::Failed(Why::Argument, format!("version {version} is not being written as a file"))
}
