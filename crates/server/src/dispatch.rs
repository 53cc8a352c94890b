//! Dispatch of a client: the service that it asks for, the user that it acts for, what it is granted.
//!
//! Arrives: the protocol that the TLS handshake agreed on, a hello, the client's key and address. Leaves: a grant, or
//! an error for the client. Must not know: sockets, threads, how a service works.

use std::net::IpAddr;

use waystage_probe::Hello as ProbeHello;
use waystage_protocol::congestion::coupled::Group;
use waystage_transport::error::Error;
use waystage_transport::handshake::client::{coupled, part_of};
use waystage_transport::handshake::hello::{Hello, Purpose, Welcome};
use waystage_transport::identity::PublicKey;
use waystage_transport::tls;

use crate::copies::{Copies, Joint, Name};
use crate::options::{ServerOptions, User, NO_CAP_BYTES_PER_S};
use crate::rights::find_user;
use crate::welcome::{cap, welcome};

/// The longest round trip that a client's word is taken for.
const MOST_RTT_NS: u64 = 10_000_000_000;

/// What a connection is for, as the TLS handshake tells.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Service {
    /// A copy, a further connection of one, or a proxy: the hello tells which.
    Session,
    /// A probe of the path.
    Probe,
    /// A TCP stream of a probe that is running.
    ProbeStream,
}

/// The service of an application protocol (ALPN, RFC 7301).
pub(crate) fn service(alpn: Option<&[u8]>) -> Service {
    match alpn {
        Some(tls::PROBE_ALPN) => Service::Probe,
        Some(tls::STREAM_ALPN) => Service::ProbeStream,
        _ => Service::Session,
    }
}

/// Where the server keeps books on its clients.
pub(crate) trait Register {
    /// The client is this user.
    fn identified(&mut self, user: &User);

    /// The handshake is over; the connection does not count as one of a user's.
    fn authenticated(&mut self);

    /// The handshake is over; the connection is one of the user's, if the user gets one more.
    fn admit(&mut self, user: &User) -> Result<(), Error>;

    /// Bytes/s that a connection of this user may carry for now, where that was said.
    fn limit(&self, user: &str) -> Option<u64>;
}

/// What a client is granted on its hello.
pub(crate) struct Grant<'a, C> {
    pub(crate) user: &'a User,
    pub(crate) work: Work<C>,
    pub(crate) welcome: Welcome,
    pub(crate) group: Option<Group>,
    /// Bytes/s of this connection over UDP.
    pub(crate) rate_bytes_per_s: u64,
    /// Bytes/s of this connection over TLS, where it is limited.
    pub(crate) tls_bytes_per_s: Option<u64>,
    /// The round-trip time as the client found it.
    pub(crate) rtt_ns: u64,
}

/// The work of a connection.
pub(crate) enum Work<C> {
    /// Begins the copy of this name.
    Copy(Name),
    /// One more connection of a copy.
    Joins(Joint<C>),
    Proxy,
}

/// A probe that a client is granted.
pub(crate) struct ProbeGrant {
    /// Where the client listens for UDP.
    pub(crate) port: u16,
    pub(crate) rate_bytes_per_s: u64,
}

/// Grants services by the server's options; `C` carries a copy's messages.
pub(crate) struct Dispatcher<'a, C> {
    pub(crate) options: &'a ServerOptions,
    pub(crate) copies: &'a Copies<C>,
    /// Whether the server has a UDP socket.
    pub(crate) udp: bool,
}

impl<'a, C: Clone> Dispatcher<'a, C> {
    /// The grant for a hello of [`Service::Session`].
    pub(crate) fn session(
        &self,
        hello: &[u8],
        key: &PublicKey,
        from: IpAddr,
        register: &mut impl Register,
    ) -> Result<Grant<'a, C>, Error> {
        let (hello, version) = Hello::read(hello)?;
        let version = version.min(self.options.newest_version);
        let user = find_user(&self.options.users, &hello.user, key)?;
        register.identified(user);
        let work = match hello.purpose {
            Purpose::More => {
                let joint = self.copies.join(hello.copy, key)?;
                register.authenticated();
                Work::Joins(joint)
            }
            Purpose::Copy | Purpose::Proxy => {
                register.admit(user)?;
                if hello.purpose == Purpose::Proxy {
                    Work::Proxy
                } else {
                    Work::Copy(hello.copy)
                }
            }
        };
        let welcome = welcome(self.options, (user, from), (&hello, version), self.udp);
        let connections = welcome.connections;
        let group = match &work {
            Work::Joins(joint) => joint.group.clone(),
            _ => coupled((connections > 1).then(Group::default), welcome.mode),
        };
        let wanted = if hello.rate == 0 { u64::MAX } else { hello.rate };
        let limit = welcome.rate.min(wanted);
        // The session of a proxy keeps what holds now.
        let now = match work {
            Work::Proxy => register.limit(&user.name),
            _ => None,
        };
        let tls_limit = (limit < NO_CAP_BYTES_PER_S).then(|| part_of(limit, connections, &None));
        Ok(Grant {
            rate_bytes_per_s: part_of(limit, connections, &group).min(now.unwrap_or(u64::MAX)),
            tls_bytes_per_s: [tls_limit, now].into_iter().flatten().min(),
            rtt_ns: hello.rtt_ns.min(MOST_RTT_NS),
            user,
            work,
            welcome,
            group,
        })
    }

    /// The grant for a hello of [`Service::Probe`].
    pub(crate) fn probe(
        &self,
        hello: &[u8],
        key: &PublicKey,
        register: &mut impl Register,
    ) -> Result<ProbeGrant, Error> {
        let rules = &self.options.probing;
        let ProbeHello { user: name, port } = ProbeHello::read(hello)?;
        let user = find_user(&self.options.users, &name, key)?;
        register.identified(user);
        if !rules.users.contains(&user.name) {
            return Err(Error::Denied(format!(
                "the server does not let {} probe: ask its administrator for `probe = true` in its configuration",
                user.name
            )));
        }
        register.admit(user)?;
        let rate_bytes_per_s = cap(self.options, user)
            .min(register.limit(&user.name).unwrap_or(u64::MAX))
            .min(rules.rate_bytes_per_s.unwrap_or(u64::MAX));
        Ok(ProbeGrant { port, rate_bytes_per_s })
    }
}

#[cfg(test)]
mod tests;
