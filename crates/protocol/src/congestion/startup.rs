//! The first round trips: from no knowledge to the path's capacity.
//!
//! Arrives: acknowledgements. Leaves: a rate; at the end, the capacity found. Must not know: the phase that follows.
//!
//! **Gradual.** 64 packets in the first round trip; from then on `rate = 4 ln 2 x delivery rate`. The delivery rate
//! is that of a round trip ago, so the rate grows by 2.77 each round trip (the gain of BBR's Startup, whose
//! derivation is in draft-cardwell-iccrg-bbr). It ends at the first evidence of a full path: a queue of an eighth of
//! the round trip, rising loss, marks, or a delivery rate that stops growing.
//!
//! **Packet train.** The first packets leave back to back at the granted rate: 64, up to 256 on a path of 400 ms or
//! more. The time that the peer took to receive them gives the rate of the narrowest link, as packet pairs do
//! (Dovrolis, Ramanathan, Moore: "What do packet dispersion techniques measure?", INFOCOM 2001): an upper bound of
//! the free capacity. Half of it is used at once. Growth slows down at the bound, to a quarter more each round trip,
//! since a busy host may have spread the train. An application with little to send at first gets its train once it
//! has enough.

use super::controller::{AckEvent, Control, PACKET};
use super::delivery_rate::DeliveryRate;
use super::loss_floor::LossFloor;
use super::rounds::{Round, RoundCounter};

const FIRST_PACKETS: f64 = 64.0;

/// A train is longer on a long path, by at most this factor: at 1 Gbit/s, 64 packets take no longer than a host may
/// be late.
const LONGEST_TRAIN: f64 = 4.0;
const TRAIN_RTT_NS: f64 = 100e6;
const GROWTH: f64 = 2.77;

/// A shorter train measures nothing.
const LEAST_TRAIN: f64 = 16.0;

/// After this many shorter ones, from a sender that had more to send, no train is expected.
const MOST_SHORT: u32 = 8;

/// The part of the train's rate in use before the path has confirmed any.
const TRUST: f64 = 0.5;

/// The factor that raises the train's bound in each round without evidence for it.
const DOUBT: f64 = 1.25;

/// The result.
#[derive(Clone, Copy, Debug)]
pub struct Capacity {
    /// The rate that the path carries in bits a second, as sent: before random loss.
    pub bps: f64,
}

/// The search for the path's capacity.
#[derive(Clone, Debug)]
pub struct Startup {
    rate_bps: f64,
    cap_bps: f64,
    /// The upper bound, where a train has measured the path.
    bound_bps: f64,
    train: bool,
    train_bytes: f64,
    short_trains: u32,
    delivery_rate: DeliveryRate,
    rounds: RoundCounter,
    round_best_bps: f64,
    best_before_bps: f64,
    flat_rounds: u32,
    last_rtts: [u64; 4],
    rtt_count: usize,
    longest_queue_ns: u64,
    previous: Round,
    /// Whether the current round is the second one.
    second: bool,
}

impl Startup {
    /// A start on a path of this round trip, never above `cap_bps`.
    #[must_use]
    pub fn new(rtt_ns: u64, cap_bps: f64, quick: bool) -> Self {
        let pacing_rate_bps = FIRST_PACKETS * PACKET * 8e9 / rtt_ns.max(1) as f64;
        Self {
            rate_bps: if quick { cap_bps } else { pacing_rate_bps.min(cap_bps) },
            cap_bps,
            bound_bps: cap_bps,
            train: quick,
            train_bytes: FIRST_PACKETS
                * PACKET
                * (rtt_ns as f64 / TRAIN_RTT_NS).clamp(1.0, LONGEST_TRAIN),
            short_trains: 0,
            delivery_rate: DeliveryRate::default(),
            rounds: RoundCounter::default(),
            round_best_bps: 0.0,
            best_before_bps: 0.0,
            flat_rounds: 0,
            last_rtts: [u64::MAX; 4],
            rtt_count: 0,
            longest_queue_ns: 0,
            previous: Round::default(),
            second: false,
        }
    }

    /// Processes an acknowledgement; returns the capacity once it is found.
    pub fn on_ack(&mut self, ack: &AckEvent, floor: &mut LossFloor) -> Option<Capacity> {
        let rtt_ns = ack.smoothed_rtt_ns;
        if let Some(rtt_ns) = ack.rtt_ns {
            self.last_rtts[self.rtt_count % 4] = rtt_ns;
            self.rtt_count += 1;
        }
        if self.train {
            return self.end_of_train(ack);
        }
        self.delivery_rate.on_ack(ack, 2 * rtt_ns);
        // A short window follows a growing rate; three acknowledgements are the least that measure one.
        let window_ns = (rtt_ns / 4).min((rtt_ns / 16).max(25_000_000));
        if let Some(delivery_bps) = self.delivery_rate.bps(window_ns) {
            self.rate_bps = self.rate_bps.max((GROWTH * delivery_bps).min(self.bound_bps));
            self.round_best_bps = self.round_best_bps.max(delivery_bps);
        }
        let queue_ns =
            self.last_rtts.iter().min().map_or(0, |rtt| rtt.saturating_sub(ack.min_rtt_ns));
        if self.rtt_count >= 4 {
            self.longest_queue_ns = self.longest_queue_ns.max(queue_ns);
        }
        let queued = self.rtt_count >= 4 && queue_ns > (ack.min_rtt_ns / 8).max(1_000_000);
        let mut over = queued || ack.marked_packets > 0;
        if let Some(round) = self.rounds.on_ack(ack) {
            over |= self.end_of_round(&round, floor);
        }
        over.then(|| self.found(floor))
    }

    fn end_of_train(&mut self, ack: &AckEvent) -> Option<Capacity> {
        let delivery = ack.delivery?;
        let train = delivery.burst_bytes as f64;
        if train < LEAST_TRAIN * PACKET {
            self.short_trains += u32::from(!ack.app_limited);
            if self.short_trains < MOST_SHORT {
                return None;
            }
        }
        self.train = false;
        if train >= LEAST_TRAIN * PACKET {
            // A train that arrives at once was coalesced on the way: 1 us a packet is the fastest plausible rate.
            let least_ns = train / PACKET * 1000.0;
            let train_bps = train * 8e9 / (delivery.burst_ns as f64).max(least_ns);
            self.bound_bps = train_bps.min(self.cap_bps);
            self.rate_bps = TRUST * self.bound_bps;
        } else {
            self.rate_bps = FIRST_PACKETS * PACKET * 8e9 / ack.smoothed_rtt_ns.max(1) as f64;
        }
        self.rate_bps = self.rate_bps.min(self.cap_bps);
        self.rounds.restart(ack.next_packet_number);
        None
    }

    /// Whether the round shows that the path is full.
    fn end_of_round(&mut self, round: &Round, floor: &mut LossFloor) -> bool {
        let packets = (round.acked + round.lost).max(1) as f64;
        let share = round.lost as f64 / packets;
        // The first round has few packets: where it lost any, both rounds together are the best estimate.
        let bursts = (round.lost_squares.max(round.lost) as f64).sqrt() / packets;
        let noise = if floor.is_clean() {
            3.0 * (0.01 / packets).sqrt().max(bursts)
        } else {
            3.0 * floor.deviation(floor.with(round).max(0.01), packets).max(bursts)
        };
        let rising = packets >= 20.0 && share > floor.share() + 0.05 + noise;
        // The first round is the slowest of all. Each later one is three times as fast as the previous one, which
        // was quiet if even this one is not too fast.
        let before = std::mem::replace(&mut self.previous, *round);
        let first = before.acked + before.lost == 0;
        if first {
            floor.quiet(round);
        } else if !rising && !self.second {
            floor.quiet(&before);
        }
        self.second = first;
        let grew = self.round_best_bps > 1.15 * self.best_before_bps;
        let bound = self.bound_bps < self.cap_bps && self.rate_bps >= self.bound_bps;
        if bound && !rising {
            self.bound_bps = (DOUBT * self.bound_bps).min(self.cap_bps);
        }
        self.flat_rounds =
            if grew || bound || round.app_limited { 0 } else { self.flat_rounds + 1 };
        self.best_before_bps = self.best_before_bps.max(self.round_best_bps);
        self.round_best_bps = 0.0;
        (rising && !first) || self.flat_rounds >= 2
    }

    /// The path delivers no faster than its capacity, so the best rate measured is the capacity.
    fn found(&self, floor: &LossFloor) -> Capacity {
        let best_bps = self.best_before_bps.max(self.round_best_bps);
        let delivery_bps = if best_bps > 0.0 { best_bps } else { self.rate_bps / GROWTH };
        Capacity { bps: (delivery_bps / (1.0 - floor.share())).min(self.cap_bps) }
    }

    /// The longest queue that several acknowledgements in a row have met.
    #[must_use]
    pub fn longest_queue_ns(&self) -> u64 {
        self.longest_queue_ns
    }

    /// The rate that the path has carried so far, in bits a second: less than it sends at.
    #[must_use]
    pub fn carried_bps(&self) -> f64 {
        self.best_before_bps.max(self.round_best_bps).max(self.rate_bps / GROWTH).min(self.cap_bps)
    }

    /// The current rate and window.
    #[must_use]
    pub fn control(&self, rtt_ns: u64) -> Control {
        // Without acknowledgements, sending stops after the data of three round trips.
        let window_bytes = if self.train {
            self.train_bytes
        } else {
            3.0 * self.rate_bps * rtt_ns as f64 / 8e9 + FIRST_PACKETS * PACKET
        };
        Control { rate_bps: self.rate_bps, window_bytes: window_bytes as u64 }
    }
}

#[cfg(test)]
mod tests {
    use super::super::controller::Delivery;
    use super::*;

    const RTT_NS: u64 = 500_000_000;

    fn ack(packets: u64, took_ns: u64, app_limited: bool) -> AckEvent {
        let delivery =
            Delivery { burst_bytes: packets * 1500, burst_ns: took_ns, ..Delivery::default() };
        AckEvent {
            smoothed_rtt_ns: RTT_NS,
            min_rtt_ns: RTT_NS,
            delivery: Some(delivery),
            app_limited,
            ..AckEvent::default()
        }
    }

    #[test]
    fn a_train_is_measured_once_there_is_enough_to_send() {
        let mut startup = Startup::new(RTT_NS, 1e10, true);
        let mut floor = LossFloor::default();
        // A request and a response, a packet or two each time.
        for _ in 0..20 {
            assert!(startup.on_ack(&ack(1, 0, true), &mut floor).is_none());
        }
        // 60 packets in 3.6 ms: 200 Mbit/s.
        assert!(startup.on_ack(&ack(60, 3_600_000, false), &mut floor).is_none());
        let rate = startup.control(RTT_NS).rate_bps;
        assert!((0.9e8..1.1e8).contains(&rate), "half of the train's rate, not {rate}");
    }

    #[test]
    fn a_train_is_longer_on_a_long_path() {
        let packets = |rtt_ms: u64| {
            let startup = Startup::new(rtt_ms * 1_000_000, 1e10, true);
            startup.control(rtt_ms * 1_000_000).window_bytes / PACKET as u64
        };
        assert_eq!([10, 100, 200, 500].map(packets), [64, 64, 128, 256]);
    }

    #[test]
    fn a_spread_train_does_not_bound_the_rate_for_long() {
        let mut startup = Startup::new(RTT_NS, 1e10, true);
        let mut floor = LossFloor::default();
        // As on a path of 50 Mbit/s, but every packet arrives at once.
        startup.on_ack(&ack(60, 14_400_000, false), &mut floor);
        let (mut now_ns, mut number) = (0, 100);
        for _ in 0..16 {
            let bytes = (startup.control(RTT_NS).rate_bps / 8.0 * 0.5) as u64;
            now_ns += RTT_NS;
            let spoken = number;
            number += bytes / 1472 + 1;
            let delivery = Delivery { bytes, interval_ns: RTT_NS, ..Delivery::default() };
            let ack = AckEvent {
                now_ns,
                rtt_ns: Some(RTT_NS),
                smoothed_rtt_ns: RTT_NS,
                min_rtt_ns: RTT_NS,
                acked_bytes: bytes,
                acked_packets: bytes / 1472,
                largest_acknowledged: Some(spoken - 1),
                next_packet_number: number,
                delivery: Some(delivery),
                ..AckEvent::default()
            };
            assert!(startup.on_ack(&ack, &mut floor).is_none(), "no evidence of a full path");
        }
        let rate = startup.control(RTT_NS).rate_bps;
        assert!(rate > 2e8, "a quarter more each round trip, not {rate}");
    }

    #[test]
    fn without_a_train_the_start_is_gradual() {
        let mut startup = Startup::new(RTT_NS, 1e10, true);
        let mut floor = LossFloor::default();
        for _ in 0..MOST_SHORT {
            assert!(startup.on_ack(&ack(2, 100_000, false), &mut floor).is_none());
        }
        assert!(startup.control(RTT_NS).rate_bps < 1e7);
    }
}
