//! The first round trips: from nothing known to the path's capacity.
//!
//! Arrives: acks. Leaves: a rate; at the end, the capacity found. Must not know: what comes after.
//!
//! **Gradual.** 64 packets in the first round trip; from then on `rate = 4 ln 2 x arrival rate`. What arrives is what was sent a
//! round trip ago, so the rate grows by 2.77 each round trip (the factor of BBR's startup, draft-cardwell-iccrg-bbr, where its
//! derivation stands). It ends at the first evidence: a queue of an eighth of the round trip, loss that rises, marks, or
//! arrivals that do not grow any more.
//!
//! **Quick.** The first packets leave as a train at the rate that the server granted: 64, up to 256 on a path of 400 ms or more. By the time the peer took to receive them the path's
//! narrowest link gives its speed, as packet pairs do (Dovrolis, Ramanathan, Moore: "What do packet dispersion
//! techniques measure?", INFOCOM 2001): an upper bound of what is free. Half of it is used at once, and growth slows down at
//! it: a quarter more each round trip, since a host that was busy may have spread the train.
//! A program that has little to say at first, as one that asks what is wanted, has its train when it has something to send.

use super::evidence::{ArrivalRate, LossFloor, Round, Rounds};
use super::{AckEvent, Control, PACKET};

const FIRST_PACKETS: f64 = 64.0;

/// A train is longer on a long path, up to so many times: 64 packets of 1 Gbit/s last no longer than a host may be late.
const LONGEST_TRAIN: f64 = 4.0;
const TRAIN_RTT_NS: f64 = 100e6;
const GROWTH: f64 = 2.77;

/// A train that arrived in this many packets at least says something of the path.
const LEAST_TRAIN: f64 = 16.0;

/// After so many shorter ones, of a sender that had more to send, there will be no train.
const MOST_SHORT: u32 = 8;

/// Of the train's rate, what is used before the path confirmed anything.
const TRUST: f64 = 0.5;

/// The bound that a train gave is raised by this each round in which nothing speaks for it.
const DOUBT: f64 = 1.25;

/// What was found.
#[derive(Clone, Copy, Debug)]
pub struct Capacity {
    /// Bits a second that the path carries, of what is sent (random loss included).
    pub bps: f64,
}

/// The search for the path's capacity.
#[derive(Clone, Debug)]
pub struct Startup {
    rate_bps: f64,
    cap_bps: f64,
    /// No more than this, where a train has measured the path.
    bound_bps: f64,
    train: bool,
    train_bytes: f64,
    short_trains: u32,
    arrivals: ArrivalRate,
    rounds: Rounds,
    round_best_bps: f64,
    best_before_bps: f64,
    flat_rounds: u32,
    last_rtts: [u64; 4],
    acks: usize,
    previous: Round,
    /// Whether the round that runs is the second one.
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
            arrivals: ArrivalRate::default(),
            rounds: Rounds::default(),
            round_best_bps: 0.0,
            best_before_bps: 0.0,
            flat_rounds: 0,
            last_rtts: [u64::MAX; 4],
            acks: 0,
            previous: Round::default(),
            second: false,
        }
    }

    /// Takes in a ack; the capacity, once it is found.
    pub fn on_ack(&mut self, ack: &AckEvent, floor: &mut LossFloor) -> Option<Capacity> {
        let rtt_ns = ack.smoothed_rtt_ns;
        if let Some(rtt_ns) = ack.rtt_ns {
            self.last_rtts[self.acks % 4] = rtt_ns;
            self.acks += 1;
        }
        if self.train {
            return self.end_of_train(ack);
        }
        self.arrivals.on_ack(ack, 2 * rtt_ns);
        // A short window follows a rate that grows; three acknowledgements' worth is the least that means something.
        let window_ns = (rtt_ns / 4).min((rtt_ns / 16).max(25_000_000));
        if let Some(arrival_bps) = self.arrivals.bps(window_ns) {
            self.rate_bps = self.rate_bps.max((GROWTH * arrival_bps).min(self.bound_bps));
            self.round_best_bps = self.round_best_bps.max(arrival_bps);
        }
        let queue_ns =
            self.last_rtts.iter().min().map_or(0, |rtt| rtt.saturating_sub(ack.base_rtt_ns));
        let queued = self.acks >= 4 && queue_ns > (ack.base_rtt_ns / 8).max(1_000_000);
        let mut over = queued || ack.marked_packets > 0;
        if let Some(round) = self.rounds.on_ack(ack) {
            over |= self.end_of_round(&round, floor);
        }
        over.then(|| self.found(floor))
    }

    fn end_of_train(&mut self, ack: &AckEvent) -> Option<Capacity> {
        let arrival = ack.arrival?;
        let train = arrival.burst_bytes as f64;
        if train < LEAST_TRAIN * PACKET {
            self.short_trains += u32::from(!ack.limited);
            if self.short_trains < MOST_SHORT {
                return None;
            }
        }
        self.train = false;
        if train >= LEAST_TRAIN * PACKET {
            // A train that arrived as one was coalesced on the way: no faster than 1 us a packet is believed.
            let least_ns = train / PACKET * 1000.0;
            let train_bps = train * 8e9 / (arrival.burst_ns as f64).max(least_ns);
            self.bound_bps = train_bps.min(self.cap_bps);
            self.rate_bps = TRUST * self.bound_bps;
        } else {
            self.rate_bps = FIRST_PACKETS * PACKET * 8e9 / ack.smoothed_rtt_ns.max(1) as f64;
        }
        self.rate_bps = self.rate_bps.min(self.cap_bps);
        self.rounds.restart(ack.next_number);
        None
    }

    /// Whether the round shows that the path is full.
    fn end_of_round(&mut self, round: &Round, floor: &mut LossFloor) -> bool {
        let packets = (round.arrived + round.lost).max(1) as f64;
        let share = round.lost as f64 / packets;
        // The first round is of few packets: where it lost any, both rounds together are the best estimate.
        let noise = if floor.is_clean() {
            3.0 * (0.01 / packets).sqrt()
        } else {
            3.0 * floor.deviation(floor.with(round).max(0.01), packets)
        };
        let rising = packets >= 20.0 && share > floor.share() + 0.05 + noise;
        // The first round is the slowest there will be. Each later one is three times as fast as the one before, which
        // is quiet if even this one is not too fast.
        let before = std::mem::replace(&mut self.previous, *round);
        let first = before.arrived + before.lost == 0;
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
        self.flat_rounds = if grew || bound || round.limited { 0 } else { self.flat_rounds + 1 };
        self.best_before_bps = self.best_before_bps.max(self.round_best_bps);
        self.round_best_bps = 0.0;
        (rising && !first) || self.flat_rounds >= 2
    }

    /// Nothing arrives faster than the path carries, so the best rate seen is the path's.
    fn found(&self, floor: &LossFloor) -> Capacity {
        let best_bps = self.best_before_bps.max(self.round_best_bps);
        let arrival_bps = if best_bps > 0.0 { best_bps } else { self.rate_bps / GROWTH };
        Capacity { bps: (arrival_bps / (1.0 - floor.share())).min(self.cap_bps) }
    }

    /// How fast to send now.
    #[must_use]
    pub fn control(&self, rtt_ns: u64) -> Control {
        // Acknowledgements that fail to come stop the start after three round trips' worth.
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
    use super::super::Arrival;
    use super::*;

    const RTT_NS: u64 = 500_000_000;

    fn ack(packets: u64, took_ns: u64, limited: bool) -> AckEvent {
        let arrival =
            Arrival { burst_bytes: packets * 1500, burst_ns: took_ns, ..Arrival::default() };
        AckEvent {
            smoothed_rtt_ns: RTT_NS,
            base_rtt_ns: RTT_NS,
            arrival: Some(arrival),
            limited,
            ..AckEvent::default()
        }
    }

    #[test]
    fn a_train_is_measured_when_there_is_something_to_send() {
        let mut startup = Startup::new(RTT_NS, 1e10, true);
        let mut floor = LossFloor::default();
        // A program asks and is answered, in a packet or two each time.
        for _ in 0..20 {
            assert!(startup.on_ack(&ack(1, 0, true), &mut floor).is_none());
        }
        // 60 packets in 3.6 ms: 200 Mbit/s.
        assert!(startup.on_ack(&ack(60, 3_600_000, false), &mut floor).is_none());
        let rate = startup.control(RTT_NS).rate_bps;
        assert!((0.9e8..1.1e8).contains(&rate), "half of what the train showed, not {rate}");
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
    fn a_train_that_was_spread_does_not_hold_the_rate_for_long() {
        let mut startup = Startup::new(RTT_NS, 1e10, true);
        let mut floor = LossFloor::default();
        // As on a path of 50 Mbit/s; all that is sent arrives at once all the same.
        startup.on_ack(&ack(60, 14_400_000, false), &mut floor);
        let (mut now_ns, mut number) = (0, 100);
        for _ in 0..16 {
            let bytes = (startup.control(RTT_NS).rate_bps / 8.0 * 0.5) as u64;
            now_ns += RTT_NS;
            let spoken = number;
            number += bytes / 1472 + 1;
            let arrival = Arrival { bytes, span_ns: RTT_NS, ..Arrival::default() };
            let ack = AckEvent {
                now_ns,
                rtt_ns: Some(RTT_NS),
                smoothed_rtt_ns: RTT_NS,
                base_rtt_ns: RTT_NS,
                arrived_bytes: bytes,
                arrived_packets: bytes / 1472,
                newest_spoken_of: spoken,
                next_number: number,
                arrival: Some(arrival),
                ..AckEvent::default()
            };
            assert!(startup.on_ack(&ack, &mut floor).is_none(), "nothing says that it is full");
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
