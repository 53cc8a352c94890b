//! The object scheduler: which piece is read next, by which loader.
//!
//! Arrives: loaders that ask for work, pieces that were read, memory that was given back, and the time, as a number.
//! Leaves: for each request pieces to read, or Wait, or End.
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
use std::time::Duration;

use crate::binding::{Bindings, PIECE_BYTES};
use crate::files::Files;
use crate::plan::Delivery;
use crate::progress::Progress;
use crate::stream::{Item, Source, Stream};

pub use crate::binding::Binding;

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

/// For how long a loader reads before it hands back what it has read: long beside a lock and a wake-up, which on a
/// virtual machine takes tens of microseconds, and too short for anyone to notice.
pub const TOGETHER: Duration = Duration::from_micros(250);

/// A piece that is read in less time comes from memory.
const IN_MEMORY: Duration = Duration::from_micros(25);

/// Pieces that a loader is given at once, at most.
const MOST_TOGETHER: usize = 64;

/// In order, pieces of a target that are let in ahead for each of its readers and one more: two times what one is given
/// at once, as the last pieces of a queue are shared out.
const AHEAD: usize = 2 * MOST_TOGETHER;

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
}

/// The scheduler of one process and one epoch.
#[derive(Debug)]
pub struct Scheduler {
    rules: Rules,
    units: Vec<u32>,
    delivered: Progress,
    targets: Vec<Target>,
    bindings: Bindings,
    in_order: Stream,
    slots: Vec<Option<Slot>>,
    free: Vec<usize>,
    held: u64,
    sequence: u64,
    /// The target that waits for memory and would end last.
    starving: Option<(usize, u64)>,
    queued: u64,
}

impl Scheduler {
    /// Schedule `units` (see [`crate::plan::units`]), without what has been delivered before.
    #[must_use]
    pub fn new(files: &Files, units: Vec<u32>, delivered: Progress, rules: Rules) -> Self {
        let count = files.targets().len();
        let mut bindings = Bindings::new(rules.loaders, rules.binding, rules.most_readers);
        bindings.set_targets(count);
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
            bindings.add_work(usize::from(target), PIECE_BYTES + bytes);
            if rules.delivery == Delivery::Files {
                for (target, bytes) in files.held_by_targets(unit) {
                    bindings.add_work(usize::from(target), bytes);
                }
            }
        }
        let stream = |own| Target { queue: VecDeque::new(), own: Stream::new(own) };
        let targets = own.into_iter().map(stream).collect();
        let all =
            if rules.ordered { 0..u32::try_from(units.len()).unwrap_or(u32::MAX) } else { 0..0 };
        Self {
            rules,
            units,
            delivered,
            targets,
            bindings,
            in_order: Stream::new(all.collect()),
            slots: Vec::new(),
            free: Vec::new(),
            held: 0,
            sequence: 0,
            starving: None,
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
        self.bindings.stolen()
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

    /// More pieces of the target of `first`, which `loader` was given, to be read after it and handed back together: as
    /// many as are read in [`TOGETHER`], so that small files in memory do not cost a lock and a wake-up each.
    pub fn more(&mut self, loader: u32, first: Piece, into: &mut Vec<Piece>) {
        let index = usize::from(first.target);
        let mut left_ns = TOGETHER.as_nanos() as f64;
        let mut next = Some(first);
        while let Some(piece) = next {
            let bytes = self.length(piece);
            if piece != first {
                self.queued -= 1;
                self.bindings.also(loader, bytes);
                into.push(piece);
            }
            let Some(expected_ns) = self.bindings.expected_ns(index, bytes) else { return };
            left_ns -= expected_ns;
            // The last pieces are shared out one by one.
            let shared = self.bindings.queued_for_each(index) > into.len() as u64;
            let takes = left_ns > 0.0 && shared && into.len() < MOST_TOGETHER;
            next = if takes { self.pop(index) } else { None };
        }
    }

    /// What `loader` reads next. It must have read what it was given before.
    pub fn turn(&mut self, loader: u32, files: &Files, now_ns: u64) -> Turn {
        if self.rules.ordered {
            self.let_in_order(loader, files);
        }
        for target in self.bindings.first(loader).into_iter().flatten() {
            if let Some(piece) = self.piece_of(target, files) {
                return self.give(loader, piece, now_ns);
            }
        }
        for target in self.bindings.by_end(loader) {
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

    /// Whether pieces wait that are read in [`IN_MEMORY`] each.
    #[must_use]
    pub fn serves_quickly(&self) -> bool {
        self.bindings.serve_within(IN_MEMORY.as_nanos() as f64)
    }

    /// `loader` has read all pieces that it was given.
    pub fn ended(&mut self, loader: u32, now_ns: u64) {
        self.bindings.ended(loader, now_ns);
    }

    /// A piece has been read; returns the item, its place in the order of delivery and the bytes it holds, if that was
    /// its last piece. `used` says how many bytes the item has taken, where that is known to differ from the plan.
    pub fn read(&mut self, piece: Piece, used: Option<u64>) -> Option<(Arc<Item>, u64, u64)> {
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

    fn give(&mut self, loader: u32, piece: Piece, now_ns: u64) -> Turn {
        self.queued -= 1;
        self.bindings.began(loader, usize::from(piece.target), self.length(piece), now_ns);
        Turn::Read(piece)
    }

    fn length(&self, piece: Piece) -> u64 {
        self.item(piece.slot).map_or(0, |item| item.extent(piece.extent).length)
    }

    fn pop(&mut self, index: usize) -> Option<Piece> {
        let piece = self.targets[index].queue.pop_front()?;
        self.bindings.taken(index);
        Some(piece)
    }

    fn ends(&self, index: usize) -> f64 {
        self.bindings.ends(index)
    }

    /// The next piece of a target, letting in its next item where nothing waits.
    fn piece_of(&mut self, index: usize, files: &Files) -> Option<Piece> {
        if let Some(piece) = self.pop(index) {
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
            return self.pop(index);
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

    /// Let in what comes next, until the target where `loader` looks first has enough, or memory is full. Not all at
    /// once: the other loaders wait meanwhile.
    fn let_in_order(&mut self, loader: u32, files: &Files) {
        let first = self.bindings.first(loader).into_iter().flatten().next();
        let enough = first.map_or(usize::MAX, |index| AHEAD * (self.bindings.readers(index) + 1));
        let mut stream = std::mem::replace(&mut self.in_order, Stream::new(Vec::new()));
        while first.is_none_or(|index| self.targets[index].queue.len() < enough) {
            let Some(item) = stream.peek(self.source(files)) else { break };
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
        for (extent, of) in item.extents().enumerate() {
            let piece = Piece { slot, extent, target: of.target };
            self.targets[usize::from(of.target)].queue.push_back(piece);
            self.bindings.queued(usize::from(of.target));
        }
        if item.part == 0 {
            self.bindings.drop_work(usize::from(item.extent(0).target), PIECE_BYTES);
        }
        let left = item.count();
        self.queued += left as u64;
        self.slots[slot] = Some(Slot { item: Arc::new(item), sequence: self.sequence, held, left });
        self.sequence += 1;
    }

    /// Whether nothing will ever be there for a loader.
    fn over_for(&mut self, loader: u32, files: &Files) -> bool {
        let all = self.bindings.reach(loader);
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
