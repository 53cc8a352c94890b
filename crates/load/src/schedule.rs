//! The object scheduler: which piece is read next, by which loader.
//!
//! Arrives: loaders that ask for work, pieces that were read, memory that was given back, and the time, as a number.
//! Leaves: for each request a piece to read, or Wait, or End.
//! Must not know: files, threads, clocks.
//!
//! Each storage target has a queue and each loader is bound to a target, round robin, as in SwiftLoad (section IV.C).
//! With [`Binding::Strict`] that is all. With [`Binding::Steal`] a loader reads from the target that would end last:
//! its own, or a straggler that can take another reader.
//!
//! Items are admitted only as far as memory allows. In order, they are admitted one after the other, so a slow target
//! holds up the others once memory is full of what waits for it. As they come, each target lets in its own, and a
//! target that would end last has the first claim on memory that is given back.

use std::collections::VecDeque;
use std::sync::Arc;

use crate::files::Files;
use crate::plan::{bound_to, Delivery};
use crate::progress::Progress;
use crate::stream::{Item, Source, Stream};

/// Whether loaders leave their target.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Binding {
    /// Never: the paper's way.
    Strict,
    /// Where another target would end later than their own.
    Steal,
}

/// How to schedule.
#[derive(Clone, Debug)]
pub struct Rules {
    /// What is delivered at once.
    pub delivery: Delivery,
    /// Whether items are delivered in the order of the epoch; else as they come.
    pub ordered: bool,
    /// Bytes held at most, read or about to be read and not yet delivered; a larger item comes alone.
    pub memory_bytes: u64,
    /// The largest piece that is read at once.
    pub piece_bytes: u64,
    /// Loaders that read.
    pub loaders: u32,
    /// Whether loaders leave their target.
    pub binding: Binding,
    /// Readers of one target at most; None for twice as many as are bound to it.
    pub most_readers: Option<u32>,
    /// Whether files of another size than was recorded are delivered as they are; else they are failures.
    pub resized: bool,
}

/// What an item costs besides its bytes: its place in queues, its path, its buffer's head.
const ITEM_BYTES: u64 = 512;

/// What beginning a piece costs, as bytes read in the same time: opening takes as long as reading some dozen KiB.
const PIECE_BYTES: u64 = 64 << 10;

/// How much later a straggler must end than a loader's own target for the loader to leave it.
const WORTH_LEAVING: f64 = 1.1;

/// A target without readers counts as read by half a loader: it ends late, but not never.
const IDLE_READERS: f64 = 0.5;

/// The weight of the newest measurement of a target's pace.
const NEWEST: f64 = 0.1;

/// A piece for a loader to read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Piece {
    /// The number of its item, for [`Scheduler::item`].
    pub slot: usize,
    /// Which of the item's extents it is.
    pub extent: usize,
    /// The index of the target.
    pub target: u16,
}

/// The answer to a loader.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Turn {
    /// Read this.
    Read(Piece),
    /// Nothing now: ask again when something was read or delivered.
    Wait,
    /// Nothing is left.
    End,
}

/// An item that has been let in.
#[derive(Debug)]
struct Slot {
    item: Arc<Item>,
    sequence: u64,
    held: u64,
    left: usize,
}

#[derive(Debug)]
struct Target {
    queue: VecDeque<Piece>,
    /// As items come, its own ones that were not let in yet.
    own: Stream,
    /// Bytes that are not read yet, with [`PIECE_BYTES`] for each unit.
    remaining: u64,
    readers: u32,
    most_readers: u32,
    /// Nanoseconds that one of its readers takes for a byte.
    pace: Option<f64>,
}

/// The work in progress of one loader.
#[derive(Clone, Copy, Debug)]
struct Reading {
    target: u16,
    bytes: u64,
    since_ns: u64,
}

/// The scheduler of one process and one epoch.
#[derive(Debug)]
pub struct Scheduler {
    rules: Rules,
    units: Vec<u32>,
    delivered: Progress,
    targets: Vec<Target>,
    homes: Vec<Vec<u16>>,
    reading: Vec<Option<Reading>>,
    in_order: Stream,
    slots: Vec<Option<Slot>>,
    free: Vec<usize>,
    held: u64,
    sequence: u64,
    /// The target that waits for memory and would end last.
    starving: Option<(usize, u64)>,
    stolen: u64,
    queued: u64,
}

impl Scheduler {
    /// Schedule `units` (see [`crate::plan::units`]), without what has been delivered before.
    #[must_use]
    pub fn new(files: &Files, units: Vec<u32>, delivered: Progress, rules: Rules) -> Self {
        let count = files.targets().len();
        let loaders = rules.loaders.max(1);
        let mut remaining = vec![0_u64; count];
        let mut own: Vec<Vec<u32>> = vec![Vec::new(); count];
        for (position, &unit) in (0_u32..).zip(&units) {
            if delivered.has(position) {
                continue;
            }
            let (target, bytes) = match rules.delivery {
                Delivery::Objects => files.object(unit),
                Delivery::Files => (files.first_target(unit), 0),
            };
            if !rules.ordered {
                own[usize::from(target)].push(position);
            }
            remaining[usize::from(target)] += PIECE_BYTES + bytes;
            if rules.delivery == Delivery::Files {
                for (target, bytes) in files.held_by_targets(unit) {
                    remaining[usize::from(target)] += bytes;
                }
            }
        }
        let mut homes = vec![Vec::new(); loaders as usize];
        let mut targets = Vec::with_capacity(count);
        for (index, (remaining, own)) in remaining.into_iter().zip(own).enumerate() {
            let mut bound = 0;
            for loader in bound_to(index, count, loaders) {
                homes[loader as usize].push(u16::try_from(index).unwrap_or(u16::MAX));
                bound += 1;
            }
            targets.push(Target {
                queue: VecDeque::new(),
                own: Stream::new(own),
                remaining,
                readers: 0,
                most_readers: rules.most_readers.unwrap_or(2 * bound).max(1),
                pace: None,
            });
        }
        let all =
            if rules.ordered { 0..u32::try_from(units.len()).unwrap_or(u32::MAX) } else { 0..0 };
        Self {
            rules,
            units,
            delivered,
            targets,
            homes,
            reading: vec![None; loaders as usize],
            in_order: Stream::new(all.collect()),
            slots: Vec::new(),
            free: Vec::new(),
            held: 0,
            sequence: 0,
            starving: None,
            stolen: 0,
            queued: 0,
        }
    }

    /// How many units there are, delivered before or not.
    #[must_use]
    pub fn units(&self) -> usize {
        self.units.len()
    }

    /// Pieces that were read by a loader bound to another target.
    #[must_use]
    pub fn stolen(&self) -> u64 {
        self.stolen
    }

    /// Bytes held.
    #[must_use]
    pub fn held_bytes(&self) -> u64 {
        self.held
    }

    /// Pieces of admitted items that no loader reads yet.
    #[must_use]
    pub fn queued(&self) -> u64 {
        self.queued
    }

    /// An item that has been let in and is not read yet, by the number that a piece gives.
    #[must_use]
    pub fn item(&self, slot: usize) -> Option<&Arc<Item>> {
        self.slots.get(slot)?.as_ref().map(|slot| &slot.item)
    }

    /// What `loader` reads next. It must have read what it was given before.
    pub fn turn(&mut self, loader: u32, files: &Files, now_ns: u64) -> Turn {
        if self.rules.ordered {
            self.let_in_order(files);
        }
        let own = self.home(loader);
        let away = match self.rules.binding {
            Binding::Strict => None,
            Binding::Steal => self.latest(own),
        };
        // A loader leaves its target where it is needed more elsewhere, or where it finds nothing at home.
        let leave = match (own, away) {
            (Some(own), Some(away)) => self.ends(away) > WORTH_LEAVING * self.ends(own),
            _ => false,
        };
        let ways = if leave { [away, own] } else { [own, away] };
        for target in ways.into_iter().flatten() {
            if let Some(piece) = self.piece_of(target, files) {
                return self.give(loader, piece, now_ns);
            }
        }
        for target in self.by_end(loader) {
            if let Some(piece) = self.piece_of(target, files) {
                return self.give(loader, piece, now_ns);
            }
        }
        if self.over_for(loader, files) {
            Turn::End
        } else {
            Turn::Wait
        }
    }

    /// `loader` has read its piece; returns the item, its place in the order of delivery and the bytes it holds, if
    /// that was its last piece. `used` says how many bytes the item has taken, where that is known to differ from the
    /// plan.
    pub fn read(
        &mut self,
        loader: u32,
        piece: Piece,
        used: Option<u64>,
        now_ns: u64,
    ) -> Option<(Arc<Item>, u64, u64)> {
        if let Some(reading) = self.reading[loader as usize].take() {
            let target = &mut self.targets[usize::from(reading.target)];
            target.readers -= 1;
            let work = reading.bytes + PIECE_BYTES;
            target.remaining = target.remaining.saturating_sub(reading.bytes);
            let pace = now_ns.saturating_sub(reading.since_ns) as f64 / work as f64;
            target.pace = Some(target.pace.map_or(pace, |old| old + NEWEST * (pace - old)));
        }
        let slot = self.slots[piece.slot].as_mut()?;
        if let Some(used) = used {
            self.held = self.held - slot.held + used + ITEM_BYTES;
            slot.held = used + ITEM_BYTES;
        }
        slot.left -= 1;
        if slot.left > 0 {
            return None;
        }
        let Slot { item, sequence, held, .. } = self.slots[piece.slot].take()?;
        self.free.push(piece.slot);
        Some((item, sequence, held))
    }

    /// Bytes of an item were handed to the consumer.
    pub fn release(&mut self, held: u64) {
        self.held -= held;
    }

    /// Whether memory is free enough that loaders who found none should ask again.
    #[must_use]
    pub fn has_room(&self) -> bool {
        self.held <= self.rules.memory_bytes / 8 * 7
    }

    /// The loader's own target: of several, the one that would end last and has work.
    fn home(&self, loader: u32) -> Option<usize> {
        let homes = self.homes.get(loader as usize)?.iter().map(|index| usize::from(*index));
        let busy = homes.filter(|index| self.takes_readers(*index));
        busy.max_by(|a, b| self.ends(*a).total_cmp(&self.ends(*b)))
    }

    fn takes_readers(&self, index: usize) -> bool {
        let target = &self.targets[index];
        let work = target.remaining > 0 || !target.queue.is_empty();
        work && target.readers < target.most_readers
    }

    /// The target, other than `own`, that would end last and takes another reader.
    fn latest(&self, own: Option<usize>) -> Option<usize> {
        let others = (0..self.targets.len()).filter(|index| Some(*index) != own);
        let open = others.filter(|index| self.takes_readers(*index));
        open.max_by(|a, b| self.ends(*a).total_cmp(&self.ends(*b)))
    }

    /// All targets that a loader may read from, those first that would end last.
    fn by_end(&self, loader: u32) -> Vec<usize> {
        let mut open: Vec<usize> =
            self.reach(loader).into_iter().filter(|index| self.takes_readers(*index)).collect();
        open.sort_by(|a, b| self.ends(*b).total_cmp(&self.ends(*a)));
        open
    }

    fn reach(&self, loader: u32) -> Vec<usize> {
        match self.rules.binding {
            Binding::Steal => (0..self.targets.len()).collect(),
            Binding::Strict => {
                self.homes[loader as usize].iter().map(|index| usize::from(*index)).collect()
            }
        }
    }

    /// In how many nanoseconds a target would end with its present readers.
    fn ends(&self, index: usize) -> f64 {
        let target = &self.targets[index];
        let pace = target.pace.unwrap_or(1.0);
        let readers = if target.readers == 0 { IDLE_READERS } else { f64::from(target.readers) };
        target.remaining as f64 * pace / readers
    }

    fn give(&mut self, loader: u32, piece: Piece, now_ns: u64) -> Turn {
        let index = usize::from(piece.target);
        self.targets[index].readers += 1;
        self.queued -= 1;
        let bytes = self.item(piece.slot).map_or(0, |item| item.extents[piece.extent].length);
        self.reading[loader as usize] =
            Some(Reading { target: piece.target, bytes, since_ns: now_ns });
        if !self.homes[loader as usize].contains(&piece.target) {
            self.stolen += 1;
        }
        Turn::Read(piece)
    }

    /// The next piece of a target, letting in its next item where nothing waits.
    fn piece_of(&mut self, index: usize, files: &Files) -> Option<Piece> {
        if let Some(piece) = self.targets[index].queue.pop_front() {
            return Some(piece);
        }
        if self.rules.ordered {
            return None;
        }
        let mut own = std::mem::replace(&mut self.targets[index].own, Stream::new(Vec::new()));
        let bytes = own.peek(self.source(files)).map(Item::bytes);
        let fits = bytes.is_some_and(|bytes| self.fits_for(index, bytes));
        let item = if fits { own.take() } else { None };
        self.targets[index].own = own;
        if let Some(item) = item {
            self.starving = self.starving.filter(|(starving, _)| *starving != index);
            self.let_in(item);
            // Its first piece is this target's.
            return self.targets[index].queue.pop_front();
        }
        if let Some(bytes) = bytes {
            let later = |(other, _)| other == index || self.ends(index) > self.ends(other);
            if self.starving.is_none_or(later) {
                self.starving = Some((index, bytes));
            }
        }
        None
    }

    /// Whether memory has room for an item of a target, and for the next of one that would end later and waits for
    /// room.
    fn fits_for(&self, index: usize, bytes: u64) -> bool {
        let kept = match self.starving {
            Some((other, bytes)) if other != index && self.ends(other) > self.ends(index) => bytes,
            _ => 0,
        };
        self.fits(bytes.saturating_add(kept))
    }

    fn fits(&self, bytes: u64) -> bool {
        let wanted = self.held.saturating_add(bytes).saturating_add(ITEM_BYTES);
        self.held == 0 || wanted <= self.rules.memory_bytes
    }

    fn let_in_order(&mut self, files: &Files) {
        let mut stream = std::mem::replace(&mut self.in_order, Stream::new(Vec::new()));
        while let Some(item) = stream.peek(self.source(files)) {
            if !self.fits(item.bytes()) {
                break;
            }
            let Some(item) = stream.take() else { break };
            self.let_in(item);
        }
        self.in_order = stream;
    }

    fn let_in(&mut self, item: Item) {
        let held = item.bytes() + ITEM_BYTES;
        self.held += held;
        let slot = self.free.pop().unwrap_or_else(|| {
            self.slots.push(None);
            self.slots.len() - 1
        });
        for (extent, of) in item.extents.iter().enumerate() {
            let piece = Piece { slot, extent, target: of.target };
            self.targets[usize::from(of.target)].queue.push_back(piece);
        }
        if item.part == 0 {
            let first = item.extents.first().map_or(0, |extent| usize::from(extent.target));
            let target = &mut self.targets[first];
            target.remaining = target.remaining.saturating_sub(PIECE_BYTES);
        }
        let left = item.extents.len();
        self.queued += left as u64;
        self.slots[slot] = Some(Slot { item: Arc::new(item), sequence: self.sequence, held, left });
        self.sequence += 1;
    }

    /// Whether nothing will ever be there for a loader.
    fn over_for(&mut self, loader: u32, files: &Files) -> bool {
        let all = self.reach(loader);
        if all.iter().any(|index| !self.targets[*index].queue.is_empty()) {
            return false;
        }
        // What is not let in yet may have pieces on any target.
        let mut streams: Vec<Option<usize>> = vec![None];
        if !self.rules.ordered {
            let whole = self.rules.delivery == Delivery::Files;
            let waiting = if whole { (0..self.targets.len()).collect() } else { all };
            streams = waiting.into_iter().map(Some).collect();
        }
        streams.into_iter().all(|of| self.exhausted(of, files))
    }

    fn exhausted(&mut self, of: Option<usize>, files: &Files) -> bool {
        let place = |this: &mut Self| match of {
            Some(index) => std::mem::replace(&mut this.targets[index].own, Stream::new(Vec::new())),
            None => std::mem::replace(&mut this.in_order, Stream::new(Vec::new())),
        };
        let mut stream = place(self);
        let over = stream.peek(self.source(files)).is_none();
        match of {
            Some(index) => self.targets[index].own = stream,
            None => self.in_order = stream,
        }
        over
    }

    fn source<'a>(&'a self, files: &'a Files) -> Source<'a> {
        Source {
            files,
            units: &self.units,
            delivery: self.rules.delivery,
            piece_bytes: self.rules.piece_bytes.max(1),
            delivered: &self.delivered,
        }
    }
}

mod readers;
#[cfg(test)]
mod tests;
