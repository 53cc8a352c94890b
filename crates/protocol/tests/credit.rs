//! A sender without credit goes on once there is some, whichever packet reports it.

use std::net::{Ipv4Addr, SocketAddr};

use waystage_protocol::congestion::Mode;
use waystage_protocol::connection::{Config, Connection, Sink, Source};
use waystage_protocol::protect::{Sealed, Side, Suite};

const RTT_NS: u64 = 10_000_000;
const SECOND_NS: u64 = 1_000_000_000;
const CREDIT: u64 = 64 << 10;

#[derive(Default)]
struct Counted(u64);

impl Source for Counted {
    fn read(&mut self, _extent: u64, _offset: u64, _into: &mut [u8]) {}
}

impl Sink for Counted {
    fn write(&mut self, _extent: u64, _offset: u64, bytes: &[u8]) {
        self.0 += bytes.len() as u64;
    }
}

fn address(host: u8) -> SocketAddr {
    (Ipv4Addr::new(192, 0, 2, host), 7000).into()
}

fn end(side: Side) -> Connection {
    let local: u8 = if side == Side::Client { 1 } else { 2 };
    let mut config = Config::new(address(3 - local), RTT_NS);
    (config.local_connection, config.peer_connection) = (local.into(), (3 - local).into());
    config.peer_is_validated = true;
    config.secret = [7; 32];
    config.limits.unconsumed_bytes = CREDIT;
    let protect = Box::new(Sealed::new(&[9; 32], side, Suite::Aes256Gcm));
    Connection::new(config, 1, protect, Mode::Fair.start(RTT_NS, 1e9))
}

/// Two ends without a path between them: what one sends has arrived, unless it is lost.
struct Pair {
    sender: Connection,
    receiver: Connection,
    arrived: Counted,
    now_ns: u64,
    sent_packets: u32,
}

impl Pair {
    fn new() -> Self {
        let (sender, receiver) = (end(Side::Client), end(Side::Server));
        Self { sender, receiver, arrived: Counted::default(), now_ns: 1, sent_packets: 0 }
    }

    /// Until `until_ns`; packets of the receiver are lost where `lost` says so.
    fn run(&mut self, until_ns: u64, lost: impl Fn(u64) -> bool) {
        let mut datagram = Vec::new();
        loop {
            while self
                .sender
                .transmit(self.now_ns, &mut Counted::default(), &mut datagram)
                .is_some()
            {
                self.sent_packets += 1;
                self.receiver.receive(
                    self.now_ns,
                    address(1),
                    false,
                    &mut datagram,
                    &mut self.arrived,
                );
            }
            while self
                .receiver
                .transmit(self.now_ns, &mut Counted::default(), &mut datagram)
                .is_some()
            {
                if !lost(self.now_ns) {
                    self.sender.receive(
                        self.now_ns,
                        address(2),
                        false,
                        &mut datagram,
                        &mut Counted::default(),
                    );
                }
            }
            let wakes = [self.sender.wake_ns(), self.receiver.wake_ns()];
            let next_ns = wakes.into_iter().flatten().min().unwrap_or(u64::MAX);
            if next_ns > until_ns {
                self.now_ns = until_ns;
                return;
            }
            self.now_ns = next_ns.max(self.now_ns + 1000);
        }
    }
}

#[test]
fn a_lost_report_of_credit_delays_the_sender_by_no_more_than_a_second() {
    let mut pair = Pair::new();
    pair.sender.send(2 * CREDIT);
    pair.run(3 * SECOND_NS, |_| false);
    assert_eq!(pair.arrived.0, CREDIT, "the credit holds");
    let (freed_ns, before) = (pair.now_ns, pair.arrived.0);
    pair.receiver.consumed(freed_ns, CREDIT);
    pair.run(freed_ns + 2 * SECOND_NS, |now_ns| now_ns < freed_ns + SECOND_NS / 2);
    assert_eq!(pair.arrived.0, before + CREDIT);
}

#[test]
fn a_sender_that_waits_long_for_credit_asks_a_few_times_a_second_at_most() {
    let mut pair = Pair::new();
    pair.sender.send(2 * CREDIT);
    pair.run(3 * SECOND_NS, |_| false);
    let before = pair.sent_packets;
    pair.run(63 * SECOND_NS, |_| false);
    assert_eq!(pair.arrived.0, CREDIT);
    let asked = pair.sent_packets - before;
    assert!((30..=240).contains(&asked), "{asked} packets in a minute");
}

#[test]
fn an_idle_connection_asks_for_no_credit() {
    let mut pair = Pair::new();
    pair.sender.send(CREDIT);
    pair.run(SECOND_NS, |_| false);
    let before = pair.sent_packets;
    pair.run(9 * SECOND_NS, |_| false);
    assert_eq!(pair.sent_packets, before);
}
