//! Benchmark code of `bench/wan_loopback.py`: a channel without files beside a plain TLS stream over TCP, on this
//! machine.
//!
//! Arrives: how many bytes, how large packets may be. Leaves: seconds. Must not know: who compares them.
//!
//! Both ends are in this process and send from one buffer: what is measured is what the two ways cost, not where data
//! is from.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustls::pki_types::ServerName;
use rustls::{ClientConnection, ServerConnection, StreamOwned};
use socket2::{Domain, Protocol, Type};
use waystage_protocol::congestion::coupled::Group;
use waystage_protocol::congestion::Mode;
use waystage_protocol::protect::{Side, Suite};
use waystage_transport::backpressure::Backpressure;
use waystage_transport::channel::Channel;
use waystage_transport::channel_connection::ChannelConnection;
use waystage_transport::endpoint::Endpoint;
use waystage_transport::error::Error;
use waystage_transport::identity::Identity;
use waystage_transport::message::{memory_of_each, CONTENT_BYTES, MEMORY_BYTES};
use waystage_transport::message_queue::MessageQueue;
use waystage_transport::parameters::TransportParameters;
use waystage_transport::socket::Socket;
use waystage_transport::tls::{self, random};
use waystage_transport::udp::UdpConnection;

/// Fail after this time without a byte.
const PATIENCE: Duration = Duration::from_secs(60);

/// What a call of the plain stream writes or reads.
const PIECE_BYTES: usize = 256 << 10;

/// What was measured of a connection over UDP.
#[derive(Debug, Clone, Copy)]
pub struct Measured {
    /// From the first byte given to the last one taken.
    pub seconds: f64,
    /// Bytes of UDP payload in use at the end.
    pub datagram_bytes: u64,
    /// Packets lost.
    pub lost_packets: u64,
    /// Packets sent.
    pub sent_packets: u64,
}

/// Send `bytes` over a number of connections, in datagrams of at most `largest_datagram` bytes.
pub fn datagrams(
    bytes: u64,
    largest_datagram: usize,
    mode: Mode,
    connections: u32,
) -> Result<Measured, Error> {
    let any = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
    let failed = |error: std::io::Error| Error::io("open a UDP socket", &error);
    let count = connections.max(1);
    let endpoint = Arc::new(Endpoint::bind(any, count as usize).map_err(failed)?);
    let address = endpoint.address().map_err(failed)?;
    let groups = [Side::Server, Side::Client].map(|_| (count > 1).then(Group::default));
    let secrets: Vec<[u8; 32]> = (0..count).map(|_| random()).collect();
    let parameters = |side: Side, member: u32| TransportParameters {
        secret: secrets[member as usize],
        suite: Suite::Aes256Gcm,
        side,
        local_connection: 2 * member + u32::from(side == Side::Client),
        peer_connection: 2 * member + u32::from(side == Side::Server),
        mode,
        rate_bps: 400e9,
        memory_bytes: memory_of_each(MEMORY_BYTES, count),
        rtt_ns: 100_000,
        largest_datagram,
        proved: None,
        group: groups[usize::from(side == Side::Client)].clone(),
    };
    let channel = |side: Side| -> Result<Channel, Error> {
        let (incoming, backpressure) =
            (Arc::new(MessageQueue::default()), Arc::new(Backpressure::default()));
        let member = |number: usize| {
            let to = (Arc::clone(&incoming), Arc::clone(&backpressure), number);
            let parameters = parameters(side, number as u32);
            let udp = match side {
                Side::Server => UdpConnection::accept(Arc::clone(&endpoint), parameters, to),
                Side::Client => Socket::bind(any, false)
                    .and_then(|socket| UdpConnection::connect(socket, parameters, address, to)),
            }
            .map_err(failed)?;
            if side == Side::Client && !udp.heard(PATIENCE) {
                let text = "nothing comes back over UDP on the loopback interface";
                return Err(Error::lost(text));
            }
            Ok(ChannelConnection::only_udp(udp, Arc::clone(&backpressure)))
        };
        let channel = Channel::new(Arc::clone(&incoming), Arc::clone(&backpressure), member(0)?);
        for _ in 1..count {
            channel.add(member)?;
        }
        Ok(channel)
    };
    let (receiver, sender) = (channel(Side::Server)?, channel(Side::Client)?);
    let began = Instant::now();
    std::thread::scope(|scope| {
        let sending = scope.spawn(|| {
            let mut left = bytes as usize;
            while left > 0 {
                // As the plain stream: what is sent is in memory already, and is filled once.
                let mut piece = sender.backpressure().buffer();
                piece.resize(left.min(CONTENT_BYTES), 0x5a);
                left -= piece.len();
                sender.send(piece)?;
            }
            Ok(())
        });
        let (mut left, mut heard) = (bytes, Instant::now());
        while left > 0 {
            match receiver.receive(PATIENCE)? {
                Some(message) => {
                    left = left.saturating_sub(message.length as u64);
                    receiver.done(message);
                    heard = Instant::now();
                }
                None if heard.elapsed() > PATIENCE => {
                    sender.end("the measurement has stopped");
                    return Err(Error::lost("the connection stands still"));
                }
                None => {}
            }
        }
        sending.join().unwrap_or_else(|_| Err(Error::Stopped("a thread panicked".into())))
    })?;
    let seconds = began.elapsed().as_secs_f64();
    let status = sender.status();
    receiver.end("the measurement is over");
    sender.end("the measurement is over");
    Ok(Measured {
        seconds,
        datagram_bytes: status.datagram_bytes,
        lost_packets: status.lost_packets,
        sent_packets: status.sent_packets,
    })
}

/// Send `bytes` over TLS and TCP with segments of at most `segment` bytes: the seconds it takes.
pub fn stream(bytes: u64, segment: u32) -> Result<f64, Error> {
    let failed = |error: std::io::Error| Error::io("measure TLS over TCP", &error);
    let identity = Identity::ephemeral()?;
    let server = tls::server(&identity)?;
    let (client, _) = tls::client(&identity, Some(identity.public.clone()), tls::ALPN)?;
    let listening =
        socket2::Socket::new(Domain::IPV4, Type::STREAM, Some(Protocol::TCP)).map_err(failed)?;
    listening.set_tcp_mss(segment).map_err(failed)?;
    listening.bind(&SocketAddr::from((Ipv4Addr::LOCALHOST, 0)).into()).map_err(failed)?;
    listening.listen(1).map_err(failed)?;
    let listener = TcpListener::from(listening);
    let address = listener.local_addr().map_err(failed)?;
    let connecting =
        socket2::Socket::new(Domain::IPV4, Type::STREAM, Some(Protocol::TCP)).map_err(failed)?;
    connecting.set_tcp_mss(segment).map_err(failed)?;
    connecting.connect(&address.into()).map_err(failed)?;
    let outgoing = TcpStream::from(connecting);
    let (incoming, _) = listener.accept().map_err(failed)?;
    for stream in [&outgoing, &incoming] {
        stream.set_read_timeout(Some(PATIENCE)).map_err(failed)?;
        stream.set_write_timeout(Some(PATIENCE)).map_err(failed)?;
    }
    let tls_failed = |error: rustls::Error| Error::lost(error.to_string());
    let receiving = ServerConnection::new(server).map_err(tls_failed)?;
    let name = ServerName::try_from("waystage.invalid")
        .map_err(|_| waystage_transport::error::protocol_violation())?;
    let sending = ClientConnection::new(client, name).map_err(tls_failed)?;
    let receiver = std::thread::spawn(move || -> std::io::Result<f64> {
        let mut stream = StreamOwned::new(receiving, incoming);
        let mut piece = vec![0; PIECE_BYTES];
        let mut left = bytes;
        let mut began = None;
        while left > 0 {
            let count = stream.read(&mut piece)?;
            began.get_or_insert_with(Instant::now);
            if count == 0 {
                return Err(std::io::ErrorKind::UnexpectedEof.into());
            }
            left = left.saturating_sub(count as u64);
        }
        Ok(began.map_or(0.0, |began| began.elapsed().as_secs_f64()))
    });
    let mut stream = StreamOwned::new(sending, outgoing);
    let piece = vec![0x5a_u8; PIECE_BYTES];
    let mut left = bytes as usize;
    while left > 0 {
        let count = left.min(PIECE_BYTES);
        stream.write_all(&piece[..count]).map_err(failed)?;
        left -= count;
    }
    stream.flush().map_err(failed)?;
    receiver.join().map_err(|_| Error::Stopped("a thread panicked".into()))?.map_err(failed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_ways_carry_what_they_are_given() {
        let measured = datagrams(20 << 20, 1472, Mode::Fair, 1).unwrap();
        assert!(measured.seconds > 0.0 && measured.sent_packets > 10_000);
        let three = datagrams(20 << 20, 1472, Mode::Fair, 3).unwrap();
        assert!(three.seconds > 0.0 && three.sent_packets > 10_000);
        assert!(stream(20 << 20, 1448).unwrap() > 0.0);
    }
}
