//! Path MTU discovery for datagrams (DPLPMTUD, RFC 8899).
//!
//! Arrives: which probes were acknowledged, which were lost. Leaves: the datagram size in use, the size to probe.
//! Must not know: packets.

/// Any path carries UDP payloads of this size (the minimum IPv6 MTU, RFC 8200, less the headers).
pub const MIN_DATAGRAM: usize = 1232;

/// A size is given up after this many lost probes.
const MAX_PROBES: u32 = 3;

/// Once all sizes are decided, a larger one is probed again after this time: paths change.
const RETRY_NS: u64 = 60_000_000_000;

/// Large packets lost in a row; random loss of 30 % causes that once in 10^8 packets.
const BLACK_HOLE: u32 = 16;

/// Common limits of UDP payloads: Ethernet, with and without tunnels, and jumbo frames, over IPv4 and IPv6.
const COMMON: [usize; 6] = [1392, 1452, 1472, 4052, 8952, 8972];

/// The search for the largest packet that the path carries.
#[derive(Clone, Debug)]
pub struct Mtu {
    current: usize,
    largest: usize,
    /// Sizes from here on do not pass.
    refused: usize,
    lost: u32,
    in_flight: Option<usize>,
    next_ns: u64,
    large_lost: u32,
}

impl Mtu {
    /// Probes datagrams up to `largest`; `start` is known to pass.
    #[must_use]
    pub fn new(start: usize, largest: usize) -> Self {
        let largest = largest.max(start);
        Self {
            current: start,
            largest,
            refused: largest + 1,
            lost: 0,
            in_flight: None,
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
        if self.in_flight.is_some() || now_ns < self.next_ns {
            return None;
        }
        if self.next_size().is_none() && self.current < self.largest {
            (self.refused, self.next_ns) = (self.largest + 1, now_ns + RETRY_NS);
            return None;
        }
        self.next_size()
    }

    fn next_size(&self) -> Option<usize> {
        COMMON
            .into_iter()
            .chain([self.largest])
            .find(|&size| size > self.current && size < self.refused && size <= self.largest)
    }

    /// A probe of `size` was sent.
    pub fn on_probe_sent(&mut self, size: usize) {
        self.in_flight = Some(size);
    }

    /// The probe in flight was acknowledged: its size is in use from now on.
    pub fn on_probe_acked(&mut self) {
        if let Some(size) = self.in_flight.take() {
            self.lost = 0;
            self.current = self.current.max(size);
        }
    }

    /// The probe in flight was lost.
    pub fn on_probe_lost(&mut self) {
        if let Some(size) = self.in_flight.take() {
            self.lost += 1;
            if self.lost >= MAX_PROBES {
                (self.refused, self.lost) = (size, 0);
            }
        }
    }

    /// The fate of packets larger than [`MIN_DATAGRAM`]: whether one was acknowledged, and how many were lost. Many
    /// lost and none acknowledged is a black hole (RFC 8899, section 4.3): the path carries less than before, though
    /// small packets still pass.
    pub fn on_large_packets(&mut self, acked: bool, lost: u32) {
        self.large_lost = if acked { 0 } else { self.large_lost + lost };
        if self.large_lost >= BLACK_HOLE {
            self.on_black_hole();
        }
    }

    /// Restarts from the minimum size.
    pub fn on_black_hole(&mut self) {
        (self.current, self.refused, self.in_flight) = (MIN_DATAGRAM, self.largest + 1, None);
        (self.large_lost, self.next_ns) = (0, 0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn search(path: usize, largest: usize) -> usize {
        let mut mtu = Mtu::new(MIN_DATAGRAM, largest);
        let mut number = 0;
        while let Some(size) = mtu.probe(number) {
            mtu.on_probe_sent(size);
            if size <= path {
                mtu.on_probe_acked();
            } else {
                mtu.on_probe_lost();
            }
            number += 1;
            assert!(number < 100, "the search ends");
        }
        mtu.current()
    }

    #[test]
    fn common_path_mtus_are_found() {
        assert_eq!(search(1472, 8972), 1472);
        assert_eq!(search(8972, 8972), 8972);
        assert_eq!(search(1300, 8972), MIN_DATAGRAM);
        assert_eq!(search(9999, 1452), 1452);
    }

    #[test]
    fn one_lost_probe_decides_nothing() {
        let mut mtu = Mtu::new(MIN_DATAGRAM, 1472);
        assert_eq!(mtu.probe(0), Some(1392));
        mtu.on_probe_sent(1392);
        mtu.on_probe_lost();
        assert_eq!(mtu.probe(1), Some(1392));
    }

    #[test]
    fn a_black_hole_restores_the_minimum_and_restarts_the_search() {
        let mut mtu = Mtu::new(1472, 1472);
        mtu.on_large_packets(false, 10);
        mtu.on_large_packets(true, 10);
        mtu.on_large_packets(false, 10);
        assert_eq!(mtu.current(), 1472, "some of them arrive");
        mtu.on_large_packets(false, 10);
        assert_eq!(mtu.current(), MIN_DATAGRAM);
        assert_eq!(mtu.probe(0), Some(1392));
    }
}
