//! Extents on their way in: which bytes are new, which extents are whole.
//!
//! Arrives: segments, in any order and any number of times. Leaves: the parts of them that are new; broken rules of the peer.
//! Must not know: packets, time, where bytes are kept.

use std::collections::HashMap;
use std::ops::Range;

use crate::ranges::Ranges;

/// How much a receiver holds at most: bounds of what any peer can make it keep.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Bytes received that the application has not consumed yet: memory in front of the disk.
    pub unconsumed_bytes: u64,
    /// Extents begun and not complete.
    pub open_extents: usize,
    /// Holes in one extent; a segment that would make more is dropped and will be sent again.
    pub holes: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self { unconsumed_bytes: 256 << 20, open_extents: 4096, holes: 1 << 17 }
    }
}

/// What the peer must not do. The connection is closed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Broken {
    /// More bytes than it had credit for.
    Credit,
    /// More extents at a time than allowed.
    TooManyExtents,
    /// An extent with two ends, or with bytes behind its end.
    TwoEnds,
}

#[derive(Debug, Default)]
struct Extent {
    arrived: Ranges,
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

/// What a segment brought.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Taken {
    /// The ranges of the extent that were missing until now.
    pub new: Vec<Range<u64>>,
    /// The extent's length, if nothing of it is missing any more.
    pub complete: Option<u64>,
    /// The segment could not be kept, and must not be acknowledged.
    pub dropped: bool,
}

impl ReassemblyBuffer {
    /// Nothing has arrived yet.
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

    /// How many bytes the peer may send in all.
    #[must_use]
    pub fn credit_bytes(&self) -> u64 {
        self.consumed_bytes + self.limits.unconsumed_bytes
    }

    /// The application has written, or otherwise done with, so many bytes.
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

    /// Takes in a segment of `length` bytes.
    pub fn take(&mut self, id: u64, offset: u64, length: u64, last: bool) -> Result<Taken, Broken> {
        if self.complete.contains(id) {
            self.duplicate_bytes += length;
            return Ok(Taken::default());
        }
        if !self.extents.contains_key(&id) && self.extents.len() >= self.limits.open_extents {
            return Err(Broken::TooManyExtents);
        }
        let extent = self.extents.entry(id).or_default();
        let end = offset + length;
        if extent.end.is_some_and(|known| end > known || (last && end != known))
            || (last && end < extent.highest)
        {
            return Err(Broken::TwoEnds);
        }
        if extent.arrived.segments() >= self.limits.holes {
            return Ok(Taken { dropped: true, ..Taken::default() });
        }
        extent.highest = extent.highest.max(end);
        if last {
            extent.end = Some(end);
        }
        let mut taken = Taken::default();
        let mut at = offset;
        while let Some(missing) = extent.arrived.first_missing(at..end) {
            at = missing.end;
            taken.new.push(missing);
        }
        let new_bytes = extent.arrived.insert(offset..end);
        self.unique_bytes += new_bytes;
        self.duplicate_bytes += length - new_bytes;
        if self.unique_bytes > self.consumed_bytes + self.limits.unconsumed_bytes {
            return Err(Broken::Credit);
        }
        if extent.end == Some(extent.arrived.total()) {
            taken.complete = extent.end;
            self.extents.remove(&id);
            self.complete.insert(id..id + 1);
        }
        Ok(taken)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::loss_recovery::Segment;
    use crate::send_buffer::SendBuffer;
    use proptest::prelude::*;

    #[test]
    fn a_peer_that_breaks_a_rule_is_found_out() {
        let limits = Limits { unconsumed_bytes: 100, open_extents: 2, holes: 8 };
        let mut incoming = ReassemblyBuffer::new(limits);
        assert_eq!(incoming.take(0, 0, 101, false), Err(Broken::Credit));
        let mut incoming = ReassemblyBuffer::new(limits);
        incoming.take(0, 0, 10, true).unwrap();
        incoming.take(1, 0, 10, false).unwrap();
        incoming.take(2, 0, 1, false).unwrap();
        assert_eq!(incoming.take(3, 0, 1, false), Err(Broken::TooManyExtents));
        incoming.take(1, 10, 5, true).unwrap();
        incoming.take(2, 5, 5, false).unwrap();
        assert_eq!(incoming.take(2, 0, 5, true), Err(Broken::TwoEnds));
        incoming.take(3, 9, 1, true).unwrap();
        assert_eq!(incoming.take(3, 10, 1, false), Err(Broken::TwoEnds));
    }

    #[test]
    fn consuming_gives_new_credit() {
        let mut incoming =
            ReassemblyBuffer::new(Limits { unconsumed_bytes: 100, ..Limits::default() });
        incoming.take(0, 0, 100, false).unwrap();
        incoming.consumed(60);
        assert_eq!(incoming.credit_bytes(), 160);
        assert!(incoming.take(0, 100, 60, true).unwrap().complete == Some(160));
    }

    proptest! {
        /// Two ends and a network between them that loses, repeats and reorders segments, cut at any size.
        #[test]
        fn extents_arrive_whole_and_each_byte_once(
            lengths in prop::collection::vec(0_u64..3000, 1..5),
            steps in prop::collection::vec((0_u8..6, 1_usize..700, any::<u16>()), 1..400),
        ) {
            let (mut outgoing, mut incoming) = (SendBuffer::default(), ReassemblyBuffer::new(Limits::default()));
            let ids: Vec<u64> = lengths.iter().map(|length| {
                let id = outgoing.open();
                assert!(outgoing.append(id, *length, true));
                id
            }).collect();
            let (mut underway, mut given): (Vec<Segment>, u64) = (Vec::new(), 0);
            let (mut complete, mut finished) = (Vec::new(), Vec::new());
            let forced = std::iter::repeat_n((0, 700, 0), 200).chain(std::iter::repeat_n((1, 1, 0), 200));
            for (kind, size, pick) in steps.into_iter().chain(forced.cycle().take(4000)) {
                let at = usize::from(pick) % underway.len().max(1);
                match (kind, underway.get(at).copied()) {
                    (0, _) => underway.extend(outgoing.next(u64::MAX, |_, _| size)),
                    (1 | 2, Some(segment)) => {
                        let taken = incoming
                            .take(segment.extent, segment.offset, u64::from(segment.length), segment.last).unwrap();
                        given += taken.new.iter().map(|range| range.end - range.start).sum::<u64>();
                        complete.extend(taken.complete.map(|_| segment.extent));
                        if kind == 1 {
                            underway.swap_remove(at);
                        }
                        finished.extend(outgoing.arrived(segment));
                    }
                    (3, Some(segment)) => {
                        underway.swap_remove(at);
                        outgoing.lost(segment);
                    }
                    // Thought lost, and underway all the same.
                    (4, Some(segment)) => outgoing.lost(segment),
                    _ => {}
                }
            }
            complete.sort_unstable();
            finished.sort_unstable();
            prop_assert_eq!(given, lengths.iter().sum::<u64>());
            prop_assert_eq!(&complete, &ids);
            prop_assert_eq!(&finished, &ids);
            prop_assert!(outgoing.is_empty());
        }
    }
}
