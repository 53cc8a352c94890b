//! What came of a train, counted where it arrives.
//!
//! Arrives: numbers of packets with two times each. Leaves: how many came, how often, in which order, and how their
//! delay changed. Must not know: sockets, clocks, the other direction.
//!
//! A bit for each packet tells a duplicate from a first arrival, so counts are exact. Delays are differences of two
//! machines' clocks: only differences between them mean anything (RFC 3393).

use waystage_transport::wire::{Malformed, Read, Reader, Writer};

/// Parts of a train, by its numbers, that show how loss and delay developed.
pub const PARTS: usize = 32;

/// Delays kept of a train, evenly by number: enough for a hundredth of its share.
const MOST_DELAYS: u32 = 40_000;

/// No train has more packets: its bits are 4 MiB.
pub(crate) const MOST_PACKETS: u32 = 1 << 25;

/// One of the parts of a train.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Part {
    /// Packets of it that came.
    pub received: u32,
    /// The least delay, as [`Delays`] has them.
    pub least_ns: i64,
    /// Their mean.
    pub mean_ns: i64,
}

/// The receiver's clock at arrival less the sender's clock at sending: an unknown constant, and the delay.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Delays {
    /// Of the quickest packet.
    pub least_ns: i64,
    /// Half of them were quicker.
    pub median_ns: i64,
    /// 99 in 100 were quicker.
    pub p99_ns: i64,
    /// Of the slowest.
    pub most_ns: i64,
}

/// What came of a train.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Count {
    /// Packets that came whole, each once.
    pub received: u64,
    /// Those that came again.
    pub duplicated: u64,
    /// Those that came whole after one with a higher number (RFC 4737, section 3).
    pub reordered: u64,
    /// By how many numbers the latest of them was behind.
    pub reordered_by: u64,
    /// Those whose checksum was wrong.
    pub damaged: u64,
    /// Those that this machine's kernel dropped because they were not read in time.
    pub dropped_here: u64,
    /// When the first and the last one came, by the receiver's clock.
    pub first_ns: u64,
    /// See `first_ns`.
    pub last_ns: u64,
    /// Of those that came.
    pub delays: Delays,
    /// Part by part.
    pub parts: Vec<Part>,
}

/// Counts a train while it arrives.
pub(crate) struct Counting {
    train: u32,
    packets: u32,
    seen: Vec<u64>,
    /// One more than the largest number seen.
    next: u32,
    count: Count,
    sums: Vec<i128>,
    stride: u32,
    delays: Vec<i64>,
}

impl Counting {
    /// Of a train of `packets` packets.
    pub(crate) fn new(train: u32, packets: u32) -> Self {
        let packets = packets.min(MOST_PACKETS);
        Self {
            train,
            packets,
            seen: vec![0; packets.div_ceil(64) as usize],
            next: 0,
            count: Count { parts: vec![Part::default(); PARTS], ..Count::default() },
            sums: vec![0; PARTS],
            stride: packets.div_ceil(MOST_DELAYS).max(1),
            delays: Vec::new(),
        }
    }

    /// A packet has come whole. False where it is none of this train.
    pub(crate) fn came(&mut self, train: u32, number: u32, sent_ns: u64, heard_ns: u64) -> bool {
        if train != self.train || number >= self.packets {
            return false;
        }
        let count = &mut self.count;
        let (word, bit) = ((number / 64) as usize, 1 << (number % 64));
        if self.seen[word] & bit != 0 {
            count.duplicated += 1;
            return true;
        }
        self.seen[word] |= bit;
        count.received += 1;
        if number < self.next {
            count.reordered += 1;
            count.reordered_by = count.reordered_by.max(u64::from(self.next - 1 - number));
        }
        self.next = self.next.max(number + 1);
        if count.received == 1 {
            count.first_ns = heard_ns;
        }
        count.last_ns = heard_ns;
        // Both clocks begin near zero: their difference fits.
        let delay = heard_ns.wrapping_sub(sent_ns).cast_signed();
        let at = (u64::from(number) * PARTS as u64 / u64::from(self.packets)) as usize;
        let part = &mut count.parts[at];
        part.least_ns = if part.received == 0 { delay } else { part.least_ns.min(delay) };
        part.received += 1;
        self.sums[at] += i128::from(delay);
        if number.is_multiple_of(self.stride) {
            self.delays.push(delay);
        }
        let delays = &mut count.delays;
        if count.received == 1 {
            (delays.least_ns, delays.most_ns) = (delay, delay);
        }
        delays.least_ns = delays.least_ns.min(delay);
        delays.most_ns = delays.most_ns.max(delay);
        true
    }

    /// One of this session's packets has come damaged: of which train it was cannot be trusted, so it is of this one.
    pub(crate) fn damaged(&mut self) {
        self.count.damaged += 1;
    }

    /// How many have come, one way or the other.
    pub(crate) fn arrived(&self) -> u64 {
        self.count.received + self.count.damaged
    }

    /// All that was counted.
    pub(crate) fn finish(mut self, dropped_here: u64) -> Count {
        self.delays.sort_unstable();
        let delays = &self.delays;
        let quantile = |share: f64| -> Option<i64> {
            let at = (share * delays.len() as f64).ceil() as usize;
            delays.get(at.saturating_sub(1)).copied()
        };
        let mut count = self.count;
        // Where none of those whose delay would have been kept has come, the least stands for all.
        count.delays.median_ns = quantile(0.5).unwrap_or(count.delays.least_ns);
        count.delays.p99_ns = quantile(0.99).unwrap_or(count.delays.least_ns);
        for (part, sum) in count.parts.iter_mut().zip(self.sums) {
            if part.received > 0 {
                part.mean_ns = i64::try_from(sum / i128::from(part.received)).unwrap_or(i64::MAX);
            }
        }
        count.dropped_here = dropped_here;
        count
    }
}

impl Count {
    pub(crate) fn put(&self, out: &mut Writer) {
        for value in [
            self.received,
            self.duplicated,
            self.reordered,
            self.reordered_by,
            self.damaged,
            self.dropped_here,
            self.first_ns,
            self.last_ns,
        ] {
            out.u64(value);
        }
        let Delays { least_ns, median_ns, p99_ns, most_ns } = self.delays;
        out.i64(least_ns).i64(median_ns).i64(p99_ns).i64(most_ns);
        for part in &self.parts {
            out.u32(part.received).i64(part.least_ns).i64(part.mean_ns);
        }
    }

    pub(crate) fn read(reader: &mut Reader<'_>) -> Read<Self> {
        let mut count = Self {
            received: reader.u64()?,
            duplicated: reader.u64()?,
            reordered: reader.u64()?,
            reordered_by: reader.u64()?,
            damaged: reader.u64()?,
            dropped_here: reader.u64()?,
            first_ns: reader.u64()?,
            last_ns: reader.u64()?,
            delays: Delays {
                least_ns: reader.i64()?,
                median_ns: reader.i64()?,
                p99_ns: reader.i64()?,
                most_ns: reader.i64()?,
            },
            parts: Vec::with_capacity(PARTS),
        };
        for _ in 0..PARTS {
            count.parts.push(Part {
                received: reader.u32()?,
                least_ns: reader.i64()?,
                mean_ns: reader.i64()?,
            });
        }
        let sum: u64 = count.parts.iter().map(|part| u64::from(part.received)).sum();
        if sum != count.received {
            return Err(Malformed);
        }
        Ok(count)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::HashSet;

    const SENT_NS: u64 = 1_000_000;

    fn count(packets: u32, arrivals: &[(u32, u64)]) -> Count {
        let mut counting = Counting::new(1, packets);
        for (number, delay) in arrivals {
            counting.came(1, *number, SENT_NS, SENT_NS + delay);
        }
        counting.finish(0)
    }

    proptest! {
        #[test]
        fn what_comes_in_any_order_is_counted_as_a_naive_count_has_it(
            arrivals in prop::collection::vec((0_u32..60, 0_u64..1000), 0..200), strange in 0_u32..100,
        ) {
            let mut counting = Counting::new(5, 50);
            prop_assert!(!counting.came(6, 1, 0, 0));
            prop_assert!(!counting.came(5, 50 + strange, 0, 0));
            let (mut seen, mut largest) = (HashSet::new(), None::<u32>);
            let (mut duplicated, mut reordered, mut by) = (0, 0, 0);
            let mut delays = Vec::new();
            for (number, delay) in &arrivals {
                prop_assert_eq!(counting.came(5, *number, SENT_NS, SENT_NS + delay), *number < 50);
                if *number >= 50 {
                    continue;
                }
                if !seen.insert(*number) {
                    duplicated += 1;
                    continue;
                }
                delays.push(i64::try_from(*delay).unwrap());
                if let Some(largest) = largest.filter(|largest| largest > number) {
                    reordered += 1;
                    by = by.max(u64::from(largest - number));
                }
                largest = largest.max(Some(*number));
            }
            let found = counting.finish(3);
            delays.sort_unstable();
            prop_assert_eq!(found.received, seen.len() as u64);
            prop_assert_eq!((found.duplicated, found.reordered, found.reordered_by), (duplicated, reordered, by));
            prop_assert_eq!(found.dropped_here, 3);
            if !delays.is_empty() {
                let at = |share: f64| delays[((share * delays.len() as f64).ceil() as usize).max(1) - 1];
                prop_assert_eq!(found.delays.least_ns, delays[0]);
                prop_assert_eq!(found.delays.most_ns, delays[delays.len() - 1]);
                prop_assert_eq!((found.delays.median_ns, found.delays.p99_ns), (at(0.5), at(0.99)));
            }
            let mut out = Writer::default();
            found.put(&mut out);
            prop_assert_eq!(Count::read(&mut Reader(&out.0)), Ok(found));
        }

        #[test]
        fn no_bytes_make_the_reader_panic(bytes in prop::collection::vec(any::<u8>(), 0..1000)) {
            let _ = Count::read(&mut Reader(&bytes));
        }
    }

    #[test]
    fn parts_say_how_delay_went_on() {
        let arrivals: Vec<(u32, u64)> = (0..64).map(|number| (number, u64::from(number))).collect();
        let found = count(64, &arrivals);
        assert_eq!(found.parts[0], Part { received: 2, least_ns: 0, mean_ns: 0 });
        assert_eq!(found.parts[31], Part { received: 2, least_ns: 62, mean_ns: 62 });
        assert_eq!(found.delays, Delays { least_ns: 0, median_ns: 31, p99_ns: 63, most_ns: 63 });
    }

    #[test]
    fn a_long_train_keeps_few_of_its_delays() {
        let mut counting = Counting::new(1, 200_000);
        for number in 0..200_000 {
            counting.came(1, number, 0, u64::from(number));
        }
        assert!(counting.delays.len() <= MOST_DELAYS as usize);
        let found = counting.finish(0);
        assert_eq!(found.delays.most_ns, 199_999);
        assert!((99_990..=100_010).contains(&found.delays.median_ns));
    }
}
