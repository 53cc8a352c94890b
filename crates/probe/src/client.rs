//! The client's end of a probe: connects to a server, and measures on request.
//!
//! Arrives: whom to reach; trains, echoes, streams. Leaves: what came of each. Must not know: what it means.

use std::net::TcpStream;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};
use waystage_pacing::{during, Cause, Pace};
use waystage_transport::clock::now_ns;
use waystage_transport::control::Control;
use waystage_transport::control_messages::{expect, expect_within, ANSWER_TIME};
use waystage_transport::error::{protocol_violation, Error};
use waystage_transport::handshake::connect::{connect, ConnectTarget, Connected as Arrived};
use waystage_transport::identity::{Identity, PublicKey};
use waystage_transport::message_queue::MessageQueue;
use waystage_transport::tls;
use waystage_transport::wire::{Reader, Writer};

use crate::counting::Count;
use crate::messages::{self, kinds, Hello, Welcome};
use crate::packet::{Kind, Mark, Packet};
use crate::probe_socket::ProbeSocket;
use crate::receiver::{Awaited, Echo, Receiver};
use crate::serve::padding;
use crate::stream::{self, Order, Streamed};
use crate::train::{send, Sent, Train, HEADERS_IPV4, HEADERS_IPV6};

/// Between packets that ask to be heard.
const BETWEEN_KNOCKS: Duration = Duration::from_millis(25);

/// How long the server's calls may take to arrive.
const CALL_TIME: Duration = Duration::from_millis(1500);

/// The least wait for the last answers to echoes.
const LEAST_ECHO_WAIT: Duration = Duration::from_millis(200);

/// What to do when the connection is lost.
const ADVICE: &str = "give the same command again";

/// Bytes of an echo: what a small message is.
const ECHO_PADDING: usize = 12;

/// Whom to probe.
#[derive(Debug, Clone)]
pub struct ProbeRequest {
    /// A name or an address.
    pub host: String,
    /// TCP and UDP.
    pub port: u16,
    /// As whom; empty for the user whose key it is.
    pub user: String,
    /// With which key.
    pub identity: Identity,
    /// The server's key, where it is known.
    pub trusted: Option<PublicKey>,
}

/// What gets through over UDP.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Reached {
    /// Whether the server has UDP at all.
    pub offered: bool,
    /// From here to the server.
    pub up: bool,
    /// And back.
    pub down: bool,
}

/// A session. Dropped, it ends at once; better is [`Probe::close`].
pub struct Probe {
    request: ProbeRequest,
    control: Arc<Control>,
    receiver: Receiver,
    welcome: Welcome,
    padding: Vec<u8>,
    trains: AtomicU32,
    stop: AtomicBool,
    pace: Pace,
    /// Whether it was stopped or closed.
    over: Mutex<bool>,
    ended: Condvar,
    /// A stream that is running.
    stream: Mutex<Option<TcpStream>>,
}

impl Probe {
    /// Reach the server.
    pub fn start(request: ProbeRequest) -> Result<Self, Error> {
        let Arrived { tls, stream, address, .. } = connect(&server(&request, tls::PROBE_ALPN))?;
        let tags = tls::probe_tags(&tls)
            .ok_or_else(|| Error::lost("the server's TLS gives no tags for packets"))?;
        let control =
            Arc::new(Control::start(tls, stream, Arc::new(MessageQueue::default()), ADVICE)?);
        let no_socket = |error: std::io::Error| Error::io("open a UDP socket", &error);
        let socket = ProbeSocket::to(address).map_err(no_socket)?;
        let port = socket.address().map_err(no_socket)?.port();
        let hello = Hello { user: request.user.clone(), port };
        control.send(kinds::HELLO, &hello.encode());
        let welcome = Welcome::read(&expect(&control, kinds::WELCOME)?)?;
        let [ours, theirs] = tags.map(|tag| Mark { connection: welcome.connection, tag });
        let receiver = {
            let control = Arc::clone(&control);
            let notify = move || control.interrupt();
            Receiver::start(Arc::new(socket), [theirs, ours], notify).map_err(no_socket)?
        };
        Ok(Self {
            request,
            control,
            receiver,
            welcome,
            padding: padding(),
            trains: AtomicU32::new(1),
            stop: AtomicBool::new(false),
            pace: Pace::default(),
            over: Mutex::default(),
            ended: Condvar::new(),
            stream: Mutex::default(),
        })
    }

    /// Bytes a second that the server and the control plane allow, in each direction.
    #[must_use]
    pub fn most_rate(&self) -> u64 {
        self.pace.gate.effective().map_or(self.welcome.rate, |rate| rate.min(self.welcome.rate))
    }

    /// Where the rate is limited and the probe paused: between trains, streams and echoes, since one that is
    /// interrupted measures nothing.
    #[must_use]
    pub fn pace(&self) -> &Pace {
        &self.pace
    }

    /// Wait for the end of a pause.
    fn next_measurement(&self) -> Result<(), Error> {
        // A rate bounds each train: see `most_rate`.
        let _ = self.pace.gate.pass(0);
        self.still_on()
    }

    /// How long the server lets the session last.
    #[must_use]
    pub fn longest(&self) -> Duration {
        Duration::from_secs(u64::from(self.welcome.seconds))
    }

    /// Headers of IP and UDP: what a datagram is larger by on the path.
    #[must_use]
    pub fn header_bytes(&self) -> u32 {
        if self.receiver.socket().peer().is_ipv4() {
            HEADERS_IPV4
        } else {
            HEADERS_IPV6
        }
    }

    /// Where the server is.
    #[must_use]
    pub fn server(&self) -> std::net::SocketAddr {
        self.receiver.socket().peer()
    }

    fn stopped(&self) -> bool {
        self.stop.load(Ordering::Relaxed) || self.control.ended()
    }

    fn still_on(&self) -> Result<(), Error> {
        if self.stop.load(Ordering::Relaxed) {
            return Err(Error::Stopped("the probe was stopped".into()));
        }
        Ok(())
    }

    /// Find out whether packets get through, waiting for at most `wait` in each direction.
    pub fn reach(&self, wait: Duration) -> Result<Reached, Error> {
        self.next_measurement()?;
        if !self.welcome.udp {
            return Ok(Reached { offered: false, up: false, down: false });
        }
        let mut out = Writer::default();
        out.u32(u32::try_from(wait.as_millis()).unwrap_or(u32::MAX));
        self.control.send(kinds::REACH, &out.0);
        let mut number = 0;
        let (began, mut heard) = (Instant::now(), None);
        let answered = || self.receiver.whole() > 0;
        while heard.is_none() || (heard == Some(true) && !answered() && began.elapsed() < wait) {
            self.still_on()?;
            if began.elapsed() > wait + ANSWER_TIME {
                return Err(Error::lost("the server does not answer"));
            }
            self.echo(number);
            number += 1;
            if heard.is_some() {
                std::thread::sleep(BETWEEN_KNOCKS);
                continue;
            }
            match expect_within(&self.control, kinds::HEARD, BETWEEN_KNOCKS) {
                Ok(body) => heard = Some(body.first() == Some(&1)),
                Err(error) if self.control.ended() || error != no_answer() => return Err(error),
                Err(_) => {}
            }
        }
        let up = heard == Some(true);
        if !up {
            let until = Instant::now() + CALL_TIME;
            while !self.receiver.expect(Awaited::Packet) && Instant::now() < until {
                self.still_on()?;
                self.control.wait(until.saturating_duration_since(Instant::now()));
            }
            self.control.send(kinds::CALLED, &[u8::from(answered())]);
        }
        self.receiver.echoes();
        Ok(Reached { offered: true, up, down: answered() })
    }

    fn echo(&self, number: u32) {
        let packet = Packet {
            kind: Kind::Echo,
            train: 0,
            number,
            sent_ns: now_ns(),
            asked_ns: 0,
            heard_ns: 0,
        };
        let mut out = Vec::new();
        self.receiver.mark().write(&packet, &self.padding[..ECHO_PADDING], &mut out);
        self.receiver.socket().send(&out);
    }

    /// Small packets there and back, `interval` apart on average and unevenly, so that nothing periodic is met in step
    /// (RFC 2330,
    /// section 11.1); what was answered within `wait` of the last.
    pub fn echoes(
        &self,
        count: u32,
        interval: Duration,
        wait: Duration,
    ) -> Result<Vec<Echo>, Error> {
        self.next_measurement()?;
        self.receiver.echoes();
        let mut due = Instant::now();
        for number in 0..count {
            if !self.pace.gate.pass(0).unwrap_or_default().is_zero() {
                due = Instant::now();
            }
            while Instant::now() < due {
                self.still_on()?;
                let left = due.saturating_duration_since(Instant::now());
                // Long pauses are cut into pieces of this, so that a stop need not wait for the next echo.
                std::thread::sleep(left.min(Duration::from_millis(50)));
            }
            self.echo(number);
            let share: [u8; 2] = waystage_transport::tls::random();
            // From half to one and a half of it.
            due += interval.mul_f64(0.5 + f64::from(u16::from_be_bytes(share)) / 65_536.0);
        }
        let (until, mut found) = (Instant::now() + wait, self.receiver.echoes());
        let mut last = Instant::now();
        while found.len() < count as usize {
            self.still_on()?;
            // What takes several times as long as the longest so far does not come.
            let longest = found.iter().map(|echo: &Echo| echo.round_trip_ns).max();
            let patience = LEAST_ECHO_WAIT + Duration::from_nanos(4 * longest.unwrap_or(0));
            let end = if longest.is_some() { until.min(last + patience) } else { until };
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() {
                break;
            }
            if !self.receiver.expect(Awaited::Answer) {
                self.control.wait(left);
            }
            let more = self.receiver.echoes();
            if !more.is_empty() {
                last = Instant::now();
            }
            found.extend(more);
        }
        if self.control.ended() {
            self.control.receive(Duration::ZERO)?;
        }
        // An answer that came twice is one, the first.
        found.sort_by_key(|echo| (echo.number, echo.round_trip_ns));
        found.dedup_by_key(|echo| echo.number);
        Ok(found)
    }

    /// A train from here to the server (`up`) or back: how it left, and what came, once nothing has come for `quiet`.
    pub fn train(&self, up: bool, train: Train, quiet: Duration) -> Result<(Sent, Count), Error> {
        if !train.is_possible() {
            return Err(Error::input(format!(
                "no train has {} packets of {} bytes, {} ns apart",
                train.packets, train.bytes, train.interval_ns
            )));
        }
        self.next_measurement()?;
        let rate_bytes_per_s = u64::from(train.bytes) * 1_000_000_000 / train.interval_ns.max(1);
        if self.pace.gate.effective().is_some_and(|most| rate_bytes_per_s > most) {
            return Err(Error::input(format!(
                "a train of {rate_bytes_per_s} bytes/s is above the rate that is granted to the probe: choose a slower one"
            )));
        }
        let number = self.trains.fetch_add(1, Ordering::Relaxed);
        let asked = messages::train(number, &train);
        let quiet_ms = u32::try_from(quiet.as_millis()).unwrap_or(u32::MAX);
        let (socket, mark) = (self.receiver.socket(), self.receiver.mark());
        let stopped = || self.stopped();
        let _counted = self.pace.meter.attach();
        let patience = ANSWER_TIME + 2 * train.duration();
        let found = if up {
            self.control.send(kinds::ARM, &asked);
            expect(&self.control, kinds::ARMED)?;
            // It leaves at the chosen rate, also where the path carries less.
            let sent =
                during(Cause::Rate, || send(socket, mark, number, &train, &self.padding, &stopped));
            self.still_on()?;
            self.control.send(kinds::SENT, &messages::sent(&sent, quiet_ms));
            let body = during(Cause::Network, || {
                expect_within(&self.control, kinds::COUNT, patience + quiet)
            })?;
            (sent, Count::read(&mut Reader(&body)).map_err(|_| protocol_violation())?)
        } else {
            self.receiver.arm(number, train.packets);
            self.control.send(kinds::SEND, &asked);
            let body = during(Cause::Rate, || expect_within(&self.control, kinds::SENT, patience))?;
            let (sent, _) = messages::read_sent(&body)?;
            let come = || {
                self.receiver.count(sent.packets, quiet, &stopped, &|left| self.control.wait(left))
            };
            (sent, during(Cause::Network, come))
        };
        self.pace.moved(u64::from(train.packets) * u64::from(train.bytes));
        self.still_on()?;
        Ok(found)
    }

    /// One TCP connection from here to the server (`up`) or back, for `duration`.
    pub fn stream(&self, up: bool, duration: Duration) -> Result<Streamed, Error> {
        self.next_measurement()?;
        let Arrived { tls, stream, .. } = connect(&server(&self.request, tls::STREAM_ALPN))?;
        let failed = |error: std::io::Error| Error::io("measure a TCP stream", &error);
        let lock = || self.stream.lock();
        *lock() = Some(stream.try_clone().map_err(failed)?);
        self.still_on()?;
        let order = Order { token: self.welcome.token, up, duration, rate: self.most_rate() };
        let _counted = self.pace.meter.attach();
        let ours = during(Cause::Network, || stream::ask(tls, &stream, &order, &|| self.stopped()));
        *lock() = None;
        let ours = ours?;
        drop(stream);
        self.control.send(kinds::STREAM, &[]);
        let theirs = Streamed::read(&expect(&self.control, kinds::STREAMED)?)?;
        self.pace.moved(ours.bytes.max(theirs.bytes));
        Ok(if up { Streamed::joined(&theirs, &ours) } else { Streamed::joined(&ours, &theirs) })
    }

    /// A measurement in progress ends, with an error.
    pub fn stop(&self) {
        self.stop.store(true, Ordering::SeqCst);
        self.pace.gate.set_stopped(true);
        self.control.send(kinds::BYE, &[]);
        if let Some(stream) = &*self.stream.lock() {
            let _ = stream.shutdown(std::net::Shutdown::Both);
        }
        self.control.close();
        self.is_over();
    }

    /// Say goodbye.
    pub fn close(&self) {
        self.control.send(kinds::BYE, &[]);
        self.control.close();
        self.is_over();
    }

    fn is_over(&self) {
        *self.over.lock() = true;
        self.ended.notify_all();
    }

    /// Whether it was stopped or closed, after waiting for that for at most `timeout`.
    #[must_use]
    pub fn wait(&self, timeout: Duration) -> bool {
        let mut over = self.over.lock();
        self.ended.wait_while_for(&mut over, |over| !*over, timeout);
        *over
    }
}

fn server<'a>(request: &'a ProbeRequest, alpn: &'a [u8]) -> ConnectTarget<'a> {
    ConnectTarget {
        host: &request.host,
        port: request.port,
        identity: &request.identity,
        trusted: request.trusted.as_ref(),
        alpn,
    }
}

/// What [`expect_within`] says where its time is over.
fn no_answer() -> Error {
    Error::lost("the peer does not answer")
}
