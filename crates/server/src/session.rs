//! One client's stay: let in by its key, told what it gets, served within its roots.

use std::net::{SocketAddr, TcpStream};
use std::path::PathBuf;
use std::sync::atomic::Ordering;
use std::sync::Arc;
use std::time::{Duration, Instant};

use waystage_catalog::Root;
use waystage_probe::{serve_stream, ProbeClient};
use waystage_protocol::protect::Side;
use waystage_proxy::{serve, Flow, Phase, Rights};
use waystage_remote_copy::{CopyState, Granted, Serving};
use waystage_transport::backpressure::Backpressure;
use waystage_transport::channel::Channel;
use waystage_transport::channel_connection::ChannelConnection;
use waystage_transport::control::{Control, RESUME_ADVICE};
use waystage_transport::control_messages::{expect_within, kinds, refusal};
use waystage_transport::endpoint::Endpoint;
use waystage_transport::error::{protocol_violation, Error};
use waystage_transport::handshake::accept::accept;
use waystage_transport::handshake::hello::Welcome;
use waystage_transport::identity::PublicKey;
use waystage_transport::message_queue::MessageQueue;
use waystage_transport::parameters::{TransportParameters, LARGEST_DATAGRAM};
use waystage_transport::tls::{self, Connection, PacketKeys};
use waystage_transport::udp::UdpConnection;

use crate::additional_connections::{carry, Offer};
use crate::dispatch::{service, Dispatcher, Grant, Register, Service, Work as Asked};
use crate::flow::Work;
use crate::options::User;
use crate::rights::find_root;
use crate::shared::{admit, Shared};
use crate::welcome::mode_of;

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
        match service(tls.alpn_protocol()) {
            Service::Session => self.session(tls, stream, &key),
            Service::Probe => self.probe(tls, stream, &key),
            Service::ProbeStream => {
                if self.shared.options.users.iter().any(|user| user.keys.contains(&key)) {
                    self.authenticated();
                }
                let stopped = || self.copy_state.is_stopped();
                serve_stream(&self.shared.probes, tls, &stream, &stopped)
            }
        }
    }

    fn dispatcher(&self) -> Dispatcher<'a, Arc<Channel>> {
        let shared: &'a Shared = self.shared;
        let (options, copies, udp) = (&shared.options, &shared.copies, shared.endpoint.is_some());
        Dispatcher { options, copies, udp }
    }

    fn session(
        &mut self,
        tls: Connection,
        stream: TcpStream,
        key: &PublicKey,
    ) -> Result<String, Error> {
        let keys = tls::packet_keys(&tls).ok_or_else(|| Error::lost("its TLS gives no keys"))?;
        let incoming = Arc::new(MessageQueue::default());
        let control = Arc::new(Control::start(tls, stream, Arc::clone(&incoming), RESUME_ADVICE)?);
        self.answered(&control, |handler| handler.welcomed(&control, &incoming, key, keys))
    }

    /// What `serve` does over this connection, which a server that stops ends. A client that still reads learns why it
    /// failed.
    fn answered(
        &mut self,
        control: &Arc<Control>,
        serve: impl FnOnce(&mut Self) -> Result<String, Error>,
    ) -> Result<String, Error> {
        if let Some(session) = self.shared.lock().get_mut(&self.id) {
            session.control = Some(Arc::clone(control));
        }
        let served = serve(self);
        if let Err(error) = &served {
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
        let hello = expect_within(control, kinds::HELLO, HANDSHAKE_TIME)?;
        let (dispatcher, from) = (self.dispatcher(), self.from.ip());
        let grant = dispatcher.session(&hello, key, from, self)?;
        let Grant { user, work, welcome, group, .. } = grant;
        incoming.allow(welcome.memory.saturating_mul(u64::from(welcome.connections)));
        let udp = self.shared.endpoint.as_ref().filter(|_| welcome.udp);
        let connections = welcome.connections;
        let parameters = TransportParameters {
            secret: keys.secret,
            suite: keys.suite,
            side: Side::Server,
            local_connection: keys.server_connection,
            peer_connection: keys.client_connection,
            mode: welcome.mode,
            rate_bps: grant.rate_bytes_per_s as f64 * 8.0,
            memory_bytes: welcome.memory,
            rtt_ns: grant.rtt_ns,
            largest_datagram: LARGEST_DATAGRAM,
            proved: Some(from),
            group: group.clone(),
        };
        let limit = grant.tls_bytes_per_s;
        let copy = match work {
            Asked::Copy(copy) => copy,
            Asked::Joins(joint) => {
                let offer = Offer { welcome, parameters, udp, limit };
                return carry(control, &joint, offer, self.copy_state);
            }
            Asked::Proxy => {
                control.send(kinds::WELCOME, &welcome.encode());
                let version = welcome.version;
                return self.proxy((control, incoming, version), (udp, parameters), limit, user);
            }
        };
        let backpressure = Arc::new(Backpressure::default());
        let channel = udp.and_then(|endpoint| {
            let to = (Arc::clone(incoming), Arc::clone(&backpressure), 0);
            UdpConnection::accept(Arc::clone(endpoint), parameters, to).ok()
        });
        let welcome = Welcome { udp: channel.is_some(), ..welcome };
        control.limit(limit);
        control.set_version(welcome.version);
        let first = ChannelConnection::new(Arc::clone(control), channel, Arc::clone(&backpressure));
        let channel = Arc::new(Channel::new(Arc::clone(incoming), backpressure, first));
        // From the welcome on the client may bring others.
        let open = self.shared.copies.open(copy, key, &channel, (group, connections));
        let _open = open.ok_or_else(protocol_violation)?;
        self.copy_state.limits.set_version(welcome.version);
        self.copy_state.carried_by(&channel);
        control.send(kinds::WELCOME, &welcome.encode());
        self.copy(control, &channel, user)
    }

    /// Carry the client's connections.
    fn proxy(
        &self,
        way: (&Arc<Control>, &Arc<MessageQueue>, u32),
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
        let (control, incoming, version) = way;
        let state = self.copy_state;
        state.limits.set_version(version);
        self.works(Work { push: false, proxy: true, tree: PathBuf::new() });
        let flow = Flow {
            limits: &state.limits,
            moved: &|bytes| state.pace.moved(bytes),
            limited: &|cause| state.set_limited_by(cause),
        };
        serve((control, incoming), datagrams, limit, &rights, &flow, phase, say)
    }

    /// A client that wants to measure the path.
    fn probe(
        &mut self,
        tls: Connection,
        stream: TcpStream,
        key: &PublicKey,
    ) -> Result<String, Error> {
        let tags = tls::probe_tags(&tls).ok_or_else(|| Error::lost("its TLS gives no tags"))?;
        let local = stream.local_addr().map_err(|error| Error::io("ask for an address", &error))?;
        let incoming = Arc::new(MessageQueue::default());
        let control = Arc::new(Control::start(tls, stream, incoming, "nothing more is measured")?);
        self.answered(&control, |handler| {
            let hello = expect_within(&control, kinds::HELLO, HANDSHAKE_TIME)?;
            let grant = handler.dispatcher().probe(&hello, key, handler)?;
            let copy_state = handler.copy_state;
            waystage_probe::serve(&ProbeClient {
                probes: &handler.shared.probes,
                control: &control,
                endpoint: handler.shared.endpoint.as_deref(),
                local,
                from: handler.from,
                tags,
                port: grant.port,
                rate: grant.rate_bytes_per_s,
                longest: handler.shared.options.probing.longest,
                stopped: &|| copy_state.is_stopped(),
            })
        })
    }

    /// From now on the session is a flow of this kind.
    fn works(&self, work: Work) {
        if let Some(session) = self.shared.lock().get_mut(&self.id) {
            session.work = Some(work);
        }
    }

    fn copy(&self, control: &Control, channel: &Channel, user: &User) -> Result<String, Error> {
        take_on(user)?;
        let options = &self.shared.options;
        let grant = |path: &[u8], write: bool| {
            let (shared_root, path) = find_root(&options.roots, path, user, write)?;
            let root = Root::open(&shared_root.path)
                .map_err(|error| Error::io("open the server's directory", &error))?;
            // What the client names below it may be a link to elsewhere.
            let tree = shared_root.path.clone();
            self.works(Work { push: write, proxy: false, tree });
            Ok(Granted { root, path, privileged: shared_root.privileged })
        };
        Ok(waystage_remote_copy::serve(&Serving {
            control,
            channel,
            copy_state: self.copy_state,
            user: &user.name,
            workers: options.workers,
            memory_bytes: options.memory_bytes,
            draining: &|| self.shared.draining.load(Ordering::SeqCst),
            say: &|line| self.shared.say(format!("{} {line}", self.who)),
            grant: &grant,
            mode: &|asked| mode_of(options, (user, self.from.ip()), asked),
        })?)
    }
}

impl Register for SessionHandler<'_> {
    fn identified(&mut self, user: &User) {
        self.who = format!("{}@{}", user.name, self.from);
    }

    /// Others may have its place among the handshakes.
    fn authenticated(&mut self) {
        self.is_in = true;
        self.shared.entrance().admission.authenticated(self.id, Instant::now());
        if let Some(session) = self.shared.lock().get_mut(&self.id) {
            session.stream = None;
        }
    }

    fn admit(&mut self, user: &User) -> Result<(), Error> {
        self.authenticated();
        let mut sessions = self.shared.lock();
        admit(&self.shared.options, &mut sessions, self.id, user)?;
        if let Some(session) = sessions.get_mut(&self.id) {
            session.copy_state.limits.set_own(self.shared.limit(&user.name));
        }
        self.shared.grant(&sessions);
        Ok(())
    }

    fn limit(&self, user: &str) -> Option<u64> {
        self.shared.limit(user)
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
