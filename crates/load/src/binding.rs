//! Which storage target a loader reads from next.
//!
//! Arrives: work of each target, loaders that ask, the time, as a number.
//! Leaves: targets in the order in which a loader is to look for work.
//! Must not know: what the work is, files, threads, clocks.
//!
//! Each loader is bound to a target, round robin, as in SwiftLoad (section IV.C). With [`Binding::Strict`] that is all.
//! With [`Binding::Steal`] a loader reads from the target that would end last: its own, or a straggler that can take
//! another reader. The loader's scheduler and the copy engine both ask this.

use crate::plan::bound_to;

/// Whether loaders leave their target.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Binding {
    /// Never: the paper's way.
    Strict,
    /// Where another target would end later than their own.
    Steal,
}

/// What beginning a piece costs, as bytes read in the same time: opening takes as long as reading some dozen KiB.
pub const PIECE_BYTES: u64 = 64 << 10;

/// How much later a straggler must end than a loader's own target for the loader to leave it.
const WORTH_LEAVING: f64 = 1.1;

/// A target without readers counts as read by half a loader: it ends late, but not never.
const IDLE_READERS: f64 = 0.5;

/// The weight of the newest measurement of a target's pace.
const NEWEST: f64 = 0.1;

#[derive(Debug, Default)]
struct Target {
    /// Bytes that are not read yet, with [`PIECE_BYTES`] for each unit.
    remaining: u64,
    /// Pieces that wait for a loader.
    queued: u64,
    readers: u32,
    most_readers: u32,
    /// What it was limited to, by its own number.
    limit: Option<u32>,
    /// Nanoseconds that one of its readers takes for a byte.
    pace: Option<f64>,
}

/// The work in progress of one loader: pieces of one target.
#[derive(Clone, Copy, Debug)]
struct Reading {
    target: usize,
    pieces: u64,
    bytes: u64,
    since_ns: u64,
}

/// Loaders and the targets that they are bound to.
#[derive(Debug)]
pub struct Bindings {
    targets: Vec<Target>,
    homes: Vec<Vec<u16>>,
    reading: Vec<Option<Reading>>,
    binding: Binding,
    most_readers: Option<u32>,
    stolen: u64,
}

impl Bindings {
    /// `loaders` loaders, and no target yet. Of one target at most `most_readers` read; None for twice as many as are
    /// bound to it.
    #[must_use]
    pub fn new(loaders: u32, binding: Binding, most_readers: Option<u32>) -> Self {
        let loaders = loaders.max(1) as usize;
        Self {
            targets: Vec::new(),
            homes: vec![Vec::new(); loaders],
            reading: vec![None; loaders],
            binding,
            most_readers,
            stolen: 0,
        }
    }

    /// There are `count` targets from now on, and loaders are bound to them anew.
    pub fn set_targets(&mut self, count: usize) {
        let loaders = u32::try_from(self.homes.len()).unwrap_or(u32::MAX);
        self.homes.iter_mut().for_each(Vec::clear);
        self.targets.resize_with(count, Target::default);
        for index in 0..count {
            let mut bound = 0;
            for loader in bound_to(index, count, loaders) {
                self.homes[loader as usize].push(u16::try_from(index).unwrap_or(u16::MAX));
                bound += 1;
            }
            let target = &mut self.targets[index];
            let most = target.limit.or(self.most_readers).unwrap_or(2 * bound);
            target.most_readers = most.max(1);
            target.limit = Some(most);
        }
    }

    /// How many targets there are.
    #[must_use]
    pub fn targets(&self) -> usize {
        self.targets.len()
    }

    /// A target has this much more to read.
    pub fn add_work(&mut self, target: usize, bytes: u64) {
        self.targets[target].remaining += bytes;
    }

    /// A target has this much less to read.
    pub fn drop_work(&mut self, target: usize, bytes: u64) {
        let remaining = &mut self.targets[target].remaining;
        *remaining = remaining.saturating_sub(bytes);
    }

    /// A piece waits for a loader of this target.
    pub fn queued(&mut self, target: usize) {
        self.targets[target].queued += 1;
    }

    /// It is taken.
    pub fn taken(&mut self, target: usize) {
        let queued = &mut self.targets[target].queued;
        *queued = queued.saturating_sub(1);
    }

    /// Pieces that were read by a loader bound to another target.
    #[must_use]
    pub fn stolen(&self) -> u64 {
        self.stolen
    }

    /// The targets where `loader` is to look for work first: its own and the one that needs it most, in this order.
    #[must_use]
    pub fn first(&self, loader: u32) -> [Option<usize>; 2] {
        let own = self.home(loader);
        let away = match self.binding {
            Binding::Strict => None,
            Binding::Steal => self.latest(own),
        };
        // A loader leaves its target where it is needed more elsewhere, or where it finds nothing at home.
        let leave = match (own, away) {
            (Some(own), Some(away)) => self.ends(away) > WORTH_LEAVING * self.ends(own),
            _ => false,
        };
        if leave {
            [away, own]
        } else {
            [own, away]
        }
    }

    /// All targets that `loader` may read from, those first that would end last: where [`Bindings::first`] has none.
    #[must_use]
    pub fn by_end(&self, loader: u32) -> Vec<usize> {
        let mut open = self.reach(loader);
        open.retain(|index| self.takes_readers(*index));
        open.sort_by(|a, b| self.ends(*b).total_cmp(&self.ends(*a)));
        open
    }

    /// `loader` begins to read a piece of `bytes` bytes.
    pub fn began(&mut self, loader: u32, target: usize, bytes: u64, now_ns: u64) {
        self.targets[target].readers += 1;
        let reading = Reading { target, pieces: 1, bytes, since_ns: now_ns };
        self.reading[loader as usize] = Some(reading);
        if !self.homes[loader as usize].iter().any(|home| usize::from(*home) == target) {
            self.stolen += 1;
        }
    }

    /// `loader` will read another piece of the same target after the ones it has begun.
    pub fn also(&mut self, loader: u32, bytes: u64) {
        if let Some(reading) = &mut self.reading[loader as usize] {
            reading.pieces += 1;
            reading.bytes += bytes;
        }
    }

    /// In how many nanoseconds a reader of this target will have read a piece of `bytes` bytes; None before the first
    /// measurement.
    #[must_use]
    pub fn expected_ns(&self, target: usize, bytes: u64) -> Option<f64> {
        Some(self.targets[target].pace? * (bytes + PIECE_BYTES) as f64)
    }

    /// Whether every target with pieces that wait serves a small one within `limit_ns`, as far as was measured.
    #[must_use]
    pub fn serve_within(&self, limit_ns: f64) -> bool {
        let mut waiting = self.targets.iter().filter(|target| target.queued > 0).peekable();
        waiting.peek().is_some()
            && waiting
                .all(|target| target.pace.is_some_and(|pace| pace * PIECE_BYTES as f64 <= limit_ns))
    }

    /// How many loaders read from this target.
    #[must_use]
    pub fn readers(&self, target: usize) -> usize {
        self.targets[target].readers as usize
    }

    /// Half the pieces of this target that wait, for each of its readers.
    #[must_use]
    pub fn queued_for_each(&self, target: usize) -> u64 {
        let Target { queued, readers, .. } = self.targets[target];
        queued / 2 / u64::from(readers.max(1))
    }

    /// `loader` has read its pieces. Whether it had any.
    pub fn ended(&mut self, loader: u32, now_ns: u64) -> bool {
        let Some(reading) = self.reading[loader as usize].take() else { return false };
        let target = &mut self.targets[reading.target];
        target.readers -= 1;
        target.remaining = target.remaining.saturating_sub(reading.bytes);
        let work = reading.bytes + reading.pieces * PIECE_BYTES;
        let pace = now_ns.saturating_sub(reading.since_ns) as f64 / work as f64;
        target.pace = Some(target.pace.map_or(pace, |old| old + NEWEST * (pace - old)));
        true
    }

    /// In how many nanoseconds a target would end with its present readers.
    #[must_use]
    pub fn ends(&self, index: usize) -> f64 {
        let target = &self.targets[index];
        let pace = target.pace.unwrap_or(1.0);
        let readers = if target.readers == 0 { IDLE_READERS } else { f64::from(target.readers) };
        target.remaining as f64 * pace / readers
    }

    /// The targets that `loader` may read from at all.
    #[must_use]
    pub fn reach(&self, loader: u32) -> Vec<usize> {
        match self.binding {
            Binding::Steal => (0..self.targets.len()).collect(),
            Binding::Strict => {
                self.homes[loader as usize].iter().map(|index| usize::from(*index)).collect()
            }
        }
    }

    /// Limit the readers of a target, given by its index, from now on. A reader above the limit ends its piece first.
    pub fn limit_readers(&mut self, target: usize, most: u32) {
        if let Some(target) = self.targets.get_mut(target) {
            target.most_readers = most.max(1);
        }
    }

    /// Limit the readers of every target, also of those that are met later.
    pub fn set_most_readers(&mut self, each: u32) {
        self.most_readers = Some(each);
        (0..self.targets.len()).for_each(|target| self.limit_readers(target, each));
    }

    /// How many loaders the targets can take together.
    #[must_use]
    pub fn most_loaders(&self) -> u32 {
        self.targets.iter().fold(0, |sum, target| sum.saturating_add(target.most_readers))
    }

    /// One more loader, bound to the target that has the fewest for the readers it takes; its number.
    pub fn add_loader(&mut self) -> u32 {
        let bound = |index: usize| {
            let has = |home: &&Vec<u16>| home.iter().any(|target| usize::from(*target) == index);
            self.homes.iter().filter(has).count() as f64
        };
        let wants = |index: &usize| bound(*index) / f64::from(self.targets[*index].most_readers);
        let home = (0..self.targets.len()).min_by(|a, b| wants(a).total_cmp(&wants(b)));
        let home = home.and_then(|index| u16::try_from(index).ok());
        self.homes.push(home.into_iter().collect());
        self.reading.push(None);
        u32::try_from(self.homes.len() - 1).unwrap_or(u32::MAX)
    }

    /// The loader's own target: of several, the one that would end last and has work.
    fn home(&self, loader: u32) -> Option<usize> {
        let homes = self.homes.get(loader as usize)?.iter().map(|index| usize::from(*index));
        let busy = homes.filter(|index| self.takes_readers(*index));
        busy.max_by(|a, b| self.ends(*a).total_cmp(&self.ends(*b)))
    }

    fn takes_readers(&self, index: usize) -> bool {
        let target = &self.targets[index];
        (target.remaining > 0 || target.queued > 0) && target.readers < target.most_readers
    }

    /// The target, other than `own`, that would end last and takes another reader.
    fn latest(&self, own: Option<usize>) -> Option<usize> {
        let others = (0..self.targets.len()).filter(|index| Some(*index) != own);
        let open = others.filter(|index| self.takes_readers(*index));
        open.max_by(|a, b| self.ends(*a).total_cmp(&self.ends(*b)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    #[test]
    fn a_loader_stays_at_its_target_and_goes_to_the_straggler_when_that_would_end_later() {
        let mut bindings = Bindings::new(2, Binding::Steal, None);
        bindings.set_targets(2);
        for target in 0..2 {
            bindings.add_work(target, 10 * MIB);
        }
        assert_eq!(bindings.first(0)[0], Some(0));
        bindings.began(0, 0, MIB, 0);
        bindings.began(1, 1, MIB, 0);
        // Target 1 takes four times as long for as much.
        bindings.ended(0, 1_000_000);
        bindings.ended(1, 4_000_000);
        bindings.began(1, 1, MIB, 4_000_000);
        assert_eq!(bindings.first(0)[0], Some(1));
        bindings.began(0, 1, MIB, 4_000_000);
        assert_eq!(bindings.stolen(), 1);
    }

    #[test]
    fn no_more_loaders_than_allowed_read_from_a_target() {
        let mut bindings = Bindings::new(3, Binding::Steal, Some(1));
        bindings.set_targets(2);
        bindings.add_work(0, MIB);
        bindings.queued(0);
        bindings.began(0, 0, MIB, 0);
        assert_eq!(bindings.by_end(2), []);
        bindings.limit_readers(0, 2);
        assert_eq!(bindings.by_end(2), [0]);
    }

    #[test]
    fn targets_that_are_met_later_get_loaders_too() {
        let mut bindings = Bindings::new(4, Binding::Strict, None);
        bindings.set_targets(1);
        assert!((0..4).all(|loader| bindings.reach(loader) == [0]));
        bindings.set_targets(2);
        let reach: Vec<_> = (0..4).map(|loader| bindings.reach(loader)).collect();
        assert_eq!(reach, [[0], [1], [0], [1]]);
    }
}
