//! Several connections of one copy that together take what one would.
//!
//! Arrives: acks of each connection, in any mode. Leaves: each connection's part of a rate and a window. Must not know: how a mode
//! decides, what is sent over which connection.
//!
//! The connections cross the same path, so what one of them meets the others would have met. Each runs its mode for all of them
//! together, as congestion managers do (RFC 3124; control blocks in ensemble, RFC 9040, section 5): it counts what arrived and what was lost of all,
//! takes the rate at which its own packets arrive times the number of connections for the rate of all, and sends its part.
//!
//! ```text
//! arrived, lost   summed over the connections since this one's last ack
//! arrival rate    own * n
//! rate, window    of the mode / n
//! ```
//!
//! A connection that joins takes its part of what the first one has found, until it has found that itself: the others' parts have
//! become smaller for it.
//!
//! RFC 6356 couples only what windows grow by, for subflows on different paths; each subflow still keeps a window of its own, and `n` of
//! them the least windows of `n` flows. Here the paths are one.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::Arc;

use super::{AckEvent, Arrival, Control, Controller, Mode, PACKET};

/// No connection's window is smaller: what is lost at its end must be found by what comes after it.
const LEAST_WINDOW: u64 = 2 * PACKET as u64;

/// The phase of a mode that has not found the path's capacity yet.
const STARTING: &str = "startup";

/// The connections of one copy that send.
#[derive(Clone, Debug, Default)]
pub struct Group(Arc<Totals>);

#[derive(Debug, Default)]
struct Totals {
    members: AtomicU64,
    arrived_packets: AtomicU64,
    arrived_bytes: AtomicU64,
    lost_packets: AtomicU64,
    late_packets: AtomicU64,
    joined: AtomicU64,
    /// The number of the one that leads; zero where it has left.
    leader: AtomicU64,
    /// What that one takes to be right for all: bits a second as an f64's bits, bytes.
    rate: AtomicU64,
    window_bytes: AtomicU64,
}

impl Group {
    /// One more connection that sends in this mode.
    #[must_use]
    pub fn join(&self, mode: Box<dyn Controller>) -> Coupled {
        self.0.members.fetch_add(1, Ordering::Relaxed);
        let number = self.0.joined.fetch_add(1, Ordering::Relaxed) + 1;
        let mut coupled = Coupled { group: self.clone(), mode, seen: Seen::default(), number };
        // What was before it came is no news.
        let _ = coupled.news();
        coupled
    }

    /// Connections that are there.
    #[must_use]
    pub fn members(&self) -> u64 {
        self.0.members.load(Ordering::Relaxed).max(1)
    }
}

#[derive(Clone, Copy, Debug, Default)]
struct Seen {
    arrived_packets: u64,
    arrived_bytes: u64,
    lost_packets: u64,
    late_packets: u64,
}

/// A mode that decides for a group and sends one connection's part.
pub struct Coupled {
    group: Group,
    mode: Box<dyn Controller>,
    seen: Seen,
    number: u64,
}

impl Coupled {
    /// What all may take together, as far as this one knows.
    fn together(&self) -> Control {
        let (own, totals) = (self.mode.control(), &self.group.0);
        let leads = totals.leader.load(Ordering::Relaxed) == self.number;
        if leads || self.mode.phase() != STARTING {
            return own;
        }
        Control {
            rate_bps: own.rate_bps.max(f64::from_bits(totals.rate.load(Ordering::Relaxed))),
            window_bytes: own.window_bytes.max(totals.window_bytes.load(Ordering::Relaxed)),
        }
    }

    /// Say what this one takes to be right for all, if nobody else does.
    fn lead(&self) {
        let (control, totals) = (self.mode.control(), &self.group.0);
        let (order, number) = (Ordering::Relaxed, self.number);
        let leader = totals.leader.compare_exchange(0, number, order, order);
        if leader.is_ok() || leader == Err(number) {
            totals.rate.store(control.rate_bps.to_bits(), order);
            totals.window_bytes.store(control.window_bytes, order);
        }
    }

    /// What happened to the group since the last call.
    fn news(&mut self) -> Seen {
        let totals = &self.group.0;
        let now = Seen {
            arrived_packets: totals.arrived_packets.load(Ordering::Relaxed),
            arrived_bytes: totals.arrived_bytes.load(Ordering::Relaxed),
            lost_packets: totals.lost_packets.load(Ordering::Relaxed),
            late_packets: totals.late_packets.load(Ordering::Relaxed),
        };
        let before = std::mem::replace(&mut self.seen, now);
        Seen {
            arrived_packets: now.arrived_packets.wrapping_sub(before.arrived_packets),
            arrived_bytes: now.arrived_bytes.wrapping_sub(before.arrived_bytes),
            lost_packets: now.lost_packets.wrapping_sub(before.lost_packets),
            late_packets: now.late_packets.wrapping_sub(before.late_packets),
        }
    }
}

impl Drop for Coupled {
    fn drop(&mut self) {
        let (totals, order) = (&self.group.0, Ordering::Relaxed);
        totals.members.fetch_sub(1, order);
        let _ = totals.leader.compare_exchange(self.number, 0, order, order);
    }
}

impl Controller for Coupled {
    fn name(&self) -> Mode {
        self.mode.name()
    }

    fn phase(&self) -> &'static str {
        self.mode.phase()
    }

    fn on_ack(&mut self, ack: &AckEvent) {
        let totals = &self.group.0;
        totals.arrived_packets.fetch_add(ack.arrived_packets, Ordering::Relaxed);
        totals.arrived_bytes.fetch_add(ack.arrived_bytes, Ordering::Relaxed);
        totals.lost_packets.fetch_add(ack.lost_packets, Ordering::Relaxed);
        totals.late_packets.fetch_add(ack.late_packets, Ordering::Relaxed);
        let members = self.group.members();
        let news = self.news();
        // Another one's loss is as recent as what was spoken of last here.
        let others_lost = news.lost_packets > ack.lost_packets;
        let as_recent = ack.newest_spoken_of.checked_sub(1).filter(|_| others_lost);
        self.mode.on_ack(&AckEvent {
            arrived_bytes: news.arrived_bytes,
            arrived_packets: news.arrived_packets,
            lost_packets: news.lost_packets,
            late_packets: news.late_packets,
            newest_lost: ack.newest_lost.max(as_recent),
            in_flight_bytes: ack.in_flight_bytes * members,
            arrival: ack.arrival.map(|arrival| Arrival {
                bytes: arrival.bytes * members,
                burst_bytes: arrival.burst_bytes * members,
                ..arrival
            }),
            ..*ack
        });
        self.lead();
    }

    fn on_timeout(&mut self, now_ns: u64) {
        self.mode.on_timeout(now_ns);
    }

    fn on_path_change(&mut self, now_ns: u64, rtt_ns: u64) {
        self.mode.on_path_change(now_ns, rtt_ns);
    }

    fn control(&self) -> Control {
        let (control, members) = (self.together(), self.group.members());
        Control {
            rate_bps: control.rate_bps / members as f64,
            window_bytes: (control.window_bytes / members).max(LEAST_WINDOW),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RTT_NS: u64 = 50_000_000;

    #[test]
    fn what_leaves_and_comes_changes_each_part() {
        let group = Group::default();
        let start = || Mode::Fair.start(RTT_NS, 1e9);
        let one = group.join(start());
        let alone = one.control();
        assert_eq!(alone, start().control());
        let two = group.join(start());
        assert_eq!(one.control().rate_bps, alone.rate_bps / 2.0);
        assert_eq!(two.control().window_bytes, alone.window_bytes / 2);
        drop(two);
        assert_eq!((group.members(), one.control()), (1, alone));
    }

    #[test]
    fn a_loss_of_one_is_a_loss_of_all_and_told_once() {
        struct Spy(Arc<std::sync::Mutex<Vec<AckEvent>>>);
        impl Controller for Spy {
            fn name(&self) -> Mode {
                Mode::Fair
            }
            fn phase(&self) -> &'static str {
                "spying"
            }
            fn on_ack(&mut self, ack: &AckEvent) {
                self.0.lock().unwrap().push(*ack);
            }
            fn on_timeout(&mut self, _: u64) {}
            fn on_path_change(&mut self, _: u64, _: u64) {}
            fn control(&self) -> Control {
                Control { rate_bps: 1.0, window_bytes: 1 }
            }
        }
        let (group, told) = (Group::default(), Arc::default());
        let mut quiet = group.join(Box::new(Spy(Arc::clone(&told))));
        let mut losing = group.join(Box::new(Spy(Arc::default())));
        let ack = AckEvent { newest_spoken_of: 10, arrived_packets: 4, ..AckEvent::default() };
        losing.on_ack(&AckEvent { lost_packets: 3, newest_lost: Some(7), ..ack });
        quiet.on_ack(&ack);
        quiet.on_ack(&ack);
        let told = told.lock().unwrap();
        let seen =
            |at: usize| (told[at].arrived_packets, told[at].lost_packets, told[at].newest_lost);
        assert_eq!(seen(0), (8, 3, Some(9)));
        assert_eq!(seen(1), (4, 0, None));
    }
}
