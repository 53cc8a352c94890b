//! The server's end of a probe: carries out the client's requests within its limits.
//!
//! Arrives: messages of a client that was let in. Leaves: counts, trains, one line for the log. Must not know: users,
//! keys.
//!
//! One probe at a time: two would measure one another. What is sent goes to the address that has shown the session's
//! tag in a packet; where nothing of the client's arrives, ten small packets go to the address of its TCP connection,
//! and trains only if it says that one came.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::{Mutex, MutexGuard};
use waystage_transport::clock::now_ns;
use waystage_transport::control::Control;
use waystage_transport::endpoint::{DatagramSink, Endpoint};
use waystage_transport::error::{protocol_violation, Error};
use waystage_transport::parameters::LARGEST_DATAGRAM;
use waystage_transport::socket::Arrived;
use waystage_transport::tls::{random, Connection};
use waystage_transport::wire::{Reader, Writer};

use crate::messages::{self, kinds, Token, Welcome};
use crate::packet::{Kind, Mark, Opened, Packet, HEADER_BYTES};
use crate::probe_socket::ProbeSocket;
use crate::receiver::Receiver;
use crate::stream::{Streamed, PATIENCE};
use crate::train::{send, Train, HEADERS_IPV4, HEADERS_IPV6};

/// A client that requests nothing for this time is gone.
const MOST_IDLE: Duration = Duration::from_secs(60);

/// Calls to an address from which nothing was heard, and how far apart.
const CALLS: u32 = 10;
const BETWEEN_CALLS: Duration = Duration::from_millis(20);

/// Nothing is waited for longer than this.
const MOST_WAIT: Duration = Duration::from_secs(30);

/// A rate is met within this share: intervals are whole nanoseconds.
const RATE_SLACK: f64 = 1.01;

/// The session that a server has, if it has one.
#[derive(Default)]
pub struct Probes(Mutex<Option<Arc<Running>>>);

struct Running {
    token: Token,
    /// Bytes a second.
    rate: u64,
    /// What the last stream carried, as seen here.
    streamed: Mutex<Option<Result<Streamed, Error>>>,
    /// Interrupted when something has come.
    control: Arc<Control>,
}

impl Probes {
    fn lock(&self) -> MutexGuard<'_, Option<Arc<Running>>> {
        self.0.lock()
    }
}

/// The server's only session, until it is dropped.
struct SessionGuard<'a>(&'a Probes, Arc<Running>);

impl Drop for SessionGuard<'_> {
    fn drop(&mut self) {
        *self.0.lock() = None;
    }
}

/// A client that may probe.
pub struct ProbeClient<'a> {
    /// The server's sessions.
    pub probes: &'a Probes,
    /// The TLS connection.
    pub control: &'a Arc<Control>,
    /// The server's UDP port, if it has one.
    pub endpoint: Option<&'a Endpoint>,
    /// This end of the TCP connection.
    pub local: SocketAddr,
    /// The client's end of the TCP connection.
    pub from: SocketAddr,
    /// Tags of packets from the client and from here.
    pub tags: [u64; 2],
    /// Where the client listens for UDP.
    pub port: u16,
    /// Bytes a second.
    pub rate: u64,
    /// How long the session may last.
    pub longest: Duration,
    /// Whether the server stops.
    pub stopped: &'a dyn Fn() -> bool,
}

/// Waits for the first packet of the client, at the socket of all connections.
struct AddressValidation {
    mark: Mark,
    heard: Mutex<Option<(SocketAddr, Option<IpAddr>)>>,
    control: Arc<Control>,
}

impl DatagramSink for AddressValidation {
    fn datagrams(&self, arrived: Arrived) {
        let shown = |datagram| matches!(self.mark.read(datagram), Opened::Whole(_));
        if arrived.bytes.chunks(arrived.stride).any(shown) {
            self.heard.lock().get_or_insert((arrived.from, arrived.at));
            self.control.interrupt();
        }
    }
}

/// The validation's number at the endpoint, given back when dropped.
struct Registration<'a>(&'a Endpoint, u32);

impl Drop for Registration<'_> {
    fn drop(&mut self) {
        self.0.remove(self.1);
    }
}

/// Serve one probe to its end; a line for the log.
pub fn serve(client: &ProbeClient<'_>) -> Result<String, Error> {
    let running = Arc::new(Running {
        token: random(),
        rate: client.rate,
        streamed: Mutex::default(),
        control: Arc::clone(client.control),
    });
    {
        let mut held = client.probes.lock();
        if held.is_some() {
            return Err(Error::Busy("another client probes this server, and two would measure one another: try again in a minute".into(),
            ));
        }
        *held = Some(Arc::clone(&running));
    }
    let held = SessionGuard(client.probes, running);
    let marks = client.tags.map(|tag| Mark { connection: u32::from_be_bytes(random()), tag });
    // One number for both directions: the client has its own socket and need not choose.
    let marks = [marks[0], Mark { connection: marks[0].connection, ..marks[1] }];
    let validation = Arc::new(AddressValidation {
        mark: marks[0],
        heard: Mutex::default(),
        control: Arc::clone(client.control),
    });
    let registration = client.endpoint.and_then(|endpoint| {
        let added = endpoint.add(marks[0].connection, Arc::<AddressValidation>::clone(&validation));
        added.then_some(Registration(endpoint, marks[0].connection))
    });
    let welcome = Welcome {
        connection: marks[0].connection,
        udp: registration.is_some(),
        rate: client.rate,
        seconds: u32::try_from(client.longest.as_secs()).unwrap_or(u32::MAX),
        token: held.1.token,
    };
    client.control.send(kinds::WELCOME, &welcome.encode());
    let mut session = Session {
        client,
        running: &held.1,
        marks,
        receiver: None,
        validated: false,
        began: Instant::now(),
        padding: padding(),
        sent: 0,
        received: 0,
    };
    session.turn(&validation)?;
    Ok(format!("probed: {} packets sent, {} received", session.sent, session.received))
}

/// What packets are filled with: nothing that a link could make shorter.
pub(super) fn padding() -> Vec<u8> {
    random::<LARGEST_DATAGRAM>().to_vec()
}

struct Session<'a> {
    client: &'a ProbeClient<'a>,
    running: &'a Running,
    marks: [Mark; 2],
    receiver: Option<Receiver>,
    /// Whether the peer's address was validated.
    validated: bool,
    began: Instant,
    padding: Vec<u8>,
    sent: u64,
    received: u64,
}

impl Session<'_> {
    fn over(&self) -> bool {
        let client = self.client;
        (client.stopped)() || client.control.ended() || self.began.elapsed() > client.longest
    }

    /// Why nothing more is to be done, if so.
    fn still_on(&self) -> Result<(), Error> {
        if (self.client.stopped)() {
            return Err(Error::lost("the server ends"));
        }
        if self.began.elapsed() > self.client.longest {
            return Err(Error::Denied(format!(
                "the server lets a probe last {} s: ask for less, or have `probe_s` raised there",
                self.client.longest.as_secs()
            )));
        }
        Ok(())
    }

    fn turn(&mut self, validation: &AddressValidation) -> Result<(), Error> {
        let control = self.client.control;
        let mut idle = Instant::now();
        loop {
            let left = self.client.longest.saturating_sub(self.began.elapsed());
            let idle_left = MOST_IDLE.saturating_sub(idle.elapsed());
            let message = control.receive(idle_left.min(left))?;
            self.still_on()?;
            let Some((kind, body)) = message else {
                if idle.elapsed() >= MOST_IDLE {
                    return Err(Error::lost("the client wants nothing any more"));
                }
                continue;
            };
            match kind {
                kinds::REACH => self.reach(&body, validation)?,
                kinds::CALLED => {
                    self.validated = body.first() == Some(&1);
                    if !self.validated {
                        self.receiver = None;
                    }
                }
                kinds::ARM => {
                    let (number, train) = self.allowed(&body)?;
                    self.receiver()?.arm(number, train.packets);
                    control.send(kinds::ARMED, &[]);
                }
                kinds::SENT => {
                    let (sent, quiet_ms) = messages::read_sent(&body)?;
                    let quiet = Duration::from_millis(u64::from(quiet_ms)).min(MOST_WAIT);
                    let count =
                        self.receiver()?.count(sent.packets, quiet, &|| self.over(), &|left| {
                            control.wait(left);
                        });
                    self.received += count.received + count.duplicated;
                    self.still_on()?;
                    let mut out = Writer::default();
                    count.put(&mut out);
                    control.send(kinds::COUNT, &out.0);
                }
                kinds::SEND => {
                    let (number, train) = self.allowed(&body)?;
                    let receiver = self.receiver()?;
                    let stopped = || self.over();
                    let sent = send(
                        receiver.socket(),
                        receiver.mark(),
                        number,
                        &train,
                        &self.padding,
                        &stopped,
                    );
                    self.sent += sent.packets;
                    // Half a train is no answer.
                    self.still_on()?;
                    control.send(kinds::SENT, &messages::sent(&sent, 0));
                }
                kinds::STREAM => self.streamed()?,
                kinds::BYE => return Ok(()),
                _ => return Err(protocol_violation()),
            }
            idle = Instant::now();
        }
    }

    fn receiver(&self) -> Result<&Receiver, Error> {
        self.receiver.as_ref().filter(|_| self.validated).ok_or_else(protocol_violation)
    }

    /// A train that the client may ask for.
    fn allowed(&self, body: &[u8]) -> Result<(u32, Train), Error> {
        let (number, train) = messages::read_train(body)?;
        let header_bytes =
            if self.receiver()?.socket().peer().is_ipv4() { HEADERS_IPV4 } else { HEADERS_IPV6 };
        let most = self.client.rate as f64 * 8.0;
        if train.rate_bps(header_bytes) > most * RATE_SLACK {
            return Err(Error::Denied(format!(
                "the server lets a probe use {:.1} Mbit/s: ask for less",
                most / 1e6
            )));
        }
        Ok((number, train))
    }

    /// Say whether the client was heard; call it where it was not.
    fn reach(&mut self, body: &[u8], validation: &AddressValidation) -> Result<(), Error> {
        let wait_ms = Reader(body).u32().map_err(|_| protocol_violation())?;
        let until = Instant::now() + Duration::from_millis(u64::from(wait_ms)).min(MOST_WAIT);
        let heard = loop {
            let heard = *validation.heard.lock();
            let left = until.saturating_duration_since(Instant::now());
            if heard.is_some() || left.is_zero() || self.over() {
                break heard;
            }
            self.client.control.wait(left);
        };
        if let Some((from, at)) = heard {
            self.listen(at.unwrap_or(self.client.local.ip()), from)
                .map_err(|error| Error::io("open a UDP socket for the probe", &error))?;
            self.validated = true;
            self.client.control.send(kinds::HEARD, &[1]);
            return Ok(());
        }
        let told = SocketAddr::new(self.client.from.ip(), self.client.port);
        // Where there is no way to it at all it cannot be called, and that is all there is to say.
        if self.client.endpoint.is_some() && self.listen(self.client.local.ip(), told).is_ok() {
            self.call();
        }
        self.client.control.send(kinds::HEARD, &[0]);
        Ok(())
    }

    fn listen(&mut self, at: IpAddr, peer: SocketAddr) -> std::io::Result<()> {
        let port = match self.client.endpoint {
            Some(endpoint) => endpoint.address()?.port(),
            None => return Err(std::io::ErrorKind::Unsupported.into()),
        };
        let socket = ProbeSocket::beside(SocketAddr::new(at, port), peer)?;
        self.receiver = Some(Receiver::start(Arc::new(socket), self.marks, {
            let control = Arc::clone(self.client.control);
            move || control.interrupt()
        })?);
        Ok(())
    }

    fn call(&self) {
        let Some(receiver) = &self.receiver else { return };
        for number in 0..CALLS {
            let packet = Packet {
                kind: Kind::Call,
                train: 0,
                number,
                sent_ns: now_ns(),
                asked_ns: 0,
                heard_ns: 0,
            };
            let mut out = Vec::with_capacity(HEADER_BYTES);
            receiver.mark().write(&packet, &[], &mut out);
            receiver.socket().send(&out);
            std::thread::sleep(BETWEEN_CALLS);
        }
    }

    /// Tell what the last stream carried.
    fn streamed(&self) -> Result<(), Error> {
        let until = Instant::now() + PATIENCE + MOST_WAIT;
        let streamed = loop {
            if let Some(streamed) = self.running.streamed.lock().take() {
                break streamed?;
            }
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() || self.over() {
                return Err(Error::lost("the TCP stream did not end"));
            }
            self.client.control.wait(left);
        };
        self.client.control.send(kinds::STREAMED, &streamed.encode());
        Ok(())
    }
}

/// Serve one stream of the session that its token names; a line for the log.
pub fn serve_stream(
    probes: &Probes,
    mut tls: Connection,
    stream: &std::net::TcpStream,
    stopped: &dyn Fn() -> bool,
) -> Result<String, Error> {
    let mut order = crate::stream::asked(&mut tls, stream)?;
    let running = probes.lock().clone().filter(|running| running.token == order.token);
    let running = running
        .ok_or_else(|| Error::Denied("a TCP stream belongs to no probe that is running".into()))?;
    order.rate = order.rate.min(running.rate);
    // It ends with its session.
    let stopped =
        || stopped() || !probes.lock().as_ref().is_some_and(|held| Arc::ptr_eq(held, &running));
    let streamed = crate::stream::grant(tls, stream, &order, &stopped);
    let log_line =
        streamed.as_ref().map(|streamed| format!("stream: {} bytes came", streamed.bytes));
    let log_line = log_line.map_err(Clone::clone);
    *running.streamed.lock() = Some(streamed);
    running.control.interrupt();
    log_line
}
