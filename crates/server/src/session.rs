//! One client's stay: let in by its key, told what it gets, served within its roots.

use std::net::{SocketAddr, TcpStream};
use std::sync::atomic::Ordering;
use std::sync::Arc;
use std::time::{Duration, Instant};

use waystage_catalog::Root;
use waystage_probe::{hello, serve_stream, ProbeClient};
use waystage_protocol::congestion::coupled::Group;
use waystage_protocol::protect::Side;
use waystage_proxy::{serve, Phase, Rights};
use waystage_remote_copy::{CopyState, Granted, Serving};
use waystage_transport::backpressure::Backpressure;
use waystage_transport::channel::Channel;
use waystage_transport::channel_connection::ChannelConnection;
use waystage_transport::control::{Control, RESUME_ADVICE};
use waystage_transport::control_messages::{expect_within, kinds, refusal};
use waystage_transport::endpoint::Endpoint;
use waystage_transport::error::{protocol_violation, Error};
use waystage_transport::handshake::accept::accept;
use waystage_transport::handshake::client::{coupled, part_of};
use waystage_transport::handshake::hello::{Hello, Purpose, Welcome};
use waystage_transport::identity::PublicKey;
use waystage_transport::message_queue::MessageQueue;
use waystage_transport::parameters::{TransportParameters, LARGEST_DATAGRAM};
use waystage_transport::tls::{self, Connection, PacketKeys};
use waystage_transport::udp::UdpConnection;

use crate::additional_connections::{carry, Offer};
use crate::connection_limits;
use crate::options::{User, NO_CAP_BYTES_PER_S};
use crate::rights::{find_root, find_user};
use crate::shared::Shared;
use crate::welcome::{cap, welcome};

/// A client that is slower in its handshake is turned away.
const HANDSHAKE_TIME: Duration = Duration::from_secs(10);

/// One client's stay.
pub(crate) struct SessionHandler<'a> {
    pub(crate) shared: &'a Shared,
    pub(crate) id: u64,
    pub(crate) from: SocketAddr,
    pub(crate) copy_state: &'a CopyState,
    /// How the log calls it.
    pub(crate) who: String,
    /// Whether it is through its handshake and known.
    pub(crate) is_in: bool,
}

impl<'a> SessionHandler<'a> {
    pub(crate) fn serve(&mut self, stream: TcpStream) -> Result<String, Error> {
        let (tls, key) = accept(&self.shared.tls, &stream, HANDSHAKE_TIME)?;
        let what = tls.alpn_protocol().map(<[u8]>::to_vec).unwrap_or_default();
        if what == tls::PROBE_ALPN {
            return self.probed(tls, stream, &key);
        }
        if what == tls::STREAM_ALPN {
            if self.shared.options.users.iter().any(|user| user.keys.contains(&key)) {
                self.authenticated();
            }
            let stopped = || self.copy_state.is_stopped();
            return serve_stream(&self.shared.probes, tls, &stream, &stopped);
        }
        let keys = tls::packet_keys(&tls).ok_or_else(|| Error::lost("its TLS gives no keys"))?;
        let incoming = Arc::new(MessageQueue::default());
        let control = Arc::new(Control::start(tls, stream, Arc::clone(&incoming), RESUME_ADVICE)?);
        if let Some(session) = self.shared.lock().get_mut(&self.id) {
            session.control = Some(Arc::clone(&control));
        }
        let served = self.welcomed(&control, &incoming, &key, keys);
        if let Err(error) = &served {
            // A client that still reads learns the reason.
            control.send(kinds::REFUSED, &refusal(error));
        }
        control.close();
        served
    }

    fn welcomed(
        &mut self,
        control: &Arc<Control>,
        incoming: &Arc<MessageQueue>,
        key: &PublicKey,
        keys: PacketKeys,
    ) -> Result<String, Error> {
        let options = &self.shared.options;
        let hello = expect_within(control, kinds::HELLO, HANDSHAKE_TIME)?;
        let (hello, version) = Hello::read(&hello)?;
        let user = find_user(&self.shared.options.users, &hello.user, key)?;
        self.who = format!("{}@{}", user.name, self.from);
        if hello.purpose != Purpose::More {
            self.admit(user)?;
        }
        let endpoint = self.shared.endpoint.as_ref();
        let asked = (&hello, version);
        let welcome = welcome(options, (user, self.from.ip()), asked, endpoint.is_some());
        let udp = endpoint.filter(|_| welcome.udp);
        let Welcome { mode, connections, memory, .. } = welcome;
        let joint = match hello.purpose {
            Purpose::More => Some(self.shared.copies.join(hello.copy, key)?),
            _ => None,
        };
        let group = match &joint {
            Some(joint) => joint.group.clone(),
            None => coupled((connections > 1).then(Group::default), mode),
        };
        incoming.allow(memory.saturating_mul(u64::from(connections)));
        let wanted = if hello.rate == 0 { u64::MAX } else { hello.rate };
        let limit = welcome.rate.min(wanted);
        let parameters = TransportParameters {
            secret: keys.secret,
            suite: keys.suite,
            side: Side::Server,
            local_connection: keys.server_connection,
            peer_connection: keys.client_connection,
            mode,
            rate_bps: part_of(limit, connections, &group) as f64 * 8.0,
            memory_bytes: memory,
            rtt_ns: hello.rtt_ns.min(10_000_000_000),
            largest_datagram: LARGEST_DATAGRAM,
            proved: Some(self.from.ip()),
            group: group.clone(),
        };
        let limit = (limit < NO_CAP_BYTES_PER_S).then(|| part_of(limit, connections, &None));
        if let Some(joint) = joint {
            self.authenticated();
            return carry(
                control,
                &joint,
                Offer { welcome, parameters, udp, limit },
                self.copy_state,
            );
        }
        if hello.purpose == Purpose::Proxy {
            control.send(kinds::WELCOME, &welcome.encode());
            // Its session keeps what holds now.
            let now = self.shared.limit(&user.name);
            let limit = [limit, now].into_iter().flatten().min();
            let rate_bps =
                now.map_or(parameters.rate_bps, |now| parameters.rate_bps.min(now as f64 * 8.0));
            let parameters = TransportParameters { rate_bps, ..parameters };
            return self.proxy((control, incoming), (udp, parameters), limit, user);
        }
        let backpressure = Arc::new(Backpressure::default());
        let channel = udp.and_then(|endpoint| {
            let to = (Arc::clone(incoming), Arc::clone(&backpressure), 0);
            UdpConnection::accept(Arc::clone(endpoint), parameters, to).ok()
        });
        let welcome = Welcome { udp: channel.is_some(), ..welcome };
        control.limit(limit);
        let first = ChannelConnection::new(Arc::clone(control), channel, Arc::clone(&backpressure));
        let channel = Arc::new(Channel::new(Arc::clone(incoming), backpressure, first));
        // From the welcome on the client may bring others.
        let open = self.shared.copies.open(hello.copy, key, &channel, (group, connections));
        let _open = open.ok_or_else(protocol_violation)?;
        control.send(kinds::WELCOME, &welcome.encode());
        self.copy(control, &channel, user)
    }

    /// Carry the client's connections.
    fn proxy(
        &self,
        way: (&Arc<Control>, &Arc<MessageQueue>),
        datagrams: (Option<&Arc<Endpoint>>, TransportParameters),
        limit: Option<u64>,
        user: &User,
    ) -> Result<String, Error> {
        take_on(user)?;
        let rights = Rights { reach: &user.reach, listen: &user.listen };
        let phase = || {
            if self.copy_state.is_cancelled() {
                Phase::Stopping
            } else if self.shared.draining.load(Ordering::SeqCst) {
                Phase::Draining
            } else {
                Phase::Running
            }
        };
        let say = |line: String| self.shared.say(format!("{} {line}", self.who));
        serve(way, datagrams, limit, &rights, phase, say)
    }

    /// A client that wants to measure the path.
    fn probed(
        &mut self,
        tls: Connection,
        stream: TcpStream,
        key: &PublicKey,
    ) -> Result<String, Error> {
        let tags = tls::probe_tags(&tls).ok_or_else(|| Error::lost("its TLS gives no tags"))?;
        let local = stream.local_addr().map_err(|error| Error::io("ask for an address", &error))?;
        let incoming = Arc::new(MessageQueue::default());
        let control = Arc::new(Control::start(tls, stream, incoming, "nothing more is measured")?);
        if let Some(session) = self.shared.lock().get_mut(&self.id) {
            session.control = Some(Arc::clone(&control));
        }
        let served = self.probing(&control, key, local, tags);
        if let Err(error) = &served {
            control.send(kinds::REFUSED, &refusal(error));
        }
        control.close();
        served
    }

    fn probing(
        &mut self,
        control: &Arc<Control>,
        key: &PublicKey,
        local: SocketAddr,
        tags: [u64; 2],
    ) -> Result<String, Error> {
        let shared: &'a Shared = self.shared;
        let rules = &shared.options.probing;
        let (name, port) = hello(&expect_within(control, kinds::HELLO, HANDSHAKE_TIME)?)?;
        let user = find_user(&shared.options.users, &name, key)?;
        self.who = format!("{}@{}", user.name, self.from);
        if !rules.users.contains(&user.name) {
            return Err(Error::Denied(format!(
                    "the server does not let {} probe: ask its administrator for `probe = true` in its configuration",
                    user.name
                ),
            ));
        }
        self.admit(user)?;
        let copy_state = self.copy_state;
        waystage_probe::serve(&ProbeClient {
            probes: &shared.probes,
            control,
            endpoint: shared.endpoint.as_deref(),
            local,
            from: self.from,
            tags,
            port,
            rate: cap(&shared.options, user)
                .min(shared.limit(&user.name).unwrap_or(u64::MAX))
                .min(rules.rate_bytes_per_s.unwrap_or(u64::MAX)),
            longest: rules.longest,
            stopped: &|| copy_state.is_stopped(),
        })
    }

    /// The handshake is over, and has shown a user: others may have its place.
    pub(crate) fn authenticated(&mut self) {
        self.is_in = true;
        self.shared.entrance().admission.authenticated(self.id, Instant::now());
        if let Some(session) = self.shared.lock().get_mut(&self.id) {
            session.stream = None;
        }
    }

    fn admit(&mut self, user: &User) -> Result<(), Error> {
        self.authenticated();
        let options = &self.shared.options;
        let mut sessions = self.shared.lock();
        let held = sessions.values().filter_map(|session| session.user.as_deref());
        if let Some(why) =
            connection_limits::refuses((options.connections, &options.users), held, user)
        {
            return Err(Error::Busy(format!("{why}: try again when one has ended")));
        }
        if let Some(session) = sessions.get_mut(&self.id) {
            session.user = Some(user.name.clone());
            session.copy_state.limits.set_own(self.shared.limit(&user.name));
        }
        Ok(())
    }

    fn copy(&self, control: &Control, channel: &Channel, user: &User) -> Result<String, Error> {
        take_on(user)?;
        let options = &self.shared.options;
        let grant = |path: &[u8], write: bool| {
            let (shared_root, path) = find_root(&options.roots, path, user, write)?;
            let root = Root::open(&shared_root.path)
                .map_err(|error| Error::io("open the server's directory", &error))?;
            Ok(Granted { root, path, privileged: shared_root.privileged })
        };
        Ok(waystage_remote_copy::serve(&Serving {
            control,
            channel,
            copy_state: self.copy_state,
            user: &user.name,
            workers: options.workers,
            memory_bytes: options.memory_bytes,
            grant: &grant,
        })?)
    }
}

/// From here on this thread, and those that it starts, act as the user's account.
fn take_on(user: &User) -> Result<(), Error> {
    let Some(account) = &user.account else { return Ok(()) };
    account.take_on().map_err(|error| {
        Error::Failed(format!(
            "the server cannot act as the account {} that it has for {}: {error}",
            account.uid, user.name
        ))
    })
}
