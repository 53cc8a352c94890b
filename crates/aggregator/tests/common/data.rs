//! Data of ranks: random pieces, what the file must hold, what a storage request does.

use waystage_aggregator::effect::Transfer;
use waystage_collective::{Datatype, View};
use waystage_collective_wire::local::INLINE_BYTES;
use waystage_collective_wire::Window;

use super::dice::Dice;
use super::Cluster;

/// A rank's extents of the file, ascending, with its data behind each other.
#[derive(Clone, Default)]
pub struct Pieces {
    pub extents: Vec<(u64, u64)>,
    pub data: Vec<u8>,
}

impl Pieces {
    pub(super) fn hull(&self) -> (u64, u64) {
        match (self.extents.first(), self.extents.last()) {
            (Some(first), Some(last)) => (first.0, last.0 + last.1),
            _ => (0, 0),
        }
    }

    pub(super) fn view(&self) -> Vec<u8> {
        let (offsets, blocks): (Vec<i64>, Vec<i64>) = self
            .extents
            .iter()
            .map(|(offset, bytes)| (offset.cast_signed(), bytes.cast_signed()))
            .unzip();
        let byte = Datatype::bytes(1).unwrap();
        let filetype = Datatype::hindexed(&blocks, &offsets, &byte).unwrap();
        View::new(0, 1, filetype).unwrap().encode(1 << 20).unwrap()
    }

    /// All data, mostly, where they may go with an announcement.
    pub(super) fn inline(&self, may_be: bool, dice: &mut Dice) -> Vec<u8> {
        let fits = may_be && self.data.len() as u64 <= INLINE_BYTES;
        if fits && dice.below(4) > 0 {
            self.data.clone()
        } else {
            Vec::new()
        }
    }

    /// The parts of the extents in a window: (position, offset in the data, bytes).
    pub(super) fn inside(&self, window: &Window) -> Vec<(u64, usize, u64)> {
        let (mut found, mut at) = (Vec::new(), 0);
        for (offset, bytes) in &self.extents {
            for (o, n) in window.ranges(0, window.bytes()) {
                let (from, to) = (o.max(*offset), (o + n).min(offset + bytes));
                if from < to {
                    found.push((window.position(from), at + (from - offset) as usize, to - from));
                }
            }
            at += *bytes as usize;
        }
        found
    }
}

impl Cluster {
    pub(super) fn fill(&mut self, node: usize, image: u64, runs: &[(u64, u64)], mut data: &[u8]) {
        for (position, bytes) in runs {
            let (run, rest) = data.split_at(*bytes as usize);
            let at = (image + position) as usize;
            self.processes[node].pool[at..at + run.len()].copy_from_slice(run);
            data = rest;
        }
        assert!(data.is_empty(), "bytes of no run");
    }

    pub(super) fn store(&mut self, node: usize, transfer: &Transfer) -> u64 {
        let mut eof = u64::MAX;
        let mut coverage = transfer.coverage.clone();
        for (position, bytes) in coverage.runs() {
            for at in position..position + bytes {
                let (offset, place) =
                    (transfer.window.offset(at) as usize, (transfer.image + at) as usize);
                if transfer.write {
                    if self.file.len() <= offset {
                        self.file.resize(offset + 1, 0);
                    }
                    self.file[offset] = self.processes[node].pool[place];
                } else if offset < self.file.len() {
                    self.processes[node].pool[place] = self.file[offset];
                } else {
                    eof = eof.min(offset as u64);
                }
            }
        }
        eof
    }

    /// Deal the bytes of a file of this size to ranks, or to none, in short pieces.
    pub fn deal(&mut self, bytes: u64, longest: usize, holes: bool) {
        let ranks = self.ranks.len();
        self.ranks.iter_mut().for_each(|rank| rank.pieces = Pieces::default());
        let mut at = 0;
        while at < bytes {
            let length = (1 + self.dice.below(longest) as u64).min(bytes - at);
            let to = self.dice.below(ranks + usize::from(holes));
            if to < ranks {
                let data: Vec<u8> = (0..length).map(|_| self.dice.below(256) as u8).collect();
                let pieces = &mut self.ranks[to].pieces;
                match pieces.extents.last_mut() {
                    Some(last) if last.0 + last.1 == at => last.1 += length,
                    _ => pieces.extents.push((at, length)),
                }
                pieces.data.extend(data);
            }
            at += length;
        }
        for index in 0..ranks {
            self.ranks[index].by_view = self.dice.below(2) == 0;
        }
    }

    /// Deal the bytes to ranks in turn, in runs that their nodes keep: of a quarter of the default unit or longer.
    pub fn deal_long(&mut self, runs: usize) {
        const LONG: u64 = 64 << 10;
        self.ranks.iter_mut().for_each(|rank| rank.pieces = Pieces::default());
        let (mut at, ranks) = (self.dice.below(5000) as u64, self.ranks.len());
        for run in 0..runs {
            let length = LONG + self.dice.below(5000) as u64;
            let seed = self.dice.below(256);
            let pieces = &mut self.ranks[run % ranks].pieces;
            pieces.extents.push((at, length));
            pieces.data.extend((0..length).map(|byte| (byte as usize * 7 + seed) as u8));
            at += length + self.dice.below(3) as u64;
        }
        self.ranks.iter_mut().for_each(|rank| rank.by_view = true);
    }

    /// What the file must hold after the ranks' pieces were written over `before`.
    pub fn expected(&self, before: &[u8]) -> Vec<u8> {
        let mut found = before.to_vec();
        for rank in &self.ranks {
            let mut at = 0;
            for (offset, bytes) in &rank.pieces.extents {
                let (offset, bytes) = (*offset as usize, *bytes as usize);
                if found.len() < offset + bytes {
                    found.resize(offset + bytes, 0);
                }
                found[offset..offset + bytes].copy_from_slice(&rank.pieces.data[at..at + bytes]);
                at += bytes;
            }
        }
        found
    }
}
