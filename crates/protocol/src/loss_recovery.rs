//! Loss detection: which packets are in flight, acknowledged or lost.
//!
//! Arrives: packets sent, acknowledgements. Leaves: acknowledged payloads, and lost ones to send again.
//! Must not know: sockets, congestion control.
//!
//! Loss is detected by time alone (RACK, RFC 8985): a packet is lost when a packet sent a *reordering window* later
//! has been acknowledged. Each retransmission is a new packet with a new number, so its loss is detected in the same
//! way one round trip later, and no packet is retransmitted twice. The window starts at an eighth of the round trip,
//! widens when a lost packet arrives after all, and narrows slowly.
//!
//! A packet that no acknowledgement has covered is unknown, not lost: acknowledgements are lost too. The sender
//! requests the history of the packet numbers between two bitmaps ([`LossRecovery::history_request`]), and only
//! without an answer do they count as lost.

use std::collections::VecDeque;

use crate::frame::Bitmap;
use crate::mtu::MIN_DATAGRAM;
use crate::segment::Payload;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// Not ack-eliciting (RFC 9002, section 2): needs no acknowledgement and does not count.
    Untracked,
    InFlight,
    Acknowledged,
    Lost,
}

#[derive(Clone, Debug)]
struct SentPacket {
    sent_ns: u64,
    size: u32,
    state: State,
    payload: Payload,
}

/// The effects of an acknowledgement, or of the passing of time.
#[derive(Debug, Default)]
pub struct Outcome {
    /// Payloads of packets newly acknowledged.
    pub acked: Vec<Payload>,
    /// Payloads of packets newly declared lost.
    pub lost: Vec<Payload>,
    /// Bytes of the former.
    pub acked_bytes: u64,
    /// Packets declared lost, MTU probes excluded.
    pub lost_packets: u64,
    /// Those of them that were larger than [`MIN_DATAGRAM`].
    pub lost_large: u32,
    /// Whether a packet larger than [`MIN_DATAGRAM`] was acknowledged.
    pub acked_large: bool,
    /// The sum of the squares of the lengths of the bursts that these continue: runs of consecutive lost numbers.
    pub lost_squares: u64,
    /// The largest number among the lost ones.
    pub largest_lost: Option<u64>,
    /// Packets that arrived after they had been declared lost.
    pub late_packets: u64,
}

/// Packet numbers that no acknowledgement has covered.
#[derive(Clone, Copy, Debug)]
struct Gap {
    from: u64,
    to: u64,
    request_at_ns: u64,
    requests: u32,
}

/// Requests for the history of a gap, after which its packets count as lost.
const MAX_REQUESTS: u32 = 3;

/// The packets sent and not forgotten.
#[derive(Debug, Default)]
pub struct LossRecovery {
    packets: VecDeque<SentPacket>,
    /// The number of the first of them.
    first: u64,
    /// Every packet below is acknowledged or lost, except those in gaps.
    decided_to: u64,
    /// Every packet below has been covered by an acknowledgement, except those in gaps.
    covered_to: u64,
    gaps: VecDeque<Gap>,
    bytes_in_flight: u64,
    packets_in_flight: u64,
    /// When the latest acknowledged packet was sent.
    latest_acked_sent_ns: u64,
    /// The reordering window in eighths of the round trip.
    window_eighths: u64,
    late_round_ends: u64,
    /// The last packet declared lost, and the length of the burst that it ends.
    burst: (u64, u64),
}

impl LossRecovery {
    /// The number of the next packet.
    #[must_use]
    pub fn next_packet_number(&self) -> u64 {
        self.first + self.packets.len() as u64
    }

    /// Bytes sent that are neither acknowledged nor lost.
    #[must_use]
    pub fn bytes_in_flight(&self) -> u64 {
        self.bytes_in_flight
    }

    /// Whether any packet in flight awaits an acknowledgement.
    #[must_use]
    pub fn is_in_flight(&self) -> bool {
        self.packets_in_flight > 0
    }

    /// The largest packet number that an acknowledgement has covered.
    #[must_use]
    pub fn largest_acknowledged(&self) -> Option<u64> {
        self.covered_to.checked_sub(1)
    }

    /// Records a packet.
    pub fn on_sent(&mut self, now_ns: u64, size: usize, payload: Payload, ack_eliciting: bool) {
        let state = if ack_eliciting { State::InFlight } else { State::Untracked };
        if ack_eliciting {
            self.bytes_in_flight += size as u64;
            self.packets_in_flight += 1;
        }
        self.packets.push_back(SentPacket { sent_ns: now_ns, size: size as u32, state, payload });
    }

    /// The reordering window.
    #[must_use]
    pub fn window_ns(&self, rtt_ns: u64) -> u64 {
        (rtt_ns / 8).max(500_000) * (1 + self.window_eighths)
    }

    /// Processes a bitmap. A `history` answers a request; any other bitmap advances the largest packet covered.
    /// False for one that covers packets never sent, which violates the protocol.
    #[must_use]
    pub fn on_bitmap(
        &mut self,
        now_ns: u64,
        bitmap: &Bitmap<'_>,
        history: bool,
        outcome: &mut Outcome,
    ) -> bool {
        let to = bitmap.from + bitmap.count;
        if to > self.next_packet_number() {
            return false;
        }
        if history {
            self.close_gaps(bitmap.from, to);
        } else {
            if bitmap.from > self.covered_to {
                self.gaps.push_back(Gap {
                    from: self.covered_to,
                    to: bitmap.from,
                    request_at_ns: now_ns,
                    requests: 0,
                });
            }
            self.close_gaps(bitmap.from, to.min(self.covered_to));
            self.covered_to = self.covered_to.max(to);
        }
        for number in bitmap.from.max(self.first)..to {
            if bitmap.has(number - bitmap.from) {
                self.acknowledge(number, outcome);
            }
        }
        true
    }

    fn acknowledge(&mut self, number: u64, outcome: &mut Outcome) {
        let next = self.next_packet_number();
        let packet = &mut self.packets[(number - self.first) as usize];
        match packet.state {
            State::InFlight => {
                self.bytes_in_flight -= u64::from(packet.size);
                self.packets_in_flight -= 1;
                outcome.acked_bytes += u64::from(packet.size);
                outcome.acked_large |= packet.size as usize > MIN_DATAGRAM;
            }
            State::Lost => {
                outcome.late_packets += 1;
                // The window widens once a round trip, up to a complete one.
                if number >= self.late_round_ends {
                    self.window_eighths = (2 * self.window_eighths + 1).min(7);
                    self.late_round_ends = next;
                }
            }
            State::Untracked | State::Acknowledged => return,
        }
        packet.state = State::Acknowledged;
        self.latest_acked_sent_ns = self.latest_acked_sent_ns.max(packet.sent_ns);
        outcome.acked.push(std::mem::take(&mut packet.payload));
    }

    /// Removes a range of packet numbers from the gaps.
    fn close_gaps(&mut self, from: u64, to: u64) {
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
            self.decided_to = self.decided_to.min(gap.from.max(from).max(self.first));
        }
        self.gaps = left;
    }

    /// Declares packets lost, by the send times of acknowledged ones.
    pub fn detect_losses(&mut self, now_ns: u64, rtt_ns: u64, outcome: &mut Outcome) {
        let given_up = |gap: &Gap| gap.requests >= MAX_REQUESTS && now_ns >= gap.request_at_ns;
        if self.gaps.iter().any(given_up) {
            for gap in self.gaps.iter().filter(|gap| given_up(gap)) {
                self.decided_to = self.decided_to.min(gap.from.max(self.first));
            }
            self.gaps.retain(|gap| !given_up(gap));
        }
        let window_ns = self.window_ns(rtt_ns);
        let mut gaps = self.gaps.iter().peekable();
        let mut number = self.decided_to.max(self.first);
        while number < self.covered_to {
            while gaps.peek().is_some_and(|gap| gap.to <= number) {
                gaps.next();
            }
            if let Some(gap) = gaps.peek().filter(|gap| gap.from <= number) {
                number = gap.to;
                continue;
            }
            let packet = &mut self.packets[(number - self.first) as usize];
            if packet.sent_ns + window_ns > self.latest_acked_sent_ns {
                break;
            }
            if packet.state == State::InFlight {
                packet.state = State::Lost;
                self.bytes_in_flight -= u64::from(packet.size);
                self.packets_in_flight -= 1;
                if packet.payload != Payload::MtuProbe {
                    outcome.lost_packets += 1;
                    let (last, length) = self.burst;
                    self.burst = (number, if last + 1 == number { length + 1 } else { 1 });
                    outcome.lost_squares += 2 * self.burst.1 - 1;
                    outcome.lost_large += u32::from(packet.size as usize > MIN_DATAGRAM);
                    outcome.largest_lost = Some(number);
                }
                // The payload also stays here: if the packet arrives after all, its bytes count.
                outcome.lost.push(packet.payload.clone());
            }
            number += 1;
        }
        self.decided_to = number;
        self.forget(now_ns, rtt_ns, window_ns);
    }

    /// Narrows the reordering window by one step. To be called now and then while no packet is late.
    pub fn narrow_window(&mut self) {
        self.window_eighths = self.window_eighths.saturating_sub(1);
    }

    /// The packet numbers whose history to request from the receiver now, if any.
    pub fn history_request(&mut self, now_ns: u64, rtt_ns: u64) -> Option<(u64, u64)> {
        let gap = self
            .gaps
            .iter_mut()
            .find(|gap| gap.request_at_ns <= now_ns && gap.requests < MAX_REQUESTS)?;
        gap.requests += 1;
        gap.request_at_ns = now_ns + rtt_ns + rtt_ns / 2;
        Some((gap.from, gap.to))
    }

    /// When the next request is due.
    #[must_use]
    pub fn request_at_ns(&self) -> Option<u64> {
        let open = self.gaps.iter().filter(|gap| gap.requests < MAX_REQUESTS);
        open.map(|gap| gap.request_at_ns).min()
    }

    /// Forgets packets that are decided, and old enough that a late arrival no longer matters.
    fn forget(&mut self, now_ns: u64, rtt_ns: u64, window_ns: u64) {
        let keep_ns = 2 * rtt_ns + 2 * window_ns;
        let bound = self.gaps.front().map_or(self.decided_to, |gap| gap.from.min(self.decided_to));
        while self.first < bound {
            match self.packets.front() {
                Some(packet)
                    if packet.state == State::Lost && packet.sent_ns + keep_ns > now_ns =>
                {
                    break
                }
                Some(_) => self.packets.pop_front(),
                None => break,
            };
            self.first += 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::segment::Segment;
    use proptest::prelude::*;

    const MS: u64 = 1_000_000;
    const RTT_NS: u64 = 80 * MS;

    fn payload(number: u64) -> Payload {
        Payload::Segment(Segment { extent: number, offset: 0, length: 1000, last: true })
    }

    /// One packet of 1,000 bytes a millisecond.
    fn sent(count: u64) -> LossRecovery {
        let mut recovery = LossRecovery::default();
        for number in 0..count {
            recovery.on_sent(number * MS, 1000, payload(number), true);
        }
        recovery
    }

    /// Acknowledges the packets `from..to` without `missing`, at a time, and detects losses.
    fn acknowledge(
        recovery: &mut LossRecovery,
        (from, to): (u64, u64),
        missing: &[u64],
        history: bool,
        now_ns: u64,
    ) -> Outcome {
        let mut bits = vec![0; (to - from).div_ceil(8) as usize];
        for number in (from..to).filter(|number| !missing.contains(number)) {
            bits[((number - from) / 8) as usize] |= 1 << ((number - from) % 8);
        }
        let mut outcome = Outcome::default();
        let bitmap = Bitmap { from, count: to - from, bits: &bits };
        assert!(recovery.on_bitmap(now_ns, &bitmap, history, &mut outcome));
        recovery.detect_losses(now_ns, RTT_NS, &mut outcome);
        outcome
    }

    fn lost_numbers(outcome: &Outcome) -> Vec<u64> {
        outcome.lost.iter().flat_map(|payload| payload.segments()).map(|s| s.extent).collect()
    }

    #[test]
    fn a_packet_is_lost_once_one_sent_a_window_later_is_acknowledged() {
        let mut recovery = sent(100);
        // The window is RTT/8 = 10 ms.
        let early = acknowledge(&mut recovery, (0, 15), &[5], false, 90 * MS);
        assert_eq!((early.acked.len(), lost_numbers(&early)), (14, vec![]));
        assert_eq!(recovery.bytes_in_flight(), 86_000);
        let later = acknowledge(&mut recovery, (0, 16), &[5], false, 91 * MS);
        assert_eq!(
            (later.lost_packets, later.largest_lost, lost_numbers(&later)),
            (1, Some(5), vec![5])
        );
        assert_eq!(recovery.bytes_in_flight(), 84_000);
        assert_eq!(recovery.largest_acknowledged(), Some(15));
        let again = acknowledge(&mut recovery, (0, 30), &[5], false, 92 * MS);
        assert_eq!(again.lost_packets, 0, "declared once");
    }

    #[test]
    fn a_late_packet_counts_as_acknowledged_and_widens_the_window_once_a_round_trip() {
        let mut recovery = sent(100);
        acknowledge(&mut recovery, (0, 60), &[5, 6], false, 90 * MS);
        let before_ns = recovery.window_ns(RTT_NS);
        let late = acknowledge(&mut recovery, (0, 60), &[], false, 91 * MS);
        assert_eq!((late.late_packets, late.acked.len(), late.acked_bytes), (2, 2, 0));
        assert_eq!(recovery.window_ns(RTT_NS), 2 * before_ns);
        recovery.narrow_window();
        assert_eq!(recovery.window_ns(RTT_NS), before_ns);
    }

    #[test]
    fn packets_between_two_bitmaps_are_unknown_until_the_history_comes() {
        let mut recovery = sent(100);
        acknowledge(&mut recovery, (0, 10), &[], false, 90 * MS);
        let outcome = acknowledge(&mut recovery, (20, 90), &[], false, 170 * MS);
        assert_eq!(outcome.lost_packets, 0, "no acknowledgement covered 10 to 19");
        assert_eq!(recovery.history_request(170 * MS, RTT_NS), Some((10, 20)));
        assert_eq!(recovery.history_request(171 * MS, RTT_NS), None, "not again at once");
        let outcome = acknowledge(&mut recovery, (10, 20), &[12, 13], true, 200 * MS);
        assert_eq!((outcome.acked.len(), lost_numbers(&outcome)), (8, vec![12, 13]));
        assert_eq!(recovery.request_at_ns(), None);
    }

    #[test]
    fn a_gap_without_an_answer_is_lost_after_three_requests() {
        let mut recovery = sent(100);
        acknowledge(&mut recovery, (10, 90), &[], false, 90 * MS);
        let mut now_ns = 90 * MS;
        for _ in 0..MAX_REQUESTS {
            now_ns = now_ns.max(recovery.request_at_ns().unwrap());
            assert_eq!(recovery.history_request(now_ns, RTT_NS), Some((0, 10)));
        }
        assert_eq!(recovery.request_at_ns(), None);
        let mut outcome = Outcome::default();
        recovery.detect_losses(now_ns + RTT_NS, RTT_NS, &mut outcome);
        assert_eq!(outcome.lost_packets, 0, "the last answer may be in flight");
        recovery.detect_losses(now_ns + RTT_NS + RTT_NS / 2, RTT_NS, &mut outcome);
        assert_eq!(outcome.lost_packets, 10);
    }

    #[test]
    fn a_bitmap_of_packets_never_sent_is_refused() {
        let mut recovery = sent(3);
        let bitmap = Bitmap { from: 0, count: 4, bits: &[0xf] };
        assert!(!recovery.on_bitmap(0, &bitmap, false, &mut Outcome::default()));
    }

    #[test]
    fn the_loss_of_an_mtu_probe_is_no_evidence_of_congestion() {
        let mut recovery = LossRecovery::default();
        recovery.on_sent(0, 9000, Payload::MtuProbe, true);
        recovery.on_sent(0, 40, Payload::Nothing, false);
        assert_eq!(recovery.bytes_in_flight(), 9000);
        recovery.on_sent(20 * MS, 1000, payload(2), true);
        let outcome = acknowledge(&mut recovery, (0, 3), &[0, 1], false, 100 * MS);
        assert_eq!((outcome.lost.as_slice(), outcome.lost_packets), (&[Payload::MtuProbe][..], 0));
        assert_eq!((recovery.bytes_in_flight(), recovery.is_in_flight()), (0, false));
    }

    proptest! {
        /// Whatever is acknowledged, in whatever order: every packet ends acknowledged or lost, and the bytes in
        /// flight add up.
        #[test]
        fn every_packet_is_decided_and_the_bytes_in_flight_add_up(
            acks in prop::collection::vec((0_u64..60, 1_u64..30, prop::collection::vec(any::<u8>(), 4), any::<bool>()), 1..30),
        ) {
            let mut recovery = sent(60);
            let (mut acked, mut lost, mut late) = (0, 0, 0);
            let mut take = |outcome: &Outcome| {
                acked += outcome.acked.len() as u64;
                lost += outcome.lost_packets;
                late += outcome.late_packets;
            };
            let mut now_ns = 60 * MS;
            for (from, count, bits, history) in acks {
                now_ns += MS;
                let bitmap = Bitmap { from, count: count.min(60 - from), bits: &bits };
                let mut outcome = Outcome::default();
                prop_assert!(recovery.on_bitmap(now_ns, &bitmap, history, &mut outcome));
                recovery.detect_losses(now_ns, RTT_NS, &mut outcome);
                take(&outcome);
            }
            // The rest is decided by a last acknowledgement and unanswered requests.
            recovery.on_sent(now_ns + 20 * MS, 1000, payload(60), true);
            for _ in 0..=MAX_REQUESTS {
                let bitmap = Bitmap { from: 60, count: 1, bits: &[1] };
                let mut outcome = Outcome::default();
                prop_assert!(recovery.on_bitmap(now_ns, &bitmap, false, &mut outcome));
                while recovery.history_request(now_ns, RTT_NS).is_some() {}
                now_ns += 2 * RTT_NS;
                recovery.detect_losses(now_ns, RTT_NS, &mut outcome);
                take(&outcome);
            }
            prop_assert_eq!((recovery.bytes_in_flight(), recovery.is_in_flight()), (0, false));
            prop_assert_eq!(acked + lost - late, 61);
        }
    }
}
