//! What a connection sends to an address that is not validated.

use std::net::{Ipv4Addr, SocketAddr};

use waystage_protocol::congestion::Mode;
use waystage_protocol::connection::{Config, Connection, Sink, Source};
use waystage_protocol::protect::{Sealed, Side, Suite};

const RTT_NS: u64 = 10_000_000;

struct Nothing;

impl Source for Nothing {
    fn read(&mut self, _extent: u64, _offset: u64, _into: &mut [u8]) {}
}

impl Sink for Nothing {
    fn write(&mut self, _extent: u64, _offset: u64, _bytes: &[u8]) {}
}

fn address(host: u8) -> SocketAddr {
    (Ipv4Addr::new(192, 0, 2, host), 7000).into()
}

fn end(side: Side, peer: SocketAddr, validated: bool) -> Connection {
    let local = if side == Side::Client { 1 } else { 2 };
    let mut config = Config::new(peer, RTT_NS);
    (config.local_connection, config.peer_connection) = (local, 3 - local);
    config.peer_is_validated = validated;
    config.secret = [7; 32];
    let protect = Box::new(Sealed::new(&[9; 32], side, Suite::Aes256Gcm));
    Connection::new(config, 1, protect, Mode::Fair.start(RTT_NS, 1e9))
}

/// Every datagram that an end sends now, and its destination.
fn transmitted(end: &mut Connection, now_ns: u64) -> Vec<(SocketAddr, Vec<u8>)> {
    let mut all = Vec::new();
    let mut datagram = Vec::new();
    while let Some(to) = end.transmit(now_ns, &mut Nothing, &mut datagram) {
        all.push((to, datagram.clone()));
    }
    all
}

#[test]
fn an_address_that_is_not_validated_gets_challenges_and_at_most_three_times_its_bytes() {
    let mut server = end(Side::Server, address(1), false);
    let mut client = end(Side::Client, address(2), true);
    client.local_address_changed(1);
    server.send(1 << 20);
    let mut now_ns = 1;
    let (mut received, mut sent) = (0, 0);
    for (_, mut ping) in transmitted(&mut client, now_ns) {
        received += ping.len();
        server.receive(now_ns, address(1), false, &mut ping, &mut Nothing);
    }
    let mut challenge = None;
    // The address sends nothing more: the bytes sent there stay bounded over time.
    for _ in 0..100 {
        for (to, datagram) in transmitted(&mut server, now_ns) {
            assert_eq!(to, address(1));
            sent += datagram.len();
            challenge.get_or_insert(datagram);
        }
        now_ns = server.wake_ns().unwrap().max(now_ns + 1);
        if now_ns > 20_000_000_000 {
            break;
        }
    }
    assert!(sent > 0 && sent <= 3 * received, "{sent} bytes for {received}");
    client.receive(now_ns, address(2), false, &mut challenge.unwrap(), &mut Nothing);
    for (_, mut response) in transmitted(&mut client, now_ns) {
        server.receive(now_ns, address(1), false, &mut response, &mut Nothing);
    }
    now_ns += RTT_NS;
    let sent: usize =
        transmitted(&mut server, now_ns).iter().map(|(_, datagram)| datagram.len()).sum();
    assert!(sent > 3 * received, "with the response the data flows");
}

#[test]
fn a_response_from_elsewhere_validates_nothing() {
    let mut server = end(Side::Server, address(1), false);
    let mut client = end(Side::Client, address(2), true);
    client.local_address_changed(1);
    server.send(1 << 20);
    for (_, mut ping) in transmitted(&mut client, 1) {
        server.receive(1, address(1), false, &mut ping, &mut Nothing);
    }
    let challenges = transmitted(&mut server, 1);
    for (_, mut challenge) in challenges {
        client.receive(2, address(2), false, &mut challenge, &mut Nothing);
    }
    for (_, mut response) in transmitted(&mut client, 2) {
        server.receive(3, address(3), false, &mut response, &mut Nothing);
    }
    let sent: usize =
        transmitted(&mut server, RTT_NS).iter().map(|(_, datagram)| datagram.len()).sum();
    assert!(sent < 200, "{sent} bytes");
}
