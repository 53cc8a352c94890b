//! Transfers in pieces: which runs of a window a thread moves next.
//!
//! Arrives: transfers. Leaves: pieces of some MiB. Must not know: threads, system calls.

use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::sync::Arc;

use parking_lot::Mutex;
use waystage_collective_wire::Status;

use crate::coverage::Coverage;
use crate::effect::{Outcome, Transfer};

/// Runs of a piece, at most.
const PIECE_RUNS: usize = 512;

/// With this a piece of several runs ends: each of them is a request, which waits for the one before it. Longer runs
/// are worth a thread each, and go beside each other.
const PIECE_BYTES: u64 = 256 << 10;

/// An open file.
pub(crate) struct OpenFile {
    pub(crate) fd: OwnedFd,
    pub(crate) path: PathBuf,
    /// Targets of the storage that its stripes go round.
    pub(crate) targets: usize,
}

/// Requests in flight at least: what a client of a parallel file system has at one target.
pub(crate) const LEAST_DEPTH: usize = 8;

/// The most of one process.
pub(crate) const MOST_DEPTH: usize = 64;

/// Requests at a target in all: below what makes targets slower again, enough to keep them busy.
const AT_A_TARGET: usize = 32;

/// Requests of one aggregator in flight, where `aggregators` share `targets`.
pub(crate) fn depth(targets: usize, aggregators: usize) -> usize {
    let share = targets.saturating_mul(AT_A_TARGET) / aggregators.max(1);
    share.clamp(LEAST_DEPTH, MOST_DEPTH)
}

/// A transfer in work.
pub(crate) struct Running {
    pub(crate) transfer: Transfer,
    pub(crate) file: Option<Arc<OpenFile>>,
    pub(crate) state: Mutex<Progress>,
    pub(crate) eof: AtomicU64,
    /// Its operation has ended: no further piece is begun.
    pub(crate) cancelled: AtomicBool,
}

/// Of the pieces of a transfer.
pub(crate) struct Progress {
    pub(crate) coverage: Coverage,
    /// Positions before this one have been taken.
    pub(crate) at: u64,
    /// Pieces in progress.
    pub(crate) active: usize,
    /// Whether the transfer waits for a thread that takes the next piece.
    pub(crate) queued: bool,
    pub(crate) outcome: Outcome,
}

/// Runs of a piece, as (position, file offset, bytes).
pub(crate) type Piece = Vec<(u64, u64, u64)>;

impl Progress {
    /// The next piece, its bytes, and whether there are more.
    pub(crate) fn take(&mut self, transfer: &Transfer) -> (Piece, u64, bool) {
        let (mut piece, mut sum) = (Vec::new(), 0);
        let enough = transfer.piece.min(PIECE_BYTES);
        while self.outcome.status == Status::Ok && sum < enough && piece.len() < PIECE_RUNS {
            let Some((from, to)) = self.coverage.next(self.at) else {
                break;
            };
            // The first range of the run: a run goes on over blocks, whose offsets jump.
            let Some((offset, bytes)) = transfer.window.ranges(from, to).next() else {
                break;
            };
            // No piece goes on over a boundary of stripes, or pieces would meet at one target after the other.
            let left = transfer.piece - offset % transfer.piece;
            if sum > 0 && left == transfer.piece {
                break;
            }
            let bytes = bytes.min(left);
            piece.push((from, offset, bytes));
            sum += bytes;
            self.at = from + bytes;
        }
        let more = self.outcome.status == Status::Ok && self.coverage.next(self.at).is_some();
        self.active += 1;
        self.queued = more;
        (piece, sum, more)
    }
}

#[cfg(test)]
mod tests {
    use waystage_collective_wire::{FileId, Window};

    use super::*;

    const KIB: u64 = 1 << 10;

    /// Pieces of runs of a file with stripes of 1 MiB, as numbers of bytes.
    fn pieces(runs: &[(u64, u64)]) -> Vec<Vec<u64>> {
        let window = Window::range(0, 8 << 20).unwrap();
        let mut coverage = Coverage::new(window.bytes());
        runs.iter().for_each(|(offset, bytes)| coverage.add(*offset, *bytes));
        let transfer = Transfer {
            job: 1,
            file: FileId([1; 16]),
            app: "app".into(),
            write: true,
            window,
            image: 0,
            coverage: Coverage::new(0),
            bytes: coverage.total(),
            piece: 1 << 20,
            aggregators: 1,
        };
        let (at, active, queued) = (0, 0, true);
        let mut progress = Progress { coverage, at, active, queued, outcome: Outcome::ok() };
        let mut found = Vec::new();
        while progress.queued {
            let (piece, _, _) = progress.take(&transfer);
            found.push(piece.iter().map(|(_, _, bytes)| *bytes).collect());
        }
        found
    }

    #[test]
    fn long_runs_go_beside_each_other_and_short_ones_behind_each_other() {
        assert_eq!(pieces(&[(0, 2048 * KIB)]), [[1024 * KIB], [1024 * KIB]]);
        assert_eq!(
            pieces(&[(0, 300 * KIB), (400 * KIB, 300 * KIB), (800 * KIB, 300 * KIB)]),
            [[300 * KIB], [300 * KIB], [224 * KIB], [76 * KIB]]
        );
        let short: Vec<_> = (0..100).map(|run| (run * 8 * KIB, 4 * KIB)).collect();
        assert_eq!(pieces(&short), [vec![4 * KIB; 64], vec![4 * KIB; 36]]);
    }

    #[test]
    fn aggregators_share_the_requests_of_the_targets() {
        assert_eq!(depth(4, 4), AT_A_TARGET);
        assert_eq!(depth(4, 8) * 8, 4 * AT_A_TARGET);
        // Storage without stripes, one target for many, and hundreds of targets.
        assert_eq!(depth(1, 4), LEAST_DEPTH);
        assert_eq!(depth(1, 1000), LEAST_DEPTH);
        assert_eq!(depth(usize::MAX, 0), MOST_DEPTH);
    }
}
