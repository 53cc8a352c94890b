//! The interface between a connection and its congestion controller.
//!
//! Arrives: nothing. Leaves: the trait and its data. Must not know: any controller.

/// Bytes of a packet, for controllers that count in packets.
pub const PACKET: f64 = 1472.0;

/// The information in one acknowledgement.
#[derive(Clone, Copy, Debug, Default)]
pub struct AckEvent {
    /// The time of its arrival.
    pub now_ns: u64,
    /// The shortest round trip among the packets since the previous acknowledgement.
    pub rtt_ns: Option<u64>,
    /// The longest round trip among them, less the shortest.
    pub rtt_spread_ns: u64,
    /// By how much its way back exceeded the shortest of the last seconds.
    pub return_delay_ns: u64,
    /// The minimum round trip of the last 30 s.
    pub min_rtt_ns: u64,
    /// By how much that minimum has just grown, where the path has become longer.
    pub longer_ns: u64,
    /// The smoothed round trip (RFC 6298).
    pub smoothed_rtt_ns: u64,
    /// Bytes newly acknowledged.
    pub acked_bytes: u64,
    /// Packets newly acknowledged.
    pub acked_packets: u64,
    /// Packets newly declared lost.
    pub lost_packets: u64,
    /// The sum of the squares of the lengths of their bursts (runs of consecutive numbers): the variance of their
    /// number where bursts are independent. As large as `lost_packets` where each packet is lost by itself.
    pub lost_squares: u64,
    /// The largest packet number among these.
    pub largest_lost: Option<u64>,
    /// Packets that arrived after they had been declared lost: the loss was spurious.
    pub late_packets: u64,
    /// Packets newly reported with an ECN mark.
    pub marked_packets: u64,
    /// The largest packet number acknowledged so far (RFC 9002, appendix A.3).
    pub largest_acknowledged: Option<u64>,
    /// The number of the next packet to be sent.
    pub next_packet_number: u64,
    /// Bytes in flight: sent, and neither acknowledged nor declared lost.
    pub bytes_in_flight: u64,
    /// The bytes that reached the peer since the previous acknowledgement, by its clock.
    pub delivery: Option<Delivery>,
    /// Whether the application or the peer's flow control, not the controller, limits sending.
    pub app_limited: bool,
}

impl AckEvent {
    /// The queueing delay on the way to the peer, as far as no host explains it: the least among the packets since the
    /// previous acknowledgement. A host that was busy processes at once what has arrived meanwhile, after a silence as
    /// long as the delay; a queue never falls silent.
    #[must_use]
    pub fn network_queue_ns(&self) -> u64 {
        let rtt_ns = self.rtt_ns.unwrap_or(0).saturating_sub(self.return_delay_ns);
        let queue_ns = rtt_ns.saturating_sub(self.min_rtt_ns);
        let silence_ns = self.delivery.map_or(0, |d| d.interval_ns.saturating_sub(d.burst_ns));
        if silence_ns > queue_ns / 2 {
            0
        } else {
            queue_ns
        }
    }
}

/// Bytes that reached the peer, and the time that they took.
#[derive(Clone, Copy, Debug, Default)]
pub struct Delivery {
    /// Bytes since the previous acknowledgement.
    pub bytes: u64,
    /// From the last packet of that acknowledgement to the last packet of this one.
    pub interval_ns: u64,
    /// The bytes of this acknowledgement alone, without its first packet.
    pub burst_bytes: u64,
    /// From its first packet to its last.
    pub burst_ns: u64,
}

/// The output of a controller.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Control {
    /// The pacing rate in bits a second of UDP payload.
    pub rate_bps: f64,
    /// The congestion window: the most bytes in flight.
    pub window_bytes: u64,
}

/// What is known of a path when another controller takes over.
#[derive(Clone, Copy, Debug)]
pub struct PathState {
    /// The time.
    pub now_ns: u64,
    /// The rate in bits a second that the path carries for this flow, by the controller before: see
    /// [`Controller::carried_bps`].
    pub carried_bps: f64,
    /// The minimum round trip of the last 30 s.
    pub min_rtt_ns: u64,
    /// The smoothed round trip.
    pub smoothed_rtt_ns: u64,
    /// The number of the next packet to be sent: losses of earlier ones are the old controller's.
    pub next_packet_number: u64,
}

impl PathState {
    /// The bytes in flight at that rate: the bandwidth-delay product.
    #[must_use]
    pub fn bdp_bytes(&self) -> f64 {
        self.carried_bps * self.min_rtt_ns as f64 / 8e9
    }

    /// An acknowledgement that says no more than this.
    pub(super) fn as_ack(&self) -> AckEvent {
        AckEvent {
            now_ns: self.now_ns,
            min_rtt_ns: self.min_rtt_ns,
            smoothed_rtt_ns: self.smoothed_rtt_ns,
            next_packet_number: self.next_packet_number,
            ..AckEvent::default()
        }
    }
}

/// A congestion controller. It is pure: its state changes by these calls alone, and it reads no clock.
pub trait Controller: Send {
    /// The current phase as one word, for statistics and tests.
    fn phase(&self) -> &'static str;

    /// Processes an acknowledgement.
    fn on_ack(&mut self, ack: &AckEvent);

    /// The second and each further timeout in a row: the state of the path may be out of date.
    fn on_timeout(&mut self, now_ns: u64);

    /// Packets take another path from now on, whose round trip is estimated at `rtt_ns`.
    fn on_path_change(&mut self, now_ns: u64, rtt_ns: u64);

    /// The current rate and window. Called for each packet, so it must be cheap.
    fn control(&self) -> Control;

    /// The rate in bits a second that it takes the path to carry for this flow, without what it adds to find more.
    fn carried_bps(&self) -> f64 {
        self.control().rate_bps
    }

    /// Takes over from another controller in the middle of a transfer: begins with what the path carries, without a
    /// search for its capacity. By default it searches.
    fn take_over(&mut self, _path: &PathState) {}
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_busy_host_causes_no_queue() {
        const MS: u64 = 1_000_000;
        // The round trip above its minimum, the way back above its own, the silence before the packets: the queue.
        for (above_ms, return_ms, silence_ms, queue_ms) in
            [(8, 0, 1, 8), (8, 3, 1, 5), (8, 9, 0, 0), (8, 0, 8, 0), (0, 0, 0, 0)]
        {
            let ack = AckEvent {
                rtt_ns: Some((20 + above_ms) * MS),
                min_rtt_ns: 20 * MS,
                return_delay_ns: return_ms * MS,
                delivery: Some(Delivery {
                    interval_ns: (silence_ms + 2) * MS,
                    burst_ns: 2 * MS,
                    ..Delivery::default()
                }),
                ..AckEvent::default()
            };
            assert_eq!(
                ack.network_queue_ns(),
                queue_ms * MS,
                "{above_ms} {return_ms} {silence_ms}"
            );
        }
    }
}
