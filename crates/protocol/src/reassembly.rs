//! The reassembly buffer: extents on their way in.
//!
//! Arrives: segments. Leaves: which bytes are new, which extents are complete, how much credit the peer has.
//! Must not know: packets, time. Bytes are not kept here; the application writes them where they belong, in any order.

use std::collections::HashMap;
use std::ops::Range;

use crate::error::Error;
use crate::ranges::Ranges;

/// Bounds on the memory that a peer can make a receiver use.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Bytes received that the application has not consumed yet, such as those waiting for the disk.
    pub unconsumed_bytes: u64,
    /// Extents begun and not complete.
    pub open_extents: usize,
    /// Holes in one extent. A segment that would make more is dropped, and the peer sends it again.
    pub holes: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self { unconsumed_bytes: 256 << 20, open_extents: 4096, holes: 1 << 17 }
    }
}

const OVER_CREDIT: Error = Error::Violation("it sent more than it had credit for");
const TOO_MANY_EXTENTS: Error = Error::Violation("it began more extents than allowed");
const TWO_ENDS: Error = Error::Violation("it gave an extent two ends");

#[derive(Debug, Default)]
struct Extent {
    received: Ranges,
    end: Option<u64>,
    highest: u64,
}

/// The extents of one direction.
#[derive(Debug)]
pub struct ReassemblyBuffer {
    limits: Limits,
    extents: HashMap<u64, Extent>,
    complete: Ranges,
    unique_bytes: u64,
    duplicate_bytes: u64,
    consumed_bytes: u64,
}

/// The effect of a segment.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Inserted {
    /// The ranges of the extent that were missing before.
    pub new: Vec<Range<u64>>,
    /// The length of the extent, if it is now complete.
    pub complete: Option<u64>,
    /// Whether the segment was dropped, and must not be acknowledged.
    pub dropped: bool,
}

impl ReassemblyBuffer {
    /// An empty buffer.
    #[must_use]
    pub fn new(limits: Limits) -> Self {
        Self {
            limits,
            extents: HashMap::new(),
            complete: Ranges::default(),
            unique_bytes: 0,
            duplicate_bytes: 0,
            consumed_bytes: 0,
        }
    }

    /// The credit: how many bytes the peer may send in total.
    #[must_use]
    pub fn credit_bytes(&self) -> u64 {
        self.consumed_bytes + self.limits.unconsumed_bytes
    }

    /// The application has written `bytes`, or otherwise finished with them.
    pub fn consumed(&mut self, bytes: u64) {
        self.consumed_bytes = (self.consumed_bytes + bytes).min(self.unique_bytes);
    }

    /// Bytes that arrived for the first time.
    #[must_use]
    pub fn unique_bytes(&self) -> u64 {
        self.unique_bytes
    }

    /// Bytes that arrived again.
    #[must_use]
    pub fn duplicate_bytes(&self) -> u64 {
        self.duplicate_bytes
    }

    /// Inserts a segment of `length` bytes.
    ///
    /// # Errors
    /// A rule that the peer violated.
    pub fn insert(
        &mut self,
        id: u64,
        offset: u64,
        length: u64,
        last: bool,
    ) -> Result<Inserted, Error> {
        if self.complete.contains(id) {
            self.duplicate_bytes += length;
            return Ok(Inserted::default());
        }
        if !self.extents.contains_key(&id) && self.extents.len() >= self.limits.open_extents {
            return Err(TOO_MANY_EXTENTS);
        }
        let extent = self.extents.entry(id).or_default();
        let end = offset + length;
        if extent.end.is_some_and(|known| end > known || (last && end != known))
            || (last && end < extent.highest)
        {
            return Err(TWO_ENDS);
        }
        if extent.received.count() >= self.limits.holes {
            return Ok(Inserted { dropped: true, ..Inserted::default() });
        }
        extent.highest = extent.highest.max(end);
        if last {
            extent.end = Some(end);
        }
        let mut inserted = Inserted::default();
        let mut at = offset;
        while let Some(missing) = extent.received.first_missing(at..end) {
            at = missing.end;
            inserted.new.push(missing);
        }
        let new_bytes = extent.received.insert(offset..end);
        self.unique_bytes += new_bytes;
        self.duplicate_bytes += length - new_bytes;
        if self.unique_bytes > self.consumed_bytes + self.limits.unconsumed_bytes {
            return Err(OVER_CREDIT);
        }
        if extent.end == Some(extent.received.total()) {
            inserted.complete = extent.end;
            self.extents.remove(&id);
            self.complete.insert(id..id + 1);
        }
        Ok(inserted)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::segment::Segment;
    use crate::send_buffer::SendBuffer;
    use proptest::prelude::*;

    #[test]
    fn a_peer_that_violates_a_rule_is_detected() {
        let limits = Limits { unconsumed_bytes: 100, open_extents: 2, holes: 8 };
        let mut buffer = ReassemblyBuffer::new(limits);
        assert_eq!(buffer.insert(0, 0, 101, false), Err(OVER_CREDIT));
        let mut buffer = ReassemblyBuffer::new(limits);
        buffer.insert(0, 0, 10, true).unwrap();
        buffer.insert(1, 0, 10, false).unwrap();
        buffer.insert(2, 0, 1, false).unwrap();
        assert_eq!(buffer.insert(3, 0, 1, false), Err(TOO_MANY_EXTENTS));
        buffer.insert(1, 10, 5, true).unwrap();
        buffer.insert(2, 5, 5, false).unwrap();
        assert_eq!(buffer.insert(2, 0, 5, true), Err(TWO_ENDS));
        buffer.insert(3, 9, 1, true).unwrap();
        assert_eq!(buffer.insert(3, 10, 1, false), Err(TWO_ENDS));
    }

    #[test]
    fn consuming_gives_new_credit() {
        let mut buffer =
            ReassemblyBuffer::new(Limits { unconsumed_bytes: 100, ..Limits::default() });
        buffer.insert(0, 0, 100, false).unwrap();
        buffer.consumed(60);
        assert_eq!(buffer.credit_bytes(), 160);
        assert!(buffer.insert(0, 100, 60, true).unwrap().complete == Some(160));
    }

    proptest! {
        /// A sender and a receiver, and a network that loses, repeats and reorders segments of any size.
        #[test]
        fn extents_arrive_complete_and_each_byte_once(
            lengths in prop::collection::vec(0_u64..3000, 1..5),
            steps in prop::collection::vec((0_u8..6, 1_usize..700, any::<u16>()), 1..400),
        ) {
            let (mut send_buffer, mut reassembly) = (SendBuffer::default(), ReassemblyBuffer::new(Limits::default()));
            let ids: Vec<u64> = lengths.iter().map(|length| {
                let id = send_buffer.open();
                assert!(send_buffer.append(id, *length, true));
                id
            }).collect();
            let (mut in_flight, mut given): (Vec<Segment>, u64) = (Vec::new(), 0);
            let (mut complete, mut finished) = (Vec::new(), Vec::new());
            let forced = std::iter::repeat_n((0, 700, 0), 200).chain(std::iter::repeat_n((1, 1, 0), 200));
            for (kind, size, pick) in steps.into_iter().chain(forced.cycle().take(4000)) {
                let at = usize::from(pick) % in_flight.len().max(1);
                match (kind, in_flight.get(at).copied()) {
                    (0, _) => in_flight.extend(send_buffer.next(u64::MAX, |_, _| size)),
                    (1 | 2, Some(segment)) => {
                        let inserted = reassembly
                            .insert(segment.extent, segment.offset, u64::from(segment.length), segment.last).unwrap();
                        given += inserted.new.iter().map(|range| range.end - range.start).sum::<u64>();
                        complete.extend(inserted.complete.map(|_| segment.extent));
                        if kind == 1 {
                            in_flight.swap_remove(at);
                        }
                        finished.extend(send_buffer.acknowledge(segment));
                    }
                    (3, Some(segment)) => {
                        in_flight.swap_remove(at);
                        send_buffer.mark_lost(segment);
                    }
                    // Declared lost, and still in flight.
                    (4, Some(segment)) => send_buffer.mark_lost(segment),
                    _ => {}
                }
            }
            complete.sort_unstable();
            finished.sort_unstable();
            prop_assert_eq!(given, lengths.iter().sum::<u64>());
            prop_assert_eq!(&complete, &ids);
            prop_assert_eq!(&finished, &ids);
            prop_assert!(send_buffer.is_empty());
        }
    }
}
