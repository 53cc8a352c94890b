//! The packet buffer: bytes of packets in flight, in memory that is reused.
//!
//! Arrives: packets as they are read. Leaves: their bytes until they are released. Must not know: when they leave.
//!
//! Packets of any size are packed into large blocks. A block is free again when all its packets have left, which
//! works because packets leave in about the order of their arrival. Rejected: a buffer of 64 KiB for each packet,
//! which would take 2.6 GB for 40,000 small packets.

/// The size of a block: 16 of the largest packets, so that at most a sixteenth is wasted at its end.
pub const BLOCK_BYTES: usize = 1 << 20;

/// The place of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    block: u32,
    at: u32,
    len: u32,
}

struct Block {
    bytes: Box<[u8]>,
    packets: u32,
}

/// The memory of one direction.
pub struct PacketBuffer {
    blocks: Vec<Block>,
    free: Vec<u32>,
    current: u32,
    at: usize,
    max: usize,
}

impl PacketBuffer {
    /// At most `max_bytes`, of which `ready_bytes` are allocated and touched now.
    #[must_use]
    pub fn new(ready_bytes: usize, max_bytes: usize) -> Self {
        let max = max_bytes.div_ceil(BLOCK_BYTES).max(2);
        let mut buffer = Self { blocks: vec![block()], free: Vec::new(), current: 0, at: 0, max };
        let ready = ready_bytes.div_ceil(BLOCK_BYTES).min(max);
        while buffer.blocks.len() < ready {
            buffer.free.push(buffer.blocks.len() as u32);
            buffer.blocks.push(block());
        }
        buffer
    }

    /// Room for a packet of up to `len` bytes, at most a block; `None` if all memory is in use.
    pub fn room(&mut self, len: usize) -> Option<&mut [u8]> {
        if self.at + len > BLOCK_BYTES {
            if self.blocks[self.current as usize].packets == 0 {
                self.at = 0;
            } else if let Some(next) = self.next_block() {
                (self.current, self.at) = (next, 0);
            } else {
                return None;
            }
        }
        Some(&mut self.blocks[self.current as usize].bytes[self.at..self.at + len])
    }

    /// Keeps the first `len` bytes of the room returned last.
    pub fn keep(&mut self, len: usize) -> Place {
        let place = Place { block: self.current, at: self.at as u32, len: len as u32 };
        self.blocks[self.current as usize].packets += 1;
        self.at += len;
        place
    }

    /// A packet's bytes.
    #[must_use]
    pub fn bytes(&self, place: Place) -> &[u8] {
        &self.blocks[place.block as usize].bytes[place.at as usize..(place.at + place.len) as usize]
    }

    /// The packet has left.
    pub fn release(&mut self, place: Place) {
        let block = &mut self.blocks[place.block as usize];
        block.packets -= 1;
        if block.packets == 0 {
            if place.block == self.current {
                self.at = 0;
            } else {
                self.free.push(place.block);
            }
        }
    }

    /// Bytes allocated so far.
    #[must_use]
    pub fn allocated(&self) -> usize {
        self.blocks.len() * BLOCK_BYTES
    }

    fn next_block(&mut self) -> Option<u32> {
        if let Some(free) = self.free.pop() {
            return Some(free);
        }
        if self.blocks.len() >= self.max {
            return None;
        }
        self.blocks.push(block());
        Some(self.blocks.len() as u32 - 1)
    }
}

/// Not zeros: the kernel would provide zeroed pages one by one, at the first packet in each.
fn block() -> Block {
    Block { bytes: vec![0xA5; BLOCK_BYTES].into_boxed_slice(), packets: 0 }
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
            let mut buffer = PacketBuffer::new(0, 4 * BLOCK_BYTES);
            let mut held: Vec<(Place, u8)> = Vec::new();
            for (index, (len, leave)) in steps.into_iter().enumerate() {
                let mark = index as u8;
                if let Some(room) = buffer.room(70_000) {
                    room[..len].fill(mark);
                    held.push((buffer.keep(len), mark));
                } else {
                    prop_assert!(held.iter().map(|p| p.0.len as usize).sum::<usize>() > 0);
                }
                if leave < held.len() {
                    let (place, mark) = held.remove(leave);
                    prop_assert!(buffer.bytes(place).iter().all(|byte| *byte == mark));
                    buffer.release(place);
                }
            }
            for (place, mark) in held {
                prop_assert!(buffer.bytes(place).iter().all(|byte| *byte == mark));
                buffer.release(place);
            }
            prop_assert!(buffer.allocated() <= 4 * BLOCK_BYTES);
            prop_assert!(buffer.room(BLOCK_BYTES).is_some());
        }
    }
}
