//! The bytes of one stream on their way in: messages in any order become bytes in order.
//!
//! Arrives: pieces, each once. Leaves: bytes in order, from the front. Must not know: windows, other streams.

use std::collections::{BTreeMap, VecDeque};

/// Bytes in a buffer that may be longer.
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

/// Pieces below this are joined to those before them, so that memory is held by bytes and not by what is around them.
const SMALL: usize = 4 << 10;

/// What came in and waits.
#[derive(Debug, Default)]
pub(super) struct Arriving {
    ready: VecDeque<Chunk>,
    /// Pieces with something missing before them, by their offsets.
    waiting: BTreeMap<u64, Chunk>,
    /// Behind the last byte in order.
    ready_to: u64,
    taken: u64,
    length: Option<u64>,
}

/// What the peer must not do.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Odd;

impl Arriving {
    /// Bytes taken from the front so far.
    pub(super) fn taken(&self) -> u64 {
        self.taken
    }

    /// Pieces that wait for others before them.
    pub(super) fn pieces(&self) -> usize {
        self.waiting.len()
    }

    /// Whether bytes can be taken.
    pub(super) fn is_ready(&self) -> bool {
        self.ready_to > self.taken
    }

    /// Whether all was taken that there ever will be.
    pub(super) fn is_finished(&self) -> bool {
        self.length == Some(self.taken)
    }

    /// Whether its length is known.
    pub(super) fn has_length(&self) -> bool {
        self.length.is_some()
    }

    /// The length in all.
    pub(super) fn ends_at(&mut self, length: u64) -> Result<(), Odd> {
        let last = self.waiting.last_key_value().map_or(0, |(at, chunk)| at + chunk.length());
        if self.length.is_some() || length < self.ready_to.max(last) {
            return Err(Odd);
        }
        self.length = Some(length);
        Ok(())
    }

    /// Takes in the bytes of `buffer` from `at` to `end`, which are those from `offset` on; gives the buffer back where it was not kept.
    pub(super) fn insert(
        &mut self,
        offset: u64,
        buffer: Vec<u8>,
        at: usize,
        end: usize,
    ) -> Result<Option<Vec<u8>>, Odd> {
        let behind = offset + (end - at) as u64;
        if at == end {
            return Ok(Some(buffer));
        }
        let next = self.waiting.range(offset..).next().map(|(other, _)| *other);
        let before =
            self.waiting.range(..offset).next_back().map(|(other, chunk)| other + chunk.length());
        let overlaps = offset < self.ready_to
            || next.is_some_and(|next| next < behind)
            || before.is_some_and(|before| before > offset)
            || self.length.is_some_and(|length| length < behind);
        if overlaps {
            return Err(Odd);
        }
        let left = if offset == self.ready_to {
            let left = keep(self.ready.back_mut(), buffer, at, end);
            self.ready_to = behind;
            match left {
                Kept::Joined(buffer) => Some(buffer),
                Kept::Own(chunk, left) => {
                    self.ready.push_back(chunk);
                    left
                }
            }
        } else {
            let neighbour = self.waiting.range_mut(..offset).next_back();
            let joins = neighbour.filter(|(other, chunk)| **other + chunk.length() == offset);
            match keep(joins.map(|(_, chunk)| chunk), buffer, at, end) {
                Kept::Joined(buffer) => Some(buffer),
                Kept::Own(chunk, left) => {
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

    /// The first bytes that can be taken; empty where there are none.
    pub(super) fn front(&self) -> &[u8] {
        self.ready.front().map_or(&[], |chunk| &chunk.buffer[chunk.at..chunk.end])
    }

    /// So many of them were taken; gives a buffer back that is free now.
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

enum Kept {
    Joined(Vec<u8>),
    Own(Chunk, Option<Vec<u8>>),
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
        let own = Chunk { buffer: buffer[at..end].to_vec(), at: 0, end: length };
        return Kept::Own(own, Some(buffer));
    }
    Kept::Own(Chunk { buffer, at, end }, None)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn what_comes_twice_or_behind_the_end_is_odd() {
        let mut arriving = Arriving::default();
        let bytes = || vec![1; 10];
        assert!(arriving.insert(10, bytes(), 0, 10).is_ok());
        for offset in [1, 9, 10, 15, 19] {
            assert_eq!(arriving.insert(offset, bytes(), 0, 10), Err(Odd), "{offset}");
        }
        assert_eq!(arriving.ends_at(19), Err(Odd));
        assert_eq!(arriving.ends_at(25), Ok(()));
        assert_eq!(arriving.ends_at(25), Err(Odd));
        assert_eq!(arriving.insert(20, bytes(), 0, 10), Err(Odd));
        assert!(arriving.insert(0, bytes(), 0, 10).is_ok());
        assert!(arriving.insert(20, bytes(), 0, 5).is_ok());
        assert_eq!(arriving.insert(0, bytes(), 0, 1), Err(Odd));
    }

    #[test]
    fn small_pieces_do_not_hold_large_buffers() {
        let mut arriving = Arriving::default();
        for offset in (1..1000).chain(std::iter::once(0)) {
            let left = arriving.insert(offset, vec![0; 1 << 16], 7, 8).unwrap();
            assert!(left.is_some());
        }
        assert_eq!((arriving.pieces(), arriving.front().len()), (0, 1));
        assert!(arriving.ready.len() <= 2, "{}", arriving.ready.len());
    }

    proptest! {
        #[test]
        fn bytes_come_in_order_whatever_the_order_of_their_pieces(
            lengths in prop::collection::vec(1_usize..9000, 1..40),
            order in prop::collection::vec(any::<u32>(), 40),
            takes in prop::collection::vec(1_usize..20_000, 1..40),
        ) {
            let total: usize = lengths.iter().sum();
            let content: Vec<u8> = (0..total).map(|at| (at * 31 + at / 251) as u8).collect();
            let mut pieces = Vec::new();
            let mut at = 0;
            for length in lengths {
                pieces.push((at, length));
                at += length;
            }
            pieces.sort_by_key(|(at, _)| order[at % 40].wrapping_mul(*at as u32 | 1));
            let (mut arriving, mut came) = (Arriving::default(), Vec::new());
            let mut takes = takes.into_iter().cycle();
            let mut take = |arriving: &mut Arriving| {
                let front = arriving.front();
                let count = takes.next().unwrap().min(front.len());
                came.extend_from_slice(&front[..count]);
                arriving.take(count);
            };
            for (at, length) in pieces {
                // A head before the bytes, room behind them.
                let mut buffer = vec![9; 3];
                buffer.extend_from_slice(&content[at..at + length]);
                buffer.push(9);
                prop_assert!(arriving.insert(at as u64, buffer, 3, 3 + length).is_ok());
                take(&mut arriving);
            }
            prop_assert!(arriving.ends_at(total as u64).is_ok());
            while arriving.is_ready() {
                take(&mut arriving);
            }
            prop_assert!(arriving.is_finished());
            prop_assert_eq!(came, content);
        }
    }
}
