//! The send buffer: extents on their way out, and which bytes go into the next packet.
//!
//! Arrives: how many bytes each extent has, which segments were acknowledged or lost. Leaves: segments to send.
//! Must not know: packets, time. Bytes are not kept here; a lost segment is read again from its source.

use std::collections::{HashMap, VecDeque};

use crate::ranges::Ranges;
use crate::segment::Segment;

#[derive(Debug, Default)]
struct Extent {
    /// Bytes to send so far.
    length: u64,
    /// Whether the length is final.
    ended: bool,
    /// Bytes sent for the first time.
    sent: u64,
    /// Whether the end has been sent.
    end_sent: bool,
    end_acked: bool,
    acked: Ranges,
    queued: bool,
}

impl Extent {
    fn has_more(&self) -> bool {
        self.sent < self.length || (self.ended && !self.end_sent)
    }

    fn is_done(&self) -> bool {
        self.end_acked && self.acked.total() == self.length
    }
}

/// The extents of one direction that the peer does not hold completely.
#[derive(Debug, Default)]
pub struct SendBuffer {
    extents: HashMap<u64, Extent>,
    next: u64,
    /// Extents with bytes that were never sent, in order.
    fresh: VecDeque<u64>,
    retransmissions: VecDeque<Segment>,
    /// The length of all extents, including those that have been acknowledged.
    given_bytes: u64,
    /// Bytes sent for the first time, over all extents.
    first_sent_bytes: u64,
    retransmitted_bytes: u64,
}

impl SendBuffer {
    /// Opens an empty extent.
    pub fn open(&mut self) -> u64 {
        let id = self.next;
        self.next += 1;
        self.extents.insert(id, Extent::default());
        id
    }

    /// Appends `bytes` to an extent, the last ones if `end`. False for an extent that is not open.
    pub fn append(&mut self, id: u64, bytes: u64, end: bool) -> bool {
        let Some(extent) = self.extents.get_mut(&id).filter(|extent| !extent.ended) else {
            return false;
        };
        extent.length += bytes;
        self.given_bytes += bytes;
        extent.ended = end;
        if extent.has_more() && !extent.queued {
            extent.queued = true;
            self.fresh.push_back(id);
        }
        true
    }

    /// Bytes sent for the first time so far, which the peer's credit limits.
    #[must_use]
    pub fn first_sent_bytes(&self) -> u64 {
        self.first_sent_bytes
    }

    /// Bytes that were never sent.
    #[must_use]
    pub fn unsent_bytes(&self) -> u64 {
        self.given_bytes - self.first_sent_bytes
    }

    /// Bytes sent again so far.
    #[must_use]
    pub fn retransmitted_bytes(&self) -> u64 {
        self.retransmitted_bytes
    }

    /// Whether every extent has been acknowledged.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.extents.is_empty()
    }

    /// Whether a segment can be sent within `credit_bytes`.
    #[must_use]
    pub fn has_work(&self, credit_bytes: u64) -> bool {
        !self.retransmissions.is_empty()
            || (!self.fresh.is_empty() && self.first_sent_bytes < credit_bytes)
            || self.fresh.front().is_some_and(|id| self.only_the_end_remains(*id))
    }

    fn only_the_end_remains(&self, id: u64) -> bool {
        self.extents.get(&id).is_some_and(|extent| extent.sent == extent.length && extent.ended)
    }

    /// The next segment of at most `room(extent, offset)` bytes, retransmissions first.
    pub fn next(&mut self, credit_bytes: u64, room: impl Fn(u64, u64) -> usize) -> Option<Segment> {
        while let Some(lost) = self.retransmissions.front_mut() {
            let Some(extent) = self.extents.get(&lost.extent) else {
                self.retransmissions.pop_front();
                continue;
            };
            let end = lost.offset + u64::from(lost.length);
            // Bytes that arrived late are not sent again.
            let missing = extent.acked.first_missing(lost.offset..end).unwrap_or(end..end);
            if missing.is_empty() && (!lost.last || extent.end_acked) {
                self.retransmissions.pop_front();
                continue;
            }
            let length = (missing.end - missing.start).min(room(lost.extent, missing.start) as u64);
            if length == 0 && !missing.is_empty() {
                return None;
            }
            let segment = Segment {
                extent: lost.extent,
                offset: missing.start,
                length: length as u32,
                last: lost.last && missing.start + length == end,
            };
            let rest = missing.start + length;
            if rest < end {
                (lost.offset, lost.length) = (rest, (end - rest) as u32);
            } else {
                self.retransmissions.pop_front();
            }
            self.retransmitted_bytes += length;
            return Some(segment);
        }
        let id = *self.fresh.front()?;
        let extent = self.extents.get_mut(&id)?;
        let credit = credit_bytes.saturating_sub(self.first_sent_bytes);
        let length = (extent.length - extent.sent).min(credit).min(room(id, extent.sent) as u64);
        if length == 0 && extent.sent < extent.length {
            return None;
        }
        let segment = Segment {
            extent: id,
            offset: extent.sent,
            length: length as u32,
            last: extent.ended && extent.sent + length == extent.length,
        };
        extent.sent += length;
        extent.end_sent = segment.last;
        self.first_sent_bytes += length;
        if !extent.has_more() {
            extent.queued = false;
            self.fresh.pop_front();
        }
        Some(segment)
    }

    /// Queues a lost segment to be sent again.
    pub fn mark_lost(&mut self, segment: Segment) {
        self.retransmissions.push_back(segment);
    }

    /// Processes the acknowledgement of a segment. Returns its extent if that is now complete at the peer.
    pub fn acknowledge(&mut self, segment: Segment) -> Option<u64> {
        let extent = self.extents.get_mut(&segment.extent)?;
        extent.acked.insert(segment.offset..segment.offset + u64::from(segment.length));
        extent.end_acked |= segment.last;
        if !extent.is_done() {
            return None;
        }
        self.extents.remove(&segment.extent);
        Some(segment.extent)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn segment(extent: u64, offset: u64, length: u32, last: bool) -> Segment {
        Segment { extent, offset, length, last }
    }

    fn buffer(lengths: &[u64]) -> SendBuffer {
        let mut buffer = SendBuffer::default();
        for &length in lengths {
            let extent = buffer.open();
            assert!(buffer.append(extent, length, true));
        }
        buffer
    }

    #[test]
    fn extents_are_sent_in_order_and_retransmissions_first() {
        let mut buffer = buffer(&[1500, 100]);
        let first = buffer.next(u64::MAX, |_, _| 1000).unwrap();
        assert_eq!(first, segment(0, 0, 1000, false));
        assert_eq!(buffer.unsent_bytes(), 600);
        buffer.mark_lost(first);
        assert_eq!(buffer.next(u64::MAX, |_, _| 600), Some(segment(0, 0, 600, false)));
        assert_eq!(buffer.next(u64::MAX, |_, _| 600), Some(segment(0, 600, 400, false)));
        assert_eq!(buffer.next(u64::MAX, |_, _| 600), Some(segment(0, 1000, 500, true)));
        assert_eq!(buffer.next(u64::MAX, |_, _| 600), Some(segment(1, 0, 100, true)));
        assert_eq!(buffer.next(u64::MAX, |_, _| 600), None);
        assert_eq!(buffer.retransmitted_bytes(), 1000);
    }

    #[test]
    fn credit_limits_new_bytes_and_not_retransmissions() {
        let mut buffer = buffer(&[1500]);
        let first = buffer.next(1000, |_, _| 1200).unwrap();
        assert_eq!(first.length, 1000);
        assert!(!buffer.has_work(1000) && buffer.has_work(1001));
        buffer.mark_lost(first);
        assert!(buffer.has_work(1000));
        assert_eq!(buffer.next(1000, |_, _| 1200), Some(first));
    }

    #[test]
    fn bytes_that_arrive_late_are_not_sent_again() {
        let mut buffer = buffer(&[1000]);
        let all = buffer.next(u64::MAX, |_, _| 1000).unwrap();
        buffer.mark_lost(all);
        assert_eq!(buffer.acknowledge(segment(0, 200, 300, false)), None);
        assert_eq!(buffer.next(u64::MAX, |_, _| 1000), Some(segment(0, 0, 200, false)));
        assert_eq!(buffer.next(u64::MAX, |_, _| 1000), Some(segment(0, 500, 500, true)));
        assert_eq!(buffer.acknowledge(all), Some(0));
        assert!(buffer.is_empty());
    }

    #[test]
    fn an_empty_extent_still_sends_its_end() {
        let mut buffer = buffer(&[0]);
        assert!(buffer.has_work(0));
        let end = segment(0, 0, 0, true);
        assert_eq!(buffer.next(0, |_, _| 1000), Some(end));
        assert_eq!(buffer.acknowledge(end), Some(0));
    }
}
