//! Round trips, counted by packet numbers.
//!
//! Arrives: acknowledgements. Leaves: what each round trip acknowledged, lost and measured. Must not know: what
//! follows from it.

use super::controller::AckEvent;

/// Packets of a run that no full buffer explains.
const RUN: u64 = 8;

/// The measurements of one round trip.
#[derive(Clone, Copy, Debug, Default)]
pub struct Round {
    /// The number of the first packet sent in it. The measurements are of packets before that one.
    pub first: u64,
    /// Packets acknowledged.
    pub acked: u64,
    /// Packets lost.
    pub lost: u64,
    /// The sum of the squares of the lengths of their bursts.
    pub lost_squares: u64,
    /// The shortest round trip among its acknowledgements.
    pub min_rtt_ns: Option<u64>,
    /// The longest round trip of any packet.
    pub max_rtt_ns: u64,
    /// The longest queueing delay that no host explains: see [`AckEvent::network_queue_ns`].
    pub network_queue_ns: u64,
    /// Whether something other than the controller limited sending.
    pub app_limited: bool,
}

impl Round {
    /// The shortest queueing delay of the round.
    #[must_use]
    pub fn queue_ns(&self, min_rtt_ns: u64) -> Option<f64> {
        self.min_rtt_ns.map(|rtt| rtt.saturating_sub(min_rtt_ns) as f64)
    }

    /// Whether what was lost are long runs, as where a path stops for moments. A full buffer takes a packet as soon as
    /// one has left it, so that packets are lost here and there.
    #[must_use]
    pub fn loses_runs(&self) -> bool {
        self.lost < self.acked && self.lost_squares >= RUN * self.lost
    }

    /// Whether nearly all of what was lost is one long run: the path stopped for a moment.
    #[must_use]
    pub fn is_interrupted(&self) -> bool {
        self.lost >= RUN && 3 * self.lost_squares >= 2 * self.lost * self.lost
    }

    /// The longest queueing delay of any packet of the round.
    #[must_use]
    pub fn longest_queue_ns(&self, min_rtt_ns: u64) -> f64 {
        self.max_rtt_ns.saturating_sub(min_rtt_ns) as f64
    }
}

/// Divides time into round trips: a round ends with the acknowledgement of its first packet. What it measures are
/// packets sent in the round before.
#[derive(Clone, Debug, Default)]
pub struct RoundCounter {
    current: Round,
    end: u64,
    /// Losses of packets before this one belong to a congestion event that has been answered.
    recovery_point: u64,
}

impl RoundCounter {
    /// Begins a round with the packet to be sent next.
    pub fn restart(&mut self, next_packet_number: u64) {
        self.current = Round { first: next_packet_number, ..Round::default() };
        self.end = next_packet_number;
    }

    /// Begins a round after a response to congestion: losses among earlier packets no longer count.
    pub fn begin_recovery(&mut self, next_packet_number: u64) {
        self.recovery_point = next_packet_number;
        self.restart(next_packet_number);
    }

    /// Processes an acknowledgement; returns a round that has ended.
    pub fn on_ack(&mut self, ack: &AckEvent) -> Option<Round> {
        if self.end == 0 {
            self.end = ack.next_packet_number;
        }
        let round = &mut self.current;
        round.acked += ack.acked_packets;
        if ack.largest_lost.is_some_and(|lost| lost >= self.recovery_point) {
            round.lost += ack.lost_packets;
            round.lost_squares += ack.lost_squares;
        }
        // Each late packet was counted as lost once, in this round or an earlier one.
        round.lost = round.lost.saturating_sub(ack.late_packets);
        round.lost_squares = round.lost_squares.min(round.lost * round.lost);
        round.app_limited |= ack.app_limited;
        if let Some(rtt_ns) = ack.rtt_ns {
            round.min_rtt_ns = Some(round.min_rtt_ns.unwrap_or(u64::MAX).min(rtt_ns));
            round.network_queue_ns = round.network_queue_ns.max(ack.network_queue_ns());
            round.max_rtt_ns = round.max_rtt_ns.max(rtt_ns + ack.rtt_spread_ns);
        }
        if ack.largest_acknowledged < Some(self.end) {
            return None;
        }
        let ended = *round;
        self.restart(ack.next_packet_number);
        Some(ended)
    }

    /// The current round.
    #[must_use]
    pub fn current(&self) -> &Round {
        &self.current
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ack(largest: u64, next: u64) -> AckEvent {
        AckEvent {
            acked_packets: 1,
            largest_acknowledged: Some(largest),
            next_packet_number: next,
            ..AckEvent::default()
        }
    }

    #[test]
    fn a_round_ends_with_the_acknowledgement_of_its_first_packet() {
        let mut rounds = RoundCounter::default();
        rounds.restart(10);
        assert!(rounds.on_ack(&AckEvent { rtt_ns: Some(7), ..ack(8, 20) }).is_none());
        assert!(rounds.on_ack(&AckEvent { rtt_ns: Some(5), ..ack(9, 21) }).is_none());
        let ended = rounds.on_ack(&AckEvent { rtt_spread_ns: 3, rtt_ns: Some(6), ..ack(10, 22) });
        let ended = ended.expect("packet 10 was the first of the round");
        assert_eq!(
            (ended.first, ended.acked, ended.min_rtt_ns, ended.max_rtt_ns),
            (10, 3, Some(5), 9)
        );
        assert_eq!((rounds.current().first, rounds.current().acked), (22, 0));
    }

    #[test]
    fn one_long_run_is_an_interruption_and_scattered_losses_or_many_runs_are_none() {
        let round = |acked, runs: &[u64]| Round {
            acked,
            lost: runs.iter().sum(),
            lost_squares: runs.iter().map(|run| run * run).sum(),
            ..Round::default()
        };
        assert!(round(10, &[200]).is_interrupted(), "the whole window");
        assert!(round(500, &[20, 1, 1, 1]).is_interrupted(), "the buffer is still full after it");
        assert!(!round(500, &[7]).is_interrupted(), "a burst of another flow");
        assert!(!round(500, &[1; 40]).is_interrupted());
        assert!(!round(500, &[10, 10, 10]).is_interrupted());
        assert!(round(500, &[10, 10, 10]).loses_runs());
        assert!(!round(20, &[10, 10, 10]).loses_runs(), "more than arrives");
        assert!(!round(500, &[3; 40]).loses_runs());
    }

    #[test]
    fn losses_before_the_recovery_point_and_late_packets_do_not_count() {
        let mut rounds = RoundCounter::default();
        rounds.begin_recovery(10);
        let losing =
            |number| AckEvent { lost_packets: 2, largest_lost: Some(number), ..ack(3, 20) };
        rounds.on_ack(&losing(9));
        assert_eq!(rounds.current().lost, 0);
        rounds.on_ack(&losing(10));
        assert_eq!(rounds.current().lost, 2);
        rounds.on_ack(&AckEvent { late_packets: 1, ..ack(4, 20) });
        assert_eq!(rounds.current().lost, 1);
    }
}
