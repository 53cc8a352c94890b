//! Bytes of packets under way, in memory that is used again.
//!
//! Arrives: packets as they are read. Leaves: their bytes until nobody needs them.
//! Must not know: when they leave.
//!
//! Packets of any size lie packed in large pieces; a piece is free again when all its packets have left. Leaving in about the order in
//! which they came is what makes that work. A buffer of 64 KiB for each packet was rejected: of 40,000 small packets it would make 2.6 GB.

/// The size of a piece: 16 of the largest packets, so that at most a sixteenth is wasted at its end.
pub const PIECE_BYTES: usize = 1 << 20;

/// Where a packet lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    piece: u32,
    at: u32,
    len: u32,
}

struct Piece {
    bytes: Box<[u8]>,
    packets: u32,
}

/// The memory of one direction.
pub struct PacketBuffer {
    pieces: Vec<Piece>,
    free: Vec<u32>,
    current: u32,
    at: usize,
    most: usize,
}

impl PacketBuffer {
    /// At most `most_bytes` in all; `ready_bytes` are laid out, and touched, now.
    #[must_use]
    pub fn new(ready_bytes: usize, most_bytes: usize) -> Self {
        let most = most_bytes.div_ceil(PIECE_BYTES).max(2);
        let mut store = Self { pieces: vec![piece()], free: Vec::new(), current: 0, at: 0, most };
        let ready = ready_bytes.div_ceil(PIECE_BYTES).min(most);
        while store.pieces.len() < ready {
            store.free.push(store.pieces.len() as u32);
            store.pieces.push(piece());
        }
        store
    }

    /// Room for a packet of up to `len` bytes, at most a piece; `None` where all memory is in use.
    pub fn room(&mut self, len: usize) -> Option<&mut [u8]> {
        if self.at + len > PIECE_BYTES {
            if self.pieces[self.current as usize].packets == 0 {
                self.at = 0;
            } else if let Some(next) = self.another() {
                (self.current, self.at) = (next, 0);
            } else {
                return None;
            }
        }
        Some(&mut self.pieces[self.current as usize].bytes[self.at..self.at + len])
    }

    /// Keep the first `len` bytes of the room that was given last.
    pub fn keep(&mut self, len: usize) -> Place {
        let place = Place { piece: self.current, at: self.at as u32, len: len as u32 };
        self.pieces[self.current as usize].packets += 1;
        self.at += len;
        place
    }

    /// A packet's bytes.
    #[must_use]
    pub fn bytes(&self, place: Place) -> &[u8] {
        &self.pieces[place.piece as usize].bytes[place.at as usize..(place.at + place.len) as usize]
    }

    /// The packet has left.
    pub fn release(&mut self, place: Place) {
        let piece = &mut self.pieces[place.piece as usize];
        piece.packets -= 1;
        if piece.packets == 0 {
            if place.piece == self.current {
                self.at = 0;
            } else {
                self.free.push(place.piece);
            }
        }
    }

    /// Bytes laid out so far.
    #[must_use]
    pub fn laid_out(&self) -> usize {
        self.pieces.len() * PIECE_BYTES
    }

    fn another(&mut self) -> Option<u32> {
        if let Some(free) = self.free.pop() {
            return Some(free);
        }
        if self.pieces.len() >= self.most {
            return None;
        }
        self.pieces.push(piece());
        Some(self.pieces.len() as u32 - 1)
    }
}

/// Not zeroes: the kernel would give zeroed pages one by one, at the first packet that needs each.
fn piece() -> Piece {
    Piece { bytes: vec![0xA5; PIECE_BYTES].into_boxed_slice(), packets: 0 }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn packets_keep_their_bytes_until_they_leave(
            steps in proptest::collection::vec((1usize..70_000, 0usize..40), 1..300)
        ) {
            let mut store = PacketBuffer::new(0, 4 * PIECE_BYTES);
            let mut there: Vec<(Place, u8)> = Vec::new();
            for (index, (len, leave)) in steps.into_iter().enumerate() {
                let mark = index as u8;
                if let Some(room) = store.room(70_000) {
                    room[..len].fill(mark);
                    there.push((store.keep(len), mark));
                } else {
                    prop_assert!(there.iter().map(|p| p.0.len as usize).sum::<usize>() > 0);
                }
                if leave < there.len() {
                    let (place, mark) = there.remove(leave);
                    prop_assert!(store.bytes(place).iter().all(|byte| *byte == mark));
                    store.release(place);
                }
            }
            for (place, mark) in there {
                prop_assert!(store.bytes(place).iter().all(|byte| *byte == mark));
                store.release(place);
            }
            prop_assert!(store.laid_out() <= 4 * PIECE_BYTES);
            prop_assert!(store.room(PIECE_BYTES).is_some());
        }
    }
}
