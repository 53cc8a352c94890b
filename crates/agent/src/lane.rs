//! Reading one lane of the segment, whose every byte may be foreign.

use std::sync::atomic::Ordering;

use crate::abi;
use crate::segment::{Shape, Words};

/// The tail is published after so many bytes, so that a writer who waits for room does not wait for a whole lane.
const PUBLISHED_EVERY: u64 = 64 << 10;

/// A reader of one lane. How far it has read is its own memory; the lane's word only tells writers.
#[derive(Debug)]
pub(crate) struct LaneReader {
    words: usize,
    data: usize,
    bytes: u64,
    read: u64,
    buffer: Vec<u8>,
}

/// What a look at a lane found.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Drained {
    /// Bytes read or passed over.
    pub(crate) bytes: u64,
    /// Times that what was found is no record, and what was there is lost.
    pub(crate) damaged: u64,
}

impl LaneReader {
    pub(crate) fn new(shape: Shape, lane: usize) -> Self {
        Self {
            words: shape.words_of(lane),
            data: shape.data_of(lane),
            bytes: shape.lane_bytes as u64,
            read: 0,
            buffer: vec![0; abi::LONGEST],
        }
    }

    /// Hand every record that is there now to `take`, which says whether it is one.
    pub(crate) fn drain(
        &mut self,
        words: &Words<'_>,
        mut take: impl FnMut(&[u8]) -> bool,
    ) -> Drained {
        let mut drained = Drained::default();
        // Not beyond what is there now: a writer may be as fast as this.
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
        // A program may have written there too, and would keep others from writing.
        if words.at(self.words + abi::TAIL).load(Ordering::Relaxed) != self.read {
            self.publish(words);
        }
        drained.bytes = self.read.wrapping_sub(began).min(self.bytes);
        drained
    }

    /// Copy the next record of at most `there` bytes and pass it; its length, 0 for a filler, None for nonsense.
    fn record(&mut self, words: &Words<'_>, there: u64) -> Option<usize> {
        let at = self.read & (self.bytes - 1);
        let offset = self.data + usize::try_from(at).ok()?;
        words.copy(offset, &mut self.buffer[..abi::RECORD_BYTES]);
        let length = u32::from_ne_bytes(self.buffer[..4].try_into().ok()?);
        let kind = self.buffer[6];
        let whole = u64::from(length);
        let fits = whole >= abi::ALIGN
            && whole % abi::ALIGN == 0
            && whole <= there
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

    /// The thread that holds the lane, if one does, and how far it has written.
    pub(crate) fn holder(&self, words: &Words<'_>) -> Option<(u64, u64)> {
        let lock = words.at(self.words + abi::LOCK).load(Ordering::Relaxed);
        (lock != 0).then(|| (lock, words.at(self.words + abi::HEAD).load(Ordering::Relaxed)))
    }

    /// Take the lane from a thread that is no more. What it had begun is not there for anybody.
    pub(crate) fn release(&self, words: &Words<'_>, holder: u64) {
        let lock = words.at(self.words + abi::LOCK);
        let _ = lock.compare_exchange(holder, 0, Ordering::AcqRel, Ordering::Relaxed);
    }
}
