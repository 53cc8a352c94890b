//! The bytes of a version that is written as a file: which process holds which of them, and how many there are.
//!
//! Arrives: who writes and reads which bytes. Leaves: the slabs that hold them, slabs that a writer has to provide.
//! Must not know: sockets, memory, when a version appears.
//!
//! Bytes are divided into units. The writer that is first to write a unit provides its memory, with as many others of
//! the same operation as no process holds: a slab. From then on all ranks write these bytes to the slab's process, so
//! that of two writes, one after the other, the later one holds. Where a version begins with the bytes of the one
//! before, it shares that one's slabs until it is written to: then the writer provides a copy.

use std::collections::BTreeMap;

use crate::request::{Connection, Found, Slab};

/// Bytes of a unit.
pub const UNIT: u64 = 1 << 20;

/// Most units that a writer is given at once, so that several which write the same ranges share the work.
const GIVEN_MOST: u64 = 32;

/// Most slabs of one answer.
pub const FOUND_MOST: usize = 4096;

/// Most slabs of a version.
pub const SLABS_MOST: usize = 1 << 20;

type Place = (String, u64);

#[derive(Clone, Debug, PartialEq, Eq)]
enum State {
    /// A process holds it; `shared` with an earlier version.
    Held { place: Place, shared: bool },
    /// A writer is making it, from `base`.
    Given { to: Connection, base: Option<Place> },
}

/// The bytes of one version.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Slabs {
    bytes: u64,
    /// By the first unit: how many, and where.
    slabs: BTreeMap<u64, (u64, State)>,
}

/// Versions that are being written as files, and what the next one begins with.
#[derive(Debug, Default)]
pub(crate) struct Files {
    pub(crate) open: BTreeMap<u64, Slabs>,
    pub(crate) next: Option<Slabs>,
}

impl Slabs {
    /// Bytes of the version.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Sets the bytes of the version; with 0 it holds no slab.
    pub(crate) fn resize(&mut self, bytes: u64) {
        self.bytes = bytes;
        if bytes == 0 {
            self.slabs.clear();
        }
    }

    /// The slab of a unit: its first unit, how many, its state.
    fn of(&self, unit: u64) -> Option<(u64, u64, &State)> {
        let (first, (count, state)) = self.slabs.range(..=unit).next_back()?;
        (first + count > unit).then_some((*first, *count, state))
    }

    /// The first unit from `unit` on that a slab has, at most `end`.
    fn gap(&self, unit: u64, end: u64) -> u64 {
        self.slabs.range(unit..).next().map_or(end, |(next, _)| *next).min(end)
    }

    /// What is known of some units. None where another writer makes the first of them.
    pub(crate) fn locate(&self, first: u64, units: u64) -> Option<Found> {
        let end = first.saturating_add(units);
        let mut found = Found { bytes: self.bytes, end: first, slabs: Vec::new() };
        while found.end < end && found.slabs.len() < FOUND_MOST {
            match self.of(found.end) {
                None => found.end = self.gap(found.end, end),
                Some((_, _, State::Given { .. })) if found.end == first => return None,
                Some((_, _, State::Given { .. })) => break,
                Some((at, count, state)) => {
                    found.slabs.push(slab(at, count, state));
                    found.end = at + count;
                }
            }
        }
        Some(found)
    }

    /// As [`Self::locate`] for `from`, which is about to write up to byte `upto`. It is given units that no
    /// process has, and slabs that are shared.
    pub(crate) fn take(
        &mut self,
        from: Connection,
        first: u64,
        units: u64,
        upto: u64,
    ) -> Option<Found> {
        let end = first.saturating_add(units);
        let mut found = Found { bytes: 0, end: first, slabs: Vec::new() };
        let mut given = 0;
        while found.end < end && given < GIVEN_MOST && found.slabs.len() < FOUND_MOST {
            let (at, count, state) = match self.of(found.end) {
                None => {
                    let count = (self.gap(found.end, end) - found.end).min(GIVEN_MOST - given);
                    (found.end, count, State::Given { to: from, base: None })
                }
                Some((_, _, State::Given { to, .. })) if *to != from => break,
                Some((at, count, State::Held { place, shared: true })) => {
                    (at, count, State::Given { to: from, base: Some(place.clone()) })
                }
                Some((at, count, state)) => (at, count, state.clone()),
            };
            if matches!(state, State::Given { .. }) {
                given += count;
            }
            found.slabs.push(slab(at, count, &state));
            found.end = at + count;
            self.slabs.insert(at, (count, state));
        }
        if found.end == first && units > 0 {
            return None;
        }
        self.bytes = self.bytes.max(upto.min(found.end.saturating_mul(UNIT)));
        found.bytes = self.bytes;
        Some(found)
    }

    /// Units that `from` was given are held: the place that they were copied from. Err where it was not given them.
    pub(crate) fn provide(
        &mut self,
        from: Connection,
        first: u64,
        place: Place,
    ) -> Result<Option<Place>, ()> {
        match self.slabs.get_mut(&first) {
            Some((_, state @ State::Given { .. })) if state.is_given_to(from) => {
                match std::mem::replace(state, State::Held { place, shared: false }) {
                    State::Given { base, .. } => Ok(base),
                    State::Held { .. } => Ok(None),
                }
            }
            _ => Err(()),
        }
    }

    /// All slabs that are held: first unit, how many, where.
    pub(crate) fn held(&self) -> impl Iterator<Item = (u64, u64, &Place)> {
        self.slabs.iter().filter_map(|(first, (count, state))| match state {
            State::Held { place, .. } => Some((*first, *count, place)),
            State::Given { .. } => None,
        })
    }

    /// Every place that it needs.
    pub(crate) fn places(&self) -> impl Iterator<Item = &Place> {
        self.slabs.values().filter_map(|(_, state)| match state {
            State::Held { place, .. } => Some(place),
            State::Given { base, .. } => base.as_ref(),
        })
    }

    /// A version that begins with these bytes.
    pub(crate) fn kept(&self) -> Self {
        let mut slabs = BTreeMap::new();
        for (first, count, place) in self.held() {
            slabs.insert(first, (count, State::Held { place: place.clone(), shared: true }));
        }
        Self { bytes: self.bytes, slabs }
    }

    /// How many slabs it has.
    pub(crate) fn len(&self) -> usize {
        self.slabs.len()
    }
}

impl State {
    fn is_given_to(&self, from: Connection) -> bool {
        matches!(self, Self::Given { to, .. } if *to == from)
    }
}

fn slab(first: u64, units: u64, state: &State) -> Slab {
    match state {
        State::Held { place, shared } => {
            Slab { first, units, place: Some(place.clone()), base: None, shared: *shared }
        }
        State::Given { base, .. } => {
            Slab { first, units, place: None, base: base.clone(), shared: false }
        }
    }
}

#[cfg(test)]
#[path = "slabs_tests.rs"]
mod tests;
