//! The receiver's acknowledgements: when to send one, and its contents.
//!
//! Arrives: packets that were opened. Leaves: acknowledgement frames. Must not know: extents, sending.
//!
//! - An acknowledgement is due min(10 ms, RTT/8) after the first ack-eliciting packet, and RTT/32 (at least 0.25 ms)
//!   once sixteen have arrived, so that their number does not grow with the rate. A sender limited by its window
//!   sends as much at once as an acknowledgement covers: where that exceeds the queue of `fair`, the path runs empty
//!   whenever a host is late.
//! - Each covers the packets of the previous two as well, so that a lost one loses no information. After a request for
//!   the history, which shows that more are lost in a row, it covers those of the previous eleven for some time:
//!   packets of which the sender hears nothing for a round trip fill its window.
//! - A sender limited by its window still waits for the next one. Where one in two hundred packets is missing,
//!   acknowledgements are sent twice as often.

use crate::frame::{Ack, Bitmap, Frame};
use crate::packet::{Stamp, TICK_NS};
use crate::received::{Received, MAX_BITS};

/// The number of acknowledgements that cover a packet.
const REPEATED: usize = 3;

/// The same after a request for the history, and the acknowledgements for which it lasts.
const WIDELY_REPEATED: usize = 12;
const WIDE: u32 = 1000;

/// Packets that are acknowledged immediately, before they outgrow one bitmap.
const MAX_PACKETS: u64 = MAX_BITS / 2;

/// Packets from which on an acknowledgement is due sooner. On a slow path, where fewer arrive, its own bytes would
/// matter.
const BUSY_PACKETS: u64 = 16;

/// Packets among which missing ones are counted: at least this many, and at most twice as many.
const MEMORY: u64 = 1000;

/// A path is lossy where one of this many packets is missing.
const LOSSY: u64 = 200;

/// The shortest interval of acknowledgements on a lossy path.
const MIN_LOSSY_INTERVAL_NS: u64 = 600_000;

/// How many packets are missing of those sent recently.
#[derive(Clone, Copy, Debug, Default)]
struct Missing {
    missing: u64,
    sent: u64,
}

impl Missing {
    /// A packet has arrived; `expected` is one more than the largest number before it.
    fn on_packet(&mut self, number: u64, expected: u64) {
        if number < expected {
            // It was missing, and arrives late.
            self.missing = self.missing.saturating_sub(1);
            return;
        }
        self.missing += number - expected;
        self.sent += number - expected + 1;
        if self.sent > 2 * MEMORY {
            self.missing = self.missing * MEMORY / self.sent;
            self.sent = MEMORY;
        }
    }

    fn is_lossy(&self) -> bool {
        self.sent >= LOSSY && self.missing * LOSSY > self.sent
    }
}

#[derive(Clone, Copy, Debug)]
struct Fastest {
    stamp: Stamp,
    arrived_ns: u64,
    /// Arrival less time stamp, in ticks: the offset of the two clocks plus the delay, modulo 2^24.
    delay: u32,
}

/// The packets to acknowledge.
#[derive(Clone, Default)]
pub struct Acks {
    received: Received,
    missing: Missing,
    received_bytes: u64,
    received_at_ns: u64,
    marked_packets: u64,
    burst: Option<(u64, u64)>,
    fastest: Option<Fastest>,
    /// Arrival less time stamp of the slowest packet.
    slowest: Option<u32>,
    due_ns: Option<u64>,
    /// Where the bitmaps of the last acknowledgements ended, oldest first.
    ends: [u64; WIDELY_REPEATED],
    /// Acknowledgements left that cover more, since some are lost in a row.
    wide: u32,
    history_requests: Vec<(u64, u64)>,
    bits: Vec<u8>,
}

impl Acks {
    /// The packet numbers received.
    #[must_use]
    pub fn received(&self) -> &Received {
        &self.received
    }

    /// Records a packet that was opened and kept.
    pub fn on_packet(&mut self, now_ns: u64, number: u64, stamp: Stamp, size: usize, marked: bool) {
        self.missing.on_packet(number, self.received.end());
        self.received.insert(number);
        let size = size as u64;
        self.received_bytes += size;
        self.received_at_ns = now_ns;
        self.marked_packets += u64::from(marked);
        self.burst = Some(self.burst.map_or((now_ns, 0), |(first, bytes)| (first, bytes + size)));
        let delay = Stamp::of(now_ns).bits().wrapping_sub(stamp.bits()) & 0xff_ffff;
        // Modulo 2^24: a difference in the upper half is negative.
        let faster = |than: &Fastest| delay.wrapping_sub(than.delay) & 0x80_0000 != 0;
        if self.fastest.as_ref().is_none_or(faster) {
            self.fastest = Some(Fastest { stamp, arrived_ns: now_ns, delay });
        }
        if self.slowest.is_none_or(|than| than.wrapping_sub(delay) & 0x80_0000 != 0) {
            self.slowest = Some(delay);
        }
        // A very late packet is covered too.
        for end in &mut self.ends {
            *end = (*end).min(number);
        }
    }

    /// Schedules an acknowledgement within `interval_ns`, or `busy_ns` after the first packet where many have arrived.
    pub fn schedule(&mut self, now_ns: u64, interval_ns: u64, busy_ns: u64) {
        let interval_ns = if self.missing.is_lossy() {
            (interval_ns / 2).max(interval_ns.min(MIN_LOSSY_INTERVAL_NS))
        } else {
            interval_ns
        };
        let mut due_ns = self.due_ns.unwrap_or(u64::MAX).min(now_ns + interval_ns);
        let packets = self.received.end().saturating_sub(self.ends[WIDELY_REPEATED - 1]);
        if packets >= BUSY_PACKETS {
            let first_ns = self.burst.map_or(now_ns, |(first_ns, _)| first_ns);
            due_ns = due_ns.min(first_ns + busy_ns);
        }
        self.due_ns = Some(if packets >= MAX_PACKETS { now_ns } else { due_ns });
    }

    /// The peer requests the history of these packets.
    pub fn on_history_request(&mut self, from: u64, to: u64) {
        self.wide = WIDE;
        if self.history_requests.len() < 16 {
            self.history_requests.push((from, to));
        }
    }

    /// When the next acknowledgement is due.
    #[must_use]
    pub fn due_ns(&self) -> Option<u64> {
        if self.history_requests.is_empty() {
            self.due_ns
        } else {
            Some(0)
        }
    }

    /// Writes the frame that is due. False where none is.
    pub fn put(
        &mut self,
        now_ns: u64,
        began_ns: u64,
        credit_bytes: u64,
        out: &mut Vec<u8>,
    ) -> bool {
        if let Some((from, to)) = self.history_requests.pop() {
            let Some(bitmap) = self.received.bitmap(from, to.min(from + MAX_BITS), &mut self.bits)
            else {
                return false;
            };
            Frame::History(bitmap).put(out);
            return true;
        }
        if self.due_ns.is_none_or(|due| due > now_ns) {
            return false;
        }
        self.due_ns = None;
        let (Some(fastest), Some((burst_from_ns, burst_bytes))) =
            (self.fastest.take(), self.burst.take())
        else {
            return false;
        };
        let end = self.received.end();
        let covered = if self.wide > 0 { WIDELY_REPEATED } else { REPEATED };
        self.wide = self.wide.saturating_sub(1);
        let from = self.ends[WIDELY_REPEATED - covered];
        let Some(bitmap) = self.received.bitmap(from, end, &mut self.bits) else {
            return false;
        };
        let slowest = self.slowest.take().unwrap_or(fastest.delay);
        let spread = slowest.wrapping_sub(fastest.delay) & 0xff_ffff;
        let ack = Ack {
            echo: fastest.stamp,
            echo_held_us: (now_ns - fastest.arrived_ns) / 1000,
            received_bytes: self.received_bytes,
            received_at_us: self.received_at_ns.saturating_sub(began_ns) / 1000,
            burst_bytes,
            burst_us: (self.received_at_ns - burst_from_ns) / 1000,
            spread_us: u64::from(spread) * TICK_NS / 1000,
            marked_packets: self.marked_packets,
            credit_bytes,
            bitmap: Bitmap { ..bitmap },
        };
        Frame::Ack(ack).put(out);
        self.ends.rotate_left(1);
        self.ends[WIDELY_REPEATED - 1] = end;
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// When an acknowledgement is due after 3,000 packets of which every `nth` was missing.
    fn due_after(nth: u64, late: bool, interval_ns: u64) -> u64 {
        let mut acks = Acks::default();
        let stamp = Stamp::of(0);
        let mut missing = Vec::new();
        for number in 0..3000 {
            if nth > 0 && number % nth == nth - 1 {
                missing.push(number);
                continue;
            }
            acks.on_packet(0, number, stamp, 1472, false);
            if late {
                for number in missing.drain(..) {
                    acks.on_packet(0, number, stamp, 1472, false);
                }
            }
        }
        acks.schedule(0, interval_ns, interval_ns);
        acks.due_ns().unwrap_or(u64::MAX)
    }

    /// The first packet that each of `count` acknowledgements of ten packets covers.
    fn covered_from(acks: &mut Acks, count: u64) -> Vec<u64> {
        let mut each = Vec::new();
        for _ in 0..count {
            let first = acks.received().end();
            (first..first + 10).for_each(|n| acks.on_packet(0, n, Stamp::of(0), 1472, false));
            acks.schedule(0, 0, 0);
            let mut out = Vec::new();
            assert!(acks.put(0, 0, 0, &mut out));
            let mut reader = crate::varint::Reader::new(&out);
            match Frame::read(&mut reader) {
                Ok(Frame::Ack(ack)) => each.push(ack.bitmap.from),
                other => panic!("{other:?}"),
            }
        }
        each
    }

    #[test]
    fn acknowledgements_lost_in_a_row_are_covered_by_more_later_ones() {
        let mut acks = Acks::default();
        assert_eq!(covered_from(&mut acks, 14).last(), Some(&110));
        acks.on_history_request(0, 10);
        assert!(acks.put(0, 0, 0, &mut Vec::new()));
        assert_eq!(covered_from(&mut acks, 1), [30], "twelve instead of three");
        assert_eq!(covered_from(&mut acks, u64::from(WIDE)).last(), Some(&(10 * 1012)));
    }

    #[test]
    fn under_load_acknowledgements_come_sooner() {
        let mut acks = Acks::default();
        for number in 0..BUSY_PACKETS {
            let now_ns = 1_000 * (1 + number);
            acks.on_packet(now_ns, number, Stamp::of(0), 1472, false);
            acks.schedule(now_ns, 1_250_000, 312_500);
            let is_busy = number + 1 == BUSY_PACKETS;
            let due_ns = 1_000 + if is_busy { 312_500 } else { 1_250_000 };
            assert_eq!(acks.due_ns(), Some(due_ns), "{number}");
        }
    }

    #[test]
    fn where_packets_are_missing_acknowledgements_come_twice_as_often() {
        assert_eq!(due_after(0, false, 2_000_000), 2_000_000);
        assert_eq!(due_after(1000, false, 2_000_000), 2_000_000);
        assert_eq!(due_after(50, false, 2_000_000), 1_000_000);
        assert_eq!(due_after(50, true, 2_000_000), 2_000_000, "late is not missing");
        assert_eq!(due_after(50, false, 1_000_000), 600_000);
        assert_eq!(due_after(50, false, 300_000), 300_000);
    }
}
