//! What is read at once: one packet, or several that the kernel left together for the path to cut.
//!
//! Arrives: how such a frame is built. Leaves: the sizes of its packets.
//! Must not know: where it came from, the path.

use crate::packet_buffer::Place;

/// One packet, or several of one flow with equal payloads, the last one possibly shorter.
///
/// Each decision of the path is taken packet by packet; only what leaves together is written together again.
#[derive(Clone, Debug)]
pub struct Frame<S> {
    /// Where its bytes lie.
    pub place: Place,
    /// How its packets are cut.
    pub cuts: Cuts,
    /// What the outlet must know to write it.
    pub shape: S,
}

/// How the packets of a frame follow one another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cuts {
    /// Bytes in all.
    pub len: usize,
    /// Bytes at the beginning of which each packet carries a copy.
    pub head: usize,
    /// Bytes of each packet besides, but for the last one.
    pub segment: usize,
    /// Bytes that each packet has on the path and the frame does not: headers that the kernel keeps to itself.
    pub unseen: usize,
}

impl Cuts {
    /// One packet of `len` bytes.
    #[must_use]
    pub fn whole(len: usize, unseen: usize) -> Self {
        Self { len, head: 0, segment: len.max(1), unseen }
    }

    /// How many packets.
    #[must_use]
    pub fn packets(&self) -> usize {
        (self.len - self.head).div_ceil(self.segment).max(1)
    }

    /// Where the payload of `count` packets from `first` lies.
    #[must_use]
    pub fn payload(&self, first: usize, count: usize) -> std::ops::Range<usize> {
        let at = |packet: usize| (self.head + packet * self.segment).min(self.len);
        at(first)..at(first + count)
    }

    /// The size of a packet on the path.
    #[must_use]
    pub fn wire_bytes(&self, packet: usize) -> u64 {
        (self.unseen + self.head + self.payload(packet, 1).len()) as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packets_are_as_long_as_they_are_and_miss_nothing() {
        let cuts = Cuts { len: 40 + 3000, head: 40, segment: 1448, unseen: 28 };
        assert_eq!(cuts.packets(), 3);
        assert_eq!(cuts.payload(0, 3), 40..3040);
        assert_eq!(cuts.payload(2, 1), 2936..3040);
        let sizes: Vec<u64> = (0..3).map(|packet| cuts.wire_bytes(packet)).collect();
        assert_eq!(sizes, [1516, 1516, 172]);
        let whole = Cuts::whole(84, 0);
        assert_eq!((whole.packets(), whole.wire_bytes(0)), (1, 84));
        assert_eq!(Cuts::whole(0, 28).packets(), 1);
    }
}
