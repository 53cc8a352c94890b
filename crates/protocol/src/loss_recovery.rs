//! Packets on their way: what each carried, which arrived, which are lost.
//!
//! Arrives: packets sent, acknowledgements. Leaves: what was acknowledged, what has to be sent again.
//! Must not know: sockets, how fast to send.
//!
//! Loss is found by time alone (RACK, RFC 8985): a packet is lost when one sent a *reordering window* later has arrived. Each
//! repair is a new packet with a new number, so a lost repair is found in the same way, one round trip later, and no
//! packet is ever repaired twice. The window starts at an eighth of the round trip, widens when a "lost" packet arrives
//! after all, and slowly closes again.
//!
//! A packet of which no acknowledgement has spoken is not lost but unknown: acknowledgements are lost too. The packet
//! numbers between two bitmaps are asked for ([`LossRecovery::question`]), and only if nobody answers do they count as lost.

use std::collections::VecDeque;

use crate::frame::Bitmap;
use crate::mtu::LEAST;

/// Bytes of an extent that one packet carried.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Segment {
    /// Which extent.
    pub extent: u64,
    /// Where in it.
    pub offset: u64,
    /// How many bytes.
    pub length: u32,
    /// Whether the extent ends with them.
    pub last: bool,
}

/// What a packet carried that would have to be sent again.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Payload {
    /// Nothing: an acknowledgement, a probe.
    #[default]
    Nothing,
    /// One segment, as nearly always.
    Segment(Segment),
    /// Several small ones.
    Segments(Box<[Segment]>),
    /// A probe of the path's packet size, whose loss says nothing of the path's load.
    SizeProbe,
}

impl Payload {
    /// The segments in it.
    #[must_use]
    pub fn segments(&self) -> &[Segment] {
        match self {
            Self::Nothing | Self::SizeProbe => &[],
            Self::Segment(segment) => std::slice::from_ref(segment),
            Self::Segments(segments) => segments,
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fate {
    /// Needs no acknowledgement and counts for nothing.
    Unwatched,
    Underway,
    Arrived,
    Lost,
}

#[derive(Clone, Debug)]
struct Packet {
    sent_ns: u64,
    size: u32,
    fate: Fate,
    payload: Payload,
}

/// What an acknowledgement, or the passing of time, brought to light.
#[derive(Debug, Default)]
pub struct Outcome {
    /// Packets newly acknowledged: their payload.
    pub arrived: Vec<Payload>,
    /// Packets newly found lost: their payload.
    pub lost: Vec<Payload>,
    /// Bytes of the former.
    pub arrived_bytes: u64,
    /// Bytes of the latter.
    pub lost_bytes: u64,
    /// How many packets were found lost, size probes left out.
    pub lost_packets: u64,
    /// Those of them that were larger than what any path carries.
    pub lost_large: u32,
    /// Whether a packet arrived that was larger than what any path carries.
    pub arrived_large: bool,
    /// The largest number among the lost ones.
    pub newest_lost: Option<u64>,
    /// Packets that arrived after they had been given up: they were late, not lost.
    pub late_packets: u64,
}

#[derive(Clone, Copy, Debug)]
struct Gap {
    from: u64,
    to: u64,
    ask_at_ns: u64,
    asked: u32,
}

/// A gap that was asked for so often in vain is given up.
const MOST_QUESTIONS: u32 = 3;

/// Packets sent and not forgotten.
#[derive(Debug, Default)]
pub struct LossRecovery {
    packets: VecDeque<Packet>,
    /// The number of the first of them.
    first: u64,
    /// All packets below have been judged, but for those in gaps.
    judged_to: u64,
    /// All packets below have been spoken of, but for those in gaps.
    covered_to: u64,
    gaps: VecDeque<Gap>,
    in_flight_bytes: u64,
    in_flight_packets: u64,
    newest_arrived_sent_ns: u64,
    /// The reordering window in eighths of the round trip.
    window_eighths: u64,
    late_round_ends: u64,
}

impl LossRecovery {
    /// The number of the next packet.
    #[must_use]
    pub fn next_number(&self) -> u64 {
        self.first + self.packets.len() as u64
    }

    /// Bytes sent that are neither acknowledged nor lost.
    #[must_use]
    pub fn in_flight_bytes(&self) -> u64 {
        self.in_flight_bytes
    }

    /// Whether any packet waits for an acknowledgement.
    #[must_use]
    pub fn is_waiting(&self) -> bool {
        self.in_flight_packets > 0
    }

    /// One behind the newest packet that an acknowledgement spoke of.
    #[must_use]
    pub fn covered_to(&self) -> u64 {
        self.covered_to
    }

    /// Remembers a packet; `watched` is whether it wants an acknowledgement.
    pub fn sent(&mut self, now_ns: u64, size: usize, payload: Payload, watched: bool) {
        let fate = if watched { Fate::Underway } else { Fate::Unwatched };
        if watched {
            self.in_flight_bytes += size as u64;
            self.in_flight_packets += 1;
        }
        self.packets.push_back(Packet { sent_ns: now_ns, size: size as u32, fate, payload });
    }

    /// When a packet was sent, if it is remembered.
    #[must_use]
    pub fn sent_ns(&self, number: u64) -> Option<u64> {
        let index = number.checked_sub(self.first)?;
        self.packets.get(usize::try_from(index).ok()?).map(|packet| packet.sent_ns)
    }

    /// The reordering window.
    #[must_use]
    pub fn window_ns(&self, rtt_ns: u64) -> u64 {
        (rtt_ns / 8).max(500_000) * (1 + self.window_eighths)
    }

    /// Takes in a bitmap. A `history` answers a question; any other moves the end of what has been spoken of.
    /// False for one that speaks of packets never sent: the peer is not to be trusted.
    #[must_use]
    pub fn acknowledged(
        &mut self,
        now_ns: u64,
        bitmap: &Bitmap<'_>,
        history: bool,
        outcome: &mut Outcome,
    ) -> bool {
        let to = bitmap.from + bitmap.count;
        if to > self.next_number() {
            return false;
        }
        if history {
            self.answered(bitmap.from, to);
        } else {
            if bitmap.from > self.covered_to {
                self.gaps.push_back(Gap {
                    from: self.covered_to,
                    to: bitmap.from,
                    ask_at_ns: now_ns,
                    asked: 0,
                });
            }
            self.answered(bitmap.from, to.min(self.covered_to));
            self.covered_to = self.covered_to.max(to);
        }
        for number in bitmap.from.max(self.first)..to {
            if bitmap.has(number - bitmap.from) {
                self.arrived(number, outcome);
            }
        }
        true
    }

    fn arrived(&mut self, number: u64, outcome: &mut Outcome) {
        let packet = &mut self.packets[(number - self.first) as usize];
        match packet.fate {
            Fate::Underway => {
                self.in_flight_bytes -= u64::from(packet.size);
                self.in_flight_packets -= 1;
                outcome.arrived_bytes += u64::from(packet.size);
                outcome.arrived_large |= packet.size as usize > LEAST;
            }
            Fate::Lost => {
                outcome.late_packets += 1;
                // Wider once a round trip, up to a whole one.
                if number >= self.late_round_ends {
                    self.window_eighths = (2 * self.window_eighths + 1).min(7);
                    self.late_round_ends = self.first + self.packets.len() as u64;
                }
            }
            Fate::Unwatched | Fate::Arrived => return,
        }
        let packet = &mut self.packets[(number - self.first) as usize];
        packet.fate = Fate::Arrived;
        self.newest_arrived_sent_ns = self.newest_arrived_sent_ns.max(packet.sent_ns);
        outcome.arrived.push(std::mem::take(&mut packet.payload));
    }

    /// Takes a range out of the gaps.
    fn answered(&mut self, from: u64, to: u64) {
        if self.gaps.is_empty() || from >= to {
            return;
        }
        let mut left = VecDeque::with_capacity(self.gaps.len() + 1);
        for gap in self.gaps.drain(..) {
            if gap.from < from {
                left.push_back(Gap { to: gap.to.min(from), ..gap });
            }
            if gap.to > to {
                left.push_back(Gap { from: gap.from.max(to), ..gap });
            }
            self.judged_to = self.judged_to.min(gap.from.max(from).max(self.first));
        }
        self.gaps = left;
    }

    /// Judges packets by the clock of those that arrived.
    pub fn find_lost(&mut self, now_ns: u64, rtt_ns: u64, outcome: &mut Outcome) {
        let given_up = |gap: &Gap| gap.asked >= MOST_QUESTIONS && now_ns >= gap.ask_at_ns;
        if self.gaps.iter().any(given_up) {
            for gap in self.gaps.iter().filter(|gap| given_up(gap)) {
                self.judged_to = self.judged_to.min(gap.from.max(self.first));
            }
            self.gaps.retain(|gap| !given_up(gap));
        }
        let window_ns = self.window_ns(rtt_ns);
        let mut gaps = self.gaps.iter().peekable();
        let mut number = self.judged_to.max(self.first);
        while number < self.covered_to {
            while gaps.peek().is_some_and(|gap| gap.to <= number) {
                gaps.next();
            }
            if let Some(gap) = gaps.peek().filter(|gap| gap.from <= number) {
                number = gap.to;
                continue;
            }
            let packet = &mut self.packets[(number - self.first) as usize];
            if packet.sent_ns + window_ns > self.newest_arrived_sent_ns {
                break;
            }
            if packet.fate == Fate::Underway {
                packet.fate = Fate::Lost;
                self.in_flight_bytes -= u64::from(packet.size);
                self.in_flight_packets -= 1;
                if packet.payload != Payload::SizeProbe {
                    outcome.lost_bytes += u64::from(packet.size);
                    outcome.lost_packets += 1;
                    outcome.lost_large += u32::from(packet.size as usize > LEAST);
                    outcome.newest_lost = Some(number);
                }
                // The payload stays here as well: should the packet arrive after all, its bytes count.
                outcome.lost.push(packet.payload.clone());
            }
            number += 1;
        }
        self.judged_to = number;
        self.forget(now_ns, rtt_ns, window_ns);
    }

    /// Closes the reordering window by one step; to be called now and then while nothing is late.
    pub fn narrow(&mut self) {
        self.window_eighths = self.window_eighths.saturating_sub(1);
    }

    /// What to ask the receiver, if anything.
    pub fn question(&mut self, now_ns: u64, rtt_ns: u64) -> Option<(u64, u64)> {
        let gap = self
            .gaps
            .iter_mut()
            .find(|gap| gap.ask_at_ns <= now_ns && gap.asked < MOST_QUESTIONS)?;
        gap.asked += 1;
        gap.ask_at_ns = now_ns + rtt_ns + rtt_ns / 2;
        Some((gap.from, gap.to))
    }

    /// When the next question is due.
    #[must_use]
    pub fn question_at_ns(&self) -> Option<u64> {
        self.gaps.iter().filter(|gap| gap.asked < MOST_QUESTIONS).map(|gap| gap.ask_at_ns).min()
    }

    /// Forgets packets that are judged, and old enough that not even a late arrival is of interest.
    fn forget(&mut self, now_ns: u64, rtt_ns: u64, window_ns: u64) {
        let keep_ns = 2 * rtt_ns + 2 * window_ns;
        let bound = self.gaps.front().map_or(self.judged_to, |gap| gap.from.min(self.judged_to));
        while self.first < bound {
            match self.packets.front() {
                Some(packet) if packet.fate == Fate::Lost && packet.sent_ns + keep_ns > now_ns => {
                    break
                }
                Some(_) => self.packets.pop_front(),
                None => break,
            };
            self.first += 1;
        }
    }
}
