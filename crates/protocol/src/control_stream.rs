//! The control stream: one ordered stream of bytes in each direction beside the extents, as QUIC's CRYPTO frames are.
//!
//! Arrives: bytes to send, which of them were acknowledged or lost; bytes of the peer in any order. Leaves: the bytes
//! of the next packet; the peer's bytes in order. Must not know: packets, time, what the bytes say.
//!
//! Neither end sends more than [`WINDOW_BYTES`] beyond what is acknowledged, so a receiver keeps at most as many.

use std::collections::VecDeque;
use std::ops::Range;

use crate::error::Error;
use crate::ranges::Ranges;

/// Bytes that may be sent beyond those that the peer has in order.
pub const WINDOW_BYTES: u64 = 1 << 20;

/// The sending half.
#[derive(Debug, Default)]
pub struct ControlSender {
    /// From `base` on.
    bytes: VecDeque<u8>,
    /// Bytes below are acknowledged.
    base: u64,
    /// The first byte that was never sent.
    next: u64,
    acknowledged: Ranges,
    lost: VecDeque<Range<u64>>,
}

impl ControlSender {
    /// Appends bytes.
    pub fn push(&mut self, bytes: &[u8]) {
        self.bytes.extend(bytes);
    }

    fn end(&self) -> u64 {
        self.base + self.bytes.len() as u64
    }

    /// Whether the peer has all of it.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    /// Whether there are bytes to send, for the first time or again.
    #[must_use]
    pub fn has_work(&self) -> bool {
        !self.lost.is_empty() || self.next < self.end().min(self.base + WINDOW_BYTES)
    }

    /// The next bytes to send, at most `most`, and their offset; lost ones first.
    pub fn next(&mut self, most: usize) -> Option<(u64, Vec<u8>)> {
        let most = most.max(1) as u64;
        while let Some(range) = self.lost.pop_front() {
            let Some(missing) = self.acknowledged.first_missing(range.clone()) else { continue };
            let taken = missing.start..missing.end.min(missing.start + most);
            if taken.end < range.end {
                self.lost.push_front(taken.end..range.end);
            }
            return Some((taken.start, self.read(taken)));
        }
        let end = self.end().min(self.base + WINDOW_BYTES).min(self.next + most);
        let taken = self.next..end;
        if taken.is_empty() {
            return None;
        }
        self.next = end;
        Some((taken.start, self.read(taken)))
    }

    fn read(&self, range: Range<u64>) -> Vec<u8> {
        let at = |offset: u64| (offset - self.base) as usize;
        self.bytes.range(at(range.start)..at(range.end)).copied().collect()
    }

    /// The peer has these bytes.
    pub fn acknowledge(&mut self, range: Range<u64>) {
        self.acknowledged.insert(range);
        let missing = self.acknowledged.first_missing(self.base..self.end());
        let base = missing.map_or(self.end(), |missing| missing.start);
        self.bytes.drain(..(base - self.base) as usize);
        self.base = base;
    }

    /// The packet with these bytes was lost.
    pub fn mark_lost(&mut self, range: Range<u64>) {
        if self.acknowledged.first_missing(range.clone()).is_some() {
            self.lost.push_back(range);
        }
    }
}

/// The receiving half.
#[derive(Debug, Default)]
pub struct ControlReceiver {
    /// From `next` on, with gaps.
    bytes: Vec<u8>,
    received: Ranges,
    next: u64,
}

impl ControlReceiver {
    /// Takes bytes at an offset, and returns those that are in order now.
    ///
    /// # Errors
    /// Where they lie beyond the window.
    pub fn insert(&mut self, offset: u64, bytes: &[u8]) -> Result<Vec<u8>, Error> {
        let end = offset + bytes.len() as u64;
        if end > self.next + WINDOW_BYTES {
            return Err(Error::Violation("it sent more of the control stream than its window"));
        }
        if end > self.next {
            let skipped = self.next.saturating_sub(offset) as usize;
            let at = (offset.max(self.next) - self.next) as usize;
            let new = &bytes[skipped..];
            if self.bytes.len() < at + new.len() {
                self.bytes.resize(at + new.len(), 0);
            }
            self.bytes[at..at + new.len()].copy_from_slice(new);
            self.received.insert(offset..end);
        }
        let held = self.next..self.next + self.bytes.len() as u64;
        let ordered = self.received.first_missing(held.clone()).map_or(held.end, |gap| gap.start);
        let count = (ordered - self.next) as usize;
        self.next = ordered;
        Ok(self.bytes.drain(..count).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_sender_stops_at_its_window_and_a_receiver_holds_no_more() {
        let (mut sender, mut receiver) = (ControlSender::default(), ControlReceiver::default());
        sender.push(&vec![7; 3 << 20]);
        let first = sender.next(1000).unwrap();
        while let Some((offset, bytes)) = sender.next(1 << 16) {
            assert!(receiver.insert(offset, &bytes).unwrap().is_empty());
        }
        assert!(!sender.has_work());
        assert_eq!(receiver.insert(first.0, &first.1).unwrap().len() as u64, WINDOW_BYTES);
        assert!(receiver.insert(2 * WINDOW_BYTES, &[1]).is_err());
        sender.acknowledge(0..WINDOW_BYTES);
        assert!(sender.has_work() && !sender.is_empty());
    }

    proptest! {
        #[test]
        fn bytes_arrive_in_order_however_they_are_lost_late_or_sent_twice(
            pushes in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..50), 1..12),
            fates in prop::collection::vec((1_usize..30, 0_u8..4), 1..20),
        ) {
            let (mut sender, mut receiver) = (ControlSender::default(), ControlReceiver::default());
            let (mut arrived, mut late) = (Vec::new(), Vec::new());
            let mut fates = fates.iter().cycle();
            let mut pushes = pushes.iter();
            let mut sent = Vec::new();
            for turn in 0.. {
                if let Some(push) = pushes.next() {
                    sender.push(push);
                    sent.extend_from_slice(push);
                }
                let &(most, fate) = fates.next().unwrap();
                // After a while nothing is lost, so that it ends.
                let fate = if turn < 200 { fate } else { 0 };
                let Some((offset, bytes)) = sender.next(most) else {
                    if pushes.len() == 0 { break } else { continue }
                };
                let range = offset..offset + bytes.len() as u64;
                match fate {
                    0 | 1 => {
                        arrived.extend(receiver.insert(offset, &bytes).unwrap());
                        sender.acknowledge(range);
                    }
                    2 => sender.mark_lost(range),
                    _ => {
                        late.push((offset, bytes));
                        sender.mark_lost(range);
                    }
                }
                if fate == 1 {
                    for (offset, bytes) in late.drain(..) {
                        arrived.extend(receiver.insert(offset, &bytes).unwrap());
                    }
                }
            }
            prop_assert!(sender.is_empty());
            prop_assert_eq!(arrived, sent);
        }

        #[test]
        fn no_frame_makes_a_receiver_panic_or_hold_more_than_its_window(
            frames in prop::collection::vec((0_u64..3 << 20, 0_usize..2000), 0..30),
        ) {
            let mut receiver = ControlReceiver::default();
            for (offset, length) in frames {
                let _ = receiver.insert(offset, &vec![1; length]);
                prop_assert!(receiver.bytes.len() as u64 <= WINDOW_BYTES);
            }
        }
    }
}
