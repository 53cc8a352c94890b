//! What is sent to an address before its owner has shown to be there.

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

fn end(side: Side, peer: SocketAddr, proved: bool) -> Connection {
    let local = if side == Side::Client { 1 } else { 2 };
    let mut config = Config::new(peer, RTT_NS);
    (config.local_connection, config.peer_connection) = (local, 3 - local);
    config.peer_is_validated = proved;
    config.secret = [7; 32];
    let protect = Box::new(Sealed::new(&[9; 32], side, Suite::Aes256Gcm));
    Connection::new(config, 1, protect, Mode::Fair.start(RTT_NS, 1e9))
}

/// All that an end has to say now, and where to.
fn said(end: &mut Connection, now_ns: u64) -> Vec<(SocketAddr, Vec<u8>)> {
    let mut all = Vec::new();
    let mut datagram = Vec::new();
    while let Some(to) = end.transmit(now_ns, &mut Nothing, &mut datagram) {
        all.push((to, datagram.clone()));
    }
    all
}

#[test]
fn an_address_that_was_not_shown_gets_challenges_and_no_more_than_three_times_what_came() {
    let mut server = end(Side::Server, address(1), false);
    let mut client = end(Side::Client, address(2), true);
    client.local_address_changed(1);
    server.send(1 << 20);
    let mut now_ns = 1;
    let (mut came, mut went) = (0, 0);
    for (_, mut ping) in said(&mut client, now_ns) {
        came += ping.len();
        server.receive(now_ns, address(1), false, &mut ping, &mut Nothing);
    }
    let mut challenge = None;
    // Whoever is there says nothing more: what is sent stays bounded, whatever time passes.
    for _ in 0..100 {
        for (to, datagram) in said(&mut server, now_ns) {
            assert_eq!(to, address(1));
            went += datagram.len();
            challenge.get_or_insert(datagram);
        }
        now_ns = server.wake_ns().unwrap().max(now_ns + 1);
        if now_ns > 20_000_000_000 {
            break;
        }
    }
    assert!(went > 0 && went <= 3 * came, "{went} bytes for {came}");
    client.receive(now_ns, address(2), false, &mut challenge.unwrap(), &mut Nothing);
    for (_, mut response) in said(&mut client, now_ns) {
        server.receive(now_ns, address(1), false, &mut response, &mut Nothing);
    }
    now_ns += RTT_NS;
    let sent: usize = said(&mut server, now_ns).iter().map(|(_, datagram)| datagram.len()).sum();
    assert!(sent > 3 * came, "with the answer the data flows");
}

#[test]
fn an_answer_from_elsewhere_or_a_guessed_one_shows_nothing() {
    let mut server = end(Side::Server, address(1), false);
    let mut client = end(Side::Client, address(2), true);
    client.local_address_changed(1);
    server.send(1 << 20);
    for (_, mut ping) in said(&mut client, 1) {
        server.receive(1, address(1), false, &mut ping, &mut Nothing);
    }
    let challenges = said(&mut server, 1);
    for (_, mut challenge) in challenges {
        client.receive(2, address(2), false, &mut challenge, &mut Nothing);
    }
    for (_, mut response) in said(&mut client, 2) {
        server.receive(3, address(3), false, &mut response, &mut Nothing);
    }
    let sent: usize = said(&mut server, RTT_NS).iter().map(|(_, datagram)| datagram.len()).sum();
    assert!(sent < 200, "{sent} bytes");
}
