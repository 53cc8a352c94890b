//! The server's end of a probe: does what the client asks, within what it may.
//!
//! Arrives: messages of a client that was let in. Leaves: counts, trains, one line for the log. Must not know: users, keys.
//!
//! One probe at a time: two would measure one another. What is sent goes to the address that has shown the session's tag in a packet; where
//! nothing of the client's arrives, ten small packets go to the address of its TCP connection, and trains only if it says that one came.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex, MutexGuard};
use waystage_transport::clock::now_ns;
use waystage_transport::control::Control;
use waystage_transport::endpoint::{DatagramSink, Endpoint};
use waystage_transport::error::{protocol_violation, Error};
use waystage_transport::parameters::LARGEST_DATAGRAM;
use waystage_transport::socket::Arrived;
use waystage_transport::tls::random;
use waystage_transport::wire::{Reader, Writer};

use super::ear::Ear;
use super::line::Line;
use super::packet::{Kind, Mark, Opened, Packet, HEADER_BYTES};
use super::stream::{Streamed, PATIENCE};
use super::train::{send, Train, UNSEEN_IPV4, UNSEEN_IPV6};
use super::words::{self, kinds, Hello, Token, Welcome};

/// The client is asked for its next wish this often whether the session is to end.
const LOOK_ROUND: Duration = Duration::from_millis(100);

/// A client that wants nothing for so long is gone.
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
    changed: Condvar,
}

impl Probes {
    fn lock(&self) -> MutexGuard<'_, Option<Arc<Running>>> {
        self.0.lock()
    }
}

/// The server's only session, until it is dropped.
struct Held<'a>(&'a Probes, Arc<Running>);

impl Drop for Held<'_> {
    fn drop(&mut self) {
        *self.0.lock() = None;
    }
}

/// A client that may probe.
pub struct Guest<'a> {
    /// The server's sessions.
    pub probes: &'a Probes,
    /// The TLS connection.
    pub control: &'a Control,
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

/// What the client is called, from its first words.
pub fn hello(body: &[u8]) -> Result<(String, u16), Error> {
    Hello::read(body).map(|hello| (hello.user, hello.port))
}

/// Waits for the first packet of the client, at the socket of all connections.
struct Door {
    mark: Mark,
    heard: Mutex<Option<(SocketAddr, Option<IpAddr>)>>,
    changed: Condvar,
}

impl DatagramSink for Door {
    fn datagrams(&self, arrived: Arrived) {
        let shown = |datagram| matches!(self.mark.read(datagram), Opened::Whole(_));
        if arrived.bytes.chunks(arrived.stride).any(shown) {
            let mut heard = self.heard.lock();
            heard.get_or_insert((arrived.from, arrived.at));
            self.changed.notify_all();
        }
    }
}

/// The door's number at the endpoint, given back in the end.
struct Listed<'a>(&'a Endpoint, u32);

impl Drop for Listed<'_> {
    fn drop(&mut self) {
        self.0.remove(self.1);
    }
}

/// Serve one probe to its end; a line for the log.
pub fn serve(guest: &Guest<'_>) -> Result<String, Error> {
    let running = Arc::new(Running {
        token: random(),
        rate: guest.rate,
        streamed: Mutex::default(),
        changed: Condvar::new(),
    });
    {
        let mut held = guest.probes.lock();
        if held.is_some() {
            return Err(Error::Busy("somebody else probes this server, and two would measure one another: try again in a minute".into(),
            ));
        }
        *held = Some(Arc::clone(&running));
    }
    let held = Held(guest.probes, running);
    let marks = guest.tags.map(|tag| Mark { connection: u32::from_be_bytes(random()), tag });
    // One number for both directions: the client has a socket of its own and need not choose.
    let marks = [marks[0], Mark { connection: marks[0].connection, ..marks[1] }];
    let door = Arc::new(Door { mark: marks[0], heard: Mutex::default(), changed: Condvar::new() });
    let listed = guest.endpoint.and_then(|endpoint| {
        let added = endpoint.add(marks[0].connection, Arc::<Door>::clone(&door));
        added.then_some(Listed(endpoint, marks[0].connection))
    });
    let welcome = Welcome {
        connection: marks[0].connection,
        udp: listed.is_some(),
        rate: guest.rate,
        seconds: u32::try_from(guest.longest.as_secs()).unwrap_or(u32::MAX),
        token: held.1.token,
    };
    guest.control.send(kinds::WELCOME, &welcome.encode());
    let mut session = Session {
        guest,
        running: &held.1,
        marks,
        ear: None,
        proved: false,
        began: Instant::now(),
        armed: 0,
        filling: filling(),
        sent: 0,
        received: 0,
    };
    session.turn(&door)?;
    Ok(format!("probed: {} packets sent, {} received", session.sent, session.received))
}

/// What packets are filled with: nothing that a link could make shorter.
pub(super) fn filling() -> Vec<u8> {
    random::<LARGEST_DATAGRAM>().to_vec()
}

struct Session<'a> {
    guest: &'a Guest<'a>,
    running: &'a Running,
    marks: [Mark; 2],
    ear: Option<Ear>,
    /// Whether whoever is at the line's other end has shown that it wants to be sent to.
    proved: bool,
    began: Instant,
    armed: u32,
    filling: Vec<u8>,
    sent: u64,
    received: u64,
}

impl Session<'_> {
    fn over(&self) -> bool {
        let guest = self.guest;
        (guest.stopped)() || guest.control.ended() || self.began.elapsed() > guest.longest
    }

    /// Why nothing more is to be done, if so.
    fn still_on(&self) -> Result<(), Error> {
        if (self.guest.stopped)() {
            return Err(Error::lost("the server ends"));
        }
        if self.began.elapsed() > self.guest.longest {
            return Err(Error::Denied(format!(
                "the server lets a probe last {} s: ask for less, or have `probe_s` raised there",
                self.guest.longest.as_secs()
            )));
        }
        Ok(())
    }

    fn turn(&mut self, door: &Door) -> Result<(), Error> {
        let control = self.guest.control;
        let mut idle = Instant::now();
        loop {
            let message = control.receive(LOOK_ROUND)?;
            self.still_on()?;
            let Some((kind, body)) = message else {
                if idle.elapsed() > MOST_IDLE {
                    return Err(Error::lost("the client wants nothing any more"));
                }
                continue;
            };
            match kind {
                kinds::REACH => self.reach(&body, door)?,
                kinds::CALLED => {
                    self.proved = body.first() == Some(&1);
                    if !self.proved {
                        self.ear = None;
                    }
                }
                kinds::ARM => {
                    let (number, train) = self.allowed(&body)?;
                    self.ear()?.arm(number, train.packets);
                    self.armed = number;
                    control.send(kinds::ARMED, &[]);
                }
                kinds::SENT => {
                    let (sent, quiet_ms) = words::read_sent(&body)?;
                    let quiet = Duration::from_millis(u64::from(quiet_ms)).min(MOST_WAIT);
                    let count = self.ear()?.count(sent.packets, quiet, &|| self.over());
                    self.received += count.received + count.duplicated;
                    self.still_on()?;
                    let mut out = Writer::default();
                    count.put(&mut out);
                    control.send(kinds::COUNT, &out.0);
                }
                kinds::SEND => {
                    let (number, train) = self.allowed(&body)?;
                    let ear = self.ear()?;
                    let stopped = || self.over();
                    let sent =
                        send(ear.line(), ear.mark(), number, &train, &self.filling, &stopped);
                    self.sent += sent.packets;
                    // Half a train is no answer.
                    self.still_on()?;
                    control.send(kinds::SENT, &words::sent(&sent, 0));
                }
                kinds::STREAM => self.streamed()?,
                kinds::BYE => return Ok(()),
                _ => return Err(protocol_violation()),
            }
            idle = Instant::now();
        }
    }

    fn ear(&self) -> Result<&Ear, Error> {
        self.ear.as_ref().filter(|_| self.proved).ok_or_else(protocol_violation)
    }

    /// A train that the client may ask for.
    fn allowed(&self, body: &[u8]) -> Result<(u32, Train), Error> {
        let (number, train) = words::read_train(body)?;
        let unseen = if self.ear()?.line().peer().is_ipv4() { UNSEEN_IPV4 } else { UNSEEN_IPV6 };
        let most = self.guest.rate as f64 * 8.0;
        if train.rate_bps(unseen) > most * RATE_SLACK {
            return Err(Error::Denied(format!(
                "the server lets a probe use {:.1} Mbit/s: ask for less",
                most / 1e6
            )));
        }
        Ok((number, train))
    }

    /// Say whether the client was heard; call it where it was not.
    fn reach(&mut self, body: &[u8], door: &Door) -> Result<(), Error> {
        let wait_ms = Reader(body).u32().map_err(|_| protocol_violation())?;
        let until = Instant::now() + Duration::from_millis(u64::from(wait_ms)).min(MOST_WAIT);
        let heard = loop {
            let mut held = door.heard.lock();
            door.changed.wait_while_for(&mut held, |heard| heard.is_none(), LOOK_ROUND);
            let heard = *held;
            if heard.is_some() || Instant::now() >= until || self.over() {
                break heard;
            }
        };
        if let Some((from, at)) = heard {
            self.listen(at.unwrap_or(self.guest.local.ip()), from)
                .map_err(|error| Error::io("open a UDP socket for the probe", &error))?;
            self.proved = true;
            self.guest.control.send(kinds::HEARD, &[1]);
            return Ok(());
        }
        let told = SocketAddr::new(self.guest.from.ip(), self.guest.port);
        // Where there is no way to it at all it cannot be called, and that is all there is to say.
        if self.guest.endpoint.is_some() && self.listen(self.guest.local.ip(), told).is_ok() {
            self.call();
        }
        self.guest.control.send(kinds::HEARD, &[0]);
        Ok(())
    }

    fn listen(&mut self, at: IpAddr, peer: SocketAddr) -> std::io::Result<()> {
        let port = match self.guest.endpoint {
            Some(endpoint) => endpoint.address()?.port(),
            None => return Err(std::io::ErrorKind::Unsupported.into()),
        };
        let line = Line::beside(SocketAddr::new(at, port), peer)?;
        self.ear = Some(Ear::start(Arc::new(line), self.marks)?);
        Ok(())
    }

    fn call(&self) {
        let Some(ear) = &self.ear else { return };
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
            ear.mark().write(&packet, &[], &mut out);
            ear.line().send(&out);
            std::thread::sleep(BETWEEN_CALLS);
        }
    }

    /// Tell what the last stream carried.
    fn streamed(&self) -> Result<(), Error> {
        let until = Instant::now() + PATIENCE + MOST_WAIT;
        let mut held = self.running.streamed.lock();
        while held.is_none() && Instant::now() < until && !self.over() {
            self.running.changed.wait_for(&mut held, LOOK_ROUND);
        }
        let streamed = held.take().ok_or_else(|| Error::lost("the TCP stream did not end"))??;
        self.guest.control.send(kinds::STREAMED, &streamed.encode());
        Ok(())
    }
}

/// Serve one stream of the session that its token names; a line for the log.
pub fn serve_stream(
    probes: &Probes,
    mut tls: rustls::Connection,
    stream: &std::net::TcpStream,
    stopped: &dyn Fn() -> bool,
) -> Result<String, Error> {
    let mut order = super::stream::asked(&mut tls, stream)?;
    let running = probes.lock().clone().filter(|running| running.token == order.token);
    let running = running
        .ok_or_else(|| Error::Denied("a TCP stream belongs to no probe that is running".into()))?;
    order.rate = order.rate.min(running.rate);
    // It ends with its session.
    let stopped =
        || stopped() || !probes.lock().as_ref().is_some_and(|held| Arc::ptr_eq(held, &running));
    let streamed = super::stream::grant(tls, stream, &order, &stopped);
    let line = streamed.as_ref().map(|streamed| format!("stream: {} bytes came", streamed.bytes));
    let line = line.map_err(Clone::clone);
    *running.streamed.lock() = Some(streamed);
    running.changed.notify_all();
    line
}
