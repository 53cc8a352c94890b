//! When to acknowledge, and what to say.
//!
//! Arrives: packets that were opened. Leaves: acknowledgement frames. Must not know: extents, sending.
//!
//! An acknowledgement is due at min(10 ms, RTT/8) after the first packet that wants one, at RTT/32 (0.25 ms at least) once sixteen have come, however many more do:
//! their number does not grow with the rate. A sender that is held by its window sends as much at once as an acknowledgement tells it of: where that
//! is more than what `fair` lets queue, the path runs empty whenever a host is a little late. Each speaks also of the packets of the two before it, so that a lost one tells no less; but a sender that is held
//! by its window waits for the next. So where one in two hundred packets is missing, acknowledgements come twice as often.

use crate::frame::{Ack, Bitmap, Frame};
use crate::packet::{Stamp, TICK_NS};
use crate::received::{Received, MOST_BITS};

/// How many acknowledgements speak of a packet.
const REPEATED: usize = 3;

/// So many packets are acknowledged at once, before they outgrow one bitmap.
const MOST_PACKETS: u64 = MOST_BITS / 2;

/// From so many packets on an acknowledgement is due sooner; fewer are no burst, and on a slow path its own bytes would count.
const BUSY_PACKETS: u64 = 16;

/// So many packets are remembered when it is asked how many are missing: that many at least, and twice that at most.
const MEMORY: u64 = 1000;

/// One of so many that is missing makes a path a lossy one.
const LOSSY: u64 = 200;

/// On a lossy path acknowledgements are no closer to each other than this, or than they are otherwise.
const LEAST_INTERVAL_NS: u64 = 600_000;

/// How many packets have come lately, and how many should have.
#[derive(Clone, Copy, Debug, Default)]
struct Missing {
    missing: u64,
    sent: u64,
}

impl Missing {
    /// A packet has come; the first number that was not known of before it.
    fn on_arrival(&mut self, number: u64, expected: u64) {
        if number < expected {
            // It was missing, and is late.
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
struct Quickest {
    stamp: Stamp,
    arrived_ns: u64,
    /// Arrival less stamp, in ticks: the two clocks' difference and the delay, modulo 2^24.
    delay: u32,
}

/// What has arrived and has to be spoken of.
#[derive(Clone, Default)]
pub struct Acks {
    received: Received,
    missing: Missing,
    received_bytes: u64,
    received_at_ns: u64,
    marked_packets: u64,
    burst: Option<(u64, u64)>,
    quickest: Option<Quickest>,
    /// Arrival less stamp of the slowest packet.
    slowest: Option<u32>,
    due_ns: Option<u64>,
    /// The ends of what the last acknowledgements spoke of, the oldest first.
    ends: [u64; REPEATED],
    questions: Vec<(u64, u64)>,
    bits: Vec<u8>,
}

impl Acks {
    /// The packet numbers received.
    #[must_use]
    pub fn received(&self) -> &Received {
        &self.received
    }

    /// A packet has been opened, and its contents kept.
    pub fn arrived(&mut self, now_ns: u64, number: u64, stamp: Stamp, size: usize, marked: bool) {
        self.missing.on_arrival(number, self.received.end());
        self.received.insert(number);
        let size = size as u64;
        self.received_bytes += size;
        self.received_at_ns = now_ns;
        self.marked_packets += u64::from(marked);
        self.burst = Some(self.burst.map_or((now_ns, 0), |(first, bytes)| (first, bytes + size)));
        let delay = Stamp::of(now_ns).bits().wrapping_sub(stamp.bits()) & 0xff_ffff;
        // Modulo 2^24: a difference in the upper half is a negative one.
        let quicker = |than: &Quickest| delay.wrapping_sub(than.delay) & 0x80_0000 != 0;
        if self.quickest.as_ref().is_none_or(quicker) {
            self.quickest = Some(Quickest { stamp, arrived_ns: now_ns, delay });
        }
        if self.slowest.is_none_or(|than| than.wrapping_sub(delay) & 0x80_0000 != 0) {
            self.slowest = Some(delay);
        }
        // One that is very late is spoken of too.
        for end in &mut self.ends {
            *end = (*end).min(number);
        }
    }

    /// The packet wants an acknowledgement within `interval_ns`, or sooner; where many have come, `busy_ns` after the first of them.
    pub fn wanted(&mut self, now_ns: u64, interval_ns: u64, busy_ns: u64) {
        let interval_ns = if self.missing.is_lossy() {
            (interval_ns / 2).max(interval_ns.min(LEAST_INTERVAL_NS))
        } else {
            interval_ns
        };
        let mut due_ns = self.due_ns.unwrap_or(u64::MAX).min(now_ns + interval_ns);
        let packets = self.received.end().saturating_sub(self.ends[REPEATED - 1]);
        if packets >= BUSY_PACKETS {
            let first_ns = self.burst.map_or(now_ns, |(first_ns, _)| first_ns);
            due_ns = due_ns.min(first_ns + busy_ns);
        }
        self.due_ns = Some(if packets >= MOST_PACKETS { now_ns } else { due_ns });
    }

    /// The peer asks what became of these packets.
    pub fn asked(&mut self, from: u64, to: u64) {
        if self.questions.len() < 16 {
            self.questions.push((from, to));
        }
    }

    /// When the next acknowledgement is due.
    #[must_use]
    pub fn due_ns(&self) -> Option<u64> {
        if self.questions.is_empty() {
            self.due_ns
        } else {
            Some(0)
        }
    }

    /// Writes what is due. False where nothing is.
    pub fn put(
        &mut self,
        now_ns: u64,
        began_ns: u64,
        credit_bytes: u64,
        out: &mut Vec<u8>,
    ) -> bool {
        if let Some((from, to)) = self.questions.pop() {
            let Some(bitmap) = self.received.bitmap(from, to.min(from + MOST_BITS), &mut self.bits)
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
        let (Some(quickest), Some((burst_from_ns, burst_bytes))) =
            (self.quickest.take(), self.burst.take())
        else {
            return false;
        };
        let end = self.received.end();
        let Some(bitmap) = self.received.bitmap(self.ends[0], end, &mut self.bits) else {
            return false;
        };
        let slowest = self.slowest.take().unwrap_or(quickest.delay);
        let spread = slowest.wrapping_sub(quickest.delay) & 0xff_ffff;
        let ack = Ack {
            echo: quickest.stamp,
            echo_held_us: (now_ns - quickest.arrived_ns) / 1000,
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
        self.ends[REPEATED - 1] = end;
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// How long after the packet an acknowledgement is due, after so many packets of which every `nth` was missing.
    fn due_after(nth: u64, late: bool, interval_ns: u64) -> u64 {
        let mut acks = Acks::default();
        let stamp = Stamp::of(0);
        let mut missing = Vec::new();
        for number in 0..3000 {
            if nth > 0 && number % nth == nth - 1 {
                missing.push(number);
                continue;
            }
            acks.arrived(0, number, stamp, 1472, false);
            if late {
                for number in missing.drain(..) {
                    acks.arrived(0, number, stamp, 1472, false);
                }
            }
        }
        acks.wanted(0, interval_ns, interval_ns);
        acks.due_ns().unwrap_or(u64::MAX)
    }

    #[test]
    fn a_busy_connection_acknowledges_sooner() {
        let mut acks = Acks::default();
        for number in 0..BUSY_PACKETS {
            let now_ns = 1_000 * (1 + number);
            acks.arrived(now_ns, number, Stamp::of(0), 1472, false);
            acks.wanted(now_ns, 1_250_000, 312_500);
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
