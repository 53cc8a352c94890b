//! Coming to an understanding with a server: how fast, and by which way.
//!
//! Arrives: a server, what for. Leaves: a connection on which both ends agree, and a lane of messages.
//! Must not know: what is done over it.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use waystage_protocol::modes::ModeName;
use waystage_protocol::protect::Side;

use crate::control::Control;
use crate::endpoint::Endpoint;
use crate::error::WanError;
use crate::identity::{Identity, PublicKey};
use crate::lane::{Inbox, Lane, GO_ON, MEMORY_BYTES};
use crate::reach::{reach, Server};
use crate::session::{expect, kinds, random, Hello, Opening, Purpose, Welcome};
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
    pub mode: ModeName,
    /// Bytes a second at most; None for no limit.
    pub rate_bytes_per_s: Option<u64>,
    /// How long to wait for an answer over UDP; None to do without UDP.
    pub udp_wait: Option<Duration>,
}

/// A server that was reached.
pub(crate) struct Dialled {
    pub(crate) control: Arc<Control>,
    /// Of what comes over the TLS connection.
    pub(crate) inbox: Arc<Inbox>,
    pub(crate) agreed: Agreed,
    pub(crate) server: SocketAddr,
    /// Whether the server uses UDP.
    pub(crate) udp: bool,
    /// What the user should know: a mode that was not granted.
    pub(crate) note: Option<String>,
    /// Bytes a second at most.
    pub(crate) rate: u64,
}

/// Reach a server. `begun` is given the connection as soon as there is one, to end it from elsewhere.
pub(crate) fn dial(
    peer: &Peer,
    purpose: Purpose,
    begun: impl FnOnce(&Arc<Control>),
) -> Result<Dialled, WanError> {
    let (tls, stream, server) = reach(&Server {
        host: &peer.host,
        port: peer.port,
        identity: &peer.identity,
        trusted: peer.trusted.as_ref(),
        alpn: tls::ALPN,
    })?;
    let (secret, suite) = tls::packet_keys(&tls)
        .ok_or_else(|| WanError::lost("the server's TLS gives no keys for packets"))?;
    let inbox = Arc::new(Inbox::default());
    let control = Arc::new(Control::start(tls, stream, Arc::clone(&inbox), GO_ON)?);
    begun(&control);
    let connection = u32::from_be_bytes(random());
    let hello = Hello {
        user: peer.user.clone(),
        mode: peer.mode,
        rate: peer.rate_bytes_per_s.unwrap_or(0),
        memory: MEMORY_BYTES,
        connection,
        udp: peer.udp_wait.is_some(),
    };
    let asked = Instant::now();
    control.send(kinds::HELLO, &hello.encode());
    let welcome = Welcome::read(&expect(&control, kinds::WELCOME)?)?;
    let rtt_ns = u64::try_from(asked.elapsed().as_nanos()).unwrap_or(u64::MAX);
    let rate = peer.rate_bytes_per_s.unwrap_or(u64::MAX).min(welcome.rate);
    let agreed = Agreed {
        secret,
        suite,
        side: Side::Client,
        local_connection: connection,
        peer_connection: welcome.connection,
        mode: welcome.mode,
        rate_bps: rate as f64 * 8.0,
        memory_bytes: MEMORY_BYTES.min(welcome.memory),
        rtt_ns,
        largest_datagram: LARGEST_DATAGRAM,
    };
    control.send(kinds::OPEN, &Opening { rtt_ns, purpose }.encode());
    let note = Some(welcome.note).filter(|note| !note.is_empty());
    Ok(Dialled { control, inbox, agreed, server, udp: welcome.udp, note, rate })
}

impl Dialled {
    /// Messages over UDP, or over TCP where nothing comes back over UDP; then a sentence says so.
    pub(crate) fn lane(&self, peer: &Peer) -> Result<(Lane, Option<String>), WanError> {
        let Some(wait) = peer.udp_wait.filter(|_| self.udp) else {
            return Ok((self.over_tcp(), self.without_udp(peer)));
        };
        let endpoint = Endpoint::bind(self.any(), false)
            .map(Arc::new)
            .map_err(|error| WanError::io("open a UDP socket", &error))?;
        // What goes wrong before UDP was heard is no end of the connection.
        let trial = Arc::new(Inbox::default());
        let lane =
            UdpLane::start(endpoint, self.agreed.clone(), Some(self.server), Arc::clone(&trial))
                .ok_or_else(|| WanError::lost("no thread can be started for the connection"))?;
        if lane.heard(wait) {
            self.choose(true);
            // The end of the one is the end of the other.
            return Ok((Lane::udp(trial, lane), None));
        }
        drop(lane);
        Ok((self.over_tcp(), Some(self.blocked(peer, wait))))
    }

    fn over_tcp(&self) -> Lane {
        self.choose(false);
        self.control.limit(self.limit());
        Lane::tcp(Arc::clone(&self.inbox), Arc::clone(&self.control))
    }

    /// Bytes a second at most over TCP, which does not pace itself.
    pub(crate) fn limit(&self) -> Option<u64> {
        (self.rate < u64::MAX / 8).then_some(self.rate)
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
