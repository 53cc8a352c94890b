//! Reads one ring of the segment, in which any byte may be untrusted.

use std::sync::atomic::Ordering;

use crate::abi;
use crate::segment::{Shape, Words};

/// Bytes after which the tail is published, so that a writer does not wait for a complete pass.
const PUBLISHED_EVERY: u64 = 64 << 10;

/// A reader of one ring. It keeps its position in its own memory; the ring's `tail` only informs writers.
#[derive(Debug)]
pub(crate) struct RingReader {
    words: usize,
    data: usize,
    bytes: u64,
    read: u64,
    buffer: Vec<u8>,
}

/// The result of one pass over a ring.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Drained {
    /// Bytes read or skipped.
    pub(crate) bytes: u64,
    /// Times that the bytes were not a record; the rest of the pass is lost.
    pub(crate) damaged: u64,
}

impl RingReader {
    pub(crate) fn new(shape: Shape, ring: usize) -> Self {
        Self {
            words: shape.words_of(ring),
            data: shape.data_of(ring),
            bytes: shape.ring_bytes as u64,
            read: 0,
            buffer: vec![0; abi::LONGEST],
        }
    }

    /// Pass every record up to the present head to `take`, which returns whether it is valid.
    pub(crate) fn drain(
        &mut self,
        words: &Words<'_>,
        mut take: impl FnMut(&[u8]) -> bool,
    ) -> Drained {
        let mut drained = Drained::default();
        // Not beyond the present head: a writer may be as fast as this.
        let head = words.at(self.words + abi::HEAD).load(Ordering::Acquire) & !(abi::ALIGN - 1);
        let began = self.read;
        let mut published = self.read;
        if head.wrapping_sub(self.read) > self.bytes {
            drained.damaged += 1;
            self.read = head;
        }
        while self.read != head {
            match self.record(words, head.wrapping_sub(self.read)) {
                None => {
                    drained.damaged += 1;
                    self.read = head;
                }
                Some(length) => {
                    if length > 0 && !take(&self.buffer[..length]) {
                        drained.damaged += 1;
                    }
                }
            }
            if self.read.wrapping_sub(published) >= PUBLISHED_EVERY {
                published = self.read;
                self.publish(words);
            }
        }
        // A program may have overwritten the tail, which would block writers.
        if words.at(self.words + abi::TAIL).load(Ordering::Relaxed) != self.read {
            self.publish(words);
        }
        drained.bytes = self.read.wrapping_sub(began).min(self.bytes);
        drained
    }

    /// Copy the next record of at most `available` bytes and advance past it; its length, 0 for a filler, None where
    /// it is invalid.
    fn record(&mut self, words: &Words<'_>, available: u64) -> Option<usize> {
        let at = self.read & (self.bytes - 1);
        let offset = self.data + usize::try_from(at).ok()?;
        words.copy(offset, &mut self.buffer[..abi::RECORD_BYTES]);
        let length = u32::from_ne_bytes(self.buffer[..4].try_into().ok()?);
        let kind = self.buffer[6];
        let whole = u64::from(length);
        let fits = whole >= abi::ALIGN
            && whole % abi::ALIGN == 0
            && whole <= available
            && whole <= self.bytes - at;
        if !fits {
            return None;
        }
        if kind == abi::SKIP {
            self.read = self.read.wrapping_add(whole);
            return Some(0);
        }
        let length = usize::try_from(length).ok().filter(|length| *length <= abi::LONGEST)?;
        words.copy(offset + abi::RECORD_BYTES, &mut self.buffer[abi::RECORD_BYTES..length]);
        self.read = self.read.wrapping_add(whole);
        Some(length)
    }

    fn publish(&self, words: &Words<'_>) {
        words.at(self.words + abi::TAIL).store(self.read, Ordering::Release);
    }

    /// The thread that holds the ring's lock, if one does, and the head.
    pub(crate) fn holder(&self, words: &Words<'_>) -> Option<(u64, u64)> {
        let lock = words.at(self.words + abi::LOCK).load(Ordering::Relaxed);
        (lock != 0).then(|| (lock, words.at(self.words + abi::HEAD).load(Ordering::Relaxed)))
    }

    /// Break the lock of a thread that has ended. Its unfinished record was never visible.
    pub(crate) fn release(&self, words: &Words<'_>, holder: u64) {
        let lock = words.at(self.words + abi::LOCK);
        let _ = lock.compare_exchange(holder, 0, Ordering::AcqRel, Ordering::Relaxed);
    }
}
