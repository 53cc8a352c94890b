//! Several connections of one copy that together take the share of one.
//!
//! Arrives: acknowledgements of each connection, for any controller. Leaves: each connection's part of a rate and a
//! window. Must not know: how a controller decides, which data each connection sends.
//!
//! The connections share one path, so an event of one would have affected each of them. Each runs its controller for
//! the group, as congestion managers do (RFC 3124; control blocks in ensemble, RFC 9040, section 5): it sums the
//! acknowledgements and losses of all, multiplies its own delivery rate by the number of connections, and sends its
//! part.
//!
//! ```text
//! acked, lost     summed over the connections since the previous acknowledgement of this one
//! delivery rate   own * n
//! rate, window    of the controller / n
//! ```
//!
//! A connection that joins takes its part of the first one's result until it has its own: the parts of the others
//! have shrunk.
//!
//! RFC 6356 couples only the growth of windows, for subflows on different paths. Each subflow keeps its own window,
//! and `n` of them keep the minimum windows of `n` flows. Here the path is the same.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::Arc;

use super::controller::{AckEvent, Control, Controller, Delivery, PathState, PACKET};

/// The minimum window of a connection: later packets must reveal the loss of the last ones.
const MIN_WINDOW: u64 = 2 * PACKET as u64;

/// The phase of a controller that has not found the path's capacity yet.
const STARTING: &str = "startup";

/// The connections of one copy that send.
#[derive(Clone, Debug, Default)]
pub struct Group(Arc<Totals>);

#[derive(Debug, Default)]
struct Totals {
    members: AtomicU64,
    acked_packets: AtomicU64,
    acked_bytes: AtomicU64,
    lost_packets: AtomicU64,
    lost_squares: AtomicU64,
    late_packets: AtomicU64,
    joined: AtomicU64,
    /// The number of the connection that leads; zero where it has left.
    leader: AtomicU64,
    /// Its result for the group: bits a second as the bits of an f64, and bytes.
    rate: AtomicU64,
    window_bytes: AtomicU64,
}

impl Group {
    /// Adds a connection with this controller.
    #[must_use]
    pub fn join(&self, controller: Box<dyn Controller>) -> Coupled {
        self.0.members.fetch_add(1, Ordering::Relaxed);
        let number = self.0.joined.fetch_add(1, Ordering::Relaxed) + 1;
        let mut coupled =
            Coupled { group: self.clone(), controller, seen: Seen::default(), number };
        // Events before it joined do not count.
        let _ = coupled.since_last();
        coupled
    }

    /// The number of connections.
    #[must_use]
    pub fn members(&self) -> u64 {
        self.0.members.load(Ordering::Relaxed).max(1)
    }
}

#[derive(Clone, Copy, Debug, Default)]
struct Seen {
    acked_packets: u64,
    acked_bytes: u64,
    lost_packets: u64,
    lost_squares: u64,
    late_packets: u64,
}

/// A controller that decides for a group and returns one connection's part.
pub struct Coupled {
    group: Group,
    controller: Box<dyn Controller>,
    seen: Seen,
    number: u64,
}

impl Coupled {
    /// The rate and window of the group, as known to this connection.
    fn group_control(&self) -> Control {
        let (own, totals) = (self.controller.control(), &self.group.0);
        let leads = totals.leader.load(Ordering::Relaxed) == self.number;
        if leads || self.controller.phase() != STARTING {
            return own;
        }
        Control {
            rate_bps: own.rate_bps.max(f64::from_bits(totals.rate.load(Ordering::Relaxed))),
            window_bytes: own.window_bytes.max(totals.window_bytes.load(Ordering::Relaxed)),
        }
    }

    /// Publishes this connection's result for the group, where no other leads.
    fn lead(&self) {
        let (control, totals) = (self.controller.control(), &self.group.0);
        let (order, number) = (Ordering::Relaxed, self.number);
        let leader = totals.leader.compare_exchange(0, number, order, order);
        if leader.is_ok() || leader == Err(number) {
            totals.rate.store(control.rate_bps.to_bits(), order);
            totals.window_bytes.store(control.window_bytes, order);
        }
    }

    /// The events of the group since the last call.
    fn since_last(&mut self) -> Seen {
        let totals = &self.group.0;
        let now = Seen {
            acked_packets: totals.acked_packets.load(Ordering::Relaxed),
            acked_bytes: totals.acked_bytes.load(Ordering::Relaxed),
            lost_packets: totals.lost_packets.load(Ordering::Relaxed),
            lost_squares: totals.lost_squares.load(Ordering::Relaxed),
            late_packets: totals.late_packets.load(Ordering::Relaxed),
        };
        let before = std::mem::replace(&mut self.seen, now);
        Seen {
            acked_packets: now.acked_packets.wrapping_sub(before.acked_packets),
            acked_bytes: now.acked_bytes.wrapping_sub(before.acked_bytes),
            lost_packets: now.lost_packets.wrapping_sub(before.lost_packets),
            lost_squares: now.lost_squares.wrapping_sub(before.lost_squares),
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
    fn phase(&self) -> &'static str {
        self.controller.phase()
    }

    fn on_ack(&mut self, ack: &AckEvent) {
        let totals = &self.group.0;
        totals.acked_packets.fetch_add(ack.acked_packets, Ordering::Relaxed);
        totals.acked_bytes.fetch_add(ack.acked_bytes, Ordering::Relaxed);
        totals.lost_packets.fetch_add(ack.lost_packets, Ordering::Relaxed);
        // A burst of the path meets all connections; each sees its part of it.
        totals.lost_squares.fetch_add(ack.lost_squares * self.group.members(), Ordering::Relaxed);
        totals.late_packets.fetch_add(ack.late_packets, Ordering::Relaxed);
        let members = self.group.members();
        let group = self.since_last();
        // A loss of another connection counts as recent as the largest packet acknowledged here.
        let others_lost = group.lost_packets > ack.lost_packets;
        let as_recent = ack.largest_acknowledged.filter(|_| others_lost);
        self.controller.on_ack(&AckEvent {
            acked_bytes: group.acked_bytes,
            acked_packets: group.acked_packets,
            lost_packets: group.lost_packets,
            lost_squares: group.lost_squares,
            late_packets: group.late_packets,
            largest_lost: ack.largest_lost.max(as_recent),
            bytes_in_flight: ack.bytes_in_flight * members,
            delivery: ack.delivery.map(|delivery| Delivery {
                bytes: delivery.bytes * members,
                burst_bytes: delivery.burst_bytes * members,
                ..delivery
            }),
            ..*ack
        });
        self.lead();
    }

    fn on_timeout(&mut self, now_ns: u64) {
        self.controller.on_timeout(now_ns);
    }

    fn on_path_change(&mut self, now_ns: u64, rtt_ns: u64) {
        self.controller.on_path_change(now_ns, rtt_ns);
    }

    fn control(&self) -> Control {
        let (control, members) = (self.group_control(), self.group.members());
        Control {
            rate_bps: control.rate_bps / members as f64,
            window_bytes: (control.window_bytes / members).max(MIN_WINDOW),
        }
    }

    fn carried_bps(&self) -> f64 {
        self.controller.carried_bps() / self.group.members() as f64
    }

    fn take_over(&mut self, path: &PathState) {
        let carried_bps = path.carried_bps * self.group.members() as f64;
        self.controller.take_over(&PathState { carried_bps, ..*path });
    }
}

#[cfg(test)]
mod tests {
    use super::super::registry::Mode;
    use super::*;

    const RTT_NS: u64 = 50_000_000;

    #[test]
    fn a_connection_that_joins_or_leaves_changes_each_part() {
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
    fn a_loss_of_one_is_a_loss_of_all_and_reported_once() {
        struct Recorder(Arc<std::sync::Mutex<Vec<AckEvent>>>);
        impl Controller for Recorder {
            fn phase(&self) -> &'static str {
                "recording"
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
        let (group, reported) = (Group::default(), Arc::default());
        let mut quiet = group.join(Box::new(Recorder(Arc::clone(&reported))));
        let mut losing = group.join(Box::new(Recorder(Arc::default())));
        let ack =
            AckEvent { largest_acknowledged: Some(9), acked_packets: 4, ..AckEvent::default() };
        losing.on_ack(&AckEvent { lost_packets: 3, largest_lost: Some(7), ..ack });
        quiet.on_ack(&ack);
        quiet.on_ack(&ack);
        let reported = reported.lock().unwrap();
        let seen = |at: usize| {
            (reported[at].acked_packets, reported[at].lost_packets, reported[at].largest_lost)
        };
        assert_eq!(seen(0), (8, 3, Some(9)));
        assert_eq!(seen(1), (4, 0, None));
    }
}
