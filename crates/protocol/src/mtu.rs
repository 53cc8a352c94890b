//! How large packets may be: found by probes (RFC 8899).
//!
//! Arrives: which probes arrived, which did not. Leaves: the size in use, the size to try. Must not know: packets.

/// Any path carries UDP payloads of this size (the least IPv6 path, RFC 8200, less its headers).
pub const LEAST: usize = 1232;

/// A size is given up after so many lost probes.
const MOST_PROBES: u32 = 3;

/// When all sizes are decided, a larger one is tried again after this time: paths change.
const AGAIN_NS: u64 = 60_000_000_000;

/// So many large packets lost in a row; random loss of 30 % does that once in 10^8 packets.
const BLACK_HOLE: u32 = 16;

/// Sizes of UDP payloads where links usually end: Ethernet, with and without tunnels, and jumbo frames, IPv4 and IPv6.
const USUAL: [usize; 6] = [1392, 1452, 1472, 4052, 8952, 8972];

/// The search for the largest packet that the path carries.
#[derive(Clone, Debug)]
pub struct Mtu {
    current: usize,
    largest: usize,
    /// Sizes from here on were found not to pass.
    refused: usize,
    lost: u32,
    underway: Option<(u64, usize)>,
    next_ns: u64,
    large_lost: u32,
}

impl Mtu {
    /// Packets up to `largest` will be tried; `start` is known to pass.
    #[must_use]
    pub fn new(start: usize, largest: usize) -> Self {
        let largest = largest.max(start);
        Self {
            current: start,
            largest,
            refused: largest + 1,
            lost: 0,
            underway: None,
            next_ns: 0,
            large_lost: 0,
        }
    }

    /// The size in use.
    #[must_use]
    pub fn current(&self) -> usize {
        self.current
    }

    /// The size of the probe to send now, if one is due.
    #[must_use]
    pub fn probe(&mut self, now_ns: u64) -> Option<usize> {
        if self.underway.is_some() || now_ns < self.next_ns {
            return None;
        }
        if self.next_size().is_none() && self.current < self.largest {
            (self.refused, self.next_ns) = (self.largest + 1, now_ns + AGAIN_NS);
            return None;
        }
        self.next_size()
    }

    fn next_size(&self) -> Option<usize> {
        USUAL
            .into_iter()
            .chain([self.largest])
            .find(|&size| size > self.current && size < self.refused && size <= self.largest)
    }

    /// A probe of `size` left as packet `number`.
    pub fn sent(&mut self, number: u64, size: usize) {
        self.underway = Some((number, size));
    }

    /// Packet `number` has arrived. True where larger packets may be sent now.
    pub fn arrived(&mut self, size: usize) -> bool {
        self.underway = None;
        self.lost = 0;
        let grew = size > self.current;
        self.current = self.current.max(size);
        grew
    }

    /// A probe was lost.
    pub fn lost(&mut self) {
        if let Some((_, size)) = self.underway.take() {
            self.lost += 1;
            if self.lost >= MOST_PROBES {
                (self.refused, self.lost) = (size, 0);
            }
        }
    }

    /// The probe underway: its number and size.
    #[must_use]
    pub fn underway(&self) -> Option<(u64, usize)> {
        self.underway
    }

    /// What became of packets that not every path carries: whether one arrived, and how many were lost. So many lost and none
    /// arrived: the path carries less than it did, though small packets still pass.
    pub fn large(&mut self, arrived: bool, lost: u32) {
        self.large_lost = if arrived { 0 } else { self.large_lost + lost };
        if self.large_lost >= BLACK_HOLE {
            self.black_hole();
        }
    }

    /// Begins anew with the least size.
    pub fn black_hole(&mut self) {
        (self.current, self.refused, self.underway) = (LEAST, self.largest + 1, None);
        (self.large_lost, self.next_ns) = (0, 0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn search(path: usize, largest: usize) -> usize {
        let mut mtu = Mtu::new(LEAST, largest);
        let mut number = 0;
        while let Some(size) = mtu.probe(number) {
            mtu.sent(number, size);
            if size <= path {
                mtu.arrived(size);
            } else {
                mtu.lost();
            }
            number += 1;
            assert!(number < 100, "the search ends");
        }
        mtu.current()
    }

    #[test]
    fn the_usual_paths_are_found() {
        assert_eq!(search(1472, 8972), 1472);
        assert_eq!(search(8972, 8972), 8972);
        assert_eq!(search(1300, 8972), LEAST);
        assert_eq!(search(9999, 1452), 1452);
    }

    #[test]
    fn one_lost_probe_decides_nothing() {
        let mut mtu = Mtu::new(LEAST, 1472);
        assert_eq!(mtu.probe(0), Some(1392));
        mtu.sent(0, 1392);
        mtu.lost();
        assert_eq!(mtu.probe(1), Some(1392));
    }

    #[test]
    fn a_black_hole_brings_the_least_size_back_and_the_search_begins_anew() {
        let mut mtu = Mtu::new(1472, 1472);
        mtu.large(false, 10);
        mtu.large(true, 10);
        mtu.large(false, 10);
        assert_eq!(mtu.current(), 1472, "some of them arrive");
        mtu.large(false, 10);
        assert_eq!(mtu.current(), LEAST);
        assert_eq!(mtu.probe(0), Some(1392));
    }
}
