//! Extents on their way out: which bytes go into the next packet.
//!
//! Arrives: how many bytes each extent has, what the network took and lost. Leaves: segments to send.
//! Must not know: packets, time. Bytes are not kept here: a lost segment is read again from where it came from.

use std::collections::{HashMap, VecDeque};

use crate::loss_recovery::Segment;
use crate::ranges::Ranges;

#[derive(Debug, Default)]
struct Extent {
    /// Bytes there are to send so far.
    length: u64,
    /// Whether there will be no more.
    ended: bool,
    /// Bytes sent for the first time.
    sent: u64,
    /// Whether the end has been sent.
    end_sent: bool,
    end_arrived: bool,
    arrived: Ranges,
    queued: bool,
}

impl Extent {
    fn has_more(&self) -> bool {
        self.sent < self.length || (self.ended && !self.end_sent)
    }

    fn is_done(&self) -> bool {
        self.end_arrived && self.arrived.total() == self.length
    }
}

/// The extents of one direction that the peer does not hold completely.
#[derive(Debug, Default)]
pub struct SendBuffer {
    extents: HashMap<u64, Extent>,
    next: u64,
    /// Extents with bytes never sent, in order.
    fresh: VecDeque<u64>,
    retransmissions: VecDeque<Segment>,
    /// Bytes there are or were to send, over all extents.
    given_bytes: u64,
    /// Bytes sent for the first time, over all extents.
    first_sent_bytes: u64,
    retransmitted_bytes: u64,
}

impl SendBuffer {
    /// A new extent, of no bytes yet.
    pub fn open(&mut self) -> u64 {
        let id = self.next;
        self.next += 1;
        self.extents.insert(id, Extent::default());
        id
    }

    /// The extent has so many bytes more; `end` is whether these are the last. False for one that is not open.
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

    /// Bytes sent for the first time so far: what the peer's credit is about.
    #[must_use]
    pub fn first_sent_bytes(&self) -> u64 {
        self.first_sent_bytes
    }

    /// Bytes that wait to be sent for the first time.
    #[must_use]
    pub fn unsent_bytes(&self) -> u64 {
        self.given_bytes - self.first_sent_bytes
    }

    /// Bytes sent again so far.
    #[must_use]
    pub fn retransmitted_bytes(&self) -> u64 {
        self.retransmitted_bytes
    }

    /// Whether every extent has arrived.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.extents.is_empty()
    }

    /// Whether there is anything to send within `credit_bytes`.
    #[must_use]
    pub fn has_work(&self, credit_bytes: u64) -> bool {
        !self.retransmissions.is_empty()
            || (!self.fresh.is_empty() && self.first_sent_bytes < credit_bytes)
            || self.fresh.front().is_some_and(|id| self.only_the_end_is_left(*id))
    }

    fn only_the_end_is_left(&self, id: u64) -> bool {
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
            // What arrived late is not sent again.
            let missing = extent.arrived.first_missing(lost.offset..end).unwrap_or(end..end);
            if missing.is_empty() && (!lost.last || extent.end_arrived) {
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
            let behind = missing.start + length;
            if behind < end {
                (lost.offset, lost.length) = (behind, (end - behind) as u32);
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

    /// A segment is to be sent again.
    pub fn lost(&mut self, segment: Segment) {
        self.retransmissions.push_back(segment);
    }

    /// A segment has arrived. Returns the extent where nothing of it is missing any more.
    pub fn arrived(&mut self, segment: Segment) -> Option<u64> {
        let extent = self.extents.get_mut(&segment.extent)?;
        extent.arrived.insert(segment.offset..segment.offset + u64::from(segment.length));
        extent.end_arrived |= segment.last;
        if !extent.is_done() {
            return None;
        }
        self.extents.remove(&segment.extent);
        Some(segment.extent)
    }
}
