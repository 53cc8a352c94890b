//! The assembler of one stream: messages in any order become ordered bytes.
//!
//! Arrives: chunks, each once. Leaves: ordered bytes, from the front. Must not know: windows, other streams.

use std::collections::{BTreeMap, VecDeque};

use crate::error::Error;

/// The bytes `at..end` of a buffer.
#[derive(Debug, Default)]
struct Chunk {
    buffer: Vec<u8>,
    at: usize,
    end: usize,
}

impl Chunk {
    fn length(&self) -> u64 {
        (self.end - self.at) as u64
    }
}

/// Smaller chunks are appended to their predecessors, so that buffers hold bytes and not free space.
const SMALL: usize = 4 << 10;

/// The bytes received and not taken.
#[derive(Debug, Default)]
pub(super) struct Assembler {
    ready: VecDeque<Chunk>,
    /// Chunks after a gap, by offset.
    waiting: BTreeMap<u64, Chunk>,
    /// The end of the ordered bytes.
    ready_to: u64,
    taken: u64,
    length: Option<u64>,
}

const TWO_ENDS: Error = Error::Violation("a stream had two ends, or bytes behind its end");
const OVERLAP: Error = Error::Violation("it sent bytes of a stream twice");

impl Assembler {
    /// Bytes taken from the front so far.
    pub(super) fn taken(&self) -> u64 {
        self.taken
    }

    /// The number of chunks after a gap.
    pub(super) fn waiting_chunks(&self) -> usize {
        self.waiting.len()
    }

    /// Whether ordered bytes are available.
    pub(super) fn is_ready(&self) -> bool {
        self.ready_to > self.taken
    }

    /// Whether the complete stream was taken.
    pub(super) fn is_finished(&self) -> bool {
        self.length == Some(self.taken)
    }

    /// Whether all of the stream is ordered, or taken.
    pub(super) fn is_complete(&self) -> bool {
        self.length == Some(self.ready_to)
    }

    /// Whether its length is known.
    pub(super) fn has_length(&self) -> bool {
        self.length.is_some()
    }

    /// Sets the final length.
    pub(super) fn set_length(&mut self, length: u64) -> Result<(), Error> {
        let last = self.waiting.last_key_value().map_or(0, |(at, chunk)| at + chunk.length());
        if self.length.is_some() || length < self.ready_to.max(last) {
            return Err(TWO_ENDS);
        }
        self.length = Some(length);
        Ok(())
    }

    /// Inserts the bytes `at..end` of `buffer` at `offset` of the stream. Returns the buffer if it was copied.
    pub(super) fn insert(
        &mut self,
        offset: u64,
        buffer: Vec<u8>,
        at: usize,
        end: usize,
    ) -> Result<Option<Vec<u8>>, Error> {
        let chunk_end = offset + (end - at) as u64;
        if at == end {
            return Ok(Some(buffer));
        }
        let next = self.waiting.range(offset..).next().map(|(other, _)| *other);
        let before =
            self.waiting.range(..offset).next_back().map(|(other, chunk)| other + chunk.length());
        let overlaps = offset < self.ready_to
            || next.is_some_and(|next| next < chunk_end)
            || before.is_some_and(|before| before > offset)
            || self.length.is_some_and(|length| length < chunk_end);
        if overlaps {
            return Err(OVERLAP);
        }
        let left = if offset == self.ready_to {
            let left = keep(self.ready.back_mut(), buffer, at, end);
            self.ready_to = chunk_end;
            match left {
                Kept::Joined(buffer) => Some(buffer),
                Kept::Separate(chunk, left) => {
                    self.ready.push_back(chunk);
                    left
                }
            }
        } else {
            let neighbour = self.waiting.range_mut(..offset).next_back();
            let joins = neighbour.filter(|(other, chunk)| **other + chunk.length() == offset);
            match keep(joins.map(|(_, chunk)| chunk), buffer, at, end) {
                Kept::Joined(buffer) => Some(buffer),
                Kept::Separate(chunk, left) => {
                    self.waiting.insert(offset, chunk);
                    left
                }
            }
        };
        while let Some(entry) =
            self.waiting.first_entry().filter(|entry| *entry.key() == self.ready_to)
        {
            let chunk = entry.remove();
            self.ready_to += chunk.length();
            self.ready.push_back(chunk);
        }
        Ok(left)
    }

    /// The first contiguous bytes; empty if none are available.
    pub(super) fn front(&self) -> &[u8] {
        self.ready.front().map_or(&[], |chunk| &chunk.buffer[chunk.at..chunk.end])
    }

    /// Takes `bytes` of them. Returns a buffer that is free now.
    pub(super) fn take(&mut self, bytes: usize) -> Option<Vec<u8>> {
        let chunk = self.ready.front_mut()?;
        let bytes = bytes.min(chunk.end - chunk.at);
        chunk.at += bytes;
        self.taken += bytes as u64;
        if chunk.at < chunk.end {
            return None;
        }
        self.ready.pop_front().map(|chunk| chunk.buffer)
    }
}

/// Whether a chunk was appended to its predecessor; the buffer if it is free.
enum Kept {
    Joined(Vec<u8>),
    Separate(Chunk, Option<Vec<u8>>),
}

fn keep(tail: Option<&mut Chunk>, buffer: Vec<u8>, at: usize, end: usize) -> Kept {
    let length = end - at;
    if let Some(tail) = tail.filter(|tail| length < SMALL && tail.end + length <= 16 * SMALL) {
        tail.buffer.truncate(tail.end);
        tail.buffer.extend_from_slice(&buffer[at..end]);
        tail.end += length;
        return Kept::Joined(buffer);
    }
    if length < buffer.capacity() / 4 {
        let copy = Chunk { buffer: buffer[at..end].to_vec(), at: 0, end: length };
        return Kept::Separate(copy, Some(buffer));
    }
    Kept::Separate(Chunk { buffer, at, end }, None)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn overlaps_and_bytes_beyond_the_end_are_violations() {
        let mut assembler = Assembler::default();
        let bytes = || vec![1; 10];
        assert!(assembler.insert(10, bytes(), 0, 10).is_ok());
        for offset in [1, 9, 10, 15, 19] {
            assert_eq!(assembler.insert(offset, bytes(), 0, 10), Err(OVERLAP), "{offset}");
        }
        assert_eq!(assembler.set_length(19), Err(TWO_ENDS));
        assert_eq!(assembler.set_length(25), Ok(()));
        assert_eq!(assembler.set_length(25), Err(TWO_ENDS));
        assert_eq!(assembler.insert(20, bytes(), 0, 10), Err(OVERLAP));
        assert!(assembler.insert(0, bytes(), 0, 10).is_ok());
        assert!(assembler.insert(20, bytes(), 0, 5).is_ok());
        assert_eq!(assembler.insert(0, bytes(), 0, 1), Err(OVERLAP));
    }

    #[test]
    fn small_chunks_do_not_hold_large_buffers() {
        let mut assembler = Assembler::default();
        for offset in (1..1000).chain(std::iter::once(0)) {
            let left = assembler.insert(offset, vec![0; 1 << 16], 7, 8).unwrap();
            assert!(left.is_some());
        }
        assert_eq!((assembler.waiting_chunks(), assembler.front().len()), (0, 1));
        assert!(assembler.ready.len() <= 2, "{}", assembler.ready.len());
    }

    proptest! {
        #[test]
        fn bytes_are_ordered_whatever_the_order_of_their_chunks(
            lengths in prop::collection::vec(1_usize..9000, 1..40),
            order in prop::collection::vec(any::<u32>(), 40),
            takes in prop::collection::vec(1_usize..20_000, 1..40),
        ) {
            let total: usize = lengths.iter().sum();
            let content: Vec<u8> = (0..total).map(|at| (at * 31 + at / 251) as u8).collect();
            let mut chunks = Vec::new();
            let mut at = 0;
            for length in lengths {
                chunks.push((at, length));
                at += length;
            }
            chunks.sort_by_key(|(at, _)| order[at % 40].wrapping_mul(*at as u32 | 1));
            let (mut assembler, mut received) = (Assembler::default(), Vec::new());
            let mut takes = takes.into_iter().cycle();
            let mut take = |assembler: &mut Assembler| {
                let front = assembler.front();
                let count = takes.next().unwrap().min(front.len());
                received.extend_from_slice(&front[..count]);
                assembler.take(count);
            };
            for (at, length) in chunks {
                // A head before the bytes, free space after them.
                let mut buffer = vec![9; 3];
                buffer.extend_from_slice(&content[at..at + length]);
                buffer.push(9);
                prop_assert!(assembler.insert(at as u64, buffer, 3, 3 + length).is_ok());
                take(&mut assembler);
            }
            prop_assert!(assembler.set_length(total as u64).is_ok());
            while assembler.is_ready() {
                take(&mut assembler);
            }
            prop_assert!(assembler.is_finished());
            prop_assert_eq!(received, content);
        }
    }
}
