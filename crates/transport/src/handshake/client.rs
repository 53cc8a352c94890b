//! The client's handshake: offers, the server's answer, and the choice between UDP and TCP.
//!
//! Arrives: a server, what for. Leaves: a connection on which both ends agree, and a way for messages.
//! Must not know: what is done over it.
//!
//! Nothing waits for an answer that it does not need: with the end of the handshake goes all that the client has to
//! say, and the first packet over UDP beside it.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use waystage_protocol::congestion::coupled::Group;
use waystage_protocol::congestion::Mode;
use waystage_protocol::protect::Side;

use crate::backpressure::Backpressure;
use crate::channel_connection::ChannelConnection;
use crate::control::{Control, RESUME_ADVICE};
use crate::control_messages::{expect, kinds};
use crate::error::Error;
use crate::handshake::connect::{connect, ConnectTarget};
use crate::handshake::hello::{Hello, Purpose, Welcome};
use crate::identity::{Identity, PublicKey};
use crate::message::memory_of_each;
use crate::message_queue::MessageQueue;
use crate::parameters::{TransportParameters, LARGEST_DATAGRAM};
use crate::socket::Socket;
use crate::tls;
use crate::udp::UdpConnection;

/// A server, and as whom and how to speak with it.
#[derive(Debug, Clone)]
pub struct Peer {
    /// A name or an address.
    pub host: String,
    /// TCP and UDP.
    pub port: u16,
    /// As whom.
    pub user: String,
    /// With which key.
    pub identity: Identity,
    /// The server's key, where it is known.
    pub trusted: Option<PublicKey>,
    /// How fast to send, if the server grants it.
    pub mode: Mode,
    /// Bytes a second at most; None for no limit.
    pub rate_bytes_per_s: Option<u64>,
    /// How long to wait for an answer over UDP; None to do without UDP.
    pub udp_wait: Option<Duration>,
}

/// What a connection is for, and of which copy.
#[derive(Debug, Clone)]
pub struct SessionRequest {
    /// What the session is for.
    pub purpose: Purpose,
    /// How the client calls the copy; zeros where it is none.
    pub copy: [u8; 16],
    /// Connections that it is to have.
    pub connections: u32,
    /// Memory of all of them for what is in flight, at each end.
    pub memory_bytes: u64,
    /// Those of this end that send, where there are to be several.
    pub group: Option<Group>,
}

/// How a rate that several connections have together is divided: those of a group divide it themselves.
pub fn part_of(rate: u64, connections: u32, group: &Option<Group>) -> u64 {
    match group {
        Some(_) => rate,
        None => (rate / u64::from(connections.max(1))).max(1),
    }
}

/// The group, but for a mode that takes what it can: its connections take it each by themselves.
pub fn coupled(group: Option<Group>, mode: Mode) -> Option<Group> {
    group.filter(|_| mode != Mode::Aggressive)
}

/// A handshake whose hello was sent; the server's answer is to come.
pub struct ClientHandshake {
    /// The TLS connection.
    pub control: Arc<Control>,
    /// Of what comes.
    pub incoming: Arc<MessageQueue>,
    /// Where the server was found.
    pub server: SocketAddr,
    /// As far as this end knows.
    parameters: TransportParameters,
}

/// What the server has answered.
pub struct Negotiated {
    /// Parameters that both ends agree on.
    pub parameters: TransportParameters,
    /// Whether the server uses UDP.
    pub udp: bool,
    /// What the user should know: a mode that was not granted.
    pub note: Option<String>,
    /// Bytes a second at most.
    rate: u64,
    /// Connections that the copy may have.
    pub connections: u32,
    /// The version of the protocol that both ends speak.
    pub version: u32,
}

/// Reach a server and say what is wanted: the hello, and `words` behind it. `begun` is given the connection as soon as
/// there is one, to end it from elsewhere; what comes over TLS goes to `incoming`.
pub fn start_handshake(
    peer: &Peer,
    session_request: &SessionRequest,
    words: &[(u8, Vec<u8>)],
    incoming: Arc<MessageQueue>,
    begun: impl FnOnce(&Arc<Control>),
) -> Result<ClientHandshake, Error> {
    let reached = connect(&ConnectTarget {
        host: &peer.host,
        port: peer.port,
        identity: &peer.identity,
        trusted: peer.trusted.as_ref(),
        alpn: tls::ALPN,
    })?;
    let keys = tls::packet_keys(&reached.tls)
        .ok_or_else(|| Error::lost("the server's TLS gives no keys for packets"))?;
    let control =
        Control::start(reached.tls, reached.stream, Arc::clone(&incoming), RESUME_ADVICE)?;
    let control = Arc::new(control);
    begun(&control);
    let rtt_ns = u64::try_from(reached.rtt.as_nanos()).unwrap_or(u64::MAX);
    let memory_bytes = memory_of_each(session_request.memory_bytes, session_request.connections);
    let hello = Hello {
        user: peer.user.clone(),
        mode: peer.mode,
        rate: peer.rate_bytes_per_s.unwrap_or(0),
        memory: memory_bytes,
        udp: peer.udp_wait.is_some(),
        rtt_ns,
        purpose: session_request.purpose,
        copy: session_request.copy,
        connections: session_request.connections,
    };
    control.send(kinds::HELLO, &hello.encode());
    for (kind, body) in words {
        control.send(*kind, body);
    }
    let parameters = TransportParameters {
        secret: keys.secret,
        suite: keys.suite,
        side: Side::Client,
        local_connection: keys.client_connection,
        peer_connection: keys.server_connection,
        mode: peer.mode,
        rate_bps: peer.rate_bytes_per_s.unwrap_or(u64::MAX) as f64 * 8.0,
        memory_bytes,
        rtt_ns,
        largest_datagram: LARGEST_DATAGRAM,
        // Who dials chose the address.
        proved: None,
        group: session_request.group.clone(),
    };
    Ok(ClientHandshake { control, incoming, server: reached.address, parameters })
}

impl ClientHandshake {
    /// What the server answered.
    pub fn welcomed(&self, peer: &Peer, body: &[u8]) -> Result<Negotiated, Error> {
        Negotiated::read(&self.parameters, peer.rate_bytes_per_s, body)
    }

    /// Wait for that answer.
    pub fn wait_for_welcome(&self, peer: &Peer) -> Result<Negotiated, Error> {
        self.welcomed(peer, &expect(&self.control, kinds::WELCOME)?)
    }

    /// A member of a channel that says its first word over UDP now, if that is wanted.
    pub fn member(
        &self,
        peer: &Peer,
        backpressure: &Arc<Backpressure>,
        number: usize,
    ) -> Result<ChannelConnection, Error> {
        let udp = if peer.udp_wait.is_some() {
            let socket = Socket::bind(self.any(), false)
                .map_err(|error| Error::io("open a UDP socket", &error))?;
            let to = (Arc::clone(&self.incoming), Arc::clone(backpressure), number);
            let channel = UdpConnection::connect(socket, self.parameters.clone(), self.server, to);
            Some(channel.map_err(|error| Error::io("begin a connection over UDP", &error))?)
        } else {
            None
        };
        let control = Arc::clone(&self.control);
        Ok(if number == 0 {
            ChannelConnection::new(control, udp, Arc::clone(backpressure))
        } else {
            ChannelConnection::later(control, udp, Arc::clone(backpressure))
        })
    }

    /// Find out which way is open and take it, once the server has answered. What the user should know.
    pub fn decide(
        &self,
        peer: &Peer,
        member: &ChannelConnection,
        welcomed: &Negotiated,
    ) -> Option<String> {
        self.control.set_version(welcomed.version);
        let mut note = self.without_udp(peer);
        if let (Some(wait), Some(udp), true) = (peer.udp_wait, member.udp(), welcomed.udp) {
            udp.update_parameters(welcomed.parameters.clone());
            if udp.heard(wait) {
                member.choose(true);
                self.choose(true);
                return None;
            }
            if self.incoming.ended().is_some() {
                return None;
            }
            note = Some(self.blocked(peer, wait));
        }
        self.control.limit(welcomed.limit());
        self.choose(false);
        member.choose(false);
        note
    }

    /// Tell the server which way is taken.
    pub fn choose(&self, udp: bool) {
        self.control.send(kinds::WAY, &[u8::from(udp)]);
        if udp {
            self.control.be_patient();
        }
    }

    /// What a socket for UDP to the server is to be bound to.
    pub fn any(&self) -> SocketAddr {
        if self.server.is_ipv4() {
            (std::net::Ipv4Addr::UNSPECIFIED, 0).into()
        } else {
            (std::net::Ipv6Addr::UNSPECIFIED, 0).into()
        }
    }

    /// What the user should know where UDP was not tried.
    pub fn without_udp(&self, peer: &Peer) -> Option<String> {
        let text = "the server does not use UDP: the data goes over TCP, which long and lossy paths slow down";
        peer.udp_wait.map(|_| text.to_owned())
    }

    /// What the user should know where nothing came back over UDP.
    pub fn blocked(&self, peer: &Peer, wait: Duration) -> String {
        format!(
            "nothing came back over UDP from {} within {:.0} s, so something on the way blocks it: the data goes over \
             TCP, which long and lossy paths slow down; have UDP port {} let through",
            self.server,
            wait.as_secs_f64(),
            peer.port
        )
    }
}

impl Negotiated {
    /// The server's welcome in `body` applied to what the client offered.
    fn read(offered: &TransportParameters, rate: Option<u64>, body: &[u8]) -> Result<Self, Error> {
        let welcome = Welcome::read(body)?;
        let rate = rate.unwrap_or(u64::MAX).min(welcome.rate);
        let connections = welcome.connections;
        let group = coupled(offered.group.clone(), welcome.mode);
        let parameters = TransportParameters {
            mode: welcome.mode,
            rate_bps: part_of(rate, connections, &group) as f64 * 8.0,
            memory_bytes: offered.memory_bytes.min(welcome.memory),
            group,
            ..offered.clone()
        };
        let note = Some(welcome.note).filter(|note| !note.is_empty());
        let version = welcome.version;
        Ok(Self { parameters, udp: welcome.udp, note, rate, connections, version })
    }

    /// Bytes a second at most over TCP, which does not pace itself.
    pub fn limit(&self) -> Option<u64> {
        (self.rate < u64::MAX / 8).then(|| part_of(self.rate, self.connections, &None))
    }
}

#[cfg(test)]
mod tests {
    use waystage_protocol::protect::Suite;

    use super::*;

    fn offered(group: Option<Group>) -> TransportParameters {
        TransportParameters {
            secret: [7; 32],
            suite: Suite::Aes256Gcm,
            side: Side::Client,
            local_connection: 1,
            peer_connection: 2,
            mode: Mode::Aggressive,
            rate_bps: 8000.0,
            memory_bytes: 1 << 24,
            rtt_ns: 100_000,
            largest_datagram: LARGEST_DATAGRAM,
            proved: None,
            group,
        }
    }

    fn welcome(mode: Mode, rate: u64) -> Welcome {
        let note = String::new();
        Welcome { version: 2, mode, note, rate, memory: 1 << 20, udp: true, connections: 4 }
    }

    #[test]
    fn neither_end_exceeds_what_the_other_allows() {
        let read = |ours, theirs: &Welcome| {
            Negotiated::read(&offered(None), ours, &theirs.encode()).unwrap()
        };
        let granted = read(Some(1000), &welcome(Mode::Fair, 4000));
        assert_eq!((granted.parameters.mode, granted.note.as_deref()), (Mode::Fair, None));
        assert_eq!((granted.parameters.rate_bps, granted.limit()), (2000.0, Some(250)));
        assert_eq!(granted.parameters.memory_bytes, 1 << 20);
        let granted = read(None, &Welcome { memory: u64::MAX, ..welcome(Mode::Fair, 4000) });
        assert_eq!((granted.parameters.rate_bps, granted.limit()), (8000.0, Some(1000)));
        assert_eq!(granted.parameters.memory_bytes, 1 << 24);
        assert_eq!(read(None, &welcome(Mode::Fair, u64::MAX)).limit(), None);
        let none = Welcome { connections: 0, ..welcome(Mode::Fair, 0) };
        assert_eq!(read(None, &none).limit(), Some(1), "a rate of zero would never end");
    }

    #[test]
    fn connections_of_a_group_share_its_rate_and_aggressive_ones_take_theirs_each() {
        for (mode, together, rate_bps) in
            [(Mode::Fair, true, 8000.0), (Mode::Aggressive, false, 2000.0)]
        {
            let body = welcome(mode, 1000).encode();
            let granted = Negotiated::read(&offered(Some(Group::default())), None, &body).unwrap();
            assert_eq!(
                (granted.parameters.group.is_some(), granted.parameters.rate_bps),
                (together, rate_bps)
            );
            assert_eq!(granted.limit(), Some(250), "TCP knows no groups");
        }
    }

    #[test]
    fn a_welcome_cut_short_or_of_another_version_is_refused() {
        let read = |body: &[u8]| Negotiated::read(&offered(None), None, body).map(|_| ());
        let body = welcome(Mode::Fair, 1000).encode();
        for length in 0..body.len() {
            assert!(read(&body[..length]).is_err(), "{length} bytes");
        }
        assert!(read(&Welcome { version: 9, ..welcome(Mode::Fair, 1) }.encode()).is_err());
        assert!(read(&body).is_ok());
    }
}
