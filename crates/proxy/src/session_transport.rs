//! Moves a session's messages: over UDP, or over the TLS connection where UDP is blocked.
//!
//! Arrives: messages to send, what the network has. Leaves: messages; whether more may be given; when to look again.
//! Must not know: what messages say.
//!
//! Messages are taken only as they can leave soon, so that those of a quiet stream do not wait behind a busy one's.

use std::net::SocketAddr;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::event::{poll, PollFd, PollFlags, Timespec};
use waystage_pacing::{Limiter, Turn};
use waystage_protocol::connection::{codes, Connection};
use waystage_transport::clock::now_ns;
use waystage_transport::control::Control;
use waystage_transport::datagram_receiver::DatagramReceiver;
use waystage_transport::endpoint::Endpoint;
use waystage_transport::flow_limits::{tell, FlowLimits, FlowRequest, CONTROLS_VERSION};
use waystage_transport::link::{status_of, Link, MessageEvent, GAVE_UP};
use waystage_transport::message::Message;
use waystage_transport::message_queue::MessageQueue;
use waystage_transport::parameters::TransportParameters;
use waystage_transport::socket::Socket;
use waystage_transport::stats::Status;
use waystage_transport::waker::Waker;

use crate::network::Transport;

/// Messages that may be in flight. An interactive program's are of some bytes each.
const MOST_IN_FLIGHT: usize = 1 << 14;

/// Kept free of them for messages without bytes of streams.
const IN_FLIGHT_RESERVE: usize = 1 << 10;

/// What may wait to leave: as much as leaves in this time, but neither less nor more than these.
const WAITING: Duration = Duration::from_millis(2);
const LEAST_WAITING_BYTES: u64 = 64 << 10;
const MOST_WAITING_BYTES: u64 = 1 << 20;

/// What may wait to be written to the TLS connection.
const TCP_WAITING_BYTES: usize = 256 << 10;

/// How long a close may take: one half until the peer has all messages, the other until it has answered.
const CLOSE_TIME: Duration = Duration::from_secs(2);

struct Udp {
    link: Link,
    receiver: DatagramReceiver,
    heard: bool,
}

/// Over the TLS connection, which has its own thread.
struct Tcp {
    /// What was agreed on, and what holds for now; messages leave at the pace of the lower one.
    limiter: Limiter,
    free_from: Instant,
}

impl Tcp {
    fn limited_to(limit: Option<u64>) -> Self {
        let (mut limiter, now) = (Limiter::default(), Instant::now());
        limiter.set_limit(now, limit);
        Self { limiter, free_from: now }
    }

    /// When the next message may leave, unless it is paused.
    fn look(&mut self, now: Instant) {
        self.free_from = match self.limiter.look(now) {
            Turn::Wait(left) => now + left,
            Turn::Go | Turn::Paused => now,
        };
    }
}

enum Way {
    Udp(Box<Udp>),
    Tcp(Tcp),
}

/// Messages both ways, for one thread to own.
pub(super) struct SessionTransport {
    way: Way,
    control: Arc<Control>,
    incoming: Arc<MessageQueue>,
    waker: Arc<Waker>,
    /// As the handshake found it.
    rtt_ns: u64,
    ended: Option<String>,
    /// What the peer has heard of this end's limits, and what holds.
    told: FlowRequest,
    held: Option<u64>,
}

impl SessionTransport {
    /// Over UDP at a server, which learns the client's address from the first packet that opens.
    pub(super) fn shared(
        endpoint: Arc<Endpoint>,
        parameters: TransportParameters,
        control: Arc<Control>,
        incoming: Arc<MessageQueue>,
    ) -> std::io::Result<Self> {
        let receiver = DatagramReceiver::registered(
            endpoint,
            parameters.local_connection,
            Arc::new(Waker::new()?),
        )?;
        Ok(Self::over_udp(receiver, parameters, control, incoming))
    }

    /// Over UDP at a client, which says the first word.
    pub(super) fn own(
        socket: Socket,
        parameters: TransportParameters,
        server: SocketAddr,
        control: Arc<Control>,
        incoming: Arc<MessageQueue>,
    ) -> std::io::Result<Self> {
        let receiver = DatagramReceiver::dedicated(socket, Arc::new(Waker::new()?));
        let mut transport = Self::over_udp(receiver, parameters, control, incoming);
        if let Way::Udp(udp) = &mut transport.way {
            udp.link.call(server);
        }
        Ok(transport)
    }

    fn over_udp(
        receiver: DatagramReceiver,
        parameters: TransportParameters,
        control: Arc<Control>,
        incoming: Arc<MessageQueue>,
    ) -> Self {
        let (waker, rtt_ns) = (Arc::clone(receiver.waker()), parameters.rtt_ns);
        incoming.set_waker(Arc::clone(&waker));
        let link = Link::new(Arc::clone(receiver.socket()), parameters, MOST_IN_FLIGHT);
        let way = Way::Udp(Box::new(Udp { link, receiver, heard: false }));
        Self {
            way,
            control,
            incoming,
            waker,
            rtt_ns,
            ended: None,
            told: FlowRequest::default(),
            held: None,
        }
    }

    /// Over the TLS connection, with a rate limit in bytes a second.
    pub(super) fn tcp(
        control: Arc<Control>,
        incoming: Arc<MessageQueue>,
        rtt_ns: u64,
        limit: Option<u64>,
    ) -> std::io::Result<Self> {
        let waker = Arc::new(Waker::new()?);
        incoming.set_waker(Arc::clone(&waker));
        let way = Way::Tcp(Tcp::limited_to(limit));
        Ok(Self {
            way,
            control,
            incoming,
            waker,
            rtt_ns,
            ended: None,
            told: FlowRequest::default(),
            held: None,
        })
    }

    /// The same session without UDP.
    pub(super) fn over_tcp(self, limit: Option<u64>) -> Self {
        Self { way: Way::Tcp(Tcp::limited_to(limit)), ended: None, ..self }
    }

    /// Rings when there is something to do.
    pub(super) fn waker(&self) -> &Waker {
        &self.waker
    }

    /// Has datagrams when it can be read, beside the waker.
    pub(super) fn socket(&self) -> Option<&Socket> {
        match &self.way {
            Way::Udp(udp) => udp.receiver.watched(),
            Way::Tcp(_) => None,
        }
    }

    pub(super) fn is_udp(&self) -> bool {
        matches!(self.way, Way::Udp(_))
    }

    pub(super) fn control(&self) -> &Arc<Control> {
        &self.control
    }

    /// Whether the peer was heard over UDP.
    pub(super) fn heard(&self) -> bool {
        matches!(&self.way, Way::Udp(udp) if udp.heard)
    }

    /// Keep it going without streams until `done` says something, or for at most `time`.
    pub(super) fn until<T>(
        &mut self,
        time: Duration,
        mut done: impl FnMut(&mut Self) -> Option<T>,
    ) -> Option<T> {
        let deadline = Instant::now() + time;
        let (mut came, mut free) = (Vec::new(), Vec::new());
        loop {
            self.waker.clear();
            self.receive(&mut came, &mut free);
            if let Some(said) = done(self) {
                return Some(said);
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() || self.ended().is_some() {
                return None;
            }
            while self.transmit() {}
            let rest = self.rests_for().map_or(left, |rest| rest.min(left));
            let timeout = Timespec::try_from(rest).ok();
            let watched = [Some(self.waker.as_fd()), self.socket().map(AsFd::as_fd)];
            let mut fds: Vec<PollFd<'_>> = watched
                .into_iter()
                .flatten()
                .map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN))
                .collect();
            let _ = poll(&mut fds, timeout.as_ref());
        }
    }
}

impl SessionTransport {
    /// Send no faster than this from now on; None for what was agreed on, 0 for a pause.
    fn limit(&mut self, bytes_per_s: Option<u64>) {
        match &mut self.way {
            Way::Udp(udp) => udp.link.limit(bytes_per_s),
            Way::Tcp(tcp) => {
                let now = Instant::now();
                tcp.limiter.set_paused(now, bytes_per_s == Some(0));
                tcp.limiter.set_rate(now, bytes_per_s.filter(|rate| *rate > 0));
                tcp.look(now);
                self.control.hold(bytes_per_s.filter(|rate| *rate == 0));
            }
        }
    }
}

impl Transport for SessionTransport {
    fn rtt_ns(&self) -> u64 {
        match &self.way {
            Way::Udp(udp) => udp.link.connection().map_or(self.rtt_ns, |c| c.rtt().smoothed_ns()),
            Way::Tcp(_) => self.rtt_ns,
        }
    }

    fn ended(&self) -> Option<String> {
        self.ended.clone().or_else(|| self.incoming.ended())
    }

    fn has_place(&self) -> bool {
        match &self.way {
            Way::Udp(udp) => {
                udp.link.connection().is_some() && udp.link.in_flight() < MOST_IN_FLIGHT
            }
            Way::Tcp(_) => true,
        }
    }

    fn has_room(&self) -> bool {
        match &self.way {
            Way::Udp(udp) => udp.link.connection().is_some_and(|connection| {
                let soon = connection.controller().control().rate_bps / 8.0 * WAITING.as_secs_f64();
                let most = (soon as u64).clamp(LEAST_WAITING_BYTES, MOST_WAITING_BYTES);
                connection.unsent_bytes() < most
                    && udp.link.in_flight() < MOST_IN_FLIGHT - IN_FLIGHT_RESERVE
            }),
            Way::Tcp(tcp) => {
                !tcp.limiter.is_paused()
                    && Instant::now() >= tcp.free_from
                    && self.control.waiting_bytes() < TCP_WAITING_BYTES
            }
        }
    }

    fn send(&mut self, message: Vec<u8>) {
        match &mut self.way {
            Way::Udp(udp) => udp.link.send(message),
            Way::Tcp(tcp) => {
                let now = Instant::now();
                tcp.limiter.owe(now, message.len() as u64);
                tcp.look(now);
                self.control.offer_bulk(&message);
            }
        }
    }

    fn receive(&mut self, came: &mut Vec<Message>, free: &mut Vec<Vec<u8>>) {
        match &mut self.way {
            Way::Udp(udp) => {
                let Udp { link, receiver, heard } = &mut **udp;
                *heard |= link.receive_from(receiver).heard;
                if let Some(how) = udp.link.broken() {
                    self.ended.get_or_insert(format!("the peer broke the protocol: {how}"));
                }
                let mut bytes = 0;
                while let Some(happened) = udp.link.next_event() {
                    match happened {
                        MessageEvent::Delivered(message) => free.push(message),
                        MessageEvent::Received(message) => {
                            bytes += message.length as u64;
                            came.push(message);
                        }
                        MessageEvent::Control(_) => {
                            let why = "the peer broke the protocol: it says what no session has";
                            self.ended.get_or_insert_with(|| why.to_owned());
                        }
                        MessageEvent::Closed(why, _) => {
                            self.ended.get_or_insert(why);
                        }
                    }
                }
                // What streams hold is bounded by their windows.
                udp.link.consumed(bytes);
            }
            Way::Tcp(_) => {
                let before = came.len();
                while let Some(message) = self.incoming.take(Duration::ZERO) {
                    self.incoming.done(message.length);
                    came.push(message);
                }
                if came.len() > before {
                    // There is memory again: the TLS connection may read on.
                    self.control.look();
                }
            }
        }
    }

    fn pace(&mut self, limits: &FlowLimits) {
        // The end of the connection is noticed where its messages are received.
        while let Ok(Some((kind, body))) = self.control.receive(Duration::ZERO) {
            if limits.hear(kind, &body) != Ok(true) {
                let why = "the peer broke the protocol: it says what no session has";
                self.ended.get_or_insert_with(|| why.to_owned());
            }
        }
        if limits.version() >= Some(CONTROLS_VERSION) {
            let request = limits.request();
            tell(&self.control, &request, &self.told);
            self.told = request;
        }
        let both = limits.both();
        if both != self.held {
            self.held = both;
            self.limit(both);
        }
    }

    fn spare(&mut self, buffers: impl Iterator<Item = Vec<u8>>) {
        if let Way::Udp(udp) = &mut self.way {
            udp.link.spare(buffers);
        }
    }

    fn transmit(&mut self) -> bool {
        let Way::Udp(udp) = &mut self.way else { return false };
        let sent = |link: &Link| link.connection().map_or(0, |c| c.counters().sent_packets);
        let before = sent(&udp.link);
        udp.link.transmit();
        sent(&udp.link) > before
    }

    fn is_delivered(&self) -> bool {
        match &self.way {
            Way::Udp(udp) => udp.link.connection().is_none_or(Connection::all_delivered),
            // Its close writes what waits.
            Way::Tcp(_) => true,
        }
    }

    fn rests_for(&self) -> Option<Duration> {
        match &self.way {
            Way::Udp(udp) => {
                let wake_ns = udp.link.connection()?.wake_ns()?;
                Some(Duration::from_nanos(wake_ns.saturating_sub(now_ns())))
            }
            Way::Tcp(tcp) => {
                let left = tcp.free_from.saturating_duration_since(Instant::now());
                (!left.is_zero() && !tcp.limiter.is_paused()).then_some(left)
            }
        }
    }

    fn status(&self) -> Status {
        match &self.way {
            Way::Udp(udp) => udp.link.connection().map(status_of).unwrap_or_default(),
            Way::Tcp(_) => self.control.status(),
        }
    }

    fn clear_waker(&self) {
        self.waker.clear();
    }

    fn abort(&self) {
        self.control.abort();
    }

    fn close(mut self) {
        let delivered = |transport: &mut Self| transport.is_delivered().then_some(());
        let code = match self.until(CLOSE_TIME / 2, delivered) {
            Some(()) => codes::CLEAN,
            None => GAVE_UP,
        };
        if let Way::Udp(udp) = &mut self.way {
            udp.link.close(code, "");
        }
        let closed = |transport: &mut Self| match &transport.way {
            Way::Udp(udp) => udp.link.connection().is_none_or(Connection::is_closed).then_some(()),
            Way::Tcp(_) => Some(()),
        };
        self.until(CLOSE_TIME / 2, closed);
        self.control.close();
    }
}
