//! Coming to an understanding with a server: how fast, and by which way.
//!
//! Arrives: a server, what for. Leaves: a connection on which both ends agree, and a way for messages.
//! Must not know: what is done over it.
//!
//! Nothing waits for an answer that it does not need: with the end of the handshake goes all that the client has to say, and the
//! first packet over UDP beside it.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use waystage_protocol::congestion::coupled::Group;
use waystage_protocol::congestion::Mode;
use waystage_protocol::protect::Side;

use crate::control::Control;
use crate::error::WanError;
use crate::hello::{Hello, Purpose, Welcome};
use crate::identity::{Identity, PublicKey};
use crate::lane::{memory_of_each, Inbox, GO_ON};
use crate::member::{Member, Room};
use crate::reach::{reach, Server};
use crate::session::{expect, kinds};
use crate::socket::Socket;
use crate::tls;
use crate::udp::{Agreed, UdpLane, LARGEST_DATAGRAM};

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
pub(crate) struct Errand {
    pub(crate) purpose: Purpose,
    /// How the client calls the copy; zeros where it is none.
    pub(crate) copy: [u8; 16],
    /// Connections that it is to have.
    pub(crate) connections: u32,
    /// Memory of all of them for what is underway, at each end.
    pub(crate) memory_bytes: u64,
    /// Those of this end that send, where there are to be several.
    pub(crate) group: Option<Group>,
}

/// How a rate that several connections have together is divided: those of a group divide it themselves.
pub(crate) fn part_of(rate: u64, connections: u32, group: &Option<Group>) -> u64 {
    match group {
        Some(_) => rate,
        None => (rate / u64::from(connections.max(1))).max(1),
    }
}

/// The group, but for a mode that takes what it can: its connections take it each by themselves.
pub(crate) fn coupled(group: Option<Group>, mode: Mode) -> Option<Group> {
    group.filter(|_| mode != Mode::Aggressive)
}

/// A server that was reached, and that was told everything; what it answers is to come.
pub(crate) struct Dialled {
    pub(crate) control: Arc<Control>,
    /// Of what comes.
    pub(crate) inbox: Arc<Inbox>,
    pub(crate) server: SocketAddr,
    /// As far as this end knows.
    agreed: Agreed,
}

/// What the server has answered.
pub(crate) struct Welcomed {
    pub(crate) agreed: Agreed,
    /// Whether the server uses UDP.
    pub(crate) udp: bool,
    /// What the user should know: a mode that was not granted.
    pub(crate) note: Option<String>,
    /// Bytes a second at most.
    rate: u64,
    /// Connections that the copy may have.
    pub(crate) connections: u32,
}

/// Reach a server and say what is wanted: the hello, and `words` behind it. `begun` is given the connection as soon as there is one,
/// to end it from elsewhere; what comes over TLS goes to `inbox`.
pub(crate) fn dial(
    peer: &Peer,
    errand: &Errand,
    words: &[(u8, Vec<u8>)],
    inbox: Arc<Inbox>,
    begun: impl FnOnce(&Arc<Control>),
) -> Result<Dialled, WanError> {
    let reached = reach(&Server {
        host: &peer.host,
        port: peer.port,
        identity: &peer.identity,
        trusted: peer.trusted.as_ref(),
        alpn: tls::ALPN,
    })?;
    let keys = tls::packet_keys(&reached.tls)
        .ok_or_else(|| WanError::lost("the server's TLS gives no keys for packets"))?;
    let control = Control::start(reached.tls, reached.stream, Arc::clone(&inbox), GO_ON)?;
    let control = Arc::new(control);
    begun(&control);
    let rtt_ns = u64::try_from(reached.rtt.as_nanos()).unwrap_or(u64::MAX);
    let memory_bytes = memory_of_each(errand.memory_bytes, errand.connections);
    let hello = Hello {
        user: peer.user.clone(),
        mode: peer.mode,
        rate: peer.rate_bytes_per_s.unwrap_or(0),
        memory: memory_bytes,
        udp: peer.udp_wait.is_some(),
        rtt_ns,
        purpose: errand.purpose,
        copy: errand.copy,
        connections: errand.connections,
    };
    control.send(kinds::HELLO, &hello.encode());
    for (kind, body) in words {
        control.send(*kind, body);
    }
    let agreed = Agreed {
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
        group: errand.group.clone(),
    };
    Ok(Dialled { control, inbox, server: reached.address, agreed })
}

impl Dialled {
    /// What the server answered.
    pub(crate) fn welcomed(&self, peer: &Peer, body: &[u8]) -> Result<Welcomed, WanError> {
        let welcome = Welcome::read(body)?;
        let rate = peer.rate_bytes_per_s.unwrap_or(u64::MAX).min(welcome.rate);
        let connections = welcome.connections;
        let group = coupled(self.agreed.group.clone(), welcome.mode);
        let agreed = Agreed {
            mode: welcome.mode,
            rate_bps: part_of(rate, connections, &group) as f64 * 8.0,
            memory_bytes: self.agreed.memory_bytes.min(welcome.memory),
            group,
            ..self.agreed.clone()
        };
        let note = Some(welcome.note).filter(|note| !note.is_empty());
        Ok(Welcomed { agreed, udp: welcome.udp, note, rate, connections })
    }

    /// Wait for that answer.
    pub(crate) fn wait_for_welcome(&self, peer: &Peer) -> Result<Welcomed, WanError> {
        self.welcomed(peer, &expect(&self.control, kinds::WELCOME)?)
    }

    /// A member of a lane that says its first word over UDP now, if that is wanted.
    pub(crate) fn member(
        &self,
        peer: &Peer,
        room: &Arc<Room>,
        number: usize,
    ) -> Result<Member, WanError> {
        let udp = if peer.udp_wait.is_some() {
            let socket = Socket::bind(self.any(), false)
                .map_err(|error| WanError::io("open a UDP socket", &error))?;
            let to = (Arc::clone(&self.inbox), Arc::clone(room), number);
            let lane = UdpLane::call(socket, self.agreed.clone(), self.server, to);
            Some(lane.map_err(|error| WanError::io("begin a connection over UDP", &error))?)
        } else {
            None
        };
        let control = Arc::clone(&self.control);
        Ok(if number == 0 {
            Member::new(control, udp, Arc::clone(room))
        } else {
            Member::later(control, udp, Arc::clone(room))
        })
    }

    /// Find out which way is open and take it, once the server has answered. What the user should know.
    pub(crate) fn decide(
        &self,
        peer: &Peer,
        member: &Member,
        welcomed: &Welcomed,
    ) -> Option<String> {
        let mut note = self.without_udp(peer);
        if let (Some(wait), Some(udp), true) = (peer.udp_wait, member.udp(), welcomed.udp) {
            udp.settle(welcomed.agreed.clone());
            if udp.heard(wait) {
                member.choose(true);
                self.choose(true);
                return None;
            }
            if self.inbox.ended().is_some() {
                return None;
            }
            note = Some(self.blocked(peer, wait));
        }
        self.control.limit(welcomed.limit());
        self.choose(false);
        member.choose(false);
        note
    }

    /// The server is told which way is taken.
    pub(crate) fn choose(&self, udp: bool) {
        self.control.send(kinds::WAY, &[u8::from(udp)]);
    }

    /// What a socket for UDP to the server is to be bound to.
    pub(crate) fn any(&self) -> SocketAddr {
        if self.server.is_ipv4() {
            (std::net::Ipv4Addr::UNSPECIFIED, 0).into()
        } else {
            (std::net::Ipv6Addr::UNSPECIFIED, 0).into()
        }
    }

    /// What the user should know where UDP was not tried.
    pub(crate) fn without_udp(&self, peer: &Peer) -> Option<String> {
        let text = "the server does not use UDP: the data goes over TCP, which long and lossy paths slow down";
        peer.udp_wait.map(|_| text.to_owned())
    }

    /// What the user should know where nothing came back over UDP.
    pub(crate) fn blocked(&self, peer: &Peer, wait: Duration) -> String {
        format!(
            "nothing came back over UDP from {} within {:.0} s, so something on the way blocks it: the data goes over \
             TCP, which long and lossy paths slow down; have UDP port {} let through",
            self.server,
            wait.as_secs_f64(),
            peer.port
        )
    }
}

impl Welcomed {
    /// Bytes a second at most over TCP, which does not pace itself.
    pub(crate) fn limit(&self) -> Option<u64> {
        (self.rate < u64::MAX / 8).then(|| part_of(self.rate, self.connections, &None))
    }
}
