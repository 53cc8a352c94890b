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

/// An open file.
pub(crate) struct OpenFile {
    pub(crate) fd: OwnedFd,
    pub(crate) path: PathBuf,
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
    /// The next piece, and whether there are more.
    pub(crate) fn take(&mut self, transfer: &Transfer) -> (Piece, bool) {
        let (mut piece, mut sum) = (Vec::new(), 0);
        while self.outcome.status == Status::Ok && sum < transfer.piece && piece.len() < PIECE_RUNS
        {
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
        (piece, more)
    }
}
