//! The server's end of a proxy session: destinations that a user may connect to, addresses that it may listen at.
//!
//! Arrives: a carrier, rules, what the client wants listened at. Leaves: records of connections. Must not know: how the
//! client was let in.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::{Duration, Instant};

use waystage_pacing::Cause;
use waystage_protocol::protect::Side;
use waystage_transport::control::Control;
use waystage_transport::control_messages::{expect, kinds, ANSWER_TIME};
use waystage_transport::endpoint::Endpoint;
use waystage_transport::error::{protocol_violation, Error};
use waystage_transport::flow_limits::FlowLimits;
use waystage_transport::handshake::client::ClientHandshake;
use waystage_transport::message_queue::MessageQueue;
use waystage_transport::parameters::TransportParameters;
use waystage_transport::stats::Recent;
use waystage_transport::waker::Waker;
use waystage_transport::wire::{Read, Reader, Writer};

use crate::destination::Host;
use crate::engine::{Engine, Phase, Settings};
use crate::listener::{Kind, Place};
use crate::record::{Counts, Notice, Record};
use crate::rules::{Rule, Rules, Verdict};
use crate::session_transport::SessionTransport;
use crate::sockets::Sockets;

/// Between two judgements of what limits the session.
const STATUS_TIME: Duration = Duration::from_millis(500);

/// Reverse forwards of one client at most.
const MOST_PLACES: usize = 256;

/// What a user may do.
pub struct Rights<'a> {
    /// Destinations that it may connect to.
    pub reach: &'a [Rule],
    /// Addresses that the server may listen at for it.
    pub listen: &'a [Rule],
}

/// The limits of a session, and where its bytes are counted.
pub struct Flow<'a> {
    /// What both ends want now.
    pub limits: &'a FlowLimits,
    /// Is given the bytes that programs sent and received since the last call.
    pub moved: &'a dyn Fn(u64),
    /// Is given what limits the session, as far as this end knows.
    pub limited: &'a dyn Fn(Option<Cause>),
}

/// Addresses with ports, as text.
pub(super) fn put_addresses(addresses: &[SocketAddr]) -> Vec<u8> {
    let mut out = Writer::default();
    out.count(addresses.len());
    for address in addresses {
        out.bytes(address.to_string().as_bytes());
    }
    out.0
}

pub(super) fn read_addresses(bytes: &[u8]) -> Result<Vec<SocketAddr>, Error> {
    let mut reader = Reader(bytes);
    let mut read = || -> Read<Vec<SocketAddr>> {
        let count = reader.count(4)?;
        let address = |_| reader.text()?.parse().map_err(|_| waystage_transport::wire::Malformed);
        (0..count.min(MOST_PLACES + 1)).map(address).collect()
    };
    read().map_err(|_| protocol_violation())
}

/// Serve a client's connections until it goes, `wish` says so, or it is lost; a line for the log.
pub fn serve(
    (control, incoming): (&Arc<Control>, &Arc<MessageQueue>),
    (endpoint, parameters): (Option<&Arc<Endpoint>>, TransportParameters),
    limit: Option<u64>,
    rights: &Rights<'_>,
    flow: &Flow<'_>,
    phase: impl Fn() -> Phase,
    say: impl Fn(String),
) -> Result<String, Error> {
    let failed = |error: std::io::Error| Error::io("begin a session", &error);
    let (rtt_ns, memory_bytes) = (parameters.rtt_ns, parameters.memory_bytes);
    let (shared, received) = (Arc::clone(control), Arc::clone(incoming));
    let mut transport = match endpoint {
        Some(endpoint) => {
            SessionTransport::shared(Arc::clone(endpoint), parameters, shared, received)
        }
        None => SessionTransport::tcp(shared, received, rtt_ns, limit),
    }
    .map_err(failed)?;
    let chosen = transport.until(ANSWER_TIME, |transport| {
        let said = transport.control().receive(std::time::Duration::ZERO);
        match said {
            Ok(None) => None,
            Ok(Some((kinds::WAY, body))) => Some(Ok(body.first() == Some(&1))),
            Ok(Some(_)) => Some(Err(protocol_violation())),
            Err(error) => Some(Err(error)),
        }
    });
    let over_udp = chosen.unwrap_or_else(|| Err(Error::lost("the peer does not answer")))?;
    if over_udp && !transport.heard() {
        return Err(protocol_violation());
    }
    if !over_udp {
        transport = transport.over_tcp(limit);
    }
    let settings = Settings {
        rules: Rules {
            rules: rights.reach.to_vec(),
            otherwise: Verdict::Deny,
            here: Verdict::Allow,
        },
        side: Side::Server,
        reverse: Vec::new(),
        wait: std::time::Duration::ZERO,
        memory_bytes,
    };
    let waker = Arc::new(Waker::new().map_err(failed)?);
    let counts = Arc::new(Counts::default());
    let mut engine = Engine::new(Sockets::new(waker)?, settings, Arc::clone(&counts));
    let places = read_addresses(&expect(control, kinds::PROXY)?)?;
    let bound = listen(&mut engine, &places, rights)?;
    control.send(kinds::ACCEPTED, &put_addresses(&bound));
    engine.attach_session(transport).map_err(failed)?;
    let way = if over_udp { "UDP" } else { "TCP" };
    say(format!("proxy over {way}, {} reverse forwards", bound.len()));
    let told = |engine: &mut Engine| {
        for notice in engine.notices() {
            if let Notice::Connection(record) = notice {
                say(line(&record));
            }
        }
    };
    let mut lost = None;
    let (mut moved, mut recent, mut judged) = (0, Recent::default(), Instant::now());
    loop {
        engine.clear_wakers();
        let wanted = phase();
        engine.pace(flow.limits);
        // Without a session nothing wakes it when another phase begins.
        let most = (!engine.has_session()).then_some(STATUS_TIME);
        lost = engine.turn(wanted, most).or(lost);
        let bytes = counts.bytes();
        (flow.moved)(bytes - std::mem::replace(&mut moved, bytes));
        if judged.elapsed() > STATUS_TIME {
            judged = Instant::now();
            let (received, sent) = counts.both();
            let held = engine.status().map(|status| status.held_ns);
            (flow.limited)(held.and_then(|held| recent.cause(judged, &held, (sent, received))));
        }
        told(&mut engine);
        if wanted == Phase::Stopping || (wanted == Phase::Draining && engine.is_drained()) {
            engine.finish("the server is being stopped");
            told(&mut engine);
        }
        if !engine.has_session() && engine.is_empty() {
            break;
        }
    }
    let Some(why) = lost else {
        return Ok("proxy has ended: the server is being stopped".to_owned());
    };
    let count = |name: &str| {
        counts.by_name().iter().find(|(other, _)| *other == name).map_or(0, |found| found.1)
    };
    Ok(format!(
        "proxy over {way} has ended: {} connections, {} bytes there, {} back: {why}",
        count("connections"),
        count("sent_bytes"),
        count("received_bytes"),
    ))
}

fn line(record: &Record) -> String {
    format!("proxy: {record}")
}

fn listen(
    engine: &mut Engine,
    places: &[SocketAddr],
    rights: &Rights<'_>,
) -> Result<Vec<SocketAddr>, Error> {
    let listen = rights.listen.to_vec();
    let rules = Rules { rules: listen, otherwise: Verdict::Deny, here: Verdict::Allow };
    if places.len() > MOST_PLACES {
        return Err(protocol_violation());
    }
    let mut bound = Vec::new();
    for (index, place) in places.iter().enumerate() {
        if let Some(why) = denied(&rules, *place) {
            return Err(Error::Denied(format!(
                    "the server does not let this user listen at {place}{why}: ask its administrator to add it to the user's \
                     proxy_listen"
                ),
            ));
        }
        let kind = Kind::Reverse(u32::try_from(index).unwrap_or(u32::MAX));
        let address = engine.listen(&Place { listen: *place, kind }).map_err(|error| {
            Error::Busy(format!(
                "the server cannot listen at {place}: {error}: choose another address or port"
            ))
        })?;
        bound.push(address);
    }
    Ok(bound)
}

/// Why a client may not have this host listen there, if it may not.
fn denied(rules: &Rules, place: SocketAddr) -> Option<String> {
    let mut taken = vec![place.ip().to_canonical()];
    if place.ip() == std::net::Ipv6Addr::UNSPECIFIED {
        // The kernel takes connections over IPv4 there as well.
        taken.push(std::net::Ipv4Addr::UNSPECIFIED.into());
    }
    // Each place to listen at is this host's own.
    let judge = |ip: IpAddr| rules.judge(&Host::Address(ip), None, place.port(), &|_| false);
    let judged = taken.into_iter().map(|ip| (ip, judge(ip)));
    let (ip, judged) = judged.into_iter().find(|(_, judged)| judged.verdict != Verdict::Allow)?;
    let also = if ip == place.ip().to_canonical() {
        String::new()
    } else {
        format!(", where it would take connections of {ip} too")
    };
    Some(also + &judged.remedy())
}

/// What both ends say before streams are opened, from the client's side; where the server listens.
pub(super) fn agree(
    handshake: &ClientHandshake,
    places: &[SocketAddr],
) -> Result<Vec<SocketAddr>, Error> {
    handshake.control.send(kinds::PROXY, &put_addresses(places));
    read_addresses(&expect(&handshake.control, kinds::ACCEPTED)?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn addresses_are_read_as_they_were_written() {
        let addresses: Vec<SocketAddr> =
            ["127.0.0.1:0", "[::1]:65535"].iter().map(|text| text.parse().unwrap()).collect();
        assert_eq!(read_addresses(&put_addresses(&addresses)).unwrap(), addresses);
    }

    #[test]
    fn a_place_to_listen_at_is_judged_as_the_kernel_takes_it() {
        let rules = |lines: &[&str]| Rules {
            rules: lines.iter().map(|line| line.parse().unwrap()).collect(),
            otherwise: Verdict::Deny,
            here: Verdict::Allow,
        };
        let loopback = rules(&["allow 127.0.0.1:8000"]);
        let wide = rules(&["allow *", "allow 0.0.0.0/0"]);
        let six = rules(&["allow [::]"]);
        let every = rules(&["allow [::]", "allow 0.0.0.0"]);
        for (rules, place, may) in [
            (&loopback, "127.0.0.1:8000", true),
            (&loopback, "[::ffff:127.0.0.1]:8000", true),
            (&loopback, "127.0.0.1:8001", false),
            (&loopback, "0.0.0.0:8000", false),
            (&loopback, "[::]:8000", false),
            (&loopback, "[::1]:8000", false),
            (&loopback, "[::ffff:0.0.0.0]:8000", false),
            (&wide, "192.0.2.1:80", true),
            (&wide, "0.0.0.0:80", false),
            (&wide, "127.0.0.1:80", false),
            (&wide, "[::]:80", false),
            (&six, "[::]:80", false),
            (&every, "[::]:80", true),
            (&every, "0.0.0.0:80", true),
        ] {
            assert_eq!(denied(rules, place.parse().unwrap()).is_none(), may, "{place}");
        }
    }

    proptest! {
        #[test]
        fn no_bytes_make_a_reader_panic(bytes in prop::collection::vec(any::<u8>(), 0..100)) {
            let _ = read_addresses(&bytes);
        }
    }
}
