//! The digest of an object's bytes, by either version of the rule.
//!
//! Arrives: runs of data and holes that follow one another.
//! Leaves: a digest that depends on the bytes alone, and not on which of their zeros are stored.
//! Must not know: files, layouts.
//!
//! By the newer rule zeros cost no time that grows with their number: 2^40 of them and 4 KiB of data are summed as
//! quickly as the data. The bytes are cut into blocks of 4 KiB from the object's first byte on. Each longest run of
//! blocks that hold anything but zeros is hashed, followed by its first byte's place in the object and its length; at
//! the end the object's length. All three are 64 bits, the least significant byte first. Read from its end, what is
//! hashed says which object it was, so that two objects have it in common only where they are the same.

use twox_hash::XxHash3_128;

use crate::holes::Run;

/// A digest, the most significant byte first.
pub type Digest = [u8; 16];

const BLOCK: usize = 4096;
static ZEROS: [u8; 64 << 10] = [0; 64 << 10];

/// What of an object is hashed, by the version of the file that keeps the digests.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Rule {
    /// Every byte, zeros too: version 1.
    Every,
    /// Runs of blocks that are not zeros, and their places: version 2.
    Runs,
}

impl Rule {
    /// The rule of files of checksums of this version.
    #[must_use]
    pub fn of_version(version: u32) -> Option<Self> {
        match version {
            1 => Some(Self::Every),
            2 => Some(Self::Runs),
            _ => None,
        }
    }
}

/// Hashes one object.
pub(crate) struct Hasher {
    hash: XxHash3_128,
    rule: Rule,
    /// Bytes so far.
    at: u64,
    /// Where the run of blocks that are not zeros began.
    run: Option<u64>,
    /// The beginning of a block, as long as not all of it has come.
    held: Vec<u8>,
}

impl Hasher {
    pub(crate) fn new(rule: Rule) -> Self {
        Self { hash: XxHash3_128::new(), rule, at: 0, run: None, held: Vec::new() }
    }

    /// The bytes that follow.
    pub(crate) fn take(&mut self, run: &Run<'_>) {
        match (self.rule, run) {
            (Rule::Every, Run::Data(bytes)) => self.hash.write(bytes),
            (Rule::Every, Run::Hole(length)) => in_pieces(*length, |zeros| self.hash.write(zeros)),
            (Rule::Runs, Run::Data(bytes)) => self.data(bytes),
            (Rule::Runs, Run::Hole(length)) => self.hole(*length),
        }
    }

    pub(crate) fn finish(mut self) -> Digest {
        if self.rule == Rule::Runs {
            let held = std::mem::take(&mut self.held);
            if !held.is_empty() {
                self.block(&held);
            }
            self.end_run();
            self.hash.write(&self.at.to_le_bytes());
        }
        self.hash.finish_128().to_be_bytes()
    }

    fn data(&mut self, mut bytes: &[u8]) {
        if !self.held.is_empty() {
            let (first, rest) = bytes.split_at(bytes.len().min(BLOCK - self.held.len()));
            self.held.extend_from_slice(first);
            bytes = rest;
            if self.held.len() < BLOCK {
                return;
            }
            let mut held = std::mem::take(&mut self.held);
            self.block(&held);
            held.clear();
            self.held = held;
        }
        let mut blocks = bytes.chunks_exact(BLOCK);
        for block in blocks.by_ref() {
            self.block(block);
        }
        self.held.extend_from_slice(blocks.remainder());
    }

    fn hole(&mut self, mut length: u64) {
        if !self.held.is_empty() {
            let first = length.min((BLOCK - self.held.len()) as u64);
            in_pieces(first, |zeros| self.data(zeros));
            length -= first;
        }
        // Either the hole has ended, or a block begins here.
        let whole = length - length % BLOCK as u64;
        if whole > 0 {
            self.end_run();
            self.at += whole;
        }
        in_pieces(length - whole, |zeros| self.data(zeros));
    }

    fn block(&mut self, block: &[u8]) {
        if block == &ZEROS[..block.len()] {
            self.end_run();
        } else {
            self.run.get_or_insert(self.at);
            self.hash.write(block);
        }
        self.at += block.len() as u64;
    }

    fn end_run(&mut self) {
        if let Some(start) = self.run.take() {
            self.hash.write(&start.to_le_bytes());
            self.hash.write(&(self.at - start).to_le_bytes());
        }
    }
}

fn in_pieces(mut length: u64, mut take: impl FnMut(&[u8])) {
    while length > 0 {
        let some = usize::try_from(length).unwrap_or(ZEROS.len()).min(ZEROS.len());
        take(&ZEROS[..some]);
        length -= some as u64;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn digest(rule: Rule, runs: &[Run<'_>]) -> Digest {
        let mut hasher = Hasher::new(rule);
        runs.iter().for_each(|run| hasher.take(run));
        hasher.finish()
    }

    proptest! {
        #[test]
        fn which_zeros_are_stored_and_how_bytes_are_cut_makes_no_difference(
            runs in proptest::collection::vec((0_u64..9000, any::<bool>(), any::<bool>()), 0..12)
        ) {
            let mut whole = Vec::new();
            let mut kept: Vec<Vec<u8>> = Vec::new();
            for (length, zeros, _) in &runs {
                let fill = if *zeros { 0 } else { 1 + (*length % 250) as u8 };
                kept.push(vec![fill; usize::try_from(*length).unwrap_or(0)]);
                whole.extend_from_slice(&kept[kept.len() - 1]);
            }
            let cut: Vec<Run<'_>> = kept.iter().zip(&runs).map(|(bytes, (length, zeros, hole))| {
                if *zeros && *hole { Run::Hole(*length) } else { Run::Data(bytes) }
            }).collect();
            for rule in [Rule::Every, Rule::Runs] {
                prop_assert_eq!(digest(rule, &cut), digest(rule, &[Run::Data(&whole)]));
            }
            let plain = XxHash3_128::oneshot(&whole).to_be_bytes();
            prop_assert_eq!(digest(Rule::Every, &cut), plain);
            if let Some(last) = whole.last_mut() {
                *last ^= 0x20;
                prop_assert_ne!(digest(Rule::Runs, &cut), digest(Rule::Runs, &[Run::Data(&whole)]));
            }
        }
    }

    #[test]
    fn digests_differ_by_the_number_of_zeros_and_the_position_of_data() {
        let byte = [7];
        let cases = [
            vec![],
            vec![Run::Hole(1)],
            vec![Run::Hole(4096)],
            vec![Run::Hole(1 << 40)],
            vec![Run::Data(&byte)],
            vec![Run::Data(&byte), Run::Hole(1 << 40)],
            vec![Run::Hole(1 << 40), Run::Data(&byte)],
            vec![Run::Hole(1 << 39), Run::Data(&byte), Run::Hole(1 << 39)],
        ];
        let found: std::collections::HashSet<_> =
            cases.iter().map(|runs| digest(Rule::Runs, runs)).collect();
        assert_eq!(found.len(), cases.len());
    }
}
