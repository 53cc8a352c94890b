//! What of large files has to wait at the receiving end, and how much memory it takes.
//!
//! Arrives: large files begun and done with, offers and attributes that come before their time. Leaves: whether more
//! may be begun; offers, once they may. Must not know: files, what messages say.
//!
//! How many files are in progress, and in what order their parts come, is for the peer to decide. Offers beyond a
//! bound are laid aside on storage, and gone on with as files are done with: what has been offered and not answered
//! is bounded by the protocol.

use std::collections::VecDeque;
use std::io;
use std::sync::atomic::{AtomicUsize, Ordering};

use parking_lot::{Mutex, MutexGuard};
use waystage_copy::RUN_BYTES;

use crate::external_sort::{SpillDirectory, SpillFile, SpillRange};
use crate::send_queue::MOST_OFFERS;

/// Bytes that an equal part takes that is not in the temporary file yet.
const ALIKE_BYTES: usize = 48;

/// At least this many are allowed: runs of parts in messages in flight, equal parts of 256 GiB.
const LEAST: usize = 1 << 16;

pub(crate) struct ReceiveLimits {
    /// What files in progress take, and may take.
    bytes: AtomicUsize,
    most_bytes: usize,
    runs: AtomicUsize,
    most_runs: usize,
    alike: AtomicUsize,
    most_alike: usize,
    aside: Mutex<(SpillFile, VecDeque<SpillRange>)>,
}

/// Something was `before`, and is `after`.
fn change(counter: &AtomicUsize, before: usize, after: usize) {
    if after >= before {
        counter.fetch_add(after - before, Ordering::Relaxed);
    } else {
        counter.fetch_sub(before - after, Ordering::Relaxed);
    }
}

impl ReceiveLimits {
    /// Nothing yet; in all it takes a part of `memory`.
    pub(crate) fn new(place: SpillDirectory, memory: usize) -> Self {
        Self {
            bytes: AtomicUsize::new(0),
            most_bytes: memory / 8,
            runs: AtomicUsize::new(0),
            most_runs: (memory / 16 / RUN_BYTES).max(LEAST),
            alike: AtomicUsize::new(0),
            most_alike: (memory / 16 / ALIKE_BYTES).max(LEAST),
            aside: Mutex::new((SpillFile::new(place), VecDeque::new())),
        }
    }

    /// A file is begun.
    pub(crate) fn begins(&self, bytes: usize) {
        change(&self.bytes, 0, bytes);
    }

    /// It is done with.
    pub(crate) fn ends(&self, bytes: usize) {
        change(&self.bytes, bytes, 0);
    }

    /// A file's parts went from `before` runs to `after`. Whether the total is within its limit.
    pub(crate) fn runs(&self, before: usize, after: usize) -> bool {
        change(&self.runs, before, after);
        after <= before || self.runs.load(Ordering::Relaxed) <= self.most_runs
    }

    /// The number of equal parts went from `before` to `after`. Whether there may be more.
    pub(crate) fn alike(&self, before: usize, after: usize) -> bool {
        change(&self.alike, before, after);
        self.alike.load(Ordering::Relaxed) <= self.most_alike
    }

    /// Whether no more files are to be begun for now.
    pub(crate) fn is_full(&self) -> bool {
        self.bytes.load(Ordering::Relaxed) > self.most_bytes
    }

    fn aside(&self) -> MutexGuard<'_, (SpillFile, VecDeque<SpillRange>)> {
        self.aside.lock()
    }

    /// Lay an offer aside. False where there are more than a sender may have without an answer.
    pub(crate) fn lay_aside(&self, offer: &[u8]) -> io::Result<bool> {
        let (spill, offers) = &mut *self.aside();
        if offers.len() >= MOST_OFFERS {
            return Ok(false);
        }
        offers.push_back(spill.put(offer)?);
        Ok(true)
    }

    /// An offer that was laid aside and may be gone on with.
    pub(crate) fn next_offer(&self) -> io::Result<Option<Vec<u8>>> {
        if self.is_full() {
            return Ok(None);
        }
        let (spill, offers) = &mut *self.aside();
        offers.pop_front().map(|range| spill.take(range)).transpose()
    }

    /// Keep something until it is wanted.
    pub(crate) fn keep(&self, bytes: &[u8]) -> io::Result<SpillRange> {
        self.aside().0.put(bytes)
    }

    /// It is wanted.
    pub(crate) fn kept(&self, range: SpillRange) -> io::Result<Vec<u8>> {
        self.aside().0.take(range)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn offers_wait_while_too_many_files_are_in_progress() {
        let waiting = ReceiveLimits::new(SpillDirectory::Anywhere, 8000);
        waiting.begins(1001);
        assert!(waiting.is_full());
        for offer in 0..MOST_OFFERS {
            assert!(waiting.lay_aside(&[offer as u8]).unwrap());
        }
        assert!(!waiting.lay_aside(b"one more than a sender may have").unwrap());
        assert_eq!(waiting.next_offer().unwrap(), None);
        waiting.ends(1001);
        let offers: Vec<_> = std::iter::from_fn(|| waiting.next_offer().unwrap()).collect();
        assert_eq!(offers.len(), MOST_OFFERS);
        assert!(offers.iter().enumerate().all(|(number, offer)| *offer == [number as u8]));
    }

    #[test]
    fn runs_of_parts_are_bounded_over_all_files() {
        let waiting = ReceiveLimits::new(SpillDirectory::Anywhere, 0);
        assert!(waiting.runs(0, LEAST) && !waiting.runs(0, 1) && waiting.runs(2, 1));
        assert!(waiting.alike(0, LEAST) && !waiting.alike(0, 1));
    }
}
