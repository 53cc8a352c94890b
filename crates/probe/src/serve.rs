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

use parking_lot::Mutex;
use waystage_transport::clock::now_ns;
use waystage_transport::control::Control;
use waystage_transport::endpoint::{DatagramSink, Endpoint};
use waystage_transport::error::{protocol_violation, Error};
use waystage_transport::parameters::LARGEST_DATAGRAM;
use waystage_transport::socket::Arrived;
use waystage_transport::tls::{random, Connection};
use waystage_transport::wire::Writer;

use crate::messages::{self, kinds, Welcome};
use crate::packet::{Kind, Mark, Opened, Packet, HEADER_BYTES};
use crate::probe_socket::ProbeSocket;
use crate::probes::{Probes, Running};
use crate::receiver::Receiver;
use crate::server_session::{Order, ServerSession, MOST_WAIT};
use crate::stream::PATIENCE;
use crate::train::send;

/// Calls to an address from which nothing was heard, and how far apart.
const CALLS: u32 = 10;
const BETWEEN_CALLS: Duration = Duration::from_millis(20);

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
    let waking = Arc::clone(client.control);
    let held = client.probes.begin(random(), client.rate, move || waking.interrupt())?;
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
        token: held.running.token,
    };
    client.control.send(kinds::WELCOME, &welcome.encode());
    let mut session = Session {
        client,
        running: &held.running,
        marks,
        receiver: None,
        state: ServerSession::new(client.rate, client.longest, Instant::now()),
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
    state: ServerSession,
    padding: Vec<u8>,
    sent: u64,
    received: u64,
}

impl Session<'_> {
    fn over(&self) -> bool {
        let client = self.client;
        (client.stopped)() || client.control.ended() || self.state.is_over(Instant::now())
    }

    /// Why nothing more is to be done, if so.
    fn still_on(&self) -> Result<(), Error> {
        if (self.client.stopped)() {
            return Err(Error::lost("the server ends"));
        }
        self.state.still_on(Instant::now())
    }

    fn turn(&mut self, validation: &AddressValidation) -> Result<(), Error> {
        loop {
            let message = self.client.control.receive(self.state.patience(Instant::now()))?;
            self.still_on()?;
            let Some((kind, body)) = message else {
                self.state.silent(Instant::now())?;
                continue;
            };
            let order = self.state.receive(kind, &body)?;
            if order == Order::End {
                return Ok(());
            }
            self.carry_out(order, validation)?;
            self.state.done(Instant::now());
        }
    }

    fn carry_out(&mut self, order: Order, validation: &AddressValidation) -> Result<(), Error> {
        let control = self.client.control;
        match order {
            Order::Reach(wait) => self.reach(wait, validation)?,
            Order::Forget => self.receiver = None,
            Order::Arm(number, packets) => {
                self.receiver()?.arm(number, packets);
                control.send(kinds::ARMED, &[]);
            }
            Order::Count(sent, quiet) => {
                let count = self.receiver()?.count(sent, quiet, &|| self.over(), &|left| {
                    control.wait(left);
                });
                self.received += count.received + count.duplicated;
                self.still_on()?;
                let mut out = Writer::default();
                count.put(&mut out);
                control.send(kinds::COUNT, &out.0);
            }
            Order::Send(number, train) => {
                let receiver = self.receiver()?;
                let (socket, mark) = (receiver.socket(), receiver.mark());
                let sent = send(socket, mark, number, &train, &self.padding, &|| self.over());
                self.sent += sent.packets;
                // Half a train is no answer.
                self.still_on()?;
                control.send(kinds::SENT, &messages::sent(&sent, 0));
            }
            Order::Stream => self.streamed()?,
            Order::Go | Order::End => {}
        }
        Ok(())
    }

    fn receiver(&self) -> Result<&Receiver, Error> {
        self.receiver.as_ref().ok_or_else(protocol_violation)
    }

    /// Say whether the client was heard; call it where it was not.
    fn reach(&mut self, wait: Duration, validation: &AddressValidation) -> Result<(), Error> {
        let until = Instant::now() + wait;
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
            self.state.listens(from.ip(), true);
            self.client.control.send(kinds::HEARD, &[1]);
            return Ok(());
        }
        let mut told = self.client.from;
        told.set_port(self.client.port);
        // Where there is no way to it at all it cannot be called, and that is all there is to say.
        if self.client.endpoint.is_some() && self.listen(self.client.local.ip(), told).is_ok() {
            self.state.listens(told.ip(), false);
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
            if let Some(streamed) = self.running.take() {
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
    let running = probes.find(&order.token)?;
    order.rate = order.rate.min(running.rate);
    // It ends with its session.
    let stopped = || stopped() || !probes.has(&running);
    let streamed = crate::stream::grant(tls, stream, &order, &stopped);
    let log_line =
        streamed.as_ref().map(|streamed| format!("stream: {} bytes came", streamed.bytes));
    let log_line = log_line.map_err(Clone::clone);
    running.ended(streamed);
    log_line
}
