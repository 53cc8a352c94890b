//! Frames: one packet, or several of one flow that the kernel left for the path to split.
//!
//! Arrives: the layout of a frame. Leaves: the sizes of its packets. Must not know: its source, the path.

use crate::packet_buffer::Place;

/// One packet, or several of one flow with equal payloads, the last one possibly shorter.
///
/// The path decides packet by packet; neighbours that leave together are written together.
#[derive(Clone, Debug)]
pub struct Frame<S> {
    /// The place of its bytes.
    pub place: Place,
    /// Its layout.
    pub cuts: Cuts,
    /// What the sink needs to know of it.
    pub shape: S,
}

/// The layout of the packets in a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cuts {
    /// Bytes in total.
    pub len: usize,
    /// Bytes of the headers, of which each packet carries a copy.
    pub head: usize,
    /// Bytes of payload of each packet but the last.
    pub segment: usize,
    /// Bytes of each packet on the path that the frame lacks: headers that the kernel removed.
    pub unseen: usize,
}

impl Cuts {
    /// One packet of `len` bytes.
    #[must_use]
    pub fn single(len: usize, unseen: usize) -> Self {
        Self { len, head: 0, segment: len.max(1), unseen }
    }

    /// The number of packets.
    #[must_use]
    pub fn packets(&self) -> usize {
        (self.len - self.head).div_ceil(self.segment).max(1)
    }

    /// The range of the payload of `count` packets from `first` on.
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
    fn packets_cover_the_payload() {
        let cuts = Cuts { len: 40 + 3000, head: 40, segment: 1448, unseen: 28 };
        assert_eq!(cuts.packets(), 3);
        assert_eq!(cuts.payload(0, 3), 40..3040);
        assert_eq!(cuts.payload(2, 1), 2936..3040);
        let sizes: Vec<u64> = (0..3).map(|packet| cuts.wire_bytes(packet)).collect();
        assert_eq!(sizes, [1516, 1516, 172]);
        let single = Cuts::single(84, 0);
        assert_eq!((single.packets(), single.wire_bytes(0)), (1, 84));
        assert_eq!(Cuts::single(0, 28).packets(), 1);
    }
}
